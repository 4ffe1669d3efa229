"""The figure of `probe scale`: delta SSDC over FS, both over alpha, for every model it reaches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby, pairwise
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FixedLocator, MultipleLocator, StrMethodFormatter

from probe.report.dose import REGIMES, applicable, scaled_text, shown_curves, why_not
from probe.report.format import label_lines, labels_text, number, one_line, plain
from probe.report.panel import COLORS, draw_curve
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
from probe.report.typeset import text_width, wrap
from probe.report.zoo_legend import ROW, Item, draw_legend, legend_lines

# Okabe and Ito's other colours; markers differ too, and repeat less often together than alone.
SERIES = ("#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
SHAPES = ("s", "^", "D", "v", "P", "X", "<")
SHADES = {"stable": "white", "transition": "#F0F0F0", "collapsed": "#DCDCDC"}
DELTA = "delta SSDC"
LEFT, RIGHT, GAP, BETWEEN, BELOW = 0.66, 0.25, 0.3, 0.12, 0.46  # inches
KNEE = (0, (4, 2))
MARKER = 3.5  # points

Result = Mapping[str, Any]
Curves = Mapping[str, Sequence[Mapping[str, Any]]]


def draw_scale(results: Sequence[Result], failures: Sequence[Mapping[str, Any]]) -> Figure:
    """The figure itself, under whatever matplotlib style is in force; alpha reaches a model."""
    reached = [result for result in results if applicable(result)]
    curves = [shown_curves(result) for result in reached]
    columns, width, tall = _layout(len(reached))
    page = LEFT + columns * width + (columns - 1) * GAP + RIGHT
    colors = _series(curves)
    panels = [
        measures
        for measures in ([DELTA], [title for title in colors if title != DELTA])
        if any(title in colors for title in measures)
    ]
    headings = [_heading(result, width) for result in reached]
    heights = [LINE * (NAME * len(n) + SMALL * len(d)) + 0.06 for n, d in headings]
    tops = [max(heights[i : i + columns]) for i in range(0, len(reached), columns)]
    legend = _legend_lines(reached, curves, colors, page)
    footer = footer_lines(reached, failures, _extra(results, reached, curves), page - 2 * TOP)
    block = len(panels) * tall + max(0, len(panels) - 1) * BETWEEN + BELOW
    height = TOP + ROW * len(legend) + sum(tops) + len(tops) * block
    height += 0.08 + LINE * SMALL * len(footer) + TOP
    figure = Figure(figsize=(page, height))

    draw_legend(figure, legend, LEFT, height - TOP)
    limits = [_limits(curves, measures) for measures in panels]
    y = height - TOP - ROW * len(legend)
    for row, top in enumerate(tops):
        y -= top
        for column in range(columns):
            i = row * columns + column
            if i >= len(reached):
                break
            x = LEFT + column * (width + GAP)
            write_heading(figure, *headings[i], x, y + top)
            for j, measures in enumerate(panels):
                bottom = y - (j + 1) * tall - j * BETWEEN
                axes = place(figure, x, bottom, width, tall)
                own = {title: curves[i][title] for title in measures if title in curves[i]}
                _draw(axes, reached[i], own, colors, limits[j], width)
                axes.tick_params(labelleft=column == 0, labelbottom=j == len(panels) - 1)
                if column == 0:
                    axes.set_ylabel(DELTA if DELTA in measures else "FS", fontsize=TICK + 0.5)
                if j == len(panels) - 1:
                    axes.set_xlabel("alpha", fontsize=TICK, labelpad=1)
        y -= block
    write_footer(figure, footer)
    return figure


def _layout(models: int) -> tuple[int, float, float]:
    """Columns of models, width and height of a panel in inches."""
    if models == 1:
        return 1, 6.2, 2.0
    if models in (2, 4):
        return 2, 3.8, 1.7
    return (3, 3.0, 1.4) if models <= 9 else (4, 2.5, 1.2)


def _heading(result: Result, width: float) -> tuple[list[str], list[str]]:
    name, identity = label_lines(result)
    extension = " (angles, an extension)" if result["extension"] else ""
    details = wrap(identity, SMALL, width) if identity else []
    details += wrap(f"scaled: {scaled_text(result)}{extension}", SMALL, width)
    return wrap(name, NAME, width, bold=True), details


def _series(curves: Sequence[Curves]) -> dict[str, tuple[str, str]]:
    """Title -> (colour, marker) of every curve that has a value in some model."""
    titles = [
        title
        for title in dict.fromkeys(title for own in curves for title in own)
        if (title == DELTA or title.startswith("FS "))
        and any(s["value"] is not None for own in curves for s in own.get(title, ()))
    ]
    others = [title for title in titles if title != DELTA]
    found = {DELTA: (COLORS["clean"], "o")} if DELTA in titles else {}
    for i, title in enumerate(others):
        found[title] = (SERIES[i % len(SERIES)], SHAPES[i % len(SHAPES)])
    return found


def _limits(curves: Sequence[Curves], measures: Sequence[str]) -> tuple[float, float]:
    """One scale for all models, with 0 in it and room for markers."""
    ends = [
        scalar[key]
        for own in curves
        for title in measures
        for scalar in own.get(title, ())
        for key in ("value", "low", "high")
        if scalar[key] is not None
    ]
    low, high = min([0.0, *ends]), max([0.1, *ends])
    room = 0.06 * (high - low)
    return low - room, high + room


def _draw(
    axes: Axes,
    result: Result,
    curves: Curves,
    colors: Mapping[str, tuple[str, str]],
    limits: tuple[float, float],
    width: float,
) -> None:
    alphas = [row["alpha"] for row in result["alphas"]]
    order = sorted(range(len(alphas)), key=lambda i: -alphas[i])
    x = [alphas[i] for i in order]
    edge = 0.04 * (x[0] - x[-1]) or 0.1
    axes.set_xlim(x[0] + edge, x[-1] - edge)
    axes.set_ylim(*limits)
    axes.xaxis.set_major_locator(FixedLocator(_ticks(x, width)))
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axes.yaxis.set_major_locator(MultipleLocator(_step(limits[1] - limits[0])))
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:.2f}"))
    axes.tick_params(labelsize=TICK, length=2.5, width=0.6)
    _shade(axes, result, x)
    axes.axhline(0, color=GREY, linewidth=0.5, zorder=1)
    knee = result["regimes"]["delta_ssdc_rpi"]["knee"]["value"]
    if knee is not None:
        axes.axvline(knee, color=GREY, linewidth=0.9, linestyle=KNEE, zorder=1.5)
    for title, scalars in curves.items():
        if title in colors:
            color, marker = colors[title]
            draw_curve(axes, x, [scalars[i] for i in order], color, marker, color, MARKER)


def _shade(axes: Axes, result: Result, alphas: Sequence[float]) -> None:
    """The regimes of delta SSDC, each alpha up to halfway to its neighbours."""
    by_alpha = result["regimes"]["delta_ssdc_rpi"]["by_alpha"]
    left, right = axes.get_xlim()
    edges = [left, *((a + b) / 2 for a, b in pairwise(alphas)), right]
    spans = zip((by_alpha.get(f"{alpha:g}") for alpha in alphas), pairwise(edges), strict=True)
    for regime, run in groupby(spans, key=lambda span: span[0]):
        ends = [end for _, bounds in run for end in bounds]
        if regime is not None:
            axes.axvspan(ends[0], ends[-1], color=SHADES[regime], linewidth=0, zorder=0)


def _ticks(alphas: Sequence[float], width: float) -> list[float]:
    """Every alpha, or every second, third, ... so that labels stand apart."""
    inch = width / (1.08 * (alphas[0] - alphas[-1]) or 1.0)

    def apart(left: float, right: float) -> bool:
        room = (text_width(f"{left:g}", TICK) + text_width(f"{right:g}", TICK)) / 2
        return (left - right) * inch >= room + 0.06

    for every in range(1, len(alphas)):
        found = list(alphas[::every])
        if all(apart(left, right) for left, right in pairwise(found)):
            return found
    return [alphas[0]]


def _step(height: float) -> float:
    return next(step for step in (0.05, 0.1, 0.25, 0.5, 1.0) if height / step <= 6 or step == 1.0)


def _legend_lines(
    reached: Sequence[Result],
    curves: Sequence[Curves],
    colors: Mapping[str, tuple[str, str]],
    page: float,
) -> list[list[Item]]:
    """Handles with their labels, in lines that fit the page."""
    items: list[Item] = []
    for title, (color, marker) in colors.items():
        line = Line2D([], [], color=color, marker=marker, markersize=MARKER, linewidth=1.3)
        band = Patch(color=color, alpha=0.2, linewidth=0)
        items.append(((band, line), title))
    found = [result["regimes"]["delta_ssdc_rpi"] for result in reached]
    present = {regime for own in found for regime in own["by_alpha"].values()}
    for regime in REGIMES:
        if regime in present:
            patch = Patch(facecolor=SHADES[regime], edgecolor="#AAAAAA", linewidth=0.4)
            items.append((patch, regime))
    if any(own["knee"]["value"] is not None for own in found):
        items.append((Line2D([], [], color=GREY, linewidth=0.9, linestyle=KNEE), "knee"))
    drawn = [s for own in curves for title in colors for s in own.get(title, ())]
    if any(scalar["value"] is None for scalar in drawn):
        cross = Line2D([], [], color=GREY, marker="x", markersize=4, linestyle="none")
        items.append((cross, "undefined"))
    return legend_lines(items, page - LEFT - RIGHT)


def _extra(
    results: Sequence[Result], reached: Sequence[Result], curves: Sequence[Curves]
) -> list[str]:
    """Labels, knees, the rule, what is missing, and the models that alpha does not reach."""
    labels: dict[str, list[str]] = {}
    for result in reached:
        labels.setdefault(labels_text(result), []).append(plain(result["model"]))
    lines = [
        f"labels {text}" + (f": {', '.join(names)}" if len(labels) > 1 else "")
        for text, names in labels.items()
    ]
    lines.append("bands: 95 % intervals over images, jackknife for SSDC, paired bootstrap for FS")
    knees = []
    for result in reached:
        knee = result["regimes"]["delta_ssdc_rpi"]["knee"]
        who = f"{plain(result['model'])} " if len(reached) > 1 else ""
        reason = one_line(knee["reason"] or "undefined")
        knees.append(who + (f"none ({reason})" if knee["value"] is None else number(knee["value"])))
    lines.append(f"knee of delta SSDC, alpha: {'; '.join(knees)}")
    lines += dict.fromkeys(f"regimes of delta SSDC: {plain(r['regimes']['rule'])}" for r in reached)
    lines += dict.fromkeys(plain(r["extension"]) for r in reached if r["extension"])
    lines += _gaps(reached, curves)
    return lines + [
        f"not applicable: {plain(result['model'])}: {why_not(result)}"
        for result in results
        if not applicable(result)
    ]


def _gaps(reached: Sequence[Result], curves: Sequence[Curves]) -> list[str]:
    """For every reason of a missing value or interval: what misses it, and the reason."""
    found: dict[str, list[str]] = {}
    for result, own in zip(reached, curves, strict=True):
        who = f"{plain(result['model'])} " if len(reached) > 1 else ""
        for title, scalars in own.items():
            if title != DELTA and not title.startswith("FS "):
                continue
            by_reason: dict[str, list[str]] = {}
            for row, scalar in zip(result["alphas"], scalars, strict=True):
                if scalar["reason"] is not None:
                    by_reason.setdefault(one_line(scalar["reason"]), []).append(f"{row['alpha']:g}")
            for reason, alphas in by_reason.items():
                where = "" if len(alphas) == len(scalars) else f" at alpha {', '.join(alphas)}"
                found.setdefault(reason, []).append(f"{who}{title}{where}")
    lines = []
    for reason, places in found.items():
        more = [f"{len(places) - 4} more"] if len(places) > 4 else []
        lines.append(f"{reason}: {'; '.join(places[:4] + more)}")
    return lines
