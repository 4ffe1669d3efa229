"""From right and wrong answers to what is reported: shares, intervals, subgroups, reasons."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probe.numerics.intervals import t_quantile
from probe.numerics.proportions import wilson
from probe.tasks.design import ControlledTask, Curve
from probe.tasks.frame import Frame
from probe.types import Scalar

EVIDENCE = "controlled task"
INTERVAL = (
    "95 %, Wilson, over the test scenes of all seeds as if they were independent: scenes of a "
    "matched group are not, and other readouts are not in it"
)
OVER_SEEDS = "95 %, Student's t over the seeds, each with scenes and a readout of its own"


@dataclass(frozen=True, eq=False)
class Outcome:
    """The test scenes of one seed at one level: which were right (n,), and what was drawn."""

    right: NDArray[np.bool_]
    factors: tuple[Mapping[str, str | float], ...]

    def where(self, factor: str, value: str) -> Outcome:
        """Those in which `factor` is `value`."""
        inside = [number for number, own in enumerate(self.factors) if own[factor] == value]
        return Outcome(self.right[inside], tuple(self.factors[number] for number in inside))


def task_result(
    task: ControlledTask,
    frame: Frame,
    outcomes: Mapping[tuple[str, float], Sequence[Outcome]],
    *,
    chosen: Sequence[float],
    counts: Mapping[str, int],
    scenes: str,
    notes: Sequence[str],
) -> dict[str, Any]:
    """The entry of one task.

    Args:
        task: the task.
        frame: what it was drawn on.
        outcomes: one outcome per seed for every (factor, level) of the task's curves.
        chosen: C of each seed's readout.
        counts: scenes `fitted` to and `validated` on per seed, `tested` on per seed and level.
        scenes: hash of all scenes.
        notes: what else a reader must know.
    """
    main = _curve(task.curve, frame, outcomes)
    subgroups = [
        {
            "name": group.name,
            "factor": task.curve.factor,
            "unit": task.curve.unit,
            "levels": [
                _level(level, [one.where(group.factor, group.value) for one in found])
                for level, found in _of_curve(task.curve, frame, outcomes)
            ],
        }
        for group in task.subgroups
    ]
    left_out = _left_out(task.curve, frame)
    if task.moved is not None:
        moved = task.moved
        subgroups.append(
            {
                "name": f"{moved.factor} by whole {moved.unit}",
                "factor": moved.factor,
                "unit": moved.unit,
                "levels": _curve(moved, frame, outcomes),
            }
        )
        left_out += _left_out(moved, frame)
    return _head(task) | {
        "levels": main,
        "left_out": left_out,
        "subgroups": subgroups,
        "regularisation": list(chosen),
        "scenes": {**counts, "sha256": scenes.removeprefix("sha256:")},
        "reason": None,
        "notes": list(notes),
    }


def unfit_result(task: ControlledTask, frame: Frame) -> dict[str, Any]:
    """The entry of a task that the frame has no room for."""
    left_out = _left_out(task.curve, frame)
    why = left_out[0]["reason"] if left_out else "no level fits"
    return _head(task) | {
        "levels": [],
        "left_out": left_out,
        "subgroups": [],
        "regularisation": [],
        "scenes": None,
        "reason": f"the image has no room for this task: {why}",
        "notes": [],
    }


def _head(task: ControlledTask) -> dict[str, Any]:
    return {
        "task": task.name,
        "question": task.question,
        "factor": task.curve.factor,
        "unit": task.curve.unit,
        "chance": task.chance,
        "classes": list(task.classes),
        "held_fixed": task.held_fixed,
        "level": EVIDENCE,
        "assumes": task.assumes,
    }


def _left_out(curve: Curve, frame: Frame) -> list[dict[str, Any]]:
    return [
        {"factor": curve.factor, "unit": curve.unit, "level": level, "reason": reason}
        for level, reason in curve.levels(frame).left_out
    ]


def _of_curve(
    curve: Curve, frame: Frame, outcomes: Mapping[tuple[str, float], Sequence[Outcome]]
) -> list[tuple[float, Sequence[Outcome]]]:
    return [(level, outcomes[curve.factor, level]) for level in curve.levels(frame).kept]


def _curve(
    curve: Curve, frame: Frame, outcomes: Mapping[tuple[str, float], Sequence[Outcome]]
) -> list[dict[str, Any]]:
    return [_level(level, found) for level, found in _of_curve(curve, frame, outcomes)]


def _level(level: float, found: Sequence[Outcome]) -> dict[str, Any]:
    correct = sum(int(one.right.sum()) for one in found)
    images = sum(len(one.right) for one in found)
    shares = [float(one.right.mean()) if len(one.right) else None for one in found]
    return {
        "level": level,
        "accuracy": asdict(accuracy(correct, images)),
        "over_seeds": asdict(over_seeds([share for share in shares if share is not None])),
        "correct": correct,
        "images": images,
        "per_seed": shares,
    }


def accuracy(correct: int, images: int) -> Scalar:
    """The share that is right, with its 95 % Wilson interval."""
    if not images:
        return Scalar(None, reason="no test scene falls into this subgroup; raise --test")
    return Scalar(correct / images, *wilson(correct, images))


def over_seeds(shares: Sequence[float]) -> Scalar:
    """The mean of the seeds' shares, with its 95 % t interval, which may leave 0..1."""
    if not shares:
        return Scalar(None, reason="no test scene falls into this subgroup; raise --test")
    mean = float(np.mean(shares))
    if len(shares) < 2:
        return Scalar(mean, reason="one seed has no spread over seeds")
    spread = float(np.std(shares, ddof=1))
    if spread == 0:
        return Scalar(mean, reason="the seeds agree, so their spread gives no interval")
    half = t_quantile(len(shares) - 1) * spread / math.sqrt(len(shares))
    return Scalar(mean, mean - half, mean + half)
