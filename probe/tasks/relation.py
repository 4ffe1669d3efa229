"""A relation at a distance: whether two objects have one shape, all single parts held fixed."""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.random import Generator

from probe.tasks.design import ControlledTask, Curve, Levels, Scene, Subgroup
from probe.tasks.frame import Frame
from probe.tasks.look import draw_look, paint
from probe.tasks.shapes import coverage

DISTANCES = (2, 4, 6, 10, 20, 40)  # patches; even, so that centre and objects lie on patch corners
SIZE = 1.35  # root of an object's area, in patches: it stays inside 2x2 of them
PAIRS = (("disc", "disc"), ("cross", "cross"), ("disc", "cross"), ("cross", "disc"))
CLASSES = ("same", "different")


@cache
def levels(frame: Frame) -> Levels:
    """Distances between centres at which both objects lie inside the image, along either axis."""
    left_out = tuple(
        (
            float(distance),
            f"it takes a grid of {distance + 2}x{distance + 2} patches, the model has "
            f"{frame.grid[0]}x{frame.grid[1]}",
        )
        for distance in DISTANCES
        if distance + 2 > frame.side
    )
    return Levels(tuple(float(one) for one in DISTANCES if one + 2 <= frame.side), left_out)


def render(
    frame: Frame, factor: str, level: float, rng: Generator, index: int
) -> tuple[Scene, ...]:
    """The four pairs of two shapes at the same two places, alike in all else.

    Each shape stands once at each place in either class, so that patches, with their places,
    are the same in the two scenes of one class as in the two of the other.
    """
    look = draw_look(rng, index)
    along = index // 4 % 2  # 1: side by side
    farthest = int(max(levels(frame).kept))
    shares = rng.random(2)
    noise = rng.standard_normal(frame.size)
    middle = []
    for axis in (0, 1):
        first = 1 + (farthest // 2 if axis == along else 0)
        choices = frame.grid[axis] - 2 * first + 1
        middle.append(first + int(shares[axis] * choices))
    step = round(level) // 2
    places = []
    for sign in (-1, 1):
        corner = [middle[axis] + (sign * step if axis == along else 0) for axis in (0, 1)]
        places.append((float(corner[0] * frame.patch[0]), float(corner[1] * frame.patch[1])))
    factors = look.factors() | {
        "axis": "side by side" if along else "one above the other",
        "row": float(middle[0] * frame.patch[0]),
        "col": float(middle[1] * frame.patch[1]),
        factor: level,
    }
    drawn = {
        (shape, number): coverage(shape, SIZE * frame.unit, place, look.angle, frame.size)
        for shape in ("disc", "cross")
        for number, place in enumerate(places)
    }
    return tuple(
        Scene(
            paint(look, noise, np.maximum(drawn[first, 0], drawn[second, 1])),
            CLASSES.index("same" if first == second else "different"),
            factors,
        )
        for first, second in PAIRS
    )


TASK = ControlledTask(
    name="relation",
    number=3,
    question="Do two objects have the same shape, at each distance between them?",
    classes=CLASSES,
    held_fixed="in every matched four, each place holds a disc once and a cross once in either "
    "class, so that patches and their places are the same in both; colours, ground and orientation "
    "are equal for both objects",
    assumes="accuracy is of one readout for all distances; whatever looks at one place at a time "
    "is at chance, with or without positions",
    curve=Curve("distance", "patches", levels),
    members=len(PAIRS),
    render=render,
    subgroups=(
        Subgroup("light objects", "tone", "light"),
        Subgroup("dark objects", "tone", "dark"),
        Subgroup("calm ground", "ground", "calm"),
        Subgroup("noisy ground", "ground", "noisy"),
        Subgroup("side by side", "axis", "side by side"),
        Subgroup("one above the other", "axis", "one above the other"),
    ),
)
