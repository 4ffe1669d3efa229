"""Running the tasks on one model: fit on one part, tune on a second, count on a third."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probe.errors import UsageError
from probe.numerics.logistic import LogisticFit, best, candidates, fit_logistic
from probe.readout import GRID, Pool
from probe.tasks.design import (
    ControlledTask,
    Part,
    Scene,
    fitted_levels,
    scenes,
    tested_levels,
)
from probe.tasks.frame import Frame, frame_of
from probe.tasks.reader import Reader, Seen
from probe.tasks.result import Outcome, task_result, unfit_result
from probe.types import LoadedModel

VALIDATION = 0.2  # of the scenes that a readout is made with


@dataclass(frozen=True)
class Plan:
    """How many scenes, under which seeds.

    Attributes:
        train: scenes per seed that a readout is made with, over all levels that it is fitted at; a
            fifth of them is the validation part.
        test: scenes per seed and level.
        seeds: each draws scenes of its own for all three parts.
    """

    train: int = 320
    test: int = 64
    seeds: tuple[int, ...] = (0, 1, 2)

    def __post_init__(self) -> None:
        """Refuse counts that nothing can be run with.

        Raises:
            UsageError: if a count is below 1.
        """
        counts = {"--train": self.train, "--test": self.test, "--seeds": len(self.seeds)}
        wrong = [option for option, count in counts.items() if count < 1]
        if wrong:
            raise UsageError(f"{wrong[0]} must be at least 1")


@dataclass(frozen=True)
class Groups:
    """Matched groups per level: fitted to, validated on, tested on; counts are rounded up."""

    fit: int
    validation: int
    test: int


def groups_of(task: ControlledTask, frame: Frame, plan: Plan) -> Groups:
    """Whole matched groups, at least one in every part."""
    wanted = ceil(plan.train / (task.members * len(fitted_levels(task, frame))))
    validation = max(1, round(VALIDATION * wanted))
    return Groups(max(1, wanted - validation), validation, ceil(plan.test / task.members))


def scene_count(tasks: Sequence[ControlledTask], frame: Frame, plan: Plan) -> int:
    """How many scenes a model will be shown."""
    total = 0
    for task in tasks:
        if task.curve.levels(frame).kept:
            groups = groups_of(task, frame, plan)
            per_level = (groups.fit + groups.validation) * len(fitted_levels(task, frame))
            per_level += groups.test * len(tested_levels(task, frame))
            total += task.members * per_level * len(plan.seeds)
    return total


def run_tasks(
    model: LoadedModel,
    tasks: Sequence[ControlledTask],
    plan: Plan,
    pool: Pool,
    *,
    batch_size: int = 32,
    progress: Callable[[int], None] = lambda scenes: None,
) -> tuple[list[dict[str, Any]], str, int]:
    """Run `tasks` on one model.

    Returns:
        An entry per task as in the JSON output, the hash of all scenes, and how many there were.

    Raises:
        AnatomyError: if the image is no whole number of patches.
        CheckpointError: if the model carries no preprocessing.
        DataError: if a feature is not finite.
    """
    frame = frame_of(model)
    entries, digests, count = [], hashlib.sha256(), 0
    for task in tasks:
        reader = Reader(model, pool, batch_size, progress)
        entries.append(run_task(task, frame, plan, reader))
        digests.update(reader.digest.encode())
        count += reader.count
    return entries, f"sha256:{digests.hexdigest()}", count


def run_task(task: ControlledTask, frame: Frame, plan: Plan, reader: Reader) -> dict[str, Any]:
    """One task: a readout per seed, counted at every level; see `run_tasks`."""
    if not task.curve.levels(frame).kept:
        return unfit_result(task, frame)
    groups = groups_of(task, frame, plan)
    outcomes: dict[tuple[str, float], list[Outcome]] = {}
    chosen, notes = [], []
    for seed in plan.seeds:
        fit, c = _fitted(
            reader.read(_training(task, frame, seed, "fit", groups.fit)),
            reader.read(_training(task, frame, seed, "validation", groups.validation)),
        )
        chosen.append(c)
        if not fit.converged:
            notes.append(f"the readout of seed {seed} stopped before it converged, at C = {c:g}")
        for factor, level in tested_levels(task, frame):
            part = range(groups.test)
            seen = reader.read(
                scenes(task, frame, factor, level, seed=seed, part="test", groups=part)
            )
            right = fit.logits(seen.features).argmax(axis=1) == seen.labels
            outcomes.setdefault((factor, level), []).append(Outcome(right, seen.factors))
    if task.moved is not None and (task.curve.factor, 0.0) in outcomes:
        outcomes[task.moved.factor, 0.0] = outcomes[task.curve.factor, 0.0]
    levels = len(fitted_levels(task, frame))
    return task_result(
        task,
        frame,
        outcomes,
        chosen=chosen,
        counts={
            "fitted": groups.fit * task.members * levels,
            "validated": groups.validation * task.members * levels,
            "tested": groups.test * task.members,
        },
        scenes=reader.digest,
        notes=notes,
    )


def _training(
    task: ControlledTask, frame: Frame, seed: int, part: Part, count: int
) -> Iterator[Scene]:
    """`count` groups at every level that is fitted at; no two levels share a group."""
    for number, level in enumerate(fitted_levels(task, frame)):
        own = range(number * count, (number + 1) * count)
        yield from scenes(task, frame, task.curve.factor, level, seed=seed, part=part, groups=own)


def _fitted(fit: Seen, validation: Seen) -> tuple[LogisticFit, float]:
    """The readout and its C: the best on the validation part, then fitted to both parts."""
    features = np.concatenate([fit.features, validation.features])
    labels = np.concatenate([fit.labels, validation.labels])
    out: NDArray[np.bool_] = np.arange(len(labels)) >= len(fit.labels)
    c = best(candidates(features, labels, out, GRID)).c
    return fit_logistic(features, labels, c), c


def settings_of(plan: Plan, tasks: Sequence[ControlledTask]) -> Mapping[str, Any]:
    """What was asked for, as JSON values."""
    return {
        "tasks": [task.name for task in tasks],
        "train": plan.train,
        "validation_share": VALIDATION,
        "test": plan.test,
        "c_grid": list(GRID),
        "seeds": list(plan.seeds),
    }
