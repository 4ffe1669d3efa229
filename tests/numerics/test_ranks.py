"""SSDC's rank correlation against SciPy, scikit-bio and rsatoolbox on the same matrices."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rsatoolbox import rdm
from scipy.stats import rankdata, spearmanr
from skbio.stats.distance import mantel

from probe.numerics.distance import grid_distances, token_subset
from probe.numerics.ranks import PairRanker
from probe.types import Grid


def similarity(tokens: int, seed: int, width: int = 16) -> np.ndarray:
    x = np.random.default_rng(seed).standard_normal((tokens, width))
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    return x @ x.T


def oracle(matrix: np.ndarray, distances: np.ndarray) -> float:
    upper = np.triu_indices(len(matrix), 1)
    return float(spearmanr(matrix[upper], -distances[upper]).statistic)


@pytest.mark.parametrize("metric", ["l1", "l2"])
@pytest.mark.parametrize("grid", [Grid(3, 3), Grid(4, 9), Grid(14, 14), Grid(1, 12)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_equals_scipy(grid: Grid, metric: str, dtype: type) -> None:
    distances = grid_distances(grid, metric)
    ranker = PairRanker(distances)
    matrix = similarity(grid.tokens, grid.cols).astype(dtype)
    pairs = matrix[ranker.upper]
    assert ranker.correlation(pairs) == pytest.approx(oracle(matrix, distances), abs=1e-9)
    value, ranks = ranker.ranks(pairs)
    assert value == pytest.approx(oracle(matrix, distances), abs=1e-9)
    centred = rankdata(pairs) - (ranker.pairs + 1) / 2
    np.testing.assert_allclose(ranks, centred / np.linalg.norm(centred), atol=1e-7)


@given(
    st.integers(2, 6),
    st.integers(2, 6),
    st.integers(0, 2**31),
    st.sampled_from([2, 3, 5, 50]),
    st.sampled_from([np.float32, np.float64]),
)
@settings(max_examples=80, deadline=None)
def test_ties_and_signs_equal_scipy(
    rows: int, cols: int, seed: int, levels: int, dtype: type
) -> None:
    """Few levels make many ties, negative values and both zeros."""
    grid = Grid(rows, cols)
    distances = grid_distances(grid, "l1")
    ranker = PairRanker(distances)
    values = np.random.default_rng(seed).integers(-levels, levels, ranker.pairs) / levels
    pairs = (values * np.where(np.arange(ranker.pairs) % 2, 1, -1)).astype(dtype)
    found = ranker.correlation(pairs)
    if np.ptp(pairs) == 0:
        assert np.isnan(found)
        return
    expected = spearmanr(pairs, -distances[ranker.upper]).statistic
    assert found == pytest.approx(expected, abs=1e-9)
    assert ranker.ranks(pairs)[0] == pytest.approx(expected, abs=1e-9)


def test_equals_scikit_bio_mantel() -> None:
    grid = Grid(6, 7)
    distances = grid_distances(grid, "l1")
    matrix = similarity(grid.tokens, 3)
    x, y = 1 - matrix, distances.astype(float)
    np.fill_diagonal(x, 0)
    x = (x + x.T) / 2
    value, _, _ = mantel(x, y, method="spearman", permutations=0)
    found = PairRanker(distances).correlation((1 - x)[np.triu_indices(grid.tokens, 1)])
    assert found == pytest.approx(value, abs=1e-9)


def test_equals_rsatoolbox_compare() -> None:
    grid = Grid(5, 5)
    distances = grid_distances(grid, "l2")
    ranker = PairRanker(distances)
    pairs = similarity(grid.tokens, 4)[ranker.upper]
    left, right = rdm.RDMs(1 - pairs[None]), rdm.RDMs(distances[ranker.upper][None].astype(float))
    value = rdm.compare(left, right, method="spearman").item()
    assert ranker.correlation(pairs) == pytest.approx(value, abs=1e-9)


def test_perfect_order_is_one_and_its_reverse_minus_one() -> None:
    distances = grid_distances(Grid(5, 4), "l1")
    ranker = PairRanker(distances)
    pairs = np.exp(-distances[ranker.upper] / 3).astype(np.float32)
    assert ranker.correlation(pairs) == pytest.approx(1, abs=1e-12)
    assert ranker.correlation(-pairs) == pytest.approx(-1, abs=1e-12)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_undefined_is_nan(bad: float) -> None:
    ranker = PairRanker(grid_distances(Grid(3, 4), "l1"))
    constant = np.full(ranker.pairs, 0.5, dtype=np.float32)
    assert np.isnan(ranker.correlation(constant))
    rounding = constant + np.linspace(0, 5e-7, ranker.pairs, dtype=np.float32)
    assert np.isnan(ranker.correlation(rounding))
    for sign in (1, -1):
        pairs = np.linspace(-1, 1, ranker.pairs).astype(np.float32)
        pairs[3] = sign * bad
        if np.isnan(bad):
            assert np.isnan(ranker.correlation(pairs))
            assert np.isnan(ranker.ranks(pairs)[0])


def test_negative_nan_is_undefined_too() -> None:
    ranker = PairRanker(grid_distances(Grid(3, 4), "l1"))
    pairs = np.linspace(-1, 1, ranker.pairs).astype(np.float32)
    pairs[5] = np.array([0xFFC00000], dtype=np.uint32).view(np.float32)[0]
    assert np.isnan(ranker.correlation(pairs))


def test_two_tokens_have_no_correlation() -> None:
    ranker = PairRanker(grid_distances(Grid(1, 2), "l1"))
    assert ranker.degenerate
    assert np.isnan(ranker.correlation(np.array([0.3], dtype=np.float32)))


def test_distances_by_a_double_loop() -> None:
    grid = Grid(3, 5)
    l1, l2 = grid_distances(grid, "l1"), grid_distances(grid, "l2")
    for i in range(15):
        for j in range(15):
            dr, dc = abs(i // 5 - j // 5), abs(i % 5 - j % 5)
            assert l1[i, j] == dr + dc
            assert l2[i, j] == dr**2 + dc**2


def test_large_grids_use_a_seeded_subset_of_two_million_pairs() -> None:
    assert token_subset(Grid(56, 56), 0) is None
    assert token_subset(Grid(57, 56), 0) is not None
    subset = token_subset(Grid(96, 96), 0)
    assert subset is not None
    assert len(subset) * (len(subset) - 1) // 2 >= 2_000_000
    assert (np.diff(subset) > 0).all()
    assert subset.max() < 96 * 96
    np.testing.assert_array_equal(subset, token_subset(Grid(96, 96), 0))
    assert (subset != token_subset(Grid(96, 96), 1)).any()
    part = grid_distances(Grid(96, 96), "l1", subset[:3])
    assert part[0, 1] == abs(subset[0] // 96 - subset[1] // 96) + abs(
        subset[0] % 96 - subset[1] % 96
    )
