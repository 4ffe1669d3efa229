"""Patch alignment: one scene moved by less than a patch, and apart from that by whole patches."""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.random import Generator

from probe.tasks.design import ControlledTask, Curve, Levels, Scene, Subgroup
from probe.tasks.frame import Frame
from probe.tasks.look import draw_look, paint
from probe.tasks.shapes import SHAPES, coverage

OFFSET, MOVE = "offset", "move"
SIZE = 2.0  # root of the object's area, in patches
CLEAR = 2  # patches between an object's centre and the border, which its farthest point needs
ANCHORS = 3  # patch corners along each axis that aligned objects are centred on
MOVES = (1, 2, 4)  # patches
STEPS = 8  # offsets of a patch that has more pixels


@cache
def offsets(frame: Frame) -> Levels:
    """Every pixel of a patch, or eight steps through it; none where no move fits."""
    if not moves(frame).kept:
        return Levels((), ((0.0, moves(frame).left_out[0][1]),))
    pixels = frame.unit
    found = range(pixels) if pixels <= STEPS else [round(i * pixels / STEPS) for i in range(STEPS)]
    return Levels(tuple(float(one) for one in found))


@cache
def moves(frame: Frame) -> Levels:
    """Moves that keep the object inside the image, and not to move; none where only that fits."""
    need = 2 * CLEAR + ANCHORS - 1
    left_out = tuple(
        (
            float(move),
            f"it takes a grid of {need + move}x{need + move} patches, the model has "
            f"{frame.grid[0]}x{frame.grid[1]}",
        )
        for move in MOVES
        if need + move > frame.side
    )
    kept = tuple(float(move) for move in MOVES if need + move <= frame.side)
    return Levels((0.0, *kept) if kept else (), left_out)


def render(
    frame: Frame, factor: str, level: float, rng: Generator, index: int
) -> tuple[Scene, ...]:
    """One scene per shape, moved down and to the right; what enters at the border is new ground.

    The scene is drawn once, on a canvas that is larger than the image, and the image is cut from
    it, so that a move changes no pixel but by moving it.
    """
    farthest = int(max(moves(frame).kept))
    margin = tuple(farthest * side for side in frame.patch)
    canvas = (frame.size[0] + margin[0], frame.size[1] + margin[1])
    look = draw_look(rng, index)
    anchor = rng.integers(ANCHORS, size=2)
    noise = rng.standard_normal(canvas)
    corner = [
        CLEAR + (count - 2 * CLEAR - ANCHORS + 1 - farthest) // 2 + int(one)
        for one, count in zip(anchor, frame.grid, strict=True)
    ]
    centre = tuple(
        float(one * side + extra)
        for one, side, extra in zip(corner, frame.patch, margin, strict=True)
    )
    by = [round(level) * (side if factor == MOVE else 1) for side in frame.patch]
    window = tuple(
        slice(extra - shift, extra - shift + length)
        for extra, shift, length in zip(margin, by, frame.size, strict=True)
    )
    factors = look.factors() | {
        "row": float(corner[0] * frame.patch[0] + by[0]),
        "col": float(corner[1] * frame.patch[1] + by[1]),
        factor: level,
    }
    found = []
    for label, shape in enumerate(SHAPES):
        covered = coverage(shape, SIZE * frame.unit, (centre[0], centre[1]), look.angle, canvas)
        image = np.ascontiguousarray(paint(look, noise, covered)[window])
        found.append(Scene(image, label, factors))
    return tuple(found)


TASK = ControlledTask(
    name="alignment",
    number=2,
    question="Does a readout of aligned scenes still tell the shape when they move on the grid?",
    classes=SHAPES,
    held_fixed="the scene: the same pixels, moved down and to the right, by less than a patch or, "
    "apart from that, by whole patches, which leaves patch contents as they were",
    assumes="readouts are fitted to aligned scenes alone, objects centred on one of "
    f"{ANCHORS}x{ANCHORS} patch corners",
    curve=Curve(OFFSET, "px", offsets),
    moved=Curve(MOVE, "patches", moves),
    fitted_at=0.0,
    members=len(SHAPES),
    render=render,
    subgroups=(
        Subgroup("light object", "tone", "light"),
        Subgroup("dark object", "tone", "dark"),
        Subgroup("calm ground", "ground", "calm"),
        Subgroup("noisy ground", "ground", "noisy"),
    ),
)
