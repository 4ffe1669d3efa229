"""The table of models: its columns, its cells with what they sort by, and its footnotes."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from markupsafe import Markup, escape

from probe.report.format import Footnotes, grid_text, number, plain, span

STATED, MEASURED, COST = "description", "measured on images", "analytic cost"
NOT_MEASURED = "not measured for this model"
SEVERAL = "\N{DAGGER}"


@dataclass(frozen=True)
class Cell:
    """What a cell shows, the smaller line below it, and what it sorts by; None sorts last."""

    text: str
    below: str = ""
    key: float | str | None = None


@dataclass(frozen=True)
class Column:
    """One column; `detail` is the smaller line of its heading."""

    label: str
    detail: str
    level: str
    cells: list[Cell]
    numeric: bool = True


@dataclass(frozen=True)
class ModelTable:
    """Columns in order, each level's number of columns, and the lines below the table."""

    columns: list[Column]
    levels: list[tuple[str, int]]
    notes: list[str] = field(default_factory=list)


def model_table(report: Mapping[str, Any]) -> ModelTable:
    """The table of all models; a column that is empty for all is a line below it instead."""
    models, marks = report["models"], Footnotes()
    left_out, columns = [], []
    for column, lacks in _columns(models, marks):
        if models and not any(cell.text for cell in column.cells):
            left_out.append(f"{column.label}{_of(column)}: {lacks}.")
        else:
            columns.append(column)
    levels = [
        (level, count)
        for level in (STATED, MEASURED, COST)
        if (count := sum(column.level == level for column in columns))
    ]
    notes = [*marks.lines(), *left_out]
    if any(len(model["grids"]) > 1 for model in models):
        notes.append(
            f"{SEVERAL} This model has several grids, and its anchoring averages layers of all of "
            "them; its section gives one mean per grid. Compare it with care to models of one grid."
        )
    return ModelTable(columns, levels, notes)


def corruption_labels(models: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Each corruption of the report, in order of appearance, with its effective sigma in words."""
    sigmas: dict[str, float | None] = {}
    for model in models:
        for entry in model["corruptions"]:
            sigmas.setdefault(entry["corruption"], entry["effective_sigma"])
    return {
        text: "" if sigma is None else f"effective sigma {sigma:.3g} px"
        for text, sigma in sigmas.items()
    }


def breakable(text: str) -> Markup:
    """Text that may break after a bracket, comma, underscore, slash or colon."""
    return Markup(re.sub(r"([(,_/:])(?=\S)", r"\1<wbr>", str(escape(plain(text)))))


def _columns(models: Sequence[Mapping[str, Any]], marks: Footnotes) -> list[tuple[Column, str]]:
    """Every column, with why it is left out should all its cells be empty."""

    def scalars(label: str, read: Callable[[Any], Any], detail: str = "") -> tuple[Column, str]:
        values = [read(model) for model in models]
        reasons = {value["reason"] for value in values if value["value"] is None}
        same = len(reasons) == 1 and all(value["value"] is None for value in values)
        cells = [Cell("") if same else _cell(value, marks) for value in values]
        return Column(label, detail, MEASURED, cells), next(iter(reasons), None) or "undefined"

    def texts(label: str, read: Callable[[Any], str | None]) -> tuple[Column, str]:
        values = [read(model) for model in models]
        known = any(values)
        cells = [Cell(value or ("unknown" if known else ""), "", value or None) for value in values]
        return Column(label, "", STATED, cells, numeric=False), "not stated for any model"

    def costs(label: str, key: str, unit: float, detail: str) -> tuple[Column, str]:
        values = [model[key] for model in models]
        known = any(value is not None for value in values)
        cells = [Cell(_count(value, unit) if known else "", "", value) for value in values]
        return Column(label, detail, COST, cells), "not counted for any model"

    made = [
        texts("position", lambda model: model["position"]),
        (Column("grid", "rows x columns", STATED, [_grid(model) for model in models]), ""),
        texts("pretraining", lambda model: model["provenance"].get("pretraining")),
        texts("teacher", lambda model: model["provenance"].get("teacher")),
        scalars("anchoring", lambda model: model["anchoring"], "mean SSDC under RPI"),
        (Column("peak", "no interval", MEASURED, [_peak(m, marks) for m in models]), "undefined"),
        scalars("delta SSDC", lambda model: model["delta_ssdc_rpi"], "layer 1 - layer 0"),
        scalars("accuracy", lambda model: model["accuracy"], "top-1, clean"),
    ]
    for title, measure in (("FS", "fs"), ("agreement", "agreement_fs")):
        for corruption in corruption_labels(models):
            made.append(scalars(title, _reader(corruption, measure), corruption))
    return [
        *made,
        costs("params", "params", 1e6, "millions"),
        costs("GMACs", "macs", 1e9, "per image"),
    ]


def _reader(corruption: str, measure: str) -> Callable[[Any], Any]:
    absent = {"value": None, "low": None, "high": None, "reason": NOT_MEASURED}

    def read(model: Mapping[str, Any]) -> Any:
        entries = {entry["corruption"]: entry[measure] for entry in model["corruptions"]}
        return entries.get(corruption, absent)

    return read


def _cell(scalar: Mapping[str, Any], marks: Footnotes) -> Cell:
    if scalar["value"] is None:
        return Cell(marks.dash(scalar))
    known = scalar["low"] is not None and scalar["high"] is not None
    below = (
        span(scalar["low"], scalar["high"])
        if known
        else f"no interval {marks.mark(scalar['reason'] or 'no interval')}"
    )
    return Cell(number(scalar["value"]), below, scalar["value"])


def _peak(model: Mapping[str, Any], marks: Footnotes) -> Cell:
    peak = model["peak"]
    if peak["value"] is None:
        return Cell(marks.dash(peak))
    return Cell(number(peak["value"]), f"layer {peak['layer']}", peak["value"])


def _grid(model: Mapping[str, Any]) -> Cell:
    rest = f"to {grid_text(model['grids'][-1])} {SEVERAL}" if len(model["grids"]) > 1 else ""
    return Cell(grid_text(model["grid"]), rest, model["grid"][0] * model["grid"][1])


def _count(value: float | None, unit: float) -> str:
    """A count in units, to three digits; small ones are not rounded to zero."""
    if value is None:
        return "unknown"
    scaled = value / unit
    return f"{scaled:.0f}" if scaled >= 100 else f"{scaled:.3g}"


def _of(column: Column) -> str:
    return f" ({column.detail})" if column.detail else ""
