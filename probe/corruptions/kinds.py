"""What corruptions there are, and what parameters each takes."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probe.corruptions import blur, imagenet_c
from probe.corruptions.jpeg import jpeg

Number = int | float
WHOLE = re.compile(r"[+-]?[0-9]{1,18}")
DECIMAL = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")


@dataclass(frozen=True)
class Parameter:
    """One parameter, from `low` to `high` inclusive; `short` stands before its value in slugs."""

    name: str
    short: str
    whole: bool
    low: Number
    high: Number
    odd: bool = False

    @property
    def allowed(self) -> str:
        """In words, such as `an odd whole number from 3 to 255`."""
        what = "an odd whole number" if self.odd else "a whole number" if self.whole else "a number"
        return f"{what} from {self.low} to {self.high}"

    def read(self, text: str) -> Number | None:
        """The value that `text` writes; None if it writes no number of the right sort."""
        if self.whole:
            return int(text) if WHOLE.fullmatch(text) else None
        return float(text) if DECIMAL.fullmatch(text) else None

    def allows(self, value: object) -> bool:
        """Whether `value` is of the right sort and in range."""
        sort = int if self.whole else int | float
        if not isinstance(value, sort) or isinstance(value, bool):
            return False
        return self.low <= value <= self.high and not (self.odd and value % 2 == 0)


@dataclass(frozen=True)
class Kind:
    """One corruption: its function, its parameters in canonical order, and how a user writes it.

    `apply(image, generator, **parameters)` takes and gives uint8 (H, W, 3). `taps(**parameters)` is
    the kernel of a blur. `require` raises when an optional package is missing.
    """

    name: str
    example: str
    parameters: tuple[Parameter, ...]
    apply: Callable[..., NDArray[np.uint8]]
    taps: Callable[..., NDArray[np.float64]] | None = None
    require: Callable[[], Any] | None = None


QUALITY = Parameter("quality", "q", whole=True, low=1, high=100)
SIGMA = Parameter("sigma", "s", whole=False, low=0.1, high=64)
KERNEL = Parameter("kernel", "k", whole=True, low=3, high=255, odd=True)
SEVERITY = Parameter("severity", "", whole=True, low=1, high=5)

KINDS: dict[str, Kind] = {
    kind.name: kind
    for kind in (
        Kind("jpeg", "jpeg(quality=5)", (QUALITY,), jpeg),
        Kind(
            "gaussian_blur",
            "gaussian_blur(sigma=2.5,kernel=5)",
            (SIGMA, KERNEL),
            blur.gaussian_blur,
            blur.truncated_taps,
        ),
        Kind(
            "true_gaussian_blur",
            "true_gaussian_blur(sigma=2.5)",
            (SIGMA,),
            blur.true_gaussian_blur,
            blur.full_taps,
        ),
        *(
            Kind(
                name,
                f"{name}(severity=3)",
                (SEVERITY,),
                partial(imagenet_c.imagenet_c, name=name),
                require=imagenet_c.load,
            )
            for name in imagenet_c.NAMES
        ),
    )
}
