"""A corruption: black stripes."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from probe.corruptions.kinds import Kind, Parameter


def stripes(
    image: NDArray[np.uint8], generator: np.random.Generator, width: int
) -> NDArray[np.uint8]:
    found = image.copy()
    found[np.arange(len(image)) // width % 2 == int(generator.integers(2))] = 0
    return found


KIND = Kind(
    "stripes", "stripes(width=4)", (Parameter("width", "w", whole=True, low=1, high=64),), stripes
)
