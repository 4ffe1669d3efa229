"""Random numbers as functions of (seed, what, when): nothing is carried from step to step.

So a run that was killed goes on exactly, and more processes draw what one would.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import numpy as np

_USES = ("order", "augment", "image", "shuffle", "dropout", "mix")
Use = Literal["order", "augment", "image", "shuffle", "dropout", "mix"]


def generator(seed: int, use: Use, *when: int) -> np.random.Generator:
    """A generator of its own for one use at one time (epoch, step, image of the batch)."""
    return np.random.Generator(np.random.PCG64(_sequence(seed, use, when)))


def number(seed: int, use: Use, *when: int) -> int:
    """A seed for libraries that take one, 0 .. 2**32 - 1."""
    return int(_sequence(seed, use, when).generate_state(1)[0])


@contextmanager
def seeded_globals(seed: int) -> Iterator[None]:
    """Seed the global generators of Python and NumPy, for code that has no other; then restore."""
    python, numpy = random.getstate(), np.random.get_state()
    random.seed(seed)
    np.random.seed(seed)
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)


def _sequence(seed: int, use: Use, when: tuple[int, ...]) -> np.random.SeedSequence:
    return np.random.SeedSequence([seed, _USES.index(use), *when])
