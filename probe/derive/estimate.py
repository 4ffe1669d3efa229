"""Statistics that carry their jackknife replicates, so that what is derived from them is paired."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from probe.numerics.intervals import interval
from probe.records import LayerRecord, MetricRecord
from probe.types import Scalar


@dataclass(frozen=True)
class Estimate:
    """A statistic with its jackknife replicates (G,); NaN and a reason where it is undefined."""

    value: float
    replicates: NDArray[np.float64]
    reason: str | None = None

    @classmethod
    def undefined(cls, reason: str) -> Estimate:
        """No number, and why."""
        return cls(float("nan"), np.empty(0), reason)

    @classmethod
    def of(cls, layer: LayerRecord | MetricRecord) -> Estimate:
        """SSDC, or another metric, of one layer of one pass."""
        if layer.value is None:
            return cls.undefined(layer.reason or "undefined")
        replicates = [float("nan") if v is None else v for v in layer.leave_one_out]
        return cls(layer.value, np.array(replicates))

    def scalar(self) -> Scalar:
        """The number with its interval, as it is reported."""
        if not math.isfinite(self.value):
            return Scalar(None, reason=self.reason or "undefined")
        low, high = interval(self.value, self.replicates)
        if low is not None:
            return Scalar(self.value, low, high)
        if len(self.replicates) < 2:
            return Scalar(self.value, reason="no interval from one image")
        return Scalar(self.value, reason="no interval: undefined without one of the image groups")


def combine(
    parts: Sequence[Estimate], rule: Callable[[NDArray[np.float64]], NDArray[np.float64]]
) -> Estimate:
    """Apply `rule`, from (parts, replicates) to (replicates,), to values and replicates alike.

    Undefined if a part is, with the first part's reason; without replicates unless all parts have
    the same number of them.
    """
    for part in parts:
        if not math.isfinite(part.value):
            return part
    value = float(rule(np.array([[part.value] for part in parts]))[0])
    sizes = {len(part.replicates) for part in parts}
    replicates = (
        rule(np.stack([part.replicates for part in parts])) if len(sizes) == 1 else np.empty(0)
    )
    return Estimate(value, replicates)


def mean(parts: Sequence[Estimate]) -> Estimate:
    """Unweighted mean."""
    return combine(parts, lambda rows: rows.mean(axis=0))


def difference(first: Estimate, second: Estimate) -> Estimate:
    """The first minus the second, paired by image group."""
    return combine([first, second], lambda rows: rows[0] - rows[1])


def ratio(first: Estimate, second: Estimate) -> Estimate:
    """The first over the second, paired by image group."""

    def divide(rows: NDArray[np.float64]) -> NDArray[np.float64]:
        with np.errstate(divide="ignore", invalid="ignore"):
            return rows[0] / rows[1]

    return combine([first, second], divide)
