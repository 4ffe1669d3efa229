"""Distances between the tokens of a grid, and the order of token pairs that all of numerics uses.

Pairs (i, j), i < j, are counted row by row, as `numpy.triu_indices(N, k=1)` gives them.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from probe.types import Grid, Metric

FULL_TOKENS = 3136  # 56 x 56, the first stage of Swin
SUBSET_TOKENS = 2048


def landmarks(grid: Grid) -> tuple[tuple[int, int], tuple[int, int], tuple[int, int]]:
    """(row, column) of the tokens that similarity maps are kept for: centre, corner, mid-edge.

    The corner is the top left one, the edge the top one.
    """
    return (grid.rows // 2, grid.cols // 2), (0, 0), (0, grid.cols // 2)


def token_subset(grid: Grid, seed: int) -> NDArray[np.int64] | None:
    """The tokens whose pairs are ranked: None for all of them, up to 3,136 tokens.

    Larger grids use all pairs (2,096,128) among 2,048 tokens drawn without replacement by
    `Generator(PCG64(SeedSequence([seed, rows, cols])))`, in ascending order.
    """
    if grid.tokens <= FULL_TOKENS:
        return None
    generator = np.random.Generator(
        np.random.PCG64(np.random.SeedSequence([seed, grid.rows, grid.cols]))
    )
    return np.sort(generator.choice(grid.tokens, SUBSET_TOKENS, replace=False)).astype(np.int64)


def grid_distances(
    grid: Grid, metric: Metric, tokens: NDArray[np.int64] | None = None
) -> NDArray[np.int64]:
    """Distances (N, N) between tokens of the grid: L1, or the square of L2.

    Squaring keeps L2 exact in integers and changes no rank. With `tokens`, only theirs.
    """
    index = np.arange(grid.tokens) if tokens is None else tokens
    rows, cols = np.divmod(index, grid.cols)
    down = np.abs(rows[:, None] - rows[None, :])
    across = np.abs(cols[:, None] - cols[None, :])
    distances: NDArray[np.int64] = (
        down + across if metric == "l1" else down * down + across * across
    )
    return distances
