"""What a controlled task is: its classes, its factor, its scenes, and the subgroups fixed in it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.random import PCG64, Generator, SeedSequence

from probe.tasks.frame import Frame
from probe.tasks.look import Pixels

Part = Literal["fit", "validation", "test"]
PARTS: tuple[Part, ...] = get_args(Part)


@dataclass(frozen=True, eq=False)
class Scene:
    """One image uint8 (height, width, 3), its class, and everything else that was set or drawn."""

    image: Pixels
    label: int
    factors: Mapping[str, str | float]


@dataclass(frozen=True)
class Levels:
    """The levels of a factor that fit a frame, rising; those left out, each with the reason."""

    kept: tuple[float, ...]
    left_out: tuple[tuple[float, str], ...] = ()


@dataclass(frozen=True)
class Curve:
    """A factor, the unit of its levels, and which of them fit a frame.

    Level 0, where there is one, leaves a scene as it is, whatever the factor.
    """

    factor: str
    unit: str
    levels: Callable[[Frame], Levels]


@dataclass(frozen=True)
class Subgroup:
    """The test scenes in which `factor` was set to `value`."""

    name: str
    factor: str
    value: str


@dataclass(frozen=True)
class ControlledTask:
    """One controlled task.

    Attributes:
        name: how it is chosen.
        number: names its random numbers; never used again for another task.
        question: what a readout is asked, in one line.
        classes: names of the classes, in the order of the labels.
        held_fixed: what is the same in all classes.
        assumes: what the accuracy depends on.
        curve: the factor that accuracy is a curve over.
        moved: a second factor, reported apart; None without one.
        fitted_at: the one level of `curve` that readouts are fitted at; None for all of them.
        members: scenes of a matched group, which share everything but class and what defines it.
        render: (frame, factor, level, generator, index of the group) -> the group's scenes.
        subgroups: whose accuracy is reported too.
    """

    name: str
    number: int
    question: str
    classes: tuple[str, ...]
    held_fixed: str
    assumes: str
    curve: Curve
    members: int
    render: Callable[[Frame, str, float, Generator, int], tuple[Scene, ...]]
    subgroups: tuple[Subgroup, ...]
    moved: Curve | None = None
    fitted_at: float | None = None

    @property
    def curves(self) -> tuple[Curve, ...]:
        """The main curve, then the second one if there is one."""
        return (self.curve,) if self.moved is None else (self.curve, self.moved)

    @property
    def chance(self) -> float:
        """Accuracy of guessing; classes are equally frequent."""
        return 1 / len(self.classes)


def fitted_levels(task: ControlledTask, frame: Frame) -> tuple[float, ...]:
    """The levels that readouts of `task` are fitted at."""
    return task.curve.levels(frame).kept if task.fitted_at is None else (task.fitted_at,)


def tested_levels(task: ControlledTask, frame: Frame) -> list[tuple[str, float]]:
    """Every (factor, level) that is tested; level 0 of a second factor is that of the first."""
    found = [(curve.factor, level) for curve in task.curves for level in curve.levels(frame).kept]
    main = task.curve.factor
    return [(factor, level) for factor, level in found if factor == main or level != 0]


def generator(seed: int, task: ControlledTask, part: Part, index: int) -> Generator:
    """The random numbers of one matched group, the same at every level of the factor."""
    sequence = SeedSequence([seed, task.number, PARTS.index(part), index])
    return np.random.Generator(PCG64(sequence))


def scenes(
    task: ControlledTask,
    frame: Frame,
    factor: str,
    level: float,
    *,
    seed: int,
    part: Part,
    groups: Iterable[int],
) -> Iterator[Scene]:
    """The scenes of matched `groups` at one level, a group after the other."""
    for index in groups:
        yield from task.render(frame, factor, level, generator(seed, task, part, index), index)
