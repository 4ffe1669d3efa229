"""Two pictures that need no model: attention pairs over patch side, nullity over token width."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from matplotlib import style
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullLocator

from probe.report.audit_numbers import count
from probe.report.panel import COLORS
from probe.report.sheet import (
    LINE,
    NAME,
    SMALL,
    STYLE,
    TICK,
    TOP,
    place,
    save,
    write_footer,
    write_heading,
)
from probe.report.typeset import wrap

LEFT, RIGHT = 0.98, 0.3  # inches
WIDTH, HEIGHT, BELOW = 5.0, 2.8, 0.42  # of the axes and what stands under them, inches
PAGE = LEFT + WIDTH + RIGHT


@dataclass(frozen=True)
class PairsAt:
    """Patch tokens, and ordered pairs, of one square image cut into patches of `side` px."""

    side: int
    tokens: int
    everywhere: int
    windowed: int


def pairs_figure(
    counts: Sequence[PairsAt], image_size: int, window: tuple[int, int]
) -> dict[str, bytes]:
    """File name -> content of `pairs.svg` and `pairs.png`: pairs of one layer over patch side.

    Args:
        counts: one entry per patch side.
        image_size: height and width of the image in pixels.
        window: rows and columns of a window in tokens.
    """
    with style.context(["default", STYLE]):
        return save(draw_pairs(counts, image_size, window), "pairs")


def draw_pairs(counts: Sequence[PairsAt], image_size: int, window: tuple[int, int]) -> Figure:
    """The figure itself, under whatever matplotlib style is in force."""
    windows = f"{window[0]}x{window[1]}"
    caption = [
        f"ordered (query, key) pairs of patch tokens of one layer, per image and head, at "
        f"{image_size}x{image_size} px; prefix tokens and padding are not counted",
        "global: N^2 of N tokens; windows: the sum of n^2 over windows of n tokens, unshifted",
    ]
    same = [entry.side for entry in counts if entry.everywhere == entry.windowed]
    if same:
        where = " and ".join(f"{side} px" for side in same)
        caption.append(f"at {where} the whole grid is one window")
    figure, axes = _sheet("Attention pairs over patch side [analytic]", caption)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    sides = [entry.side for entry in counts]
    curves = {
        "global attention": ([entry.everywhere for entry in counts], COLORS["clean"], "o", 1),
        f"windows of {windows} tokens": ([e.windowed for e in counts], COLORS["rpi"], "s", -1),
    }
    for label, (values, color, marker, above) in curves.items():
        axes.plot(sides, values, color=color, marker=marker, markersize=5, label=label)
        for entry, value in zip(counts, values, strict=True):
            if entry.side in same and above < 0:
                continue
            _annotate(axes, (entry.side, value), count(value), color, above, left=above > 0)
    axes.set_xlim(min(sides) / 1.35, max(sides) * 1.5)
    highest = max(entry.everywhere for entry in counts)
    lowest = min(entry.windowed for entry in counts)
    axes.set_ylim(lowest / 4, highest * 4)
    axes.xaxis.set_major_locator(FixedLocator(sides))
    tokens = {entry.side: count(entry.tokens) for entry in counts}
    axes.xaxis.set_major_formatter(
        FuncFormatter(lambda side, _: f"{side:g}\n{tokens[round(side)]} tokens")
    )
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_locator(LogLocator(numticks=9))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda pairs, _: count(round(pairs))))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.set_xlabel("patch side, px", fontsize=TICK, labelpad=2)
    axes.set_ylabel("pairs", fontsize=TICK)
    axes.legend(fontsize=TICK, frameon=False, loc="upper right")
    return figure


def nullity_figure(
    nullity: Mapping[int, int], dim: int, patch: tuple[int, int, int]
) -> dict[str, bytes]:
    """File name -> content of `nullity.svg` and `nullity.png`: lost directions over token width.

    Args:
        nullity: token width -> directions of the patch that a full-rank projection loses.
        dim: coordinates of a patch.
        patch: its rows, columns and channels.
    """
    with style.context(["default", STYLE]):
        return save(draw_nullity(nullity, dim, patch), "nullity")


def draw_nullity(nullity: Mapping[int, int], dim: int, patch: tuple[int, int, int]) -> Figure:
    """The figure itself, under whatever matplotlib style is in force."""
    rows, cols, channels = patch
    caption = [
        f"nullity = D - rank >= max(0, D - d), here D = {rows} x {cols} x {channels} = {dim}; "
        "equal for a projection of full rank",
        f"from d = {dim} on a projection can keep every direction; below, patches that differ in a "
        "lost one share a token",
    ]
    title = f"Directions that a patch of {rows}x{cols} px loses, over token width d [analytic]"
    figure, axes = _sheet(title, caption)
    widths = sorted(nullity)
    values = [nullity[width] for width in widths]
    axes.fill_between(widths, values, color=COLORS["clean"], alpha=0.15, linewidth=0)
    axes.plot(widths, values, color=COLORS["clean"], linewidth=1.6)
    axes.set_xlim(0, max(widths))
    axes.set_ylim(0, dim * 1.1)
    axes.xaxis.set_major_locator(FixedLocator(range(0, max(widths) + 1, max(1, dim // 4))))
    axes.yaxis.set_major_locator(FixedLocator(range(0, dim + 1, max(1, dim // 4))))
    axes.set_xlabel("token width d", fontsize=TICK, labelpad=2)
    axes.set_ylabel("nullity", fontsize=TICK)
    for width in (dim // 4, dim // 2, dim):
        if width in nullity:
            text = f"d = {width}: {nullity[width]}"
            axes.plot(
                [width], [nullity[width]], "o", color=COLORS["clean"], markersize=4, clip_on=False
            )
            _annotate(axes, (width, nullity[width]), text, COLORS["clean"], 1, left=True)
    return figure


def _sheet(title: str, caption: Sequence[str]) -> tuple[Figure, Axes]:
    name = wrap(title, NAME, PAGE - 2 * TOP, bold=True)
    footer = [line for text in caption for line in wrap(text, SMALL, PAGE - 2 * TOP)]
    height = TOP + LINE * NAME * len(name) + 0.12 + HEIGHT + BELOW
    height += 0.08 + LINE * SMALL * len(footer) + TOP
    figure = Figure(figsize=(PAGE, height))
    write_heading(figure, name, [], TOP, height - TOP)
    bottom = TOP + LINE * SMALL * len(footer) + 0.08 + BELOW
    axes = place(figure, LEFT, bottom, WIDTH, HEIGHT)
    axes.tick_params(labelsize=TICK, length=2.5, width=0.6)
    axes.grid(color="#EEEEEE", linewidth=0.6)
    axes.set_axisbelow(True)
    write_footer(figure, footer)
    return figure, axes


def _annotate(
    axes: Axes, at: tuple[float, float], text: str, color: str, above: int, *, left: bool = False
) -> None:
    """A number beside its point."""
    axes.annotate(
        text,
        at,
        xytext=(5 if left else 0, 6 * above),
        textcoords="offset points",
        ha="left" if left else "center",
        va="bottom" if above > 0 else "top",
        fontsize=TICK,
        color=color,
    )
