"""Distances on a grid, and what no curve may depend on: the grid's symmetries, the scale of S."""

from __future__ import annotations

from typing import get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from probe.numerics.distance import (
    FULL_TOKENS,
    SUBSET_TOKENS,
    grid_distances,
    landmarks,
    token_subset,
)
from probe.numerics.ranks import PairRanker
from probe.types import Grid, Metric

GRIDS = st.builds(Grid, st.integers(1, 9), st.integers(1, 9)).filter(lambda g: g.tokens > 3)
METRICS = st.sampled_from(get_args(Metric))
SEEDS = st.integers(0, 2**32 - 1)


def symmetries(grid: Grid) -> list[np.ndarray]:
    """Token orders that turn the grid onto itself: flips and the half turn."""
    index = np.arange(grid.tokens).reshape(grid.rows, grid.cols)
    return [index[::-1].ravel(), index[:, ::-1].ravel(), index[::-1, ::-1].ravel()]


@given(GRIDS, METRICS)
def test_distances_are_those_of_a_double_loop(grid: Grid, metric: Metric) -> None:
    found = grid_distances(grid, metric)
    assert found.shape == (grid.tokens, grid.tokens)
    for i in range(grid.tokens):
        for j in range(grid.tokens):
            down = abs(i // grid.cols - j // grid.cols)
            across = abs(i % grid.cols - j % grid.cols)
            expected = down + across if metric == "l1" else down**2 + across**2
            assert found[i, j] == expected


@given(GRIDS, METRICS)
def test_distances_are_distances(grid: Grid, metric: Metric) -> None:
    found = grid_distances(grid, metric)
    length = found if metric == "l1" else np.sqrt(found)
    assert np.array_equal(found, found.T)
    assert np.array_equal(found == 0, np.eye(grid.tokens, dtype=bool))
    assert (length[:, None] <= length[:, :, None] + length[None] + 1e-9).all()
    for order in symmetries(grid):
        assert np.array_equal(found[np.ix_(order, order)], found)
    turned = grid_distances(Grid(grid.cols, grid.rows), metric)
    order = np.arange(grid.tokens).reshape(grid.rows, grid.cols).T.ravel()
    assert np.array_equal(found[np.ix_(order, order)], turned)


@given(GRIDS, METRICS, st.data())
def test_some_tokens_have_the_distances_that_they_have_among_all(
    grid: Grid, metric: Metric, data: st.DataObject
) -> None:
    chosen = data.draw(st.sets(st.integers(0, grid.tokens - 1), min_size=1))
    tokens = np.array(sorted(chosen))
    found = grid_distances(grid, metric, tokens)
    assert np.array_equal(found, grid_distances(grid, metric)[np.ix_(tokens, tokens)])


@given(st.builds(Grid, st.integers(1, 120), st.integers(1, 120)), SEEDS)
def test_a_subset_is_drawn_for_large_grids_alone(grid: Grid, seed: int) -> None:
    found = token_subset(grid, seed)
    if grid.tokens <= FULL_TOKENS:
        assert found is None
    else:
        assert found is not None
        assert len(found) == len(set(found)) == SUBSET_TOKENS
        assert np.array_equal(found, np.sort(found))
        assert 0 <= found[0] <= found[-1] < grid.tokens
        assert np.array_equal(found, token_subset(grid, seed))  # type: ignore[arg-type]


@given(st.builds(Grid, st.integers(1, 99), st.integers(1, 99)))
def test_landmarks_lie_on_the_grid(grid: Grid) -> None:
    for row, col in landmarks(grid):
        assert 0 <= row < grid.rows
        assert 0 <= col < grid.cols


@given(GRIDS, METRICS, SEEDS)
def test_ssdc_knows_order_alone_and_no_direction(grid: Grid, metric: Metric, seed: int) -> None:
    """A rising function of S, or a flip of the image, changes nothing; a falling one the sign."""
    ranker = PairRanker(grid_distances(grid, metric))
    matrix = np.random.default_rng(seed).integers(-9, 9, (grid.tokens, grid.tokens)) / 9
    matrix = np.triu(matrix, 1) + np.triu(matrix, 1).T
    pairs = matrix[ranker.upper]
    value = ranker.correlation(pairs)
    if np.isnan(value):
        assert np.ptp(pairs) == 0 or grid.tokens == 2
        return
    assert -1 - 1e-12 <= value <= 1 + 1e-12
    assert ranker.correlation(3 * pairs - 7) == pytest.approx(value, abs=1e-12)
    assert ranker.correlation(np.exp(pairs)) == pytest.approx(value, abs=1e-12)
    assert ranker.correlation(-pairs) == pytest.approx(-value, abs=1e-12)
    for order in symmetries(grid):
        flipped = matrix[np.ix_(order, order)][ranker.upper]
        assert ranker.correlation(flipped) == pytest.approx(value, abs=1e-12)


@given(GRIDS, METRICS)
def test_a_similarity_that_falls_with_distance_has_ssdc_one(grid: Grid, metric: Metric) -> None:
    distances = grid_distances(grid, metric)
    ranker = PairRanker(distances)
    value = ranker.correlation(1 / (1.0 + distances[ranker.upper]))
    assert value == pytest.approx(1, abs=1e-12)
