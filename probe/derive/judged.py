"""Differences of two models in what they predict: accuracy, FS, agreement, paired by image."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probe.derive.fragility import (
    accuracy,
    agreement_fragility,
    fragility,
    shared_images,
    verdicts,
)
from probe.derive.sides import Side, Sides, missing, three
from probe.numerics.paired import (
    Outcomes,
    bootstrap_fragility_difference,
    mcnemar_p,
    outcomes,
    paired_difference,
)
from probe.numerics.proportions import RESAMPLES
from probe.records import PassRecord
from probe.types import Scalar

Mask = NDArray[np.bool_]


class Judged:
    """The predictions of two models over the images that every pass of both has read.

    Accuracy and FS count the images that have a label for both; where one model was not compared
    with labels, the other's numbers stand alone and there is no difference.
    """

    def __init__(self, sides: Sides) -> None:
        """Find the images that count."""
        self._sides = sides
        self._seed = int(sides[0].clean.settings["seed"])
        clean = [side.predicted for side in sides if side.predicted is not None]
        shifted = [record for side in sides for _, record in side.shifted]
        judged = [*clean, *shifted]
        self._read = shared_images(judged) if judged else np.zeros(0, dtype=np.bool_)
        held = [labels for r in clean if (labels := verdicts(r)[1] >= 0).any()]
        self._labelled: Mask = np.all([self._read, *held], axis=0)
        counts = [accuracy(record, self._labelled)[2] for record in clean]
        self.labelled = max(counts, default=0)  # images that accuracy and FS are counted over

    def accuracy(self) -> dict[str, Any]:
        """Clean accuracy of both, their difference, and McNemar's p with its table."""
        scalars = self._both(lambda clean: accuracy(clean, self._labelled)[0])
        why = missing(self._sides, scalars)
        if why is not None:
            return three(scalars, Scalar(None, reason=why)) | {"mcnemar_p": None, "right": None}
        table = outcomes(*(self._right(s.predicted) for s in self._sides if s.predicted))
        kinds = ("both", "first_only", "second_only", "neither")
        return three(scalars, _share_difference(table)) | {
            "mcnemar_p": mcnemar_p(table),
            "right": dict(zip(kinds, table, strict=True)),
        }

    def corruptions(self) -> list[dict[str, Any]]:
        """FS and agreement fragility of both under each corruption, and their differences."""
        found = dict.fromkeys(one for side in self._sides for one, _ in side.shifted)
        return [
            {
                "corruption": str(one),
                "column": one.slug,
                "effective_sigma": one.effective_sigma,
                "fs": self._fs(str(one)),
                "agreement_fs": self._agreement(str(one)),
            }
            for one in found
        ]

    def _fs(self, corruption: str) -> dict[str, Any]:
        scalars = self._under(
            corruption, lambda clean, under: fragility(clean, under, self._labelled, self._seed)
        )
        first, second = scalars
        if first.value is None or second.value is None:
            return three(scalars, Scalar(None, reason=missing(self._sides, scalars)))
        value = first.value - second.value
        pairs = self._pairs(corruption)
        right = [(self._right(clean), self._right(under)) for clean, under in pairs]
        bounds = bootstrap_fragility_difference(right[0], right[1], self._seed)
        if bounds is None:
            return three(scalars, Scalar(value, reason="no interval from one image"))
        low, high, dropped = bounds
        reason = (
            f"{dropped} of {RESAMPLES} resamples had no right clean prediction of one model"
            if dropped
            else None
        )
        return three(scalars, Scalar(value, low, high, reason))

    def _agreement(self, corruption: str) -> dict[str, Any]:
        scalars = self._under(
            corruption, lambda clean, under: agreement_fragility(clean, under, self._read)
        )
        why = missing(self._sides, scalars)
        if why is not None:
            return three(scalars, Scalar(None, reason=why))
        changed = [
            (verdicts(clean)[0] != verdicts(under)[0])[self._read]
            for clean, under in self._pairs(corruption)
        ]
        return three(scalars, _share_difference(outcomes(*changed)))

    def _both(self, measure: Callable[[PassRecord], Scalar]) -> tuple[Scalar, Scalar]:
        """A number of each model's clean predictions."""
        first, second = (
            _absent(side) if side.predicted is None else _said(measure(side.predicted), side)
            for side in self._sides
        )
        return first, second

    def _under(
        self, corruption: str, measure: Callable[[PassRecord, PassRecord], Scalar]
    ) -> tuple[Scalar, Scalar]:
        """A number of each model's predictions, clean and under a corruption."""
        first, second = (
            _absent(side) if pair is None else _said(measure(*pair), side)
            for side, pair in zip(self._sides, self._found(corruption), strict=True)
        )
        return first, second

    def _found(self, corruption: str) -> list[tuple[PassRecord, PassRecord] | None]:
        found: list[tuple[PassRecord, PassRecord] | None] = []
        for side in self._sides:
            under = {str(one): record for one, record in side.shifted}.get(corruption)
            if side.predicted is None or under is None:
                found.append(None)
            else:
                found.append((side.predicted, under))
        return found

    def _pairs(self, corruption: str) -> list[tuple[PassRecord, PassRecord]]:
        return [pair for pair in self._found(corruption) if pair is not None]

    def _right(self, record: PassRecord) -> Mask:
        right: Mask = verdicts(record)[1][self._labelled] == 1
        return right


def _absent(side: Side) -> Scalar:
    return Scalar(None, reason=side.unjudged or "not measured")


def _said(scalar: Scalar, side: Side) -> Scalar:
    """The scalar; where labels were not used, with the side's own word for why."""
    unknown = scalar.value is None and side.unjudged is not None
    return Scalar(None, reason=side.unjudged) if unknown else scalar


def _share_difference(table: Outcomes) -> Scalar:
    _, first_only, second_only, _ = table
    return Scalar((first_only - second_only) / sum(table), *paired_difference(table))
