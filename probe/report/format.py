"""How numbers, grids, settings and reasons are written: shared by screen, figures and tables.

`result` is one entry of the JSON output's `results`, `scalar` any of its
{"value", "low", "high", "reason"} objects; both are documented in the README.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

DASH = "\N{EM DASH}"
_DRAW = re.compile(r"rpi\(mode=(\w+),seed=\d+,draw=\d+\)")
_ALPHA = re.compile(r"\+alpha=[^+]+")


def plain(text: str) -> str:
    """`text` with control characters and lone surrogates written as escapes.

    Paths may hold both; a terminal would obey the first, XML and UTF-8 can hold neither.
    """
    return "".join(
        c if c.isprintable() else c.encode("unicode_escape", "backslashreplace").decode("ascii")
        for c in text
    )


def one_line(text: str) -> str:
    """`text` on one line, safe to print."""
    return plain(" ".join(text.split()))


def number(value: float) -> str:
    """Three decimals without the zero before the point: `.612`, `-.041`, `1.077`."""
    text = f"{value:.3f}"
    if float(text) == 0:
        return ".000"
    return text.replace("0.", ".", 1) if text.startswith(("0.", "-0.")) else text


def span(low: float, high: float) -> str:
    """Two bounds: `[.598, .626]`."""
    return f"[{number(low)}, {number(high)}]"


def p_text(p: float) -> str:
    """A p-value to three decimals, never rounded to zero."""
    return number(p) if p >= 0.0005 else "<.001"


def counted(count: int, noun: str, plural: str | None = None) -> str:
    """`1 image`, `48 images`."""
    return f"{count} {noun if count == 1 else plural or f'{noun}s'}"


def grid_text(grid: Sequence[int]) -> str:
    """Rows by columns: `14x14`."""
    return f"{grid[0]}x{grid[1]}"


def grids_of(result: Mapping[str, Any]) -> list[str]:
    """The model's distinct grids, in order of execution."""
    return list(dict.fromkeys(grid_text(layer["grid"]) for layer in result["layers"]))


def in_null_band(point: Mapping[str, Any]) -> bool:
    """Whether a defined value lies inside its own null band."""
    bounds = (point["null_low"], point["value"], point["null_high"])
    return None not in bounds and bounds[0] <= bounds[1] <= bounds[2]


def undefined(scalars: Sequence[Mapping[str, Any]]) -> bool:
    """Whether all are undefined, for one and the same reason."""
    reasons = {scalar["reason"] for scalar in scalars}
    return len(reasons) == 1 and all(scalar["value"] is None for scalar in scalars)


class Footnotes:
    """Numbers the reasons of undefined values, each once, in order of appearance."""

    def __init__(self) -> None:
        """Start without any."""
        self._reasons: list[str] = []

    def mark(self, reason: str | None) -> str:
        """The mark that stands for a reason: `(1)`."""
        text = one_line(reason or "undefined")
        if text not in self._reasons:
            self._reasons.append(text)
        return f"({self._reasons.index(text) + 1})"

    def lines(self) -> list[str]:
        """One line per reason."""
        return [f"({i}) {reason}" for i, reason in enumerate(self._reasons, 1)]

    def dash(self, scalar: Mapping[str, Any]) -> str:
        """A dash with the mark of the scalar's reason."""
        return f"{DASH} {self.mark(scalar.get('reason'))}"

    def value(self, scalar: Mapping[str, Any]) -> str:
        """The number alone, or a dash with its mark."""
        return self.dash(scalar) if scalar["value"] is None else number(scalar["value"])

    def with_interval(self, scalar: Mapping[str, Any], between: str = " ") -> str:
        """Number and interval, `.612 [.598, .626]`; a mark in place of what is undefined."""
        text = self.value(scalar)
        if scalar["value"] is None:
            return text
        if scalar["low"] is None or scalar["high"] is None:
            return f"{text} {self.mark(scalar.get('reason') or 'no interval')}"
        return f"{text}{between}{span(scalar['low'], scalar['high'])}"


def identity_text(result: Mapping[str, Any]) -> str:
    """The resolved id, and that the weights are random where they are."""
    weights = str(result["settings"].get("weights", ""))
    random = f" ({weights} weights)" if weights.startswith("random:") else ""
    return plain(result["resolved"]) + random


def label_lines(result: Mapping[str, Any]) -> tuple[str, str]:
    """The model as the user named it, and its resolved id unless that says the same."""
    name, identity = plain(result["model"]), identity_text(result)
    return name, "" if identity == name else identity


def rpi_text(conditions: Sequence[str]) -> str:
    """The RPI mode and number of draws, from the conditions' canonical texts.

    Alpha is named where it is one, and left to the table where draws were made at several.
    """
    if not conditions:
        return "off"
    several = len({"".join(_ALPHA.findall(condition)) for condition in conditions}) > 1
    draws = dict.fromkeys(_ALPHA.sub("", c) if several else c for c in conditions)
    kinds = dict.fromkeys(_DRAW.sub(r"\1", draw) for draw in draws)
    return plain(f"{' '.join(kinds)}, {counted(len(draws), 'draw')}")


def labels_text(result: Mapping[str, Any]) -> str:
    """How the images' labels were told and mapped: kind, number of classes, the mapping's note."""
    labels = result["labels"]
    if labels is None:
        return "none"
    parts = [labels["kind"]]
    if labels["map"]:
        parts.append(f"{counted(len(set(labels['map'].values())), 'class', 'classes')} mapped")
    if labels["by_name"] is not None:
        parts.append(f"by image name (sha256 {labels['by_name'][:12]})")
    return one_line("; ".join([", ".join(parts), labels["note"]]))


def facts(result: Mapping[str, Any]) -> dict[str, str]:
    """What a number is traced by: label -> text, for screens and figures.

    What bears on SSDC alone is there where passes under RPI were planned or turned off, not where
    the command knows none.
    """
    settings = result["settings"]
    data = settings["data"]
    found = {
        "data": f"{data['name']} (fingerprint {str(data['fingerprint'])[:12]})",
        "images": str(result["images"]),
    }
    if "rpi" in settings:
        found |= {label: settings[label] for label in ("site", "distance", "average")}
    found["seed"] = str(settings["seed"])
    if "rpi" in settings:
        found["RPI"] = rpi_text(settings["rpi"])
    found |= {
        "precision": f"{settings['dtype']} on {settings['device']}",
        "image size": grid_text(settings["image_size"]),
    }
    if "preprocess" in settings:
        found["preprocessing"] = settings["preprocess"]["source"]
    if "versions" in settings:
        found["probe"] = settings["versions"]["probe"]
    return {label: plain(text) for label, text in found.items()}


def shared_facts(results: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[str]]:
    """The facts of several models: those they share, then those that differ and for whom."""
    tables = [facts(result) for result in results]
    shared, differing = [], []
    for label in dict.fromkeys(label for table in tables for label in table):
        owners: dict[str, list[str]] = {}
        for table, result in zip(tables, results, strict=True):
            owners.setdefault(table.get(label, "unknown"), []).append(plain(result["model"]))
        if len(owners) == 1:
            shared.append(f"{label} {next(iter(owners))}")
        else:
            rest = max(owners, key=lambda text: len(owners[text]))
            listed = [f"{text}: {', '.join(owners[text])}" for text in owners if text != rest]
            count = len(owners[rest])
            others = f"the other {count}" if count > 1 else owners[rest][0]
            differing.append(f"{label} differs: {'; '.join([*listed, f'{rest}: {others}'])}")
    return shared, differing


def pack(parts: Iterable[str], between: str, fits: Callable[[str], bool]) -> list[str]:
    """Join parts into as few lines as fit, never breaking inside a part."""
    lines: list[str] = []
    for part in parts:
        longer = f"{lines[-1]}{between}{part}" if lines else part
        if lines and fits(longer):
            lines[-1] = longer
        else:
            lines.append(part)
    return lines
