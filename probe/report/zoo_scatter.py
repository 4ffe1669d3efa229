"""Scatters of a report: fragility against anchoring, a named or numbered point per model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from probe.report.format import counted, number, one_line, p_text, plain, span
from probe.report.panel import COLORS
from probe.report.scale_plot import SERIES, SHAPES
from probe.report.sheet import GREY, LINE, NAME, SMALL, TICK, TOP, place, write_footer
from probe.report.typeset import text_width, wrap
from probe.report.zoo_canvas import number_ticks
from probe.report.zoo_facts import MEASURES, MIXED, Scatter, by_corruption, listed
from probe.report.zoo_labels import Box, Label, place_labels
from probe.report.zoo_legend import ROW, draw_legend, legend_lines, reason_lines, small_print

LEFT, BELOW = 0.66, 0.42  # inches
WIDTH, HEIGHT = 6.6, 4.6  # of the plot, inches
NAMES_REACH, NUMBERS_REACH = 0.33, 1.6  # how far a name or a number may stand away, inches
KEY_GAP = 0.2  # between columns of the key, inches
# The position kinds that are common get colours of their own; combinations come after them.
PALETTE = (COLORS["clean"], *SERIES)
KINDS = ("absolute", "rotary", "relative_bias", "none", "sinusoidal", "convolutional")

Json = Mapping[str, Any]


@dataclass(frozen=True)
class _Point:
    """One model: its number in the report, counted from 1, and its two scalars."""

    number: int
    model: Json
    x: Json
    y: Json

    @property
    def name(self) -> str:
        mixed = " †" if len(self.model["grids"]) > 1 else ""
        return plain(self.model["model"]) + mixed


def draw_scatter(report: Json, scatter: Scatter) -> Figure:
    """The figure itself, under whatever matplotlib style is in force."""
    points, missing = _points(report, scatter)
    page = LEFT + WIDTH + 0.2
    styles = _styles(report)
    kinds = [kind for kind in styles if any(p.model["position"] == kind for p in points)]
    legend = legend_lines([(_handle(*styles[kind]), plain(kind)) for kind in kinds], WIDTH)
    limits = _limits([p.x for p in points]), _limits([p.y for p in points])
    labels, key, mark = _label(points, limits, page)
    heading = f"{MEASURES[scatter.measure]} under {plain(scatter.label)} against anchoring"
    title = wrap(heading, NAME, WIDTH, bold=True)
    words = [line for text in _words(report, scatter) for line in wrap(text, SMALL, WIDTH)]
    footer = small_print(report, _notes(points, missing, mark), page - 2 * TOP)
    above = LINE * (NAME * len(title) + SMALL * len(words)) + 0.08 + ROW * len(legend) + 0.04
    tall = LINE * TICK * (len(key) + 0.6) if key else 0.0
    total = TOP + above + HEIGHT + BELOW + tall + 0.06 + LINE * SMALL * len(footer) + TOP
    figure = Figure(figsize=(page, total))

    y = total - TOP
    for lines, size, weight, color in (
        (title, NAME, "bold", "black"),
        (words, SMALL, "normal", GREY),
    ):
        for line in lines:
            y -= LINE * size
            figure.text(LEFT / page, y / total, line, fontsize=size, weight=weight, color=color)
    draw_legend(figure, legend, LEFT, y - 0.08)
    bottom = total - TOP - above - HEIGHT
    axes = place(figure, LEFT, bottom, WIDTH, HEIGHT)
    _set_up(axes, limits, MEASURES[scatter.measure])
    for kind in kinds:
        _draw_points(axes, [p for p in points if p.model["position"] == kind], *styles[kind])
    _draw_labels(axes, [p.name if mark is None else str(p.number) for p in points], labels)
    y = bottom - BELOW
    for row in key:
        y -= LINE * TICK
        for x, text in row:
            figure.text((LEFT + x) / page, y / total, text, fontsize=TICK)
    write_footer(figure, footer)
    return figure


def _points(report: Json, scatter: Scatter) -> tuple[list[_Point], list[tuple[str, str]]]:
    """Models that have both numbers; (reason, name) of those that do not."""
    points, missing = [], []
    for i, model in enumerate(report["models"], 1):
        y = by_corruption(model, scatter.measure).get(scatter.label)
        if y is None:
            missing.append((f"{scatter.label} was not measured", model["model"]))
            continue
        undefined = next((s for s in (model["anchoring"], y) if s["value"] is None), None)
        if undefined is None:
            points.append(_Point(i, model, model["anchoring"], y))
        else:
            missing.append((undefined["reason"] or "undefined", model["model"]))
    return points, missing


def _styles(report: Json) -> dict[str, tuple[str, str]]:
    """Position -> (colour, marker), the same in every figure of every report for one signal."""
    present = [model["position"] for model in report["models"]]
    ordered = dict.fromkeys([*KINDS, *sorted(set(present))])
    return {
        kind: (PALETTE[i % len(PALETTE)], SHAPES[i % len(SHAPES)]) for i, kind in enumerate(ordered)
    }


def _handle(color: str, marker: str) -> Line2D:
    return Line2D([], [], color=color, marker=marker, markersize=4.5, linestyle="none")


def _limits(scalars: Sequence[Json]) -> tuple[float, float]:
    ends = [s[key] for s in scalars for key in ("value", "low", "high") if s[key] is not None]
    room = max(0.08 * (max(ends) - min(ends)), 0.02)
    return min(ends) - room, max(ends) + room


def _label(
    points: Sequence[_Point], limits: tuple[tuple[float, float], tuple[float, float]], page: float
) -> tuple[list[Label | None], list[list[tuple[float, str]]], str | None]:
    """Labels, the rows of a key as (x, text), and what numbers mean where names do not fit."""
    (left, right), (low, high) = limits
    places = [
        (
            (p.x["value"] - left) / (right - left) * WIDTH,
            (p.y["value"] - low) / (high - low) * HEIGHT,
        )
        for p in points
    ]
    area = Box(0.02, 0.02, WIDTH - 0.02, HEIGHT - 0.02)
    tall = LINE * SMALL * 0.95
    sizes = [(text_width(p.name, SMALL), tall) for p in points]
    named = place_labels(places, sizes, area, NAMES_REACH)
    if None not in named:
        return named, [], None
    sizes = [(text_width(str(p.number), SMALL), tall) for p in points]
    numbered = place_labels(places, sizes, area, NUMBERS_REACH)
    left_out = [str(p.number) for p, label in zip(points, numbered, strict=True) if label is None]
    mark = "numbers are the models' places in the report"
    if left_out:
        mark += f"; without room for a number: {', '.join(left_out)}"
    return numbered, _key(points, page - LEFT - TOP), mark


def _key(points: Sequence[_Point], width: float) -> list[list[tuple[float, str]]]:
    """The key in as many columns as fit, downwards; long names are broken."""
    indent = max(text_width(f"{p.number} ", TICK) for p in points) + 0.02
    entries = [
        [(str(p.number) if i == 0 else "", line) for i, line in enumerate(lines)]
        for p in points
        for lines in [wrap(p.name, TICK, width / 2 - indent - KEY_GAP)]
    ]
    need = indent + max(text_width(line, TICK) for entry in entries for _, line in entry)
    columns = max(1, min(len(entries), int((width + KEY_GAP) / (need + KEY_GAP))))
    deep = -(-sum(map(len, entries)) // columns)
    stacks: list[list[tuple[str, str]]] = [[]]
    for entry in entries:
        if len(stacks[-1]) + len(entry) > deep and stacks[-1] and len(stacks) < columns:
            stacks.append([])
        stacks[-1] += entry
    rows: list[list[tuple[float, str]]] = [[] for _ in range(max(map(len, stacks)))]
    for column, stack in enumerate(stacks):
        x = column * (need + KEY_GAP)
        for row, (mark, line) in zip(rows, stack, strict=False):
            row += [(x, mark), (x + indent, line)] if mark else [(x + indent, line)]
    return rows


def _words(report: Json, scatter: Scatter) -> list[str]:
    """The rank correlation over all models, and what it is worth."""
    name = scatter.column
    found = next(
        (
            c
            for c in report["statistics"]["correlations"]
            if (c["x"], c["y"], c["group"]) == ("anchoring", name, None)
        ),
        None,
    )
    lines = [] if found is None else [correlation_text(found)]
    if not report["controlled"]["controlled"]:
        lines.append(plain(report["controlled"]["note"]))
    return lines


def correlation_text(found: Json) -> str:
    """`Spearman rho -.710 [-.920, -.310], permutation p <.001, ... over 5 models`."""
    over = f"over {counted(found['models'], 'model')}"
    if found["rho"] is None:
        return f"Spearman rho undefined {over}: {one_line(found['reason'] or 'undefined')}"
    parts = [f"Spearman rho {number(found['rho'])}"]
    if found["low"] is not None:
        parts[0] += f" {span(found['low'], found['high'])}"
    if found["p"] is not None:
        parts.append(f"permutation p {p_text(found['p'])}")
    if found["loo_low"] is not None:
        low, high = number(found["loo_low"]), number(found["loo_high"])
        parts.append(f"leaving one model out {low} to {high}")
    return ", ".join(parts) + f", {over}"


def _notes(
    points: Sequence[_Point], missing: Sequence[tuple[str, str]], mark: str | None
) -> list[str]:
    lines = ["bars: 95 % intervals over images"] + ([mark] if mark else [])
    mixed = [plain(p.model["model"]) for p in points if len(p.model["grids"]) > 1]
    if mixed:
        lines.append(f"† {MIXED}: {listed(mixed)}")
    lines += reason_lines(
        (s["reason"], f"{p.model['model']} ({axis})")
        for p in points
        for axis, s in (("anchoring", p.x), ("fragility", p.y))
    )
    return lines + [f"not shown, {line}" for line in reason_lines(missing)]


def _set_up(
    axes: Axes, limits: tuple[tuple[float, float], tuple[float, float]], label: str
) -> None:
    axes.set_xlim(*limits[0])
    axes.set_ylim(*limits[1])
    for axis, ends in zip((axes.xaxis, axes.yaxis), limits, strict=True):
        ticks = number_ticks(*ends, labelled=True)
        axis.set_ticks(list(ticks), list(ticks.values()))
    axes.tick_params(labelsize=TICK, length=2.5, width=0.6)
    axes.set_xlabel("anchoring", fontsize=TICK + 0.5, labelpad=2)
    axes.set_ylabel(label, fontsize=TICK + 0.5)
    axes.axhline(0, color=GREY, linewidth=0.4, zorder=0)
    axes.axvline(0, color=GREY, linewidth=0.4, zorder=0)


def _draw_points(axes: Axes, points: Sequence[_Point], color: str, marker: str) -> None:
    """The points of one kind, with their intervals."""
    bars = []
    for point in points:
        x, y = point.x, point.y
        if x["low"] is not None and x["high"] is not None:
            bars.append([(x["low"], y["value"]), (x["high"], y["value"])])
        if y["low"] is not None and y["high"] is not None:
            bars.append([(x["value"], y["low"]), (x["value"], y["high"])])
    style: dict[str, Any] = {"colors": color, "alpha": 0.35, "linewidths": 0.9, "zorder": 1}
    axes.add_collection(LineCollection(bars, **style), autolim=False)
    xs, ys = [p.x["value"] for p in points], [p.y["value"] for p in points]
    axes.plot(xs, ys, marker, color=color, markersize=4.5, zorder=3)


def _draw_labels(axes: Axes, texts: Sequence[str], labels: Sequence[Label | None]) -> None:
    lines = []
    for text, label in zip(texts, labels, strict=True):
        if label is None:
            continue
        if label.line is not None:
            lines.append([(x / WIDTH, y / HEIGHT) for x, y in label.line])
        box = label.box
        at = ((box.left + box.right) / 2 / WIDTH, (box.bottom + box.top) / 2 / HEIGHT)
        centred: dict[str, Any] = {"ha": "center", "va": "center", "zorder": 4}
        axes.text(*at, text, fontsize=SMALL, transform=axes.transAxes, **centred)
    style: dict[str, Any] = {"colors": GREY, "linewidths": 0.5, "zorder": 2}
    axes.add_collection(LineCollection(lines, transform=axes.transAxes, **style), autolim=False)
