"""Small multiples of a report: how panels, one per model, are laid out on a sheet."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.figure import Figure

from probe.report.format import plain
from probe.report.sheet import GREY, LINE, NAME, SMALL, TICK, TOP, write_footer
from probe.report.typeset import wrap
from probe.report.zoo_canvas import Canvas, Panel, number_ticks
from probe.report.zoo_legend import ROW, Item, draw_legend, legend_lines, small_print

LEFT, RIGHT, GAP = 0.62, 0.15, 0.26  # margins and the gap between panels, inches
TICKS, LABEL = 0.22, 0.16  # under a panel: tick labels, and the axis' label, inches

Json = Mapping[str, Any]


@dataclass(frozen=True)
class Sheet:
    """What the panels of one figure share.

    `limits` are those of all vertical axes. `details(model)` are lines under its name,
    `frame(model, width)` its horizontal axis in a panel of `width` inches: left and right end, and
    ticks with their labels. `draw` fills a panel. `notes` go into the small print.
    """

    models: Sequence[Json]
    limits: tuple[float, float]
    x_label: str
    y_label: str
    details: Callable[[Json], list[str]]
    frame: Callable[[Json, float], tuple[float, float, dict[float, str]]]
    draw: Callable[[Canvas, Panel, Json], None]
    keys: Sequence[Item]
    notes: Sequence[str]


def layout(models: int) -> tuple[int, float, float]:
    """Columns, and width and height of a panel in inches: wide for few models, small for many."""
    if models == 1:
        return 1, 6.2, 3.2
    if models in (2, 4):
        return 2, 3.8, 2.2
    if models <= 9:
        return 3, 2.9, 1.8
    return (4, 2.2, 1.4) if models <= 20 else (5, 1.75, 1.1)


def draw_sheet(report: Json, sheet: Sheet) -> Figure:
    """The figure itself: panels in rows, each row as tall as its longest heading asks for."""
    models = sheet.models
    columns, width, height = layout(len(models))
    page = LEFT + columns * width + (columns - 1) * GAP + RIGHT
    name_size = NAME if columns < 4 else TICK + 0.5
    headings = [
        (
            wrap(plain(model["model"]), name_size, width, bold=True),
            [line for part in sheet.details(model) for line in wrap(part, SMALL, width)],
        )
        for model in models
    ]
    heights = [LINE * (name_size * len(n) + SMALL * len(d)) + 0.1 for n, d in headings]
    starts = range(0, len(models), columns)
    tops = [max(heights[start : start + columns]) for start in starts]
    legend = legend_lines(sheet.keys, page - LEFT - RIGHT)
    footer = small_print(report, sheet.notes, page - 2 * TOP)
    below = TICKS + (LABEL if columns < 4 else 0.08)
    total = TOP + ROW * len(legend) + sum(tops) + len(tops) * (height + below)
    total += (LABEL if columns > 3 else 0.0) + 0.06 + LINE * SMALL * len(footer) + TOP
    canvas = Canvas(page, total)

    y = total - TOP - ROW * len(legend)
    for top, start in zip(tops, starts, strict=True):
        y -= top
        for i in range(start, min(start + columns, len(models))):
            x = LEFT + (i - start) * (width + GAP)
            left, right, x_ticks = sheet.frame(models[i], width)
            panel = Panel(x, y - height, width, height, left, right, *sheet.limits)
            canvas.frame(panel, x_ticks, number_ticks(*sheet.limits, labelled=i == start))
            sheet.draw(canvas, panel, models[i])
            _head(canvas, headings[i], name_size, x, y + heights[i])
            if columns < 4 or i + columns >= len(models):
                at = (x + width / 2, y - height - TICKS - 0.01)
                canvas.text(at, sheet.x_label, ha="center", va="top")
            if i == start:
                at = (x - LEFT + 0.1, y - height / 2)
                canvas.text(at, sheet.y_label, rotation=90, ha="left", va="center")
        y -= height + below
    figure = canvas.finish()
    draw_legend(figure, legend, LEFT, total - TOP)
    write_footer(figure, footer)
    return figure


def ends(scalars: Iterable[Json], keys: Sequence[str]) -> list[float]:
    """All numbers among `keys` that are defined."""
    return [scalar[key] for scalar in scalars for key in keys if scalar[key] is not None]


def _head(
    canvas: Canvas, heading: tuple[list[str], list[str]], size: float, x: float, top: float
) -> None:
    name, details = heading
    for lines, points, weight, color in (
        (name, size, "bold", "black"),
        (details, SMALL, "normal", GREY),
    ):
        for line in lines:
            top -= LINE * points
            canvas.text((x, top + 0.02), line, fontsize=points, weight=weight, color=color)
