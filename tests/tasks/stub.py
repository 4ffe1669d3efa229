"""Readers whose features are known, so that what a task must come to is known too."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

from probe.tasks.design import Scene
from probe.tasks.reader import Seen

Features = Callable[[Scene], np.ndarray]


class StubReader:
    """Gives `features(scene)` for every scene, and keeps what it has given."""

    digest = "sha256:none"

    def __init__(self, features: Features) -> None:
        self.features = features
        self.given: list[Seen] = []

    def read(self, scenes: Iterable[Scene]) -> Seen:
        kept = list(scenes)
        seen = Seen(
            np.stack([np.asarray(self.features(one), dtype=np.float64) for one in kept]),
            np.array([one.label for one in kept], dtype=np.int64),
            tuple(one.factors for one in kept),
        )
        self.given.append(seen)
        return seen


def nothing(scene: Scene) -> np.ndarray:
    return np.zeros(3)


def the_answer(scene: Scene) -> np.ndarray:
    return np.eye(4)[scene.label]


def pixels(scene: Scene) -> np.ndarray:
    """Everything that is a sum over places of what is there."""
    return scene.image.mean(axis=2)[::2, ::2].ravel()
