"""Intervals over images (delete-a-group jackknife), and bands and p-values over relabellings.

Source of the jackknife: Kott, "The delete-a-group jackknife", Journal of Official Statistics 17
(2001). Groups are formed by position modulo G, so a record's leave-one-out values pair across
layers, conditions and models that saw the same images.
"""

from __future__ import annotations

import math
from functools import cache

import numpy as np
from numpy.typing import NDArray

MAX_GROUPS = 20


def group_count(images: int | None) -> int:
    """Number of groups G = min(20, images); 20 where the number is not known beforehand."""
    return MAX_GROUPS if images is None else min(MAX_GROUPS, images)


@cache
def t_quantile(degrees: int) -> float:
    """97.5 % quantile of Student's t."""
    from scipy.stats import t

    return float(t.ppf(0.975, degrees))


def interval(
    value: float, leave_one_out: NDArray[np.float64]
) -> tuple[float, float] | tuple[None, None]:
    """The 95 % interval (low, high) around `value`, or (None, None) where there is none.

    Args:
        value: the statistic of all images.
        leave_one_out: (G,) the statistic without group g. With fewer than two groups, or an
            undefined replicate, no interval exists.

    The standard error is sqrt((G - 1) / G * sum((t_g - mean t)^2)), the quantile has G - 1
    degrees. It describes the choice of images, not of permutations or of training seeds; for a
    statistic that is a maximum it is biased.
    """
    groups = len(leave_one_out)
    if groups < 2 or not math.isfinite(value) or not np.isfinite(leave_one_out).all():
        return None, None
    spread = np.sum((leave_one_out - leave_one_out.mean()) ** 2)
    half = t_quantile(groups - 1) * math.sqrt((groups - 1) / groups * float(spread))
    return value - half, value + half


def band(null: NDArray[np.float64]) -> tuple[float, float]:
    """The null band: 2.5 and 97.5 % quantiles of null values (R,)."""
    low, high = np.quantile(null, [0.025, 0.975])
    return float(low), float(high)


def mantel_p(value: float, null: NDArray[np.float64]) -> float:
    """Two-sided permutation p-value: (1 + #{|null| >= |value|}) / (1 + R).

    Never below 1 / (1 + R). It speaks about the matrix that was ranked, not about other images.
    """
    return float((1 + np.sum(np.abs(null) >= abs(value))) / (1 + len(null)))
