"""The page of `probe report`: one HTML file that opens offline and asks no server for anything."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from probe.report.format import (
    Footnotes,
    counted,
    grid_text,
    in_null_band,
    number,
    plain,
    span,
)
from probe.report.interface import HEAD, WORDS, interface_notes, interface_rows
from probe.report.web.charts import chart_data
from probe.report.web.maps import packed_maps
from probe.report.web.table import breakable, corruption_labels, model_table
from probe.report.web.text import facts, hardware_rows, shared_facts, statistics_rows

FOLDER = Path(__file__).parent
LIBRARY = "vendor/chart.umd.min.js"
SCRIPTS = ("base", "table", "plot", "curves", "scatter", "maps", "start")
SHOWN_SKIPPED = 50  # images listed per model


def page(report: Mapping[str, Any], hardware: Mapping[str, Any] | None = None) -> str:
    """The content of `index.html`, from the content of `report.json`.

    Charts, style and similarity maps are inside, and the page's own policy forbids every request.
    Measured speed and memory are shown only where `hardware`, the content of `hardware.json`, is
    given. Equal arguments give equal text. Above a budget, similarity maps lose precision, then
    layers, and the page says so.

    Raises:
        StoreError: a similarity map does not have its grid's size.
        ValueError: a number is NaN or infinite; undefined numbers are null with a reason.
    """
    maps, blob = packed_maps(report["models"])
    payload = chart_data(report) | {"maps": maps}
    script = "\n".join(_read(f"{name}.js") for name in SCRIPTS)
    library = _without_source_map(_read(LIBRARY))
    style = _read("style.css")
    policy = "; ".join(
        [
            "default-src 'none'",
            f"script-src {_hash(library)} {_hash(script)}",
            f"style-src {_hash(style)}",
            "img-src data:",
            "base-uri 'none'",
            "form-action 'none'",
        ]
    )
    return (
        _environment()
        .get_template("page.html")
        .render(
            report=report,
            labels=corruption_labels(report["models"]),
            table=model_table(report),
            statistics=statistics_rows(report),
            hardware=hardware_rows(report, hardware),
            interface=interface_rows(report),
            interface_head=HEAD,
            interface_notes=interface_notes(report),
            interface_words=WORDS,
            machine=None if hardware is None else hardware["machine"],
            maps=maps,
            policy=policy,
            data=Markup(_embedded(payload)),
            blob=Markup(blob),
            library=Markup(library),
            script=Markup(script),
            style=Markup(style),
        )
    )


def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(FOLDER),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_printable,
    )
    environment.filters |= {
        "band": _band,
        "breakable": breakable,
        "counted": counted,
        "facts": facts,
        "grid": grid_text,
        "number": number,
        "lines": lambda text: Markup("\n").join(plain(line) for line in text.splitlines()),
    }
    environment.tests["inside"] = in_null_band
    environment.globals |= {
        "footnotes": Footnotes,
        "shared_facts": shared_facts,
        "shown_skipped": SHOWN_SKIPPED,
    }
    return environment


def _printable(value: Any) -> Any:
    """Text as it can be shown, where a template writes it; control characters as escapes."""
    return plain(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _band(point: Mapping[str, Any]) -> str:
    """The null band of one layer's SSDC, or nothing where there is none."""
    bounds = (point["null_low"], point["null_high"])
    return "" if None in bounds else span(*bounds)


def _embedded(payload: Mapping[str, Any]) -> str:
    """JSON that no text inside can end early: `<` is escaped."""
    text = json.dumps(payload, allow_nan=False, sort_keys=True, separators=(",", ":"))
    return text.replace("<", "\\u003c")


def _hash(text: str) -> str:
    """A source of the page's policy: this text alone may run, or style."""
    digest = base64.b64encode(hashlib.sha256(text.encode("utf-8")).digest()).decode("ascii")
    return f"'sha256-{digest}'"


def _read(name: str) -> str:
    return (FOLDER / name).read_text(encoding="utf-8")


def _without_source_map(text: str) -> str:
    return text.partition("\n//# sourceMappingURL=")[0]
