"""Paired differences of proportions and of FS, against published tables and SciPy."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy.stats import bootstrap, norm

from probe.numerics.paired import (
    Outcomes,
    bootstrap_fragility_difference,
    mcnemar_p,
    outcomes,
    paired_difference,
)
from probe.numerics.proportions import RESAMPLES, bootstrap_fragility, wilson


def columns(table: Outcomes) -> tuple[np.ndarray, np.ndarray]:
    pairs = [(1, 1), (1, 0), (0, 1), (0, 0)]
    rows = [pair for pair, count in zip(pairs, table, strict=True) for _ in range(count)]
    mixed = np.random.default_rng(0).permutation(np.array(rows, dtype=bool).reshape(-1, 2))
    return mixed[:, 0], mixed[:, 1]


@pytest.mark.parametrize("table", [(3, 2, 1, 4), (0, 0, 0, 5), (7, 0, 0, 0), (0, 0, 0, 0)])
def test_outcomes_are_counted(table: Outcomes) -> None:
    assert outcomes(*columns(table)) == table


class TestDifference:
    @pytest.mark.parametrize(
        ("table", "low", "high"),
        [
            ((36, 12, 2, 0), 0.0569, 0.3404),  # Newcombe 1998, method 10
            ((1, 1, 7, 12), -0.507, -0.026),  # airway data, Fagerland et al. 2014
        ],
    )
    def test_published_intervals(self, table: Outcomes, low: float, high: float) -> None:
        digits = 4 if abs(low) < 0.1 else 3
        found = tuple(round(bound, digits) for bound in paired_difference(table))
        assert found == (low, high)

    @pytest.mark.parametrize("table", [(36, 12, 2, 0), (1, 1, 7, 12), (40, 3, 3, 14), (0, 5, 5, 0)])
    def test_turning_the_models_round_turns_the_sign(self, table: Outcomes) -> None:
        both, first, second, neither = table
        low, high = paired_difference(table)
        assert paired_difference((both, second, first, neither)) == pytest.approx((-high, -low))
        assert low <= (first - second) / sum(table) <= high
        assert low >= -1
        assert high <= 1

    @pytest.mark.parametrize("table", [(8, 0, 0, 2), (10, 0, 0, 0), (0, 0, 0, 1)])
    def test_equal_models_have_an_interval_all_the_same(self, table: Outcomes) -> None:
        low, high = paired_difference(table)
        assert low < 0 < high

    def test_one_sided_extremes(self) -> None:
        """All against none: as if from two samples, each end one Wilson bound away from 1."""
        low, high = paired_difference((0, 10, 0, 0))
        slack = 1 - wilson(10, 10)[0]
        assert high == 1.0
        assert low == pytest.approx(1 - math.sqrt(2) * slack)

    def test_many_images_approach_the_normal_interval(self) -> None:
        table = (52_000, 6_000, 4_000, 38_000)
        n, apart = 100_000, 0.02
        spread = math.sqrt((0.06 + 0.04 - apart**2) / n) * norm.ppf(0.975)
        assert paired_difference(table) == pytest.approx((apart - spread, apart + spread), abs=2e-5)

    def test_no_image_is_refused(self) -> None:
        with pytest.raises(ValueError, match=r"^0 of 0 is no proportion$"):
            paired_difference((0, 0, 0, 0))


@pytest.mark.parametrize(
    ("first", "second", "p"),
    [
        (0, 0, 1.0),
        (1, 1, 1.0),
        (5, 0, 2 / 2**5),
        (1, 7, 2 * (1 + 8) / 2**8),  # 8 images differ; 0 or 1 of them on one side
        (2, 8, 2 * (1 + 10 + 45) / 2**10),
    ],
)
def test_mcnemar_by_hand(first: int, second: int, p: float) -> None:
    for agreeing in (0, 50):  # images on which both agree tell nothing
        assert mcnemar_p((agreeing, first, second, agreeing)) == pytest.approx(p, abs=1e-12)
        assert mcnemar_p((agreeing, second, first, agreeing)) == pytest.approx(p, abs=1e-12)


def four(images: int, seed: int = 0) -> list[np.ndarray]:
    """Verdicts of two models, clean and shifted: both find the same images hard."""
    rng = np.random.default_rng(seed)
    ease = rng.normal(size=images)
    return [ease + 0.5 * rng.normal(size=images) > cut for cut in (-1.0, 0.0, -0.8, -0.4)]


def fs_difference(a: np.ndarray, b: np.ndarray, c: np.ndarray, d: np.ndarray) -> float:
    return float(1 - b.sum() / a.sum()) - float(1 - d.sum() / c.sum())


class TestFragilityDifference:
    @pytest.mark.parametrize("images", [30, 300])
    def test_is_scipys_paired_percentile_bootstrap(self, images: int) -> None:
        a, b, c, d = four(images)
        found = bootstrap_fragility_difference((a, b), (c, d), 0)
        assert found is not None
        expected = bootstrap(
            tuple(one.astype(float) for one in (a, b, c, d)),
            lambda a, b, c, d, axis=-1: d.sum(axis) / c.sum(axis) - b.sum(axis) / a.sum(axis),
            paired=True, method="percentile", n_resamples=9999,
            random_state=np.random.default_rng(1),
        ).confidence_interval  # fmt: skip
        tolerance = 0.06 * (expected.high - expected.low)
        assert found[:2] == pytest.approx((expected.low, expected.high), abs=tolerance)
        assert found[2] == 0
        assert found[0] < fs_difference(a, b, c, d) < found[1]

    def test_a_small_table_equals_all_its_resamples(self) -> None:
        a, b = np.array([1, 1, 0], bool), np.array([1, 0, 0], bool)
        c, d = np.array([1, 0, 1], bool), np.array([1, 0, 1], bool)
        exact = []
        for rows in itertools.product(range(3), repeat=3):
            chosen = list(rows)
            if a[chosen].any() and c[chosen].any():
                exact.append(fs_difference(a[chosen], b[chosen], c[chosen], d[chosen]))
        found = bootstrap_fragility_difference((a, b), (c, d), 0)
        assert found is not None
        assert found[:2] == pytest.approx(tuple(np.quantile(exact, [0.025, 0.975])), abs=1e-12)
        share = 1 - len(exact) / 27
        assert found[2] / RESAMPLES == pytest.approx(share, abs=4 * math.sqrt(share / RESAMPLES))

    def test_a_model_and_itself_differ_by_nothing(self) -> None:
        a, b, *_ = four(60)
        assert bootstrap_fragility_difference((a, b), (a, b), 0) == (0.0, 0.0, 0)

    def test_pairs_make_it_narrower_than_two_apart(self) -> None:
        a, b, c, d = four(400)
        found = bootstrap_fragility_difference((a, b), (c, d), 0)
        apart = [bootstrap_fragility(*pair, 0) for pair in ((a, b), (c, d))]
        assert found is not None
        widths = [one[1] - one[0] for one in apart if one is not None]
        assert len(widths) == 2
        assert found[1] - found[0] < math.hypot(*widths)

    def test_the_seed_names_the_resamples(self) -> None:
        a, b, c, d = four(90)
        found = [bootstrap_fragility_difference((a, b), (c, d), seed) for seed in (0, 0, 1)]
        assert found[0] == found[1] != found[2]

    def test_without_a_right_clean_prediction_there_is_no_interval(self) -> None:
        some, none = np.array([True, False, True]), np.zeros(3, dtype=bool)
        assert bootstrap_fragility_difference((some, some), (none, some), 0) is None
        one = np.array([True])
        assert bootstrap_fragility_difference((one, one), (one, one), 0) is None
