"""Intervals of proportions and of fragility, against SciPy's and statsmodels' own."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest, bootstrap

from probe.numerics.proportions import RESAMPLES, bootstrap_fragility, wilson


@given(trials=st.integers(1, 5000), share=st.floats(0, 1))
def test_wilson_is_scipys(trials: int, share: float) -> None:
    successes = round(share * trials)
    expected = binomtest(successes, trials).proportion_ci(0.95, method="wilson")
    low, high = wilson(successes, trials)
    assert (low, high) == pytest.approx((expected.low, expected.high), abs=1e-12)
    assert 0 <= low <= successes / trials <= high <= 1


def test_wilson_at_the_ends() -> None:
    assert wilson(0, 10)[0] == 0.0
    assert wilson(10, 10)[1] == 1.0
    assert wilson(0, 1) == pytest.approx((0, 0.7934507))


@pytest.mark.parametrize(("successes", "trials"), [(0, 0), (-1, 4), (5, 4), (1, -1)])
def test_what_is_no_proportion_is_refused(successes: int, trials: int) -> None:
    with pytest.raises(ValueError, match=f"^{successes} of {trials} is no proportion$"):
        wilson(successes, trials)


def table(both: int, lost: int, won: int, neither: int) -> tuple[np.ndarray, np.ndarray]:
    """Clean and shifted verdicts with these counts, in a mixed order."""
    pairs = [(1, 1)] * both + [(1, 0)] * lost + [(0, 1)] * won + [(0, 0)] * neither
    mixed = np.random.default_rng(0).permutation(np.array(pairs, dtype=bool))
    return mixed[:, 0], mixed[:, 1]


def by_scipy(clean: np.ndarray, shifted: np.ndarray) -> tuple[float, float]:
    def fs(a: np.ndarray, b: np.ndarray, axis: int = -1) -> np.ndarray:
        return 1 - b.sum(axis=axis) / a.sum(axis=axis)

    found = bootstrap(
        (clean.astype(float), shifted.astype(float)), fs, paired=True, method="percentile",
        n_resamples=9999, confidence_level=0.95, random_state=np.random.default_rng(1),
    )  # fmt: skip
    return found.confidence_interval.low, found.confidence_interval.high


@pytest.mark.parametrize(
    "counts",
    [
        (60, 25, 5, 10),
        (150, 30, 2, 18),
        (40, 0, 12, 28),  # the corruption helps: negative
        (0, 80, 0, 20),  # all is lost
        (90, 0, 0, 10),  # nothing changes: always 0
        (20, 20, 20, 20),
    ],
)
def test_fragility_is_scipys_paired_percentile_bootstrap(counts: tuple[int, ...]) -> None:
    clean, shifted = table(*counts)
    found = bootstrap_fragility(clean, shifted, seed=0)
    assert found is not None
    low, high, dropped = found
    expected = by_scipy(clean, shifted)
    # Two sets of 10,000 resamples: their 2.5 % quantiles differ by a few hundredths of the width.
    tolerance = 0.06 * (expected[1] - expected[0]) + 1e-12
    assert (low, high) == pytest.approx(expected, abs=tolerance)
    assert dropped == 0
    value = 1 - shifted.sum() / clean.sum()
    assert low - 1e-12 <= value <= high + 1e-12


def test_pairs_make_it_narrower_than_two_independent_samples() -> None:
    clean, shifted = table(70, 5, 0, 25)
    paired = bootstrap_fragility(clean, shifted, 0)
    apart = bootstrap_fragility(np.sort(clean), np.sort(shifted)[::-1], 0)
    assert paired is not None
    assert apart is not None
    assert paired[1] - paired[0] < (apart[1] - apart[0]) / 2


def test_a_small_table_equals_all_its_resamples() -> None:
    """Three images: the exact distribution has 27 equally likely resamples."""
    clean, shifted = np.array([True, True, False]), np.array([True, False, False])
    exact = []
    for rows in itertools.product(range(3), repeat=3):
        chosen = list(rows)
        if clean[chosen].any():
            exact.append(1 - shifted[chosen].sum() / clean[chosen].sum())
    found = bootstrap_fragility(clean, shifted, 0)
    assert found is not None
    assert found[:2] == pytest.approx(tuple(np.quantile(exact, [0.025, 0.975])), abs=1e-12)
    # One resample of 27 holds the wrong image three times.
    share, sd = 1 / 27, np.sqrt(26 / 27**2 / RESAMPLES)
    assert found[2] / RESAMPLES == pytest.approx(share, abs=4 * sd)


def test_the_seed_names_the_resamples() -> None:
    clean, shifted = table(11, 6, 1, 2)
    first = bootstrap_fragility(clean, shifted, 3)
    assert first == bootstrap_fragility(clean, shifted, 3)
    assert first == bootstrap_fragility(clean[::-1], shifted[::-1], 3)
    many = {bootstrap_fragility(*table(500, 260, 41, 199), seed) for seed in range(4)}
    assert len(many) > 1
    state = np.random.get_state()[1].copy()  # type: ignore[index,union-attr]
    bootstrap_fragility(clean, shifted, 3)
    assert np.array_equal(state, np.random.get_state()[1])  # type: ignore[index]


@pytest.mark.parametrize("verdicts", [[], [True], [False]])
def test_fewer_than_two_images_have_no_interval(verdicts: list[bool]) -> None:
    array = np.array(verdicts, dtype=bool)
    assert bootstrap_fragility(array, array, 0) is None


def test_without_a_right_clean_prediction_there_is_no_interval() -> None:
    assert bootstrap_fragility(np.zeros(5, bool), np.ones(5, bool), 0) is None


def test_two_images_of_which_one_is_right() -> None:
    found = bootstrap_fragility(np.array([True, False]), np.array([False, False]), 0)
    assert found is not None
    assert found[:2] == (1.0, 1.0)
    assert found[2] / RESAMPLES == pytest.approx(0.25, abs=0.02)
