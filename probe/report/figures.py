"""The figure of `probe ssdc`: one panel per model, SSDC over layers, clean and under RPI."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib import style
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from probe.report.format import label_lines, one_line, plain
from probe.report.panel import (
    COLORS,
    FACES,
    MARKERS,
    crowded,
    draw_panel,
    shown_kinds,
    shown_points,
    ssdc_limits,
    stages,
)
from probe.report.sheet import (
    BAND,
    GREY,
    LINE,
    NAME,
    SMALL,
    STYLE,
    TICK,
    TOP,
    footer_lines,
    place,
    save,
    write_footer,
    write_heading,
)
from probe.report.typeset import text_width, wrap

LABELS = {"clean": "clean, 95 % interval", "rpi": "under RPI, 95 % interval"}
LEFT, RIGHT, GAP = 0.62, 0.25, 0.28  # margins and the gap between panels, inches
BELOW = 0.42  # tick labels and axis label under a panel, inches


@dataclass(frozen=True)
class _Layout:
    columns: int
    width: float  # of a panel, inches
    height: float

    @property
    def page(self) -> float:
        return LEFT + self.columns * self.width + (self.columns - 1) * GAP + RIGHT


@dataclass(frozen=True)
class _Heading:
    """The text above a panel, broken to the panel's width."""

    name: list[str]
    identity: list[str]
    stages: float  # height of the grid labels, inches

    @property
    def height(self) -> float:
        text = LINE * (NAME * len(self.name) + SMALL * len(self.identity))
        return text + self.stages + 0.12


def ssdc_figure(envelope: Mapping[str, Any]) -> dict[str, bytes]:
    """File name -> content of `ssdc.svg` and `ssdc.png`; empty when no model was measured.

    SSDC is dimensionless and all panels share its scale. Bands are 95 % intervals over images, the
    grey step is the null band that the RPI curve is read against (the clean curve's where RPI is
    off). A cross at the bottom marks an undefined value, and the footer says why. The same input
    gives the same bytes with the same versions of matplotlib and its fonts.
    """
    if not envelope["results"]:
        return {}
    with style.context(["default", STYLE]):
        figure = draw_figure(envelope["results"], envelope["failures"])
        return save(figure, "ssdc")


def _layout(models: int) -> _Layout:
    """Wide panels for few models, four in a row for many."""
    if models == 1:
        return _Layout(1, 6.4, 3.3)
    if models in (2, 4):
        return _Layout(2, 3.9, 2.3)
    return _Layout(3, 3.1, 1.9) if models <= 9 else _Layout(4, 2.6, 1.6)


def draw_figure(
    results: Sequence[Mapping[str, Any]], failures: Sequence[Mapping[str, Any]]
) -> Figure:
    """The figure itself, under whatever matplotlib style is in force; `results` is not empty."""
    layout = _layout(len(results))
    headings = [_heading(result, layout) for result in results]
    starts = range(0, len(results), layout.columns)
    tops = [max(h.height for h in headings[i : i + layout.columns]) for i in starts]
    footer = footer_lines(results, failures, _gaps(results), layout.page - 2 * TOP)
    legend = 0.22
    height = TOP + legend + sum(top + layout.height + BELOW for top in tops)
    height += LINE * SMALL * len(footer) + 0.08 + TOP
    figure = Figure(figsize=(layout.page, height))

    limits = ssdc_limits(results)
    y = height - TOP - legend
    for top, start in zip(tops, starts, strict=True):
        y -= top
        for i in range(start, min(start + layout.columns, len(results))):
            x = LEFT + (i - start) * (layout.width + GAP)
            axes = place(figure, x, y - layout.height, layout.width, layout.height)
            draw_panel(axes, results[i], limits, layout.width)
            axes.tick_params(labelleft=i == start)
            if i == start:
                axes.set_ylabel("SSDC", fontsize=TICK + 0.5)
            heading = headings[i]
            write_heading(figure, heading.name, heading.identity, x, y + heading.height - 0.04)
        y -= layout.height + BELOW

    handles, labels = _legend(results)
    figure.legend(
        handles,
        labels,
        loc="upper left",
        bbox_to_anchor=((LEFT - 0.05) / layout.page, (height - TOP + 0.05) / height),
        ncols=len(handles),
        fontsize=TICK,
        frameon=False,
        borderpad=0,
        columnspacing=1.5,
    )
    write_footer(figure, footer)
    return figure


def _heading(result: Mapping[str, Any], layout: _Layout) -> _Heading:
    name, identity = label_lines(result)
    longest = max(text_width(grid, SMALL) for _, _, grid in stages(result))
    return _Heading(
        wrap(name, NAME, layout.width, bold=True),
        wrap(identity, SMALL, layout.width) if identity else [],
        longest + 0.04 if crowded(result, layout.width) else LINE * SMALL,
    )


def _legend(results: Sequence[Mapping[str, Any]]) -> tuple[list[Any], list[str]]:
    rpi = any(result["settings"]["rpi"] for result in results)
    handles: list[Any] = []
    labels = []
    for kind in ("clean", "rpi") if rpi else ("clean",):
        line = Line2D(
            [],
            [],
            color=COLORS[kind],
            marker=MARKERS[kind],
            markersize=4,
            markerfacecolor=FACES[kind],
            markeredgewidth=0.9,
            linewidth=1.3,
        )
        handles.append((Patch(color=COLORS[kind], alpha=0.2, linewidth=0), line))
        labels.append(LABELS[kind])
    handles.append(Patch(color=BAND, linewidth=0))
    labels.append("null band under RPI" if rpi else "null band")
    if any(point["value"] is None for point in shown_points(results)):
        handles.append(Line2D([], [], color=GREY, marker="x", markersize=4, linestyle="none"))
        labels.append("undefined")
    return handles, labels


def _gaps(results: Sequence[Mapping[str, Any]]) -> list[str]:
    """For every reason of a missing value or interval: the layers that miss it, and the reason."""
    found: dict[str, dict[str, list[str]]] = {}
    for result in results:
        name = f"{plain(result['model'])} " if len(results) > 1 else ""
        for kind in shown_kinds(result):
            label = "clean" if kind == "clean" else "RPI"
            for layer in result["layers"]:
                reason = layer[kind]["reason"]
                if reason is not None:
                    curves = found.setdefault(one_line(reason), {})
                    curves.setdefault(f"{name}{label}", []).append(str(layer["layer"]))
    lines = []
    for reason, curves in found.items():
        places = [f"{curve} at layer {', '.join(layers)}" for curve, layers in curves.items()]
        more = [f"{len(places) - 4} more curves"] if len(places) > 4 else []
        lines.append(f"{reason}: {'; '.join(places[:4] + more)}")
    return lines
