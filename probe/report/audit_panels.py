"""The panels of the audit's figure: singular values, permutation defects, pairs reached."""

from __future__ import annotations

from itertools import groupby

from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

from probe.report.audit_numbers import (
    Json,
    blocks_of,
    count,
    evidence,
    rounding,
    why_missing,
    written,
)
from probe.report.format import counted, grid_text, one_line
from probe.report.panel import COLORS
from probe.report.sheet import BAND, GREY, LINE, SMALL, TICK
from probe.report.typeset import text_width, wrap

# Okabe and Ito's colours, as in the other figures; markers differ too, and so does their size in
# points, so that equal defects stay apart.
SERIES = {
    "defect_without_position": (COLORS["clean"], "o", 5.4),
    "defect_with_position": (COLORS["rpi"], "s", 4.4),
    "defect_joint": ("#009E73", "^", 3.4),
    "defect_within_windows": ("#CC79A7", "D", 2.2),
}
KEPT, NEARLY_LOST, REACH = COLORS["clean"], COLORS["rpi"], "#000000"
NEARLY = 0.01  # of the largest singular value
ROUNDED = (0, (4, 2))
WIDTH, HEIGHT = 2.75, 1.45  # of a panel, inches
SIZE = 3.2  # of other markers, points


def _title(axes: Axes, text: str, card: Json, item: str) -> None:
    """A panel's title, with its level of evidence."""
    level = evidence(card, item)[0]
    axes.set_title(f"{text} [{level}]", fontsize=TICK, loc="left", pad=11)


def _empty(axes: Axes, reason: str) -> None:
    """A panel without data says why."""
    axes.set_axis_off()
    lines = wrap(one_line(reason), SMALL, WIDTH - 0.1)
    most = int(HEIGHT / (LINE * SMALL))
    cut = lines[:most]
    text = "\n".join(cut)
    axes.text(0, 1, text, transform=axes.transAxes, va="top", fontsize=SMALL, color=GREY)


def _logarithmic(axes: Axes, low: float, high: float) -> None:
    axes.set_yscale("log")
    axes.set_ylim(low, high)
    axes.yaxis.set_major_locator(LogLocator(numticks=6))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: _decade(value)))
    axes.yaxis.set_minor_locator(NullLocator())


def _decade(value: float) -> str:
    """`1`, `.01`, `1e-4`."""
    return f"{value:.3f}".rstrip("0").rstrip(".").lstrip("0") if value >= 1e-3 else written(value)


def draw_singular(axes: Axes, card: Json) -> None:
    """Singular values over directions of D; the null space is shaded."""
    patch = card["patch"]
    _title(axes, "singular values / largest", card, "patch")
    if patch is None:
        _empty(axes, f"left out: {why_missing(card, 'patch')}")
        return
    rank, dim = patch["rank"], patch["dim"]
    if not rank:
        _empty(axes, "every singular value is 0")
        return
    values = [value / patch["singular_values"][0] for value in patch["singular_values"][:rank]]
    lowest = patch["tolerance"] / patch["singular_values"][0]
    _logarithmic(axes, min(lowest, *values) / 3, 3)
    axes.set_xlim(0, dim + 1)
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    axes.set_xlabel(f"direction of {count(dim)}", fontsize=TICK, labelpad=1)
    directions = range(1, rank + 1)
    kept = [v if v >= NEARLY else float("nan") for v in values]
    weak = [v if v < NEARLY else float("nan") for v in values]
    for line, color in ((kept, KEPT), (weak, NEARLY_LOST)):
        axes.plot(directions, line, color=color, linewidth=1.8, marker=".", markersize=2.5)
    axes.axhline(lowest, color=GREY, linewidth=0.8, linestyle=ROUNDED, zorder=1)
    facts = [f"rank {count(rank)}", f"nullity {count(patch['nullity'])}"]
    if patch["nullity"]:
        axes.axvspan(rank + 0.5, dim + 1, color=BAND, linewidth=0, zorder=0)
    _above(axes, ", ".join(facts))


def _above(axes: Axes, text: str) -> None:
    """A line between title and panel."""
    axes.annotate(
        text,
        (0, 1),
        xycoords="axes fraction",
        xytext=(0, 2),
        textcoords="offset points",
        va="bottom",
        fontsize=SMALL,
        color=GREY,
    )


def draw_defects(axes: Axes, card: Json) -> None:
    """Permutation defects of every block; what is below rounding keeps its value, if not 0."""
    rows = card["symmetry"]
    _title(axes, "permutation defect", card, "symmetry")
    if not rows:
        _empty(axes, f"left out: {why_missing(card, 'symmetry')}")
        return
    limits, floor = [rounding(card, row) for row in rows], lower_edge(card)
    values = [row[key] for row in rows for key in SERIES if row.get(key) is not None]
    _logarithmic(axes, floor / 2, 4 * max([1.0, *values]))
    blocks = [row["block"] for row in rows]
    axes.set_xlim(-0.5, max(blocks) + 0.5)
    axes.xaxis.set_major_locator(MaxNLocator(8, integer=True))
    axes.set_xlabel("block", fontsize=TICK, labelpad=1)
    axes.plot(blocks, limits, color=GREY, linewidth=0.8, linestyle=ROUNDED, zorder=1)
    missing = []
    for key, (color, marker, size) in SERIES.items():
        found = [row.get(key) for row in rows]
        drawn = [float("nan") if value is None else max(value, floor) for value in found]
        axes.plot(
            blocks,
            drawn,
            color=color,
            marker=marker,
            markersize=size,
            markerfacecolor="white",
            markeredgewidth=0.9,
            linewidth=0.9,
            zorder=3,
        )
        if key in shown_defects(card):
            pairs = zip(blocks, found, strict=True)
            missing += [block for block, value in pairs if value is None]
    at = sorted(set(missing))
    axes.plot(
        at, [floor / 2] * len(at), "x", color=GREY, markersize=4, clip_on=False, zorder=4
    )  # fmt: skip
    scope = "every block by itself" if rows[0]["scope"] == "block" else "all blocks so far"
    _above(axes, scope)


def lower_edge(card: Json) -> float:
    """The smallest defect that is drawn at its own value."""
    return min(rounding(card, row) for row in card["symmetry"]) / 300


def shown_defects(card: Json) -> list[str]:
    """The defects that this card can hold."""
    rows = card["symmetry"] or ()
    windowed = any(row.get("defect_within_windows") is not None for row in rows)
    return [key for key in SERIES if key != "defect_within_windows" or windowed]


def draw_reach(axes: Axes, card: Json) -> None:
    """Share of pairs that have reached each other, over blocks."""
    found = card["attention"]
    _title(axes, "share of pairs reached", card, "attention")
    if found is None:
        _empty(axes, f"left out: {why_missing(card, 'attention')}")
        return
    depth = found["share_reached"]
    axes.set_xlim(-0.5, len(depth) - 0.5)
    axes.set_ylim(0, 1.06)
    axes.xaxis.set_major_locator(MaxNLocator(8, integer=True))
    axes.set_xlabel("block", fontsize=TICK, labelpad=1)
    axes.plot(
        range(len(depth)), depth, color=REACH, marker="o", markersize=SIZE, linewidth=1.1, zorder=3
    )
    start = 0
    for _, run in groupby(blocks_of(card), key=lambda block: tuple(block["grid"])):
        if start:
            axes.axvline(start - 0.5, color=GREY, linewidth=0.5, linestyle=(0, (2, 2)), zorder=1)
        start += len(list(run))
    until = found["blocks_until_all_reached"]
    reached = "never all" if until is None else f"all after {counted(until, 'block')}"
    grids = dict.fromkeys(grid_text(stage["grid"]) for stage in found["stages"])
    text = f"{reached}; {'grids' if len(grids) > 1 else 'grid'} {', '.join(grids)}"
    _above(axes, text if text_width(text, SMALL) <= WIDTH else reached)
