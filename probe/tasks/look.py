"""What a scene looks like apart from its factor and its class: colours, ground, orientation."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Pixels = NDArray[np.uint8]

TONES = ("light", "dark")  # of the object, against its ground
NOISE = {"calm": 2.0, "noisy": 16.0}  # standard deviation of the ground, in levels of 255
GROUNDS = tuple(NOISE)


@dataclass(frozen=True, eq=False)
class Look:
    """Colours `ink` and `paper` (3,) in levels of 255, the ground's kind, a rotation in radians."""

    tone: str
    ground: str
    ink: Floats
    paper: Floats
    angle: float

    def factors(self) -> dict[str, str | float]:
        """What was drawn, by name; colours as their mean level."""
        return {
            "tone": self.tone,
            "ground": self.ground,
            "ink": float(self.ink.mean()),
            "paper": float(self.paper.mean()),
            "angle": self.angle,
        }


def draw_look(rng: Generator, index: int) -> Look:
    """The look of matched group `index`; takes the same number of draws whatever comes out.

    Tone and ground go through their four combinations in turn, so that subgroups are of one size;
    colours and orientation are drawn.
    """
    bright = rng.uniform(170, 220) + rng.uniform(-30, 30, 3)
    dim = rng.uniform(36, 86) + rng.uniform(-30, 30, 3)
    tone, ground = TONES[index % 2], GROUNDS[index // 2 % 2]
    ink, paper = (bright, dim) if tone == "light" else (dim, bright)
    return Look(tone, ground, ink, paper, rng.uniform(0, 2 * math.pi))


def paint(look: Look, noise: Floats, covered: Floats) -> Pixels:
    """A uint8 image (height, width, 3): the object where it covers, on the noisy ground.

    `noise` (height, width) has unit variance, `covered` is in 0..1.
    """
    ground = look.paper + NOISE[look.ground] * noise[..., None]
    return to_pixels(ground + covered[..., None] * (look.ink - ground))


def to_pixels(levels: Floats) -> Pixels:
    """Rounded and clipped to 0..255."""
    return np.clip(np.rint(levels), 0, 255).astype(np.uint8)
