"""Pictures of collisions: a photo's patch, another patch with the same token, their difference."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from probe.report.audit_numbers import Json, evidence, pixels, traced, written
from probe.report.format import label_lines, one_line, plain
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
from probe.report.typeset import wrap

SIDE, GAP = 1.7, 0.3  # of a picture, inches
ABOVE, BELOW = 0.22, 0.16  # titles over the pictures, room under them, inches
TITLES = ("patch of a photo", "another patch", "difference")
WIDTH = 3 * SIDE + 2 * GAP
PAGE = TOP + WIDTH + TOP


def draw_collisions(results: Sequence[Json]) -> Figure:
    """A row of three pictures per model with a collision, each pixel of a patch a square.

    The difference is other minus patch, grey where they agree, black or white where it is largest.
    """
    found = [card for card in results if card["patch"] and card["patch"]["collision"]]
    heads = [_heading(card) for card in found]
    rows = [LINE * (NAME * len(name) + SMALL * len(small)) for name, small in heads]
    footer = footer_lines([traced(card) for card in found], [], _notes(results), PAGE - 2 * TOP)
    tall = [SIDE * min(1.0, _aspect(card)) for card in found]
    height = TOP + sum(rows) + sum(tall) + len(found) * (ABOVE + BELOW)
    height += LINE * SMALL * len(footer) + TOP
    figure = Figure(figsize=(PAGE, height))
    y = height - TOP
    for card, head, row, side in zip(found, heads, rows, tall, strict=True):
        write_heading(figure, *head, TOP, y)
        y -= row + ABOVE
        for column, (title, picture) in enumerate(zip(TITLES, _pictures(card), strict=True)):
            x = TOP + column * (SIDE + GAP)
            axes = place(figure, x, y - side, SIDE, side)
            axes.imshow(picture, interpolation="nearest")
            axes.set_title(title, fontsize=TICK, loc="left", pad=3)
            axes.set_xticks([])
            axes.set_yticks([])
            for spine in axes.spines.values():
                spine.set_visible(True)
                spine.set_color(GREY)
        y -= side + BELOW
    write_footer(figure, footer)
    return figure


def _heading(card: Json) -> tuple[list[str], list[str]]:
    name, identity = label_lines(traced(card))
    patch = card["patch"]
    collision = patch["collision"]
    facts = [identity] if identity else []
    facts += [
        f"{pixels(patch['kernel'])}, D {patch['dim']}, width {patch['width']}, nullity "
        f"{patch['nullity']} [{evidence(card, 'patch')[0]}]",
        f"max_pixel_difference {written(collision['max_pixel_difference'])} of 255 levels, "
        f"token_difference {written(collision['token_difference'])} (relative L2)",
    ]
    small = [line for fact in facts for line in wrap(fact, SMALL, WIDTH)]
    return wrap(name, NAME, WIDTH, bold=True), small


def _aspect(card: Json) -> float:
    rows, cols = card["patch"]["kernel"]
    return float(rows / cols)


def _pictures(card: Json) -> list[NDArray[np.uint8]]:
    """(rows, cols, 3) uint8: patch, other, and other minus patch, stretched around mid grey."""
    collision = card["patch"]["collision"]
    patch, other = (
        np.asarray(collision[key], dtype=np.float64).transpose(1, 2, 0)
        for key in ("patch", "other")
    )
    apart = other - patch
    largest = np.abs(apart).max() or 1.0
    shown = (patch, other, 127.5 + 127.5 * apart / largest)
    return [np.clip(np.round(one), 0, 255).astype(np.uint8) for one in shown]


def _notes(results: Sequence[Json]) -> list[str]:
    """What the pictures are, and the models that have none."""
    lines = [
        "both patches are real-valued and lie within 0..255; pictures round them to levels; "
        "difference: other minus patch, grey where they agree, black or white where it is largest"
    ]
    for text in dict.fromkeys(evidence(card, "patch")[1][0] for card in results):
        lines.append(f"assumes: {one_line(text)}")
    for card in results:
        patch = card["patch"]
        if patch and not patch["collision"]:
            lines.append(f"{plain(card['model'])}: {one_line(patch['reason'] or 'no collision')}")
    return lines
