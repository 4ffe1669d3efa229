"""Many small panels on one sheet, drawn together: one line, one mesh of bands per style.

A matplotlib axes of its own for each of 60 models takes seconds; here all share one that covers the
sheet, in inches, and what looks alike is one artist.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from matplotlib.collections import LineCollection, PolyCollection
from matplotlib.figure import Figure

from probe.report.sheet import BAND, TICK

NAN = float("nan")
TICK_LENGTH = 0.035  # inches
DASHES = (0, (3, 1.5))

Point = tuple[float, float]


@dataclass(frozen=True)
class Curve:
    """How a curve is drawn; `size` of its markers and `line`, its width, are in points."""

    color: str
    marker: str
    face: str
    size: float
    line: float = 1.2
    dashed: bool = False


@dataclass(frozen=True)
class Panel:
    """A frame on the sheet, in inches, and the data that its edges stand for."""

    x: float
    y: float
    width: float
    height: float
    left: float
    right: float
    bottom: float
    top: float

    def at(self, x: float, y: float) -> Point:
        """Where a data point lies on the sheet, in inches."""
        across = (x - self.left) / (self.right - self.left)
        up = (y - self.bottom) / (self.top - self.bottom)
        return self.x + across * self.width, self.y + up * self.height


@dataclass
class Canvas:
    """What is to be drawn, gathered by how it looks. All coordinates are inches."""

    width: float
    height: float
    _points: dict[Curve, list[Point]] = field(default_factory=dict)
    _bands: dict[tuple[str, float, float], list[list[Point]]] = field(default_factory=dict)
    _strokes: dict[tuple[str, float, bool], list[list[Point]]] = field(default_factory=dict)
    _crosses: dict[str, list[Point]] = field(default_factory=dict)
    _texts: list[tuple[Point, str, dict[str, Any]]] = field(default_factory=list)

    def text(self, at: Point, text: str, **style: Any) -> None:
        """Text at a point, in small ticks' size unless `style` says otherwise."""
        self._texts.append((at, text, {"fontsize": TICK, **style}))

    def stroke(
        self, points: Sequence[Point], color: str, width: float, dashed: bool = False
    ) -> None:
        """A thin line under the curves; `width` in points."""
        self._strokes.setdefault((color, width, dashed), []).append(list(points))

    def band(self, outline: Sequence[Point], color: str, opacity: float, zorder: float) -> None:
        """A filled outline without an edge."""
        self._bands.setdefault((color, opacity, zorder), []).append(list(outline))

    def frame(
        self, panel: Panel, x_ticks: Mapping[float, str], y_ticks: Mapping[float, str]
    ) -> None:
        """The panel's left and lower edge, with ticks; an empty label is a tick without one."""
        x, y = panel.x, panel.y
        self.stroke([(x, y + panel.height), (x, y), (x + panel.width, y)], "black", 0.6)
        for value, label in x_ticks.items():
            across, _ = panel.at(value, panel.bottom)
            self.stroke([(across, y), (across, y - TICK_LENGTH)], "black", 0.6)
            if label:
                self.text((across, y - TICK_LENGTH - 0.03), label, ha="center", va="top")
        for value, label in y_ticks.items():
            _, up = panel.at(panel.left, value)
            self.stroke([(x, up), (x - TICK_LENGTH, up)], "black", 0.6)
            if label:
                self.text((x - TICK_LENGTH - 0.03, up), label, ha="right", va="center")

    def null_band(self, panel: Panel, x: float, low: float, high: float) -> None:
        """One layer's step of the null band."""
        (left, below), (right, above) = panel.at(x - 0.5, low), panel.at(x + 0.5, high)
        self.band([(left, below), (right, below), (right, above), (left, above)], BAND, 1.0, 0)

    def curve(
        self, panel: Panel, xs: Sequence[float], scalars: Sequence[Mapping[str, Any]], style: Curve
    ) -> None:
        """A curve with its interval band; gaps and crosses where it is undefined."""
        points = self._points.setdefault(style, [])
        for x, scalar in zip(xs, scalars, strict=True):
            if scalar["value"] is None:
                points.append((NAN, NAN))
                crosses = self._crosses.setdefault(style.color, [])
                crosses.append(panel.at(x, panel.bottom))
            else:
                points.append(panel.at(x, scalar["value"]))
        points.append((NAN, NAN))
        for run in _bounded_runs(xs, scalars):
            lower = [panel.at(x, low) for x, low, _ in run]
            upper = [panel.at(x, high) for x, _, high in run]
            if len(run) == 1:  # a band needs two neighbours; a lone point gets a bar
                (across, below), (_, above) = lower[0], upper[0]
                lower = [(across - 0.025, below), (across + 0.025, below)]
                upper = [(across - 0.025, above), (across + 0.025, above)]
            self.band([*lower, *reversed(upper)], style.color, 0.2, 2)

    def finish(self) -> Figure:
        """The figure, with everything drawn onto it."""
        figure = Figure(figsize=(self.width, self.height))
        axes = figure.add_axes((0, 0, 1, 1), xlim=(0, self.width), ylim=(0, self.height))
        axes.set_axis_off()
        for (color, opacity, zorder), outlines in self._bands.items():
            axes.add_collection(
                PolyCollection(
                    outlines, facecolor=color, alpha=opacity, linewidth=0, zorder=zorder
                ),
                autolim=False,
            )
        for (color, width, dashed), lines in self._strokes.items():
            shape = (0, (2, 2)) if dashed else "solid"
            axes.add_collection(
                LineCollection(lines, colors=color, linewidths=width, linestyles=[shape], zorder=1),
                autolim=False,
            )
        for curve, points in self._points.items():
            axes.plot(
                [x for x, _ in points],
                [y for _, y in points],
                color=curve.color,
                marker=curve.marker,
                markersize=curve.size,
                markerfacecolor=curve.face,
                markeredgewidth=0.8,
                linewidth=curve.line,
                linestyle=DASHES if curve.dashed else "solid",
                zorder=3,
            )
        for color, points in self._crosses.items():
            xs, ys = [x for x, _ in points], [y for _, y in points]
            axes.plot(xs, ys, "x", color=color, markersize=4, zorder=4)
        for (x, y), text, style in self._texts:
            figure.text(x / self.width, y / self.height, text, **style)
        return figure


def number_ticks(low: float, high: float, labelled: bool) -> dict[float, str]:
    """Ticks with their labels, at round numbers from `low` to `high`."""
    widths = (0.01, 0.02, 0.05, 0.1, 0.25, 0.5)
    step = next((width for width in widths if (high - low) / width <= 6), 1.0)
    steps = range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)
    return {i * step: f"{i * step:.2f}" if labelled else "" for i in steps}


def _bounded_runs(
    xs: Sequence[float], scalars: Sequence[Mapping[str, Any]]
) -> list[list[tuple[float, float, float]]]:
    """Runs of neighbours that have both bounds, as (x, low, high)."""
    runs: list[list[tuple[float, float, float]]] = [[]]
    for x, scalar in zip(xs, scalars, strict=True):
        if scalar["low"] is None or scalar["high"] is None:
            runs.append([])
        else:
            runs[-1].append((x, scalar["low"], scalar["high"]))
    return [run for run in runs if run]
