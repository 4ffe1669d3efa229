"""One panel of the figure: a model's curves with their intervals, null band and grids."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import MultipleLocator

from probe.report.format import grid_text
from probe.report.sheet import BAND, GREY, SMALL, TICK
from probe.report.typeset import text_width

# Okabe and Ito's blue and vermilion, which colour-blind readers tell apart; the markers differ too.
COLORS = {"clean": "#0072B2", "rpi": "#D55E00"}
MARKERS = {"clean": "o", "rpi": "s"}
FACES = {"clean": "#0072B2", "rpi": "white"}


def draw_panel(
    axes: Axes, result: Mapping[str, Any], limits: tuple[float, float], width: float
) -> None:
    """Fill `axes`, which are `width` inches wide, with one model's curves.

    `limits` is the SSDC scale, the same for all panels.
    """
    layers = result["layers"]
    count = len(layers)
    shown = shown_kinds(result)
    axes.set_xlim(-0.5, count - 0.5)
    axes.set_ylim(*limits)
    axes.set_xticks(range(0, count, _tick_step(count, width)))
    axes.set_xlabel("layer", fontsize=TICK, labelpad=1)
    axes.yaxis.set_major_locator(MultipleLocator(0.25))
    axes.tick_params(labelsize=TICK, length=2.5, width=0.6)
    axes.axhline(0, color=GREY, linewidth=0.5, zorder=1)

    for layer in layers:
        point = layer[shown[-1]]
        if point["null_low"] is not None:
            x = layer["layer"]
            axes.fill_between(
                [x - 0.5, x + 0.5],
                point["null_low"],
                point["null_high"],
                color=BAND,
                linewidth=0,
                zorder=0,
            )
    rotation = 90 if crowded(result, width) else 0
    for first, n, grid in stages(result):
        if first:
            axes.axvline(first - 0.5, color=GREY, linewidth=0.5, linestyle=(0, (2, 2)), zorder=1)
        axes.annotate(
            grid,
            (first - 0.5 + n / 2, 1),
            xycoords=("data", "axes fraction"),
            xytext=(0, 2),
            textcoords="offset points",
            ha="center",
            va="bottom",
            fontsize=SMALL,
            color=GREY,
            rotation=rotation,
        )
    size = min(4.0, max(1.5, 0.45 * 72 * width / count))
    for kind in shown:
        points = [layer[kind] for layer in layers]
        draw_curve(axes, range(count), points, COLORS[kind], MARKERS[kind], FACES[kind], size)


def draw_curve(
    axes: Axes,
    x: Sequence[float],
    points: Sequence[Mapping[str, Any]],
    color: str,
    marker: str,
    face: str,
    size: float,
) -> None:
    """One curve: line, markers, interval band; gaps and crosses where it is undefined.

    `points` are scalars at `x`; the axes' limits must be set. `size` of markers is in points.
    """
    nan = float("nan")
    value = [nan if p["value"] is None else p["value"] for p in points]
    bounded = [p["low"] is not None and p["high"] is not None for p in points]
    low = [p["low"] if ok else nan for p, ok in zip(points, bounded, strict=True)]
    high = [p["high"] if ok else nan for p, ok in zip(points, bounded, strict=True)]
    axes.fill_between(x, low, high, color=color, alpha=0.2, linewidth=0, zorder=2)
    # A band needs two neighbours; a lone layer gets a bar.
    around = [False, *bounded, False]
    lone = [i for i, ok in enumerate(bounded) if ok and not around[i] and not around[i + 2]]
    axes.vlines(
        [x[i] for i in lone],
        [low[i] for i in lone],
        [high[i] for i in lone],
        color=color,
        alpha=0.3,
        linewidth=4,
        zorder=2,
    )
    axes.plot(
        x,
        value,
        color=color,
        marker=marker,
        markersize=size,
        markerfacecolor=face,
        markeredgewidth=0.9,
        linewidth=1.3,
        zorder=3,
    )
    missing = [at for at, point in zip(x, points, strict=True) if point["value"] is None]
    axes.plot(
        missing,
        [axes.get_ylim()[0]] * len(missing),
        linestyle="none",
        marker="x",
        color=color,
        markersize=4,
        clip_on=False,
        zorder=4,
    )


def stages(result: Mapping[str, Any]) -> list[tuple[int, int, str]]:
    """First layer, number of layers and grid of every run of layers on one grid."""
    found: list[tuple[int, int, str]] = []
    for layer in result["layers"]:
        grid = grid_text(layer["grid"])
        if found and found[-1][2] == grid:
            first, count, _ = found[-1]
            found[-1] = (first, count + 1, grid)
        else:
            found.append((layer["layer"], 1, grid))
    return found


def crowded(result: Mapping[str, Any], width: float) -> bool:
    """Whether a stage is too narrow for its grid label to lie flat."""
    inch = width / len(result["layers"])
    return any(text_width(grid, SMALL) > 0.95 * inch * n for _, n, grid in stages(result))


def shown_kinds(result: Mapping[str, Any]) -> list[str]:
    """The curves that were measured: clean, and RPI unless it is off."""
    return ["clean", "rpi"] if result["settings"]["rpi"] else ["clean"]


def shown_points(results: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Every layer of every curve that is shown."""
    return [layer[kind] for r in results for layer in r["layers"] for kind in shown_kinds(r)]


def ssdc_limits(results: Sequence[Mapping[str, Any]]) -> tuple[float, float]:
    """One SSDC scale for all panels: 0 to 1 and whatever lies outside, with room for markers."""
    values = [
        point[key]
        for point in shown_points(results)
        for key in ("value", "low", "high", "null_low", "null_high")
        if point[key] is not None
    ]
    return min([0.0, *values]) - 0.04, max([1.0, *values]) + 0.03


def _tick_step(count: int, width: float) -> int:
    """The smallest of 1, 2, 5, 10, ... whose layer numbers stand apart."""
    label = text_width("0" * len(str(count - 1)), TICK) + 0.1
    for step in (1, 2, 5, 10, 20, 50):
        if step * width / count >= label:
            return step
    return 10 ** math.ceil(math.log10(count))
