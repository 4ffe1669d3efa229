"""The figure of `probe audit`: singular values, permutation defects and reach, a row per model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from probe.report.audit_numbers import (
    DEFECTS,
    Json,
    evidence,
    rounding,
    traced,
    written,
)
from probe.report.audit_panels import (
    HEIGHT,
    KEPT,
    NEARLY_LOST,
    ROUNDED,
    SERIES,
    WIDTH,
    draw_defects,
    draw_reach,
    draw_singular,
    lower_edge,
    shown_defects,
)
from probe.report.format import label_lines, one_line, plain
from probe.report.sheet import (
    BAND,
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
from probe.report.typeset import wrap
from probe.report.zoo_legend import ROW, Item, cross_key, draw_legend, legend_lines, patch_key

LEFT, RIGHT, GAP = 0.55, 0.25, 0.62  # inches
COLUMNS = 3
ABOVE, BELOW, BETWEEN = 0.3, 0.38, 0.12  # titles over panels, labels under them, rows apart
PAGE = LEFT + COLUMNS * WIDTH + (COLUMNS - 1) * GAP + RIGHT


@dataclass(frozen=True)
class _Titles:
    name: list[str]
    details: list[str]

    @property
    def height(self) -> float:
        return LINE * (NAME * len(self.name) + SMALL * len(self.details)) + ABOVE


def draw_audit(results: Sequence[Json], failures: Sequence[Json]) -> Figure:
    """The figure itself, under whatever matplotlib style is in force; `results` is not empty."""
    cards = [traced(card) for card in results]
    titles = [_titles(card) for card in cards]
    legend = legend_lines(_legend(results), PAGE - LEFT - RIGHT)
    footer = footer_lines(cards, failures, _notes(results), PAGE - 2 * TOP)
    row = HEIGHT + BELOW + BETWEEN
    height = TOP + ROW * len(legend) + sum(title.height + row for title in titles)
    height += LINE * SMALL * len(footer) + TOP
    figure = Figure(figsize=(PAGE, height))
    draw_legend(figure, legend, LEFT, height - TOP)
    y = height - TOP - ROW * len(legend)
    for card, title in zip(results, titles, strict=True):
        write_heading(figure, title.name, title.details, TOP, y)
        y -= title.height
        for column, draw in enumerate((draw_singular, draw_defects, draw_reach)):
            x = LEFT + column * (WIDTH + GAP)
            axes = place(figure, x, y - HEIGHT, WIDTH, HEIGHT)
            axes.tick_params(labelsize=TICK, length=2.5, width=0.6)
            axes.tick_params(which="minor", length=1.5, width=0.4)
            draw(axes, card)
        y -= row
    write_footer(figure, footer)
    return figure


def _titles(result: Mapping[str, object]) -> _Titles:
    name, identity = label_lines(result)
    details = wrap(identity, SMALL, PAGE - 2 * TOP) if identity else []
    return _Titles(wrap(name, NAME, PAGE - 2 * TOP, bold=True), details)


def _legend(results: Sequence[Json]) -> list[Item]:
    items: list[Item] = []
    patches = [card["patch"] for card in results if card["patch"]]
    if patches:
        items.append((Line2D([], [], color=KEPT, linewidth=1.8), "singular value"))
    if any(patch["nearly_lost"] for patch in patches):
        items.append((Line2D([], [], color=NEARLY_LOST, linewidth=1.8), "nearly lost (below 1 %)"))
    if any(patch["nullity"] for patch in patches):
        items.append(patch_key(BAND, "null space"))
    shown = {key for card in results if card["symmetry"] for key in shown_defects(card)}
    for key, (color, marker, size) in SERIES.items():
        if key in shown:
            line = Line2D(
                [],
                [],
                color=color,
                marker=marker,
                markersize=size,
                markerfacecolor="white",
                linewidth=0.9,
            )
            items.append((line, f"defect {DEFECTS[key]}"))
    dashed = Line2D([], [], color=GREY, linewidth=0.8, linestyle=ROUNDED)
    items.append((dashed, "rounding: below it counts as 0"))
    rows = [(card, row) for card in results for row in card["symmetry"] or ()]
    if any(row[key] is None for card, row in rows for key in shown_defects(card)):
        items.append(cross_key("a defect is not defined"))
    return items


def _notes(results: Sequence[Json]) -> list[str]:
    """What each panel assumes, once, and what was left out."""
    lines = []
    for item in ("patch", "symmetry", "attention"):
        for text in dict.fromkeys(evidence(card, item)[1][0] for card in results):
            lines.append(f"{item} assumes: {one_line(text)}")
    rows = [(card, row) for card in results for row in card["symmetry"] or ()]
    values = [(card, row[key]) for card, row in rows for key in shown_defects(card)]
    if any(value is not None and value < lower_edge(card) for card, value in values):
        lines.append("defects of 0, or nearly, are drawn at the lower edge")
    found: dict[str, list[str]] = {}
    for card in results:
        own = [f"left out {left['item']}: {left['reason']}" for left in card["left_out"]]
        defects = card["symmetry"] or ()
        own += dict.fromkeys(row["reason"] for row in defects if row["reason"])
        if defects:
            own.append(f"rounding of a defect from {written(rounding(card, defects[0]))}")
        for text in own:
            found.setdefault(one_line(text), []).append(plain(card["model"]))
    for text, names in found.items():
        who = f": {', '.join(names)}" if len(results) > 1 else ""
        lines.append(f"{text}{who}")
    return lines
