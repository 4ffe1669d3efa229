"""CSV tables, here those of `probe ssdc`: full precision, undefined numbers as empty cells."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from probe.report.format import grids_of, plain

CONDITIONS = ("clean", "rpi")
POINT = ("value", "low", "high", "null_low", "null_high")
SCALARS = ("delta_ssdc_rpi", "anchoring", "final")


def layers_csv(envelope: Mapping[str, Any]) -> str:
    """One row per model, layer and condition; SSDC is dimensionless, in -1..1.

    `null_low` and `null_high` bound the null band. `reason` says why a number or its interval is
    missing. A column `p` is there when p-values were computed. A metric of another package, a mean
    over images, has four more columns under its name. Models that failed have no row.
    """
    rows = []
    points = [
        (result, layer, condition)
        for result in envelope["results"]
        for layer in result["layers"]
        for condition in CONDITIONS
    ]
    with_p = any("p" in layer[condition] for _, layer, condition in points)
    metrics = [n for _, layer, condition in points for n in layer[condition].get("metrics", ())]
    named = list(dict.fromkeys(metrics))
    for result, layer, condition in points:
        point = layer[condition]
        row = [plain(result["model"]), plain(result["resolved"])]
        row += [str(layer["layer"]), *map(str, layer["grid"]), condition]
        row += [cell(point[key]) for key in POINT]
        row.append(point["reason"] or "")
        if with_p:
            row.append(cell(point.get("p")))
        for name in named:
            row += scalar_cells(point["metrics"][name])
        rows.append(row)
    head = ["model", "resolved", "layer", "rows", "cols", "condition", *POINT, "reason"]
    more = [column for name in named for column in scalar_columns(name)]
    return csv_text(head + ["p"] * with_p + more, rows)


def summary_csv(envelope: Mapping[str, Any]) -> str:
    """One row per model: what its curve under RPI comes to.

    `grids` lists the model's grids in order; with more than one, anchoring averages over all of
    them and does not rank beside single-grid models. `peak` has no interval: a maximum is biased.
    """
    head = ["model", "resolved", "family", "images", "grids"]
    for name in SCALARS:
        head += scalar_columns(name)
    head += ["peak", "peak_layer", "peak_reason"]
    rows = []
    for result in envelope["results"]:
        row = [plain(result["model"]), plain(result["resolved"]), plain(result["family"])]
        row += [str(result["images"]), " ".join(grids_of(result))]
        for name in SCALARS:
            row += scalar_cells(result[name])
        peak = result["peak"]
        row += [cell(peak["value"]), "" if peak["layer"] is None else str(peak["layer"])]
        row.append(peak.get("reason") or "")
        rows.append(row)
    return csv_text(head, rows)


def scalar_columns(name: str) -> list[str]:
    """The columns of a number: value, bounds, and why one of them is missing."""
    return [name, f"{name}_low", f"{name}_high", f"{name}_reason"]


def scalar_cells(scalar: Mapping[str, Any]) -> list[str]:
    """The cells of `scalar_columns`."""
    return [*(cell(scalar[key]) for key in ("value", "low", "high")), scalar["reason"] or ""]


def cell(value: float | None) -> str:
    """A number that reads back exactly; empty where there is none."""
    return "" if value is None else repr(float(value))


def csv_text(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table with a header, comma-separated, one line feed per row."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(head)
    writer.writerows(rows)
    return text.getvalue()
