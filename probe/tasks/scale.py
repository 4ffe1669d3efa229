"""Object scale: which shape it is, at sizes from half a patch to several."""

from __future__ import annotations

import math
from functools import cache

from numpy.random import Generator

from probe.tasks.design import ControlledTask, Curve, Levels, Scene, Subgroup
from probe.tasks.frame import Frame
from probe.tasks.look import draw_look, paint
from probe.tasks.shapes import MAX_REACH, SHAPES, coverage

LEVELS = (0.5, 1.0, 2.0, 3.0, 4.0, 6.0)  # root of the area, in patches
LEAST = 2  # pixels


@cache
def levels(frame: Frame) -> Levels:
    """Sizes of at least two pixels that leave the object room to move by a patch."""
    kept, left_out = [], []
    for level in LEVELS:
        size = level * frame.unit
        need = 2 * MAX_REACH * size + frame.unit
        if size < LEAST:
            left_out.append((level, f"the object would be {size:g} px wide, below {LEAST} px"))
        elif need > min(frame.size):
            left_out.append(
                (level, f"it takes {math.ceil(need)} px, the image has {min(frame.size)}")
            )
        else:
            kept.append(level)
    return Levels(tuple(kept), tuple(left_out))


def render(
    frame: Frame, factor: str, level: float, rng: Generator, index: int
) -> tuple[Scene, ...]:
    """One scene per shape, equal in all else; positions are drawn alike at every size."""
    look = draw_look(rng, index)
    where = rng.random(2)
    noise = rng.standard_normal(frame.size)
    reach = MAX_REACH * frame.unit * max(levels(frame).kept)
    row, col = (
        reach + share * (length - 2 * reach)
        for share, length in zip(where, frame.size, strict=True)
    )
    # The inner square of half the area, so that both places are equally likely.
    central = max(abs(2 * share - 1) for share in where) < math.sqrt(0.5)
    factors = look.factors() | {
        "place": "centre" if central else "edge",
        "row": row,
        "col": col,
        factor: level,
    }
    return tuple(
        Scene(
            paint(
                look,
                noise,
                coverage(shape, level * frame.unit, (row, col), look.angle, frame.size),
            ),
            label,
            factors,
        )
        for label, shape in enumerate(SHAPES)
    )


TASK = ControlledTask(
    name="scale",
    number=1,
    question="Which shape is it, at each size of the object?",
    classes=SHAPES,
    held_fixed="area, position, colours, ground and orientation are the same in all four classes; "
    "position, colours, ground and orientation are the same at every size",
    assumes="accuracy is of one readout for all sizes, fitted to as many scenes as are stated; "
    "size is the root of the object's area",
    curve=Curve("size", "patches", levels),
    members=len(SHAPES),
    render=render,
    subgroups=(
        Subgroup("light object", "tone", "light"),
        Subgroup("dark object", "tone", "dark"),
        Subgroup("calm ground", "ground", "calm"),
        Subgroup("noisy ground", "ground", "noisy"),
        Subgroup("centre", "place", "centre"),
        Subgroup("edge", "place", "edge"),
    ),
)
