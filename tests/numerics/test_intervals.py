"""Jackknife, null bands and permutation p-values against independent computations."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import t
from skbio.stats.distance import mantel

from probe.numerics.distance import grid_distances
from probe.numerics.intervals import band, group_count, interval, mantel_p
from probe.numerics.ranks import PairRanker
from probe.numerics.relabel import ImageRelabelling, null_values, relabelling_count
from probe.types import Grid


def test_jackknife_of_a_mean_is_the_textbook_interval() -> None:
    """Delete-one jackknife of a mean gives mean +- t * s / sqrt(n)."""
    data = np.random.default_rng(0).standard_normal(20)
    without = (data.sum() - data) / 19
    half = t.ppf(0.975, 19) * data.std(ddof=1) / np.sqrt(20)
    low, high = interval(data.mean(), without)
    assert low == pytest.approx(data.mean() - half, abs=1e-12)
    assert high == pytest.approx(data.mean() + half, abs=1e-12)


def test_interval_covers_the_mean_about_as_often_as_it_says() -> None:
    generator = np.random.default_rng(1)
    hits = 0
    for _ in range(2000):
        data = generator.standard_normal(60).reshape(3, 20)  # 20 groups of three
        without = (data.sum() - data.sum(0)) / 57
        low, high = interval(data.mean(), without)
        hits += low <= 0 <= high
    assert 0.93 < hits / 2000 < 0.97


@pytest.mark.parametrize(
    ("value", "replicates"),
    [(0.5, [0.5]), (0.5, []), (float("nan"), [0.1, 0.2]), (0.5, [0.1, float("nan")])],
)
def test_no_interval_where_none_exists(value: float, replicates: list[float]) -> None:
    assert interval(value, np.array(replicates)) == (None, None)


def test_group_count() -> None:
    assert [group_count(n) for n in (1, 7, 20, 21, None)] == [1, 7, 20, 20, 20]


def hubby(tokens: int, seed: int) -> np.ndarray:
    """Similarities with a few tokens that resemble everything, as real models have."""
    generator = np.random.default_rng(seed)
    x = generator.standard_normal((tokens, 8))
    x += 2 * generator.standard_normal(8) * (generator.random((tokens, 1)) > 0.8)
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    return (x @ x.T).astype(np.float32)


def test_null_values_by_brute_force() -> None:
    """The same permutations, each applied to the matrix itself and correlated by SciPy."""
    from scipy.stats import spearmanr

    from probe.numerics.relabel import generator

    grid = Grid(4, 4)
    distances = grid_distances(grid, "l1")
    ranker = PairRanker(distances)
    matrix = hubby(16, 2)
    (null,) = null_values(ranker, [ranker.ranks(matrix[ranker.upper])[1][None]], seed=5, draw=1)
    assert null.shape == (1, 999)
    permutations = generator(5, 1, 16)
    for value in null[0, :25]:
        order = permutations.permutation(16)
        moved = distances[order][:, order]
        expected = spearmanr(matrix[ranker.upper], -moved[ranker.upper]).statistic
        assert value == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("images", [1, 5, 24])
def test_image_relabelling_has_the_spread_of_independent_relabellings(images: int) -> None:
    """Relabel-then-sum must spread as R fresh permutations per image do."""
    ranker = PairRanker(grid_distances(Grid(8, 8), "l1"))
    ranks = [ranker.ranks(hubby(64, seed)[ranker.upper])[1] for seed in range(images)]
    distances = ranker.distance_matrix()
    generator = np.random.default_rng(0)
    brute = []
    for _ in range(999):
        total = 0.0
        for one in ranks:
            order = generator.permutation(64)
            total += float(one @ distances[order][:, order][ranker.upper])
        brute.append(total / images)
    spreads = []
    for seed in range(6):
        relabelling = ImageRelabelling(ranker, seed, 0)
        mean = np.mean([one[relabelling.gather(i)] for i, one in enumerate(ranks)], axis=0)
        spreads.append(null_values(ranker, [mean[None].astype(np.float32)], seed)[0].std())
    assert np.mean(spreads) == pytest.approx(np.std(brute), rel=0.06)
    assert max(spreads) / min(spreads) < 1.3


def test_relabelled_ranks_belong_to_one_relabelling() -> None:
    ranker = PairRanker(grid_distances(Grid(3, 3), "l1"))
    gather = ImageRelabelling(ranker, 0, 0).gather(7)
    assert sorted(gather) == list(range(ranker.pairs))
    matrix = np.zeros((9, 9), dtype=int)
    matrix[ranker.upper] = np.arange(ranker.pairs)[gather]
    matrix += matrix.T
    # A relabelling of tokens keeps each token's set of pairs together.
    original = np.zeros((9, 9), dtype=int)
    original[ranker.upper] = np.arange(ranker.pairs)
    original += original.T
    rows = {tuple(sorted(np.delete(row, i))) for i, row in enumerate(original)}
    assert {tuple(sorted(np.delete(row, i))) for i, row in enumerate(matrix)} == rows


def test_band_and_p_value() -> None:
    null = np.linspace(-1, 1, 999)
    assert band(null) == (pytest.approx(-0.95), pytest.approx(0.95))
    assert mantel_p(2.0, null) == pytest.approx(1 / 1000)
    assert mantel_p(0.0, null) == 1
    assert mantel_p(-0.5, null) == pytest.approx((1 + np.sum(np.abs(null) >= 0.5)) / 1000)


def test_p_value_agrees_with_scikit_bio() -> None:
    distances = grid_distances(Grid(4, 4), "l1")
    ranker = PairRanker(distances)
    generator = np.random.default_rng(4)
    noise = generator.standard_normal((16, 16))
    x = distances + 14 * (noise + noise.T)
    np.fill_diagonal(x, 0)
    x = np.abs(x)
    value, ranks = ranker.ranks(-x[ranker.upper])
    null = null_values(ranker, [ranks[None]], seed=0)[0][0]
    _, p, _ = mantel(x, distances.astype(float), method="spearman", permutations=999, seed=1)
    assert mantel_p(value, null) == pytest.approx(p, abs=0.05)


def test_fewer_relabellings_on_large_grids() -> None:
    assert relabelling_count(1024) == 999
    assert relabelling_count(1025) == 99
