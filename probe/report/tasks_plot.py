"""The figure of `probe tasks`: accuracy over each task's factor, a curve per model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil, log2
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FixedLocator, MultipleLocator, NullLocator, StrMethodFormatter

from probe.report.format import label_lines, plain
from probe.report.panel import draw_curve
from probe.report.sheet import (
    GREY,
    LINE,
    NAME,
    SMALL,
    TICK,
    TOP,
    footer_lines,
    place,
    write_footer,
    write_heading,
)
from probe.report.tasks_text import left_out_lines
from probe.report.typeset import text_width, wrap
from probe.report.zoo_legend import ROW, Item, draw_legend, legend_lines

# Okabe and Ito's colours; markers differ too, and repeat less often together than alone.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
SHAPES = ("o", "s", "^", "D", "v", "P", "X", "<", ">")
WIDTH, HEIGHT, COLUMNS = 2.7, 1.8, 3  # of a panel, inches
LEFT, RIGHT, GAP, BELOW = 0.62, 0.25, 0.32, 0.46  # inches
CHANCE = (0, (4, 2))
MARKER = 3.5  # points

Result = Mapping[str, Any]


@dataclass(frozen=True)
class _Panel:
    """One curve per model that has it: (number of the model, levels as drawn, scalars)."""

    title: str
    axis: str
    chance: float
    curves: tuple[tuple[int, list[float], list[Mapping[str, Any]]], ...]


def draw_tasks(results: Sequence[Result], failures: Sequence[Mapping[str, Any]]) -> Figure:
    """The figure itself, under whatever matplotlib style is in force; some task has a level."""
    panels = _panels(results)
    columns = min(COLUMNS, len(panels))
    page = LEFT + columns * WIDTH + (columns - 1) * GAP + RIGHT
    headings = [wrap(panel.title, NAME - 1, WIDTH, bold=True) for panel in panels]
    starts = range(0, len(panels), columns)
    tops = [LINE * NAME * max(map(len, headings[i : i + columns])) + 0.06 for i in starts]
    legend = _legend_lines(results, panels, page)
    footer = footer_lines(results, failures, _extra(results), page - 2 * TOP)
    height = TOP + ROW * len(legend) + sum(tops) + len(tops) * (HEIGHT + BELOW)
    height += 0.08 + LINE * SMALL * len(footer) + TOP
    figure = Figure(figsize=(page, height))
    draw_legend(figure, legend, LEFT, height - TOP)
    y = height - TOP - ROW * len(legend)
    for top, start in zip(tops, starts, strict=True):
        y -= top
        for number in range(start, min(start + columns, len(panels))):
            x = LEFT + (number - start) * (WIDTH + GAP)
            write_heading(figure, headings[number], (), x, y + top - 0.03)
            axes = place(figure, x, y - HEIGHT, WIDTH, HEIGHT)
            _draw(axes, panels[number])
            axes.tick_params(labelleft=number == start)
            if number == start:
                axes.set_ylabel("accuracy", fontsize=TICK + 0.5)
        y -= HEIGHT + BELOW
    write_footer(figure, footer)
    return figure


def _panels(results: Sequence[Result]) -> list[_Panel]:
    """A panel per task, and one for a second factor; levels in pixels become shares of a patch."""
    found: dict[tuple[str, str], list[tuple[int, list[float], list[Mapping[str, Any]]]]] = {}
    facts: dict[tuple[str, str], tuple[str, str, float]] = {}
    for number, result in enumerate(results):
        for task in result["tasks"]:
            others = [g for g in task["subgroups"] if g["factor"] != task["factor"]]
            for curve in (task, *others):
                if not curve["levels"]:
                    continue
                key = (task["task"], curve["factor"])
                part = curve["unit"] == "px"
                step = min(result["patch"]) if part else 1
                x = [entry["level"] / step for entry in curve["levels"]]
                unit = "share of a patch" if part else curve["unit"]
                title = task["task"] if curve is task else f"{task['task']}: {curve['name']}"
                facts[key] = (title, f"{curve['factor']}, {unit}", task["chance"])
                scalars = [entry["accuracy"] for entry in curve["levels"]]
                found.setdefault(key, []).append((number, x, scalars))
    names = [task["task"] for task in results[0]["tasks"]]
    order = sorted(found, key=lambda key: names.index(key[0]))
    return [_Panel(*facts[key], tuple(found[key])) for key in order]


def _draw(axes: Axes, panel: _Panel) -> None:
    levels = sorted({level for _, x, _ in panel.curves for level in x})
    if levels[0] > 0 and levels[-1] > levels[0]:
        axes.set_xscale("log", base=2)
        edge = (levels[-1] / levels[0]) ** 0.05
        axes.set_xlim(levels[0] / edge, levels[-1] * edge)
    else:
        edge = 0.05 * (levels[-1] - levels[0]) or 0.5
        axes.set_xlim(levels[0] - edge, levels[-1] + edge)
    axes.set_ylim(min([0.0, *_bounds(panel)]) - 0.02, 1.03)
    axes.xaxis.set_major_locator(FixedLocator(_ticks(levels)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axes.yaxis.set_major_locator(MultipleLocator(0.25))
    axes.tick_params(labelsize=TICK, length=2.5, width=0.6)
    axes.set_xlabel(panel.axis, fontsize=TICK, labelpad=1)
    axes.axhline(panel.chance, color=GREY, linewidth=0.9, linestyle=CHANCE, zorder=1)
    for number, x, scalars in panel.curves:
        color, marker = _style(number)
        draw_curve(axes, x, scalars, color, marker, color, MARKER)


def _bounds(panel: _Panel) -> list[float]:
    return [s["low"] for _, _, scalars in panel.curves for s in scalars if s["low"] is not None]


def _style(number: int) -> tuple[str, str]:
    return COLORS[number % len(COLORS)], SHAPES[number % len(SHAPES)]


def _ticks(levels: Sequence[float]) -> list[float]:
    """As many levels as labels fit side by side, evenly taken."""
    logarithmic = levels[0] > 0
    ends = [log2(level) if logarithmic else level for level in levels]
    inch = WIDTH / (1.1 * (ends[-1] - ends[0]) or 1.0)
    for every in range(1, len(levels) + 1):
        taken = list(zip(levels, ends, strict=True))[::every]
        if all(
            (right[1] - left[1]) * inch
            >= (text_width(f"{left[0]:g}", TICK) + text_width(f"{right[0]:g}", TICK)) / 2 + 0.05
            for left, right in pairwise(taken)
        ):
            return [level for level, _ in taken]
    return [levels[0]]


def _legend_lines(
    results: Sequence[Result], panels: Sequence[_Panel], page: float
) -> list[list[Item]]:
    """Handles with their labels, in lines that fit the page."""
    items: list[Item] = []
    drawn = {number for panel in panels for number, _, _ in panel.curves}
    for number in sorted(drawn):
        color, marker = _style(number)
        line = Line2D([], [], color=color, marker=marker, markersize=MARKER, linewidth=1.3)
        band = Patch(color=color, alpha=0.2, linewidth=0)
        items.append(((band, line), _short(plain(results[number]["model"]), page)))
    items.append((Line2D([], [], color=GREY, linewidth=0.9, linestyle=CHANCE), "chance"))
    return legend_lines(items, page - LEFT - RIGHT)


def _short(name: str, page: float) -> str:
    """The end of a name that is too long for a line, as paths may be."""
    room = page - LEFT - RIGHT - 0.6
    while text_width(name, TICK) > room:
        name = "..." + name[4 + ceil(len(name) * 0.05) :]
    return name


def _extra(results: Sequence[Result]) -> list[str]:
    """What the curves are, which model is which, and what is missing."""
    lines = [
        "accuracy of a linear readout on frozen features; bands: 95 % Wilson intervals over the "
        "test scenes of all seeds; dashed: chance"
    ]
    who = [
        f"{name}: {identity or name}, {result['pool']} tokens, patches {_by(result['patch'])} px, "
        f"seeds {', '.join(map(str, result['seeds']))}"
        for result in results
        for name, identity in [label_lines(result)]
    ]
    lines += dict.fromkeys(who)
    return lines + left_out_lines(results)


def _by(sides: Sequence[int]) -> str:
    return "x".join(map(str, sides))
