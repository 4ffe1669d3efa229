"""Rank correlation over a handful of models: its bootstrap, its permutation test, its range.

Everything here is small (tens of models) and is repeated often (thousands of resamples), so a
resample is a row of counts: how often each model is in it. The original has every model once, and
leaving one out is a row with one zero.
"""

from __future__ import annotations

import itertools
import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from probe.numerics.proportions import RESAMPLES

PERMUTATIONS = 9_999
EXACT_MODELS = 7  # 7! = 5,040 orders
_BOOTSTRAP_STREAM = 0x7A6F6F62  # keep these draws apart from every other use of the seed
_PERMUTATION_STREAM = 0x7A6F6F70


def spearman(
    x: NDArray[np.float64], y: NDArray[np.float64], counts: NDArray[np.int64] | None = None
) -> float:
    """Spearman correlation of x and y (n,), average ranks for ties; NaN where a side is constant.

    Args:
        x: (n,) one number of every item.
        y: (n,) another.
        counts: (n,) how often each item is there, once by default.

    Raises:
        ValueError: unless both are finite and of one length.
    """
    x, y = _checked(x, y)
    times = np.ones(len(x), dtype=np.int64) if counts is None else counts
    return float(_correlations(times[None], x, y)[0])


def bootstrap_spearman(
    x: NDArray[np.float64], y: NDArray[np.float64], seed: int
) -> tuple[float, float, int] | None:
    """95 % percentile interval of `spearman`, resampling models in pairs, 10,000 times.

    Resamples in which a side is constant (one model alone, say) have no correlation and are
    dropped. It misleads for few models: below about ten it is too narrow and its ends are coarse,
    and it treats models as independent, which those of one recipe are not.

    Args:
        x: (n,) one number per model.
        y: (n,) another.
        seed: names the resamples, which are the same for every pair of numbers of n models.

    Returns:
        (low, high, number of dropped resamples), or None when no resample is left.

    Raises:
        ValueError: as for `spearman`.
    """
    x, y = _checked(x, y)
    models = len(x)
    if models < 2:
        return None
    values = _correlations(_resamples(models, seed), x, y)
    used = values[np.isfinite(values)]
    if len(used) == 0:
        return None
    low, high = np.quantile(used, [0.025, 0.975])
    return float(low), float(high), RESAMPLES - len(used)


def permutation_p(x: NDArray[np.float64], y: NDArray[np.float64], seed: int) -> float:
    """Two-sided p-value of `spearman`, permuting which model has which y.

    Up to 7 models all n! orders are taken, and p is the share whose |correlation| is at least the
    one seen. Above, p = (1 + #{at least as large}) / (1 + 9,999) over seeded orders, never below
    .0001. NaN where the correlation is undefined.

    It misleads where models cannot stand for each other under the null: models of one recipe or
    one family move together, so that p is too small over a zoo of a few recipes. It speaks about
    these models, not about others; it knows nothing of the intervals of x and y; with few models
    it cannot be small (never below 2/n!, and higher with ties); and one p of many is expected to
    be small.

    Raises:
        ValueError: as for `spearman`.
    """
    x, y = _checked(x, y)
    # Twice the centred ranks are whole numbers, so equal correlations compare equal.
    first, second = (_doubled_ranks(values) for values in (x, y))
    if not (first.any() and second.any()):
        return math.nan
    seen = abs(int(first @ second))
    if len(x) <= EXACT_MODELS:
        orders = np.array(list(itertools.permutations(second)))
        return float(np.mean(np.abs(orders @ first) >= seen))
    generator = _generator(_PERMUTATION_STREAM, seed)
    orders = generator.permuted(np.tile(second, (PERMUTATIONS, 1)), axis=1)
    reached = int(np.sum(np.abs(orders @ first) >= seen))
    return (1 + reached) / (1 + PERMUTATIONS)


def leave_one_out_range(
    x: NDArray[np.float64], y: NDArray[np.float64]
) -> tuple[float, float] | None:
    """Smallest and largest `spearman` without one of the models.

    None below four models (two are always in order, or in reverse), and where it is undefined
    without one of them.

    Raises:
        ValueError: as for `spearman`.
    """
    x, y = _checked(x, y)
    if len(x) < 4:
        return None
    values = _correlations(1 - np.eye(len(x), dtype=np.int64), x, y)
    if not np.isfinite(values).all():
        return None
    return float(values.min()), float(values.max())


def _checked(
    x: NDArray[np.float64], y: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    x, y = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
    if x.ndim != 1 or x.shape != y.shape:
        raise ValueError(f"one number per model is needed on both sides, got {x.shape}, {y.shape}")
    if not (np.isfinite(x).all() and np.isfinite(y).all()):
        raise ValueError("a number is not finite; leave its model out")
    return x, y


def _generator(stream: int, seed: int) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence([stream, seed])))


@lru_cache(maxsize=4)  # a zoo asks for the same ones for every pair of columns
def _resamples(models: int, seed: int) -> NDArray[np.int64]:
    """How often each model is in each resample (10,000, models)."""
    generator = _generator(_BOOTSTRAP_STREAM, seed)
    counts: NDArray[np.int64] = generator.multinomial(
        models, np.full(models, 1 / models), size=RESAMPLES
    )
    counts.setflags(write=False)
    return counts


def _doubled_ranks(values: NDArray[np.float64]) -> NDArray[np.int64]:
    ranks = _average_ranks(np.ones((1, len(values)), dtype=np.int64), values)[0]
    doubled: NDArray[np.int64] = np.rint(2 * ranks - (len(values) + 1)).astype(np.int64)
    return doubled


def _average_ranks(counts: NDArray[np.int64], values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Average 1-based ranks (R, n) in each resample; those of a model that is not in it are idle.

    Args:
        counts: (R, n) how often each model is in each resample.
        values: (n,) its number.
    """
    order = np.argsort(values, kind="stable")
    _, starts, level = np.unique(values[order], return_index=True, return_inverse=True)
    sizes = np.add.reduceat(counts[:, order], starts, axis=1)
    places = np.cumsum(sizes, axis=1) - (sizes - 1) / 2
    ranks = np.empty(counts.shape)
    ranks[:, order] = places[:, level]
    return ranks


def _correlations(
    counts: NDArray[np.int64], x: NDArray[np.float64], y: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Spearman correlation (R,) in each resample (R, n); NaN where a side is constant."""
    if len(x) == 0:
        return np.full(len(counts), np.nan)
    middle = (counts.sum(axis=1, keepdims=True) + 1) / 2
    first, second = (_average_ranks(counts, values) - middle for values in (x, y))
    together = np.sum(counts * first * second, axis=1)
    lengths = np.sum(counts * first**2, axis=1) * np.sum(counts * second**2, axis=1)
    # Ranks are whole or half numbers, so a constant side gives exactly 0.
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(lengths > 0, together / np.sqrt(lengths), np.nan)
