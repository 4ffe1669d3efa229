"""Maps of corruption by severity: a shade and a number per cell, and the mean over severities."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from probe.report.chart import UNDEFINED
from probe.report.format import number, plain
from probe.report.severity import severity_mean
from probe.report.sheet import BAND, GREY, LINE, NAME, SMALL, TICK, TOP, place, write_heading
from probe.report.typeset import text_width, wrap

CELL_WIDTH, CELL_HEIGHT = 0.32, 0.17  # inches
MEAN_GAP = 0.06  # between the last severity and the mean, inches
BETWEEN = 0.12  # between a model's maps, inches
RIGHT, GAP = 0.25, 0.3  # right margin, between models, inches
TITLES = 0.34  # title and severities above a map, inches
DARK = 0.179  # luminance below which white text has more contrast than black
ROW_GAP = 0.14  # between models below each other, inches


@dataclass(frozen=True)
class Map:
    """One measure of one model: name -> severity -> scalar, and the colour of 1."""

    title: str
    rows: Mapping[str, Mapping[int, Mapping[str, Any]]]
    color: str


Maps = list[tuple[str, str, list[Map]]]  # model, resolved id, its maps


@dataclass(frozen=True)
class Layout:
    """Where the maps of all models stand; sizes in inches."""

    maps: Maps
    names: list[str]
    severities: list[int]
    left: float
    columns: int
    headings: list[tuple[list[str], list[str]]]
    tops: list[float]  # height of the headings of each row of models

    @property
    def map_width(self) -> float:
        """Width of one map."""
        return (len(self.severities) + 1) * CELL_WIDTH + MEAN_GAP

    @property
    def model_width(self) -> float:
        """Width of a model's maps together."""
        return _model_width(len(self.severities), len(self.maps[0][2]))

    @property
    def map_height(self) -> float:
        """Height of one map."""
        return len(self.names) * CELL_HEIGHT

    @property
    def width(self) -> float:
        """Width that the maps need, margins included."""
        return self.left + self.columns * (self.model_width + GAP) - GAP + RIGHT

    @property
    def height(self) -> float:
        """Height that the maps need."""
        return sum(top + TITLES + self.map_height + ROW_GAP for top in self.tops)


def layout_maps(maps: Maps) -> Layout | None:
    """Three models in a row at most; None without maps."""
    if not maps:
        return None
    rows = [item.rows for _, _, pair in maps for item in pair]
    names = list(dict.fromkeys(name for row in rows for name in row))
    severities = sorted({s for row in rows for cells in row.values() for s in cells})
    left = TOP + max(text_width(plain(name), TICK) for name in names) + 0.08
    columns = min(3, len(maps))
    width = _model_width(len(severities), len(maps[0][2]))
    headings = [
        (
            wrap(name, NAME, width, bold=True) if name else [],
            wrap(identity, SMALL, width) if identity else [],
        )
        for name, identity, _ in maps
    ]
    heights = [LINE * (NAME * len(name) + SMALL * len(rest)) for name, rest in headings]
    tops = [max(heights[i : i + columns]) for i in range(0, len(maps), columns)]
    return Layout(maps, names, severities, left, columns, headings, tops)


def draw_maps(figure: Figure, layout: Layout, top: float) -> None:
    """Draw all maps downwards from `top`, in inches from the sheet's lower edge."""
    y = top
    for row, heading_height in enumerate(layout.tops):
        y -= heading_height
        for column in range(layout.columns):
            i = row * layout.columns + column
            if i >= len(layout.maps):
                break
            x = layout.left + column * (layout.model_width + GAP)
            name, identity = layout.headings[i]
            write_heading(figure, name, identity, x, y + heading_height)
            for item in layout.maps[i][2]:
                bottom = y - TITLES - layout.map_height
                axes = place(figure, x, bottom, layout.map_width, layout.map_height)
                _draw(axes, item, layout, labelled=x == layout.left)
                x += layout.map_width + BETWEEN
        y -= TITLES + layout.map_height + ROW_GAP


def _model_width(severities: int, maps: int) -> float:
    return maps * ((severities + 1) * CELL_WIDTH + MEAN_GAP + BETWEEN) - BETWEEN


def _draw(axes: Axes, item: Map, layout: Layout, labelled: bool) -> None:
    """One map, in inches from its upper left corner."""
    axes.set_xlim(0, layout.map_width)
    axes.set_ylim(layout.map_height, 0)
    axes.axis("off")
    shades = LinearSegmentedColormap.from_list("shades", ["white", item.color])
    count = len(layout.severities)
    lefts = [i * CELL_WIDTH for i in range(count)] + [count * CELL_WIDTH + MEAN_GAP]
    for x, head in zip(lefts, [*map(str, layout.severities), "mean"], strict=True):
        _text(axes, x + CELL_WIDTH / 2, -0.08, head, GREY, SMALL)
    axes.annotate(item.title, (0, -0.15), fontsize=TICK, va="bottom", annotation_clip=False)
    for j, name in enumerate(layout.names):
        y = j * CELL_HEIGHT
        if labelled:
            axes.annotate(
                plain(name),
                (-0.06, y + CELL_HEIGHT / 2),
                ha="right",
                va="center",
                fontsize=TICK,
                annotation_clip=False,
            )
        cells = item.rows.get(name)
        if cells is None:
            continue
        scalars = [cells.get(severity) for severity in layout.severities]
        for x, scalar in zip(lefts, [*scalars, severity_mean(cells)], strict=True):
            if scalar is None:
                continue
            value = scalar["value"]
            share = 0.0 if value is None else min(1.0, max(0.0, value))
            axes.add_patch(
                Rectangle(
                    (x, y),
                    CELL_WIDTH,
                    CELL_HEIGHT,
                    facecolor=BAND if value is None else shades(share),
                    edgecolor="white",
                    linewidth=0.5,
                )
            )
            text = UNDEFINED if value is None else number(value)
            color = "white" if _luminance(shades(share)) < DARK else "black"
            _text(axes, x + CELL_WIDTH / 2, y + CELL_HEIGHT / 2, text, color, SMALL)


def _luminance(color: tuple[float, float, float, float]) -> float:
    """Relative luminance, 0..1, as in WCAG 2 but for the linear part near black."""
    red, green, blue = (channel**2.2 for channel in color[:3])
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def _text(axes: Axes, x: float, y: float, text: str, color: str, size: float) -> None:
    axes.annotate(
        text, (x, y), ha="center", va="center", fontsize=size, color=color, annotation_clip=False
    )
