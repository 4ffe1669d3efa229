"""Two models on the same images: differences of proportions and of fragility, paired by image."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from probe.numerics.proportions import RESAMPLES, wilson

_BOOTSTRAP_STREAM = 0x70616972  # keeps these draws apart from every other use of the seed

Outcomes = tuple[int, int, int, int]


def outcomes(first: NDArray[np.bool_], second: NDArray[np.bool_]) -> Outcomes:
    """How many images hold for both, for the first alone, for the second alone, for neither.

    Args:
        first: (n,) whether each image counts for the first model.
        second: (n,) the same for the second.
    """
    table = np.bincount(2 * first.astype(np.int64) + second, minlength=4)
    neither, second_only, first_only, both = (int(count) for count in table)
    return both, first_only, second_only, neither


def paired_difference(table: Outcomes) -> tuple[float, float]:
    """The 95 % score interval of share of the first - share of the second, of paired proportions.

    It is built from the two Wilson intervals and the correlation of the pairs, so that it agrees
    with the intervals of the shares themselves, and is not empty when all pairs are equal.
    Source: Newcombe, "Improved confidence intervals for the difference between binomial
    proportions based on paired data", Statistics in Medicine 17 (1998), method 10.

    Raises:
        ValueError: without an image.
    """
    both, first_only, second_only, neither = table
    images = sum(table)
    ones = (both + first_only, both + second_only)
    (low1, high1), (low2, high2) = (wilson(count, images) for count in ones)
    share1, share2 = (count / images for count in ones)
    margins = math.prod((*ones, images - ones[0], images - ones[1]))
    cross = float(both * neither - first_only * second_only)
    if cross > 0:
        cross = max(cross - images / 2, 0.0)
    phi = cross / math.sqrt(margins) if margins else 0.0

    def length(one: float, other: float) -> float:
        return math.sqrt(max(one * one - 2 * phi * one * other + other * other, 0.0))

    value = share1 - share2
    low = value - length(share1 - low1, high2 - share2)
    high = value + length(high1 - share1, share2 - low2)
    return low, high


def mcnemar_p(table: Outcomes) -> float:
    """McNemar's exact two-sided p-value: are the images that differ split evenly?

    Only images that hold for one model alone bear on it; 1 where there are none. It asks whether
    the models differ, not by how much, and a small p over many images may be a small difference.
    Source: McNemar, "Note on the sampling error of the difference between correlated proportions
    or percentages", Psychometrika 12 (1947), in its exact form.
    """
    from scipy.stats import binomtest

    _, first_only, second_only, _ = table
    if first_only + second_only == 0:
        return 1.0
    return float(binomtest(first_only, first_only + second_only, 0.5).pvalue)


def bootstrap_fragility_difference(
    first: tuple[NDArray[np.bool_], NDArray[np.bool_]],
    second: tuple[NDArray[np.bool_], NDArray[np.bool_]],
    seed: int,
) -> tuple[float, float, int] | None:
    """Percentile interval of FS of the first - FS of the second model, resampling images.

    An image keeps its four verdicts together, so what both models find hard cancels. Only the
    counts of the sixteen outcomes matter, so a resample is one multinomial draw. Resamples in
    which one of the models has no correct clean prediction are dropped.

    Args:
        first: whether the clean and the shifted prediction of the first model are right, (n,) each.
        second: the same of the second model, over the same images.
        seed: names the 10,000 resamples.

    Returns:
        (low, high, number of dropped resamples), or None when fewer than two images or no
        resample are left.
    """
    verdicts = np.stack([*first, *second]).astype(np.int64)  # (4, n)
    images = verdicts.shape[1]
    if images < 2:
        return None
    weights = np.array([8, 4, 2, 1])
    counted = np.bincount(weights @ verdicts, minlength=16)
    generator = np.random.Generator(
        np.random.PCG64(np.random.SeedSequence([_BOOTSTRAP_STREAM, seed]))
    )
    draws = generator.multinomial(images, counted / images, size=RESAMPLES)
    holds = (np.arange(16)[:, None] & weights) > 0  # (16, 4): which verdicts an outcome has
    right = draws @ holds.astype(np.int64)  # (resamples, 4)
    used = (right[:, 0] > 0) & (right[:, 2] > 0)
    if not used.any():
        return None
    kept = right[used]
    values = kept[:, 3] / kept[:, 2] - kept[:, 1] / kept[:, 0]
    low, high = np.quantile(values, [0.025, 0.975])
    return float(low), float(high), int(RESAMPLES - used.sum())
