"""The legend and the small print of a report's figures."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from probe.report.format import one_line, plain
from probe.report.sheet import GREY, SMALL, TICK
from probe.report.typeset import text_width, wrap_parts
from probe.report.zoo_canvas import DASHES, Curve
from probe.report.zoo_facts import listed, report_facts

ROW = 0.2  # height of a line of the legend, inches
TRACED = (
    *("data", "images", "protocol", "site", "distance", "average", "RPI", "seed", "precision"),
    "SSDC interval",
)

Item = tuple[Any, str]  # a handle and its label


def curve_key(curve: Curve, label: str, banded: bool = True) -> Item:
    """A curve, with its interval band behind it."""
    line = Line2D(
        [],
        [],
        color=curve.color,
        marker=curve.marker,
        markersize=curve.size,
        markerfacecolor=curve.face,
        markeredgewidth=0.8,
        linewidth=curve.line,
        linestyle=DASHES if curve.dashed else "solid",
    )
    if not banded:
        return line, label
    return (Patch(color=curve.color, alpha=0.2, linewidth=0), line), label


def patch_key(color: str, label: str) -> Item:
    """A filled area."""
    return Patch(color=color, linewidth=0), label


def cross_key(label: str) -> Item:
    """The cross of an undefined value."""
    return Line2D([], [], color=GREY, marker="x", markersize=4, linestyle="none"), label


def legend_lines(items: Iterable[Item], width: float) -> list[list[Item]]:
    """The items in lines of at most `width` inches."""
    lines: list[list[Item]] = []
    used = 0.0
    for item in items:
        need = text_width(item[1], TICK) + 0.48
        if not lines or used + need > width:
            lines.append([])
            used = 0.0
        lines[-1].append(item)
        used += need
    return lines


def draw_legend(figure: Figure, lines: Sequence[Sequence[Item]], x: float, top: float) -> None:
    """Lines of a legend from `x`, downwards from `top`; inches from the sheet's lower left."""
    width, height = figure.get_size_inches()
    for i, line in enumerate(lines):
        figure.legend(
            [handle for handle, _ in line],
            [label for _, label in line],
            loc="upper left",
            bbox_to_anchor=((x - 0.05) / width, (top + 0.05 - ROW * i) / height),
            ncols=len(line),
            fontsize=TICK,
            frameon=False,
            borderpad=0,
            columnspacing=1.5,
        )


def small_print(report: Mapping[str, Any], extra: Iterable[str], width: float) -> list[str]:
    """What the numbers are traced by, `extra`, and the failures, broken to `width` inches."""
    facts = report_facts(report)
    traced = [f"{label} {facts[label]}" for label in TRACED if label in facts]
    lines = wrap_parts(traced, " · ", SMALL, width)
    failed = [failure["model"] for failure in report["failures"]]
    told = [f"failed: {listed(failed)}"] if failed else []
    for line in (*extra, *told):
        lines += wrap_parts(line.split(" "), " ", SMALL, width)
    return lines


def reason_lines(places: Iterable[tuple[str | None, str]]) -> list[str]:
    """For every reason of a missing number or interval: where it is missing, each place once."""
    found: dict[str, dict[str, None]] = {}
    for reason, place in places:
        if reason is not None:
            found.setdefault(one_line(reason), {})[plain(place)] = None
    return [f"{reason}: {listed(list(names))}" for reason, names in found.items()]
