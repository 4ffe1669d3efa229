"""Intervals of proportions, and of ratios of two proportions over the same images."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

RESAMPLES = 10_000
_BOOTSTRAP_STREAM = 0x626F6F74  # keeps these draws apart from every other use of the seed
_Z = 1.959963984540054  # 97.5 % quantile of the normal distribution


def wilson(successes: int, trials: int) -> tuple[float, float]:
    """The 95 % Wilson score interval of a proportion.

    Source: Wilson, "Probable inference, the law of succession, and statistical inference", Journal
    of the American Statistical Association 22 (1927).

    Raises:
        ValueError: unless 0 <= successes <= trials and trials > 0.
    """
    if trials < 1 or not 0 <= successes <= trials:
        raise ValueError(f"{successes} of {trials} is no proportion")
    share, square = successes / trials, _Z * _Z
    centre = (share + square / (2 * trials)) / (1 + square / trials)
    spread = share * (1 - share) / trials + square / (4 * trials * trials)
    half = _Z * math.sqrt(spread) / (1 + square / trials)
    low = 0.0 if successes == 0 else centre - half
    high = 1.0 if successes == trials else centre + half
    return low, high


def bootstrap_fragility(
    clean: NDArray[np.bool_], shifted: NDArray[np.bool_], seed: int
) -> tuple[float, float, int] | None:
    """Percentile interval of 1 - sum(shifted) / sum(clean), resampling images in pairs.

    Only the counts of the four outcomes matter, so a resample of images is one multinomial draw.
    Resamples without a correct clean prediction are dropped.

    Args:
        clean: (n,) whether the clean prediction is right.
        shifted: (n,) the same under the corruption.
        seed: names the 10,000 resamples.

    Returns:
        (low, high, number of dropped resamples), or None when fewer than two images or no
        resample are left.
    """
    images = len(clean)
    if images < 2:
        return None
    outcomes = np.bincount(2 * clean.astype(np.int64) + shifted, minlength=4)
    generator = np.random.Generator(
        np.random.PCG64(np.random.SeedSequence([_BOOTSTRAP_STREAM, seed]))
    )
    draws = generator.multinomial(images, outcomes / images, size=RESAMPLES)
    right = draws[:, 2] + draws[:, 3]
    used = right > 0
    if not used.any():
        return None
    values = 1 - (draws[used, 1] + draws[used, 3]) / right[used]
    low, high = np.quantile(values, [0.025, 0.975])
    return float(low), float(high), int(RESAMPLES - used.sum())
