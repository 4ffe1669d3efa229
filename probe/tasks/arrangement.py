"""Arrangement against content: the same patches in rows or in columns."""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.random import Generator

from probe.tasks.design import ControlledTask, Curve, Levels, Scene, Subgroup
from probe.tasks.frame import Frame
from probe.tasks.look import NOISE, Pixels, draw_look, to_pixels

WIDTHS = (1, 2, 4, 7, 14, 28)  # patches
CLASSES = ("rows", "columns")
# Distance of the two colours, as a share of that between an object and its ground elsewhere.
CONTRAST = {"strong": 1.0, "weak": 0.35}


@cache
def levels(frame: Frame) -> Levels:
    """Widths of a stripe of which two lie side by side in the square part of the grid."""
    left_out = tuple(
        (float(width), f"two stripes take {2 * width} patches, the grid has {frame.side}")
        for width in WIDTHS
        if 2 * width > frame.side
    )
    return Levels(tuple(float(one) for one in WIDTHS if 2 * one <= frame.side), left_out)


def render(
    frame: Frame, factor: str, level: float, rng: Generator, index: int
) -> tuple[Scene, ...]:
    """Light and dark patches in rows, and the very same patches in columns.

    The phase of the stripes is drawn, so that each place is as often light as dark in either class.
    On a grid that is not square the stripes fill a square in the middle of a plain image.
    """
    look = draw_look(rng, index)
    contrast = tuple(CONTRAST)[index // 4 % 2]
    share = rng.random()
    side, width = frame.side, round(level)
    height_px, width_px = frame.patch
    noise = rng.standard_normal((side * side, height_px, width_px, 1)) * NOISE[look.ground]
    phase = int(share * 2 * width)
    inked = (np.arange(side) + phase) // width % 2 == 0
    count = int(inked.sum()) * side
    middle, half = (look.ink + look.paper) / 2, CONTRAST[contrast] * (look.ink - look.paper) / 2
    tiles = to_pixels(
        np.concatenate([middle + half + noise[:count], middle - half + noise[count:]])
    )
    factors = look.factors() | {"contrast": contrast, "phase": float(phase), factor: level}
    found = []
    for label, name in enumerate(CLASSES):
        across = np.tile(inked[:, None], (1, side))
        layout = (across if name == "rows" else across.T).ravel()
        order = np.empty(side * side, dtype=np.int64)
        order[layout], order[~layout] = np.arange(count), np.arange(count, side * side)
        found.append(Scene(_placed(frame, tiles[order], middle), label, factors))
    return tuple(found)


def _placed(frame: Frame, tiles: Pixels, plain: np.ndarray) -> Pixels:
    """Tiles (side * side, height, width, 3), row by row, in the middle of a plain image."""
    side, (height, width) = frame.side, frame.patch
    square = tiles.reshape(side, side, height, width, 3).swapaxes(1, 2)
    image = np.empty((*frame.size, 3), dtype=np.uint8)
    image[:] = to_pixels(plain)
    top, left = ((count - side) // 2 for count in frame.grid)
    image[top * height : (top + side) * height, left * width : (left + side) * width] = (
        square.reshape(side * height, side * width, 3)
    )
    return image


TASK = ControlledTask(
    name="arrangement",
    number=4,
    question="Do the same patches lie in rows or in columns, at each width of the stripes?",
    classes=CLASSES,
    held_fixed="the patches: both scenes of a pair hold exactly the same ones, each place as often "
    "light as dark in either class",
    assumes="a model without positional signal gives both scenes of a pair the same features, so "
    "it must be at chance; accuracy is of one readout for all widths",
    curve=Curve("width", "patches", levels),
    members=len(CLASSES),
    render=render,
    subgroups=(
        Subgroup("strong contrast", "contrast", "strong"),
        Subgroup("weak contrast", "contrast", "weak"),
        Subgroup("calm ground", "ground", "calm"),
        Subgroup("noisy ground", "ground", "noisy"),
    ),
)
