"""What `probe ssdc` shows in a terminal: tables, a chart, and every reason for a missing number."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from probe.report.chart import chart
from probe.report.comparison import comparison_screen
from probe.report.format import DASH, grid_text, in_null_band, number, p_text, span
from probe.report.page import GUIDE, INTERVALS, Page, Screen, aligned, header, remarks

INSIDE = "~ inside its own null band: not told apart from chance"
CHART_WIDTH = 100


def ssdc_screen(envelope: Mapping[str, Any]) -> RenderableType:
    """The JSON output of `probe ssdc`, to be printed on a rich console.

    One model gives a table of its layers, its summary and a chart; several give a table that
    compares them. It fits itself to the console's width (80 columns or more) and, where the
    console is not UTF-8, keeps to ASCII. Nothing depends on colour.
    """
    return Screen(envelope, _one_model, comparison_screen)


def _one_model(page: Page, result: Mapping[str, Any]) -> Iterator[RenderableType]:
    yield from header(page, result)
    yield Text()
    footer = [INTERVALS]
    yield from _layer_tables(page, result, footer)
    yield Text()
    yield _summary(page, result)
    yield Text()
    yield page.text("\n".join(chart(result, min(page.width, CHART_WIDTH))))
    yield Text()
    yield page.lines(footer + page.notes.lines())
    yield page.text(GUIDE)
    for remark in remarks(result):
        yield page.text(remark)


def _layer_tables(
    page: Page, result: Mapping[str, Any], footer: list[str]
) -> Iterator[RenderableType]:
    """The layers in one table as wide as the page allows; what does not fit follows it."""
    layers = result["layers"]
    kinds = {"clean": "clean", "rpi": "RPI"} if result["settings"]["rpi"] else {"clean": "clean"}
    first = {
        "layer": [str(layer["layer"]) for layer in layers],
        "grid": [grid_text(layer["grid"]) for layer in layers],
    }
    core = dict(first)
    for kind, label in kinds.items():
        points = [layer[kind] for layer in layers]
        title = "SSDC clean" if kind == "clean" else f"SSDC under {label}"
        cells = aligned(points, page.notes.with_interval)
        marks = ["~" if in_null_band(point) else "" for point in points]
        core[title] = [cell + mark for cell, mark in zip(cells, marks, strict=True)]
        if any(marks) and INSIDE not in footer:
            footer.append(INSIDE)
    if "rpi" in kinds:
        core["ratio RPI/clean"] = aligned(
            [layer["ratio"] for layer in layers], page.notes.with_interval
        )
    extra: dict[str, list[str]] = {}
    for kind, label in kinds.items():
        if any("p" in layer[kind] for layer in layers):
            extra[f"p {label}"] = [
                page.notes.dash(layer[kind])
                if layer[kind]["p"] is None
                else p_text(layer[kind]["p"])
                for layer in layers
            ]
    if any(sd is not None for sd in result["rpi_draw_sd"]):
        extra["sd of draws"] = [
            page.notes.dash(layer["rpi"]) if sd is None else number(sd)
            for layer, sd in zip(layers, result["rpi_draw_sd"], strict=True)
        ]
    bands = {
        f"null band {label}": [_band(page, layer[kind]) for layer in layers]
        for kind, label in kinds.items()
    }
    full = page.table(core | extra | bands)
    if page.fits(full):
        yield full
        return
    footer.append("null bands: " + ", ".join(_widest(layers, kind, kinds[kind]) for kind in kinds))
    together = page.table(core | extra)
    if not extra or page.fits(together):
        yield page.shown(together)
        return
    yield page.shown(page.table(core))
    yield Text()
    yield page.shown(page.table(first | extra))


def _band(page: Page, point: Mapping[str, Any]) -> str:
    low, high = point["null_low"], point["null_high"]
    return page.notes.dash(point) if low is None or high is None else span(low, high)


def _widest(layers: Sequence[Mapping[str, Any]], kind: str, label: str) -> str:
    """The bounds that hold the null bands of all layers."""
    points = [layer[kind] for layer in layers]
    lows = [point["null_low"] for point in points if point["null_low"] is not None]
    highs = [point["null_high"] for point in points if point["null_high"] is not None]
    return f"{label} within {span(min(lows), max(highs))}" if lows and highs else f"{label} {DASH}"


def _summary(page: Page, result: Mapping[str, Any]) -> Table:
    last = result["layers"][-1]["layer"]
    grids = result["anchoring_by_grid"] if len(result["anchoring_by_grid"]) > 1 else []
    mixed = "mean over layers under RPI" + (" (mixes grids)" if grids else "")
    rows = [
        ("delta SSDC", result["delta_ssdc_rpi"], "layer 1 - layer 0 under RPI"),
        ("anchoring", result["anchoring"], mixed),
        *((f"  on {grid_text(e['grid'])}", e, "its layers alone") for e in grids),
        ("final", result["final"], f"layer {last} under RPI"),
    ]
    table = Table.grid(padding=(0, 2, 0, 0))
    cells = aligned([scalar for _, scalar, _ in rows], page.notes.with_interval)
    for (label, _, meaning), cell in zip(rows, cells, strict=True):
        table.add_row(page.text(label, "bold"), page.text(cell), page.text(meaning, "dim"))
    peak = result["peak"]
    value = page.notes.value(peak)
    where = "" if peak["layer"] is None else f" at layer {peak['layer']}"
    table.add_row(
        page.text("peak", "bold"),
        page.text(value + where),
        page.text("highest under RPI; no interval, as a maximum is biased", "dim"),
    )
    return table
