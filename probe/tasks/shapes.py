"""Four shapes of equal area, drawn with soft edges, so that no colour average tells them apart."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

SHAPES = ("disc", "square", "triangle", "cross")
# In units of the root of the area, as all lengths here.
_RADIUS = 1 / math.sqrt(math.pi)
_INRADIUS = 1 / math.sqrt(3 * math.sqrt(3))
_ARM = 1 / math.sqrt(5)  # a cross of five squares
REACH = {
    "disc": _RADIUS,
    "square": math.sqrt(0.5),
    "triangle": 2 * _INRADIUS,
    "cross": math.hypot(1.5, 0.5) * _ARM,
}
MAX_REACH = max(REACH.values())
FINEST, COARSEST = 8, 2  # samples per pixel and axis, for the smallest objects and for large ones


def _disc(across: Floats, down: Floats) -> NDArray[np.bool_]:
    return across**2 + down**2 <= _RADIUS**2


def _square(across: Floats, down: Floats) -> NDArray[np.bool_]:
    return np.maximum(np.abs(across), np.abs(down)) <= 0.5


def _triangle(across: Floats, down: Floats) -> NDArray[np.bool_]:
    slanted = math.sqrt(0.75) * np.abs(across) - 0.5 * down
    return np.maximum(down, slanted) <= _INRADIUS


def _cross(across: Floats, down: Floats) -> NDArray[np.bool_]:
    long = np.maximum(np.abs(across), np.abs(down))
    short = np.minimum(np.abs(across), np.abs(down))
    return (long <= 1.5 * _ARM) & (short <= 0.5 * _ARM)


_INSIDE: dict[str, Callable[[Floats, Floats], NDArray[np.bool_]]] = {
    "disc": _disc,
    "square": _square,
    "triangle": _triangle,
    "cross": _cross,
}


def coverage(
    shape: str, size: float, centre: tuple[float, float], angle: float, canvas: tuple[int, int]
) -> Floats:
    """The share (height, width), in 0..1, of every pixel that the shape covers.

    Args:
        shape: one of `SHAPES`.
        size: root of the shape's area, in pixels; equal sizes have equal areas.
        centre: (row, column) of its centroid in pixels from the canvas's upper left corner.
        angle: rotation in radians.
        canvas: (height, width) in pixels; what lies outside is cut off.
    """
    found = np.zeros(canvas)
    fine = max(COARSEST, min(FINEST, math.ceil(64 / size)))
    reach = REACH[shape] * size
    spans = []
    for middle, length in zip(centre, canvas, strict=True):
        first, last = max(0, math.floor(middle - reach)), min(length, math.ceil(middle + reach))
        spans.append(slice(first, max(first, last)))
    rows, cols = spans

    def samples(span: slice, middle: float) -> Floats:
        count = (span.stop - span.start) * fine
        return (span.start + (np.arange(count) + 0.5) / fine - middle) / size

    down, across = np.meshgrid(samples(rows, centre[0]), samples(cols, centre[1]), indexing="ij")
    sine, cosine = math.sin(angle), math.cos(angle)
    inside = _INSIDE[shape](across * cosine + down * sine, down * cosine - across * sine)
    blocks = inside.reshape(rows.stop - rows.start, fine, cols.stop - cols.start, fine)
    found[rows, cols] = blocks.mean(axis=(1, 3)) if blocks.size else 0.0
    return found
