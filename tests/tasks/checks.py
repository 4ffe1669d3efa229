"""What must hold of scenes, as functions that raise; tests show that each of them can."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from probe.tasks.design import ControlledTask, Scene, generator
from probe.tasks.frame import Frame

DIGITS = Frame((32, 32), (4, 4), (8, 8))
DEIT = Frame((224, 224), (16, 16), (14, 14))
WIDE = Frame((40, 64), (4, 4), (10, 16))
OBLONG = Frame((48, 32), (6, 4), (8, 8))

Group = tuple[Scene, ...]


def group(
    task: ControlledTask,
    frame: Frame,
    level: float,
    index: int = 0,
    seed: int = 0,
    factor: str | None = None,
) -> Group:
    """One matched group of the test part."""
    rng = generator(seed, task, "test", index)
    return task.render(frame, factor or task.curve.factor, level, rng, index)


def patches(image: np.ndarray, frame: Frame) -> list[bytes]:
    """Every patch's pixels, row by row."""
    (high, wide), (rows, cols) = frame.patch, frame.grid
    return [
        image[r * high : (r + 1) * high, c * wide : (c + 1) * wide].tobytes()
        for r in range(rows)
        for c in range(cols)
    ]


def same_patches(found: Group, frame: Frame, *, with_places: bool = False) -> None:
    """All classes of a matched group hold the same patches, with their places if asked for."""
    by_class: dict[int, Counter[tuple[int, bytes]]] = {}
    for scene in found:
        parts = patches(scene.image, frame)
        places = range(len(parts)) if with_places else [0] * len(parts)
        by_class.setdefault(scene.label, Counter()).update(zip(places, parts, strict=True))
    first, *others = by_class.values()
    assert others, "one class only"
    for other in others:
        assert other == first, f"{(other - first).total()} patches differ between classes"


def moved_exactly(still: np.ndarray, moved: np.ndarray, down: int, right: int) -> None:
    """`moved` is `still`, so many pixels further; what has left the image does not count."""
    height, width = still.shape[:2]
    kept = still[: height - down, : width - right]
    wrong = int((moved[down:, right:] != kept).any(axis=2).sum())
    assert wrong == 0, f"{wrong} pixels are not those of the scene before it moved"


def same_apart_from(levels: Sequence[Group], factor: str) -> None:
    """The groups of one index at several levels agree in everything that was drawn."""
    for members in zip(*levels, strict=True):
        drawn = [{k: v for k, v in one.factors.items() if k != factor} for one in members]
        labels = {one.label for one in members}
        assert len(labels) == 1, f"labels {labels} at one place of the group"
        for other in drawn[1:]:
            changed = {key for key in drawn[0] if drawn[0][key] != other[key]}
            assert not changed, f"{sorted(changed)} change with {factor}"


def same_ground(one: Scene, other: Scene, reach: float) -> None:
    """Pixels farther than `reach` from the object's centre are equal in two scenes."""
    rows, cols = np.indices(one.image.shape[:2]) + 0.5
    row, col = float(one.factors["row"]), float(one.factors["col"])
    outside = np.hypot(rows - row, cols - col) > reach
    assert outside.any(), "nothing lies outside"
    wrong = int((one.image != other.image).any(axis=2)[outside].sum())
    assert wrong == 0, f"{wrong} pixels of the ground differ"


def spoilt(
    task: ControlledTask, spoil: Callable[[Scene, float], np.ndarray | Scene]
) -> ControlledTask:
    """The task with every scene put through `spoil(scene, level)`: a planted failure."""

    def render(frame: Frame, factor: str, level: float, rng: object, index: int) -> Group:
        made = []
        for scene in task.render(frame, factor, level, rng, index):  # type: ignore[arg-type]
            found = spoil(scene, level)
            made.append(found if isinstance(found, Scene) else replace(scene, image=found))
        return tuple(made)

    return replace(task, render=render)  # type: ignore[arg-type]
