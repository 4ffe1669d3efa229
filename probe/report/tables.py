"""CSV tables of `probe ssdc` results: full precision, undefined numbers as empty cells."""

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
    missing. A column `p` is there when p-values were computed. Models that failed have no row.
    """
    rows = []
    points = [
        (result, layer, condition)
        for result in envelope["results"]
        for layer in result["layers"]
        for condition in CONDITIONS
    ]
    with_p = any("p" in layer[condition] for _, layer, condition in points)
    for result, layer, condition in points:
        point = layer[condition]
        row = [plain(result["model"]), plain(result["resolved"])]
        row += [str(layer["layer"]), *map(str, layer["grid"]), condition]
        row += [_cell(point[key]) for key in POINT]
        row.append(point["reason"] or "")
        if with_p:
            row.append(_cell(point.get("p")))
        rows.append(row)
    head = ["model", "resolved", "layer", "rows", "cols", "condition", *POINT, "reason"]
    return _csv(head + ["p"] * with_p, rows)


def summary_csv(envelope: Mapping[str, Any]) -> str:
    """One row per model: what its curve under RPI comes to.

    `grids` lists the model's grids in order; with more than one, anchoring averages over all of
    them and does not rank beside single-grid models. `peak` has no interval: a maximum is biased.
    """
    head = ["model", "resolved", "family", "images", "grids"]
    for name in SCALARS:
        head += [name, f"{name}_low", f"{name}_high", f"{name}_reason"]
    head += ["peak", "peak_layer", "peak_reason"]
    rows = []
    for result in envelope["results"]:
        row = [plain(result["model"]), plain(result["resolved"]), plain(result["family"])]
        row += [str(result["images"]), " ".join(grids_of(result))]
        for name in SCALARS:
            scalar = result[name]
            row += [_cell(scalar[key]) for key in ("value", "low", "high")]
            row.append(scalar["reason"] or "")
        peak = result["peak"]
        row += [_cell(peak["value"]), "" if peak["layer"] is None else str(peak["layer"])]
        row.append(peak.get("reason") or "")
        rows.append(row)
    return _csv(head, rows)


def _cell(value: float | None) -> str:
    return "" if value is None else repr(float(value))


def _csv(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(head)
    writer.writerows(rows)
    return text.getvalue()
