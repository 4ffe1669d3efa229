"""Rank correlation over models against SciPy, all resamples and all orders of small tables."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import bootstrap, permutation_test, spearmanr

from probe.numerics.association import (
    PERMUTATIONS,
    bootstrap_spearman,
    leave_one_out_range,
    permutation_p,
    spearman,
)
from probe.numerics.proportions import RESAMPLES

Numbers = np.ndarray


def related(models: int, noise: float = 1.0, seed: int = 0) -> tuple[Numbers, Numbers]:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=models)
    return x, x + noise * rng.normal(size=models)


def by_scipy(x: Numbers, y: Numbers) -> float:
    return float(spearmanr(x, y).statistic)


tied = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=2, max_size=12)


class TestSpearman:
    @given(tied)
    def test_is_scipys_with_ties(self, pairs: list[tuple[int, int]]) -> None:
        x, y = np.array(pairs, dtype=float).T
        found = spearman(x, y)
        if len(set(x)) == 1 or len(set(y)) == 1:
            assert math.isnan(found)
        else:
            assert found == pytest.approx(by_scipy(x, y), abs=1e-12)

    def test_depends_on_order_alone(self) -> None:
        x, y = related(9)
        assert spearman(np.exp(5 * x), y**3) == pytest.approx(spearman(x, y), abs=1e-15)
        assert spearman(x, np.exp(x)) == 1.0
        assert spearman(x, -x) == -1.0

    @pytest.mark.parametrize("models", [0, 1])
    def test_is_undefined_below_two_models(self, models: int) -> None:
        assert math.isnan(spearman(np.zeros(models), np.ones(models)))

    @pytest.mark.parametrize("function", [spearman, leave_one_out_range])
    def test_what_is_no_pair_of_columns_is_refused(self, function: object) -> None:
        assert callable(function)
        with pytest.raises(ValueError, match=r"got \(2,\), \(3,\)$"):
            function(np.zeros(2), np.zeros(3))
        with pytest.raises(ValueError, match=r"^a number is not finite; leave its model out$"):
            function(np.array([0.0, math.nan]), np.zeros(2))


class TestBootstrap:
    @pytest.mark.parametrize(
        ("x", "y"),
        [
            related(12),
            related(40, 3.0, seed=1),
            (np.repeat([1.0, 2.0, 3.0, 4.0], 5), np.tile([1.0, 1.0, 2.0, 3.0, 3.0], 4)),
            (np.arange(20.0), np.repeat([0.0, 1.0], 10)),
        ],
    )
    def test_is_scipys_percentile_bootstrap(self, x: Numbers, y: Numbers) -> None:
        found = bootstrap_spearman(x, y, 0)
        assert found is not None
        low, high, dropped = found
        expected = bootstrap(
            (x, y), lambda a, b: spearmanr(a, b).statistic, paired=True, vectorized=False,
            method="percentile", n_resamples=1999, random_state=np.random.default_rng(1),
        ).confidence_interval  # fmt: skip
        # The 2.5 % quantile of 2,000 resamples varies by a few hundredths of the width.
        tolerance = 0.1 * (expected.high - expected.low)
        assert (low, high) == pytest.approx((expected.low, expected.high), abs=tolerance)
        assert dropped == 0

    @pytest.mark.parametrize("y", [[3.0, 1.0, 2.0, 2.0], [1.0, 1.0, 1.0, 5.0]])
    def test_a_small_table_equals_all_its_resamples(self, y: list[float]) -> None:
        """Four models: 256 equally likely resamples, each with SciPy, NaN where one is constant."""
        x, other = np.array([1.0, 2.0, 2.0, 4.0]), np.array(y)
        exact = []
        for rows in itertools.product(range(4), repeat=4):
            chosen = list(rows)
            if len(set(x[chosen])) > 1 and len(set(other[chosen])) > 1:
                exact.append(by_scipy(x[chosen], other[chosen]))
        found = bootstrap_spearman(x, other, 0)
        assert found is not None
        assert found[:2] == pytest.approx(tuple(np.quantile(exact, [0.025, 0.975])), abs=1e-9)
        share = 1 - len(exact) / 256
        assert share > 0
        sd = math.sqrt(share * (1 - share) / RESAMPLES)
        assert found[2] / RESAMPLES == pytest.approx(share, abs=4 * sd)

    def test_the_seed_names_the_resamples(self) -> None:
        x, y = related(15)
        state = np.random.get_state()[1].copy()  # type: ignore[index,union-attr]
        assert bootstrap_spearman(x, y, 3) == bootstrap_spearman(x, y, 3)
        assert len({bootstrap_spearman(x, y, seed) for seed in range(4)}) == 4
        assert np.array_equal(state, np.random.get_state()[1])  # type: ignore[index]

    @pytest.mark.parametrize("values", [[], [1.0], [2.0, 2.0, 2.0]])
    def test_without_any_correlation_there_is_no_interval(self, values: list[float]) -> None:
        column = np.array(values)
        assert bootstrap_spearman(column, np.arange(float(len(values))), 0) is None


def p_by_hand(x: Numbers, y: Numbers) -> float:
    """The share of all orders whose correlation, by SciPy, is as large as the one seen."""
    seen = abs(by_scipy(x, y))
    reached = [
        abs(by_scipy(x, np.array(order))) >= seen - 1e-12 for order in itertools.permutations(y)
    ]
    return sum(reached) / len(reached)


class TestPermutation:
    @pytest.mark.parametrize(
        ("x", "y"),
        [
            ([1, 2, 3], [1, 2, 3]),
            ([1, 2, 3, 4], [2, 1, 3, 4]),
            ([1, 2, 2, 4, 5], [5, 3, 3, 1, 2]),
            ([0, 0, 0, 1, 1], [2, 1, 3, 3, 9]),
        ],
    )
    def test_is_exact_for_few_models(self, x: list[int], y: list[int]) -> None:
        first, second = np.array(x, dtype=float), np.array(y, dtype=float)
        found = permutation_p(first, second, 0)
        assert found == pytest.approx(p_by_hand(first, second), abs=1e-12)
        assert found == permutation_p(first, second, 1)

    def test_seven_models_are_scipys_exact_p(self) -> None:
        """Two-sided in SciPy means twice the smaller tail, which is ours without ties."""
        x, y = related(7)

        expected = permutation_test(
            (x,), lambda a: by_scipy(a, y), permutation_type="pairings",
            n_resamples=np.inf, vectorized=False,
        )  # fmt: skip
        assert expected.null_distribution.shape == (5040,)
        assert permutation_p(x, y, 0) == pytest.approx(expected.pvalue, abs=1e-12)

    def test_the_smallest_p_of_few_models(self) -> None:
        for models in (2, 3, 4):
            x = np.arange(float(models))
            assert permutation_p(x, -x, 0) == pytest.approx(2 / math.factorial(models))

    @pytest.mark.parametrize("noise", [1.5, 6.0])
    def test_more_models_are_close_to_scipys(self, noise: float) -> None:
        x, y = related(25, noise)
        expected = float(spearmanr(x, y).pvalue)
        found = permutation_p(x, y, 0)
        sd = math.sqrt(expected * (1 - expected) / PERMUTATIONS)
        assert found == pytest.approx(expected, abs=4 * sd + 0.003)  # t is approximate itself

    def test_it_is_never_zero(self) -> None:
        x = np.arange(30.0)
        assert permutation_p(x, x, 0) == 1 / (1 + PERMUTATIONS)

    def test_the_seed_names_the_permutations(self) -> None:
        x, y = related(12, 4.0)
        assert permutation_p(x, y, 2) == permutation_p(x, y, 2)
        assert len({permutation_p(x, y, seed) for seed in range(4)}) > 1

    def test_under_the_null_it_is_small_as_often_as_it_says(self) -> None:
        rng = np.random.default_rng(8)
        found = [permutation_p(rng.normal(size=9), rng.normal(size=9), 0) for _ in range(200)]
        assert np.mean(np.array(found) <= 0.1) == pytest.approx(0.1, abs=0.065)

    @pytest.mark.parametrize("y", [[2.0, 2.0, 2.0], [2.0] * 9])
    def test_is_undefined_where_a_side_is_constant(self, y: list[float]) -> None:
        x = np.arange(float(len(y)))
        assert math.isnan(permutation_p(x, np.array(y), 0))
        assert math.isnan(permutation_p(np.array(y), x, 0))


class TestLeaveOneOut:
    @pytest.mark.parametrize("models", [4, 9])
    def test_is_the_range_of_a_loop(self, models: int) -> None:
        x, y = related(models, 2.0)
        y[0] = y[1]
        values = [by_scipy(np.delete(x, i), np.delete(y, i)) for i in range(models)]
        assert leave_one_out_range(x, y) == pytest.approx((min(values), max(values)), abs=1e-12)

    def test_there_is_none_below_four_models(self) -> None:
        assert leave_one_out_range(*related(3)) is None

    def test_there_is_none_where_one_model_makes_the_difference(self) -> None:
        x = np.arange(5.0)
        assert leave_one_out_range(x, np.array([0.0, 0.0, 0.0, 0.0, 1.0])) is None
