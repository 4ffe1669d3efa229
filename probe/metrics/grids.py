"""What all layers on one grid share when their tokens are ranked."""

from __future__ import annotations

import torch
from torch import Tensor

from probe.errors import AnatomyError
from probe.numerics.distance import FULL_TOKENS, SUBSET_TOKENS, grid_distances, token_subset
from probe.numerics.intervals import MAX_GROUPS
from probe.numerics.ranks import PairRanker
from probe.numerics.similarity import EXACT_TOKENS, HalfMatrix, unit_tokens
from probe.types import Grid, Metric


class GridRanks:
    """What all layers on one grid share: the tokens that are ranked, and their ranked distances."""

    def __init__(self, grid: Grid, distance: Metric, seed: int) -> None:
        """Rank the distances of `grid`; `seed` names the subset of a very large one."""
        self.grid = grid
        self.subset = token_subset(grid, seed)
        self.ranker = PairRanker(grid_distances(grid, distance, self.subset))
        self.half = HalfMatrix(self.ranker.tokens)

    def unit(self, tokens: Tensor) -> Tensor:
        """Patch tokens (B, grid tokens, C) -> unit tokens (B, ranked tokens, C)."""
        if self.subset is not None:
            tokens = tokens.index_select(1, torch.from_numpy(self.subset).to(tokens.device))
        return unit_tokens(tokens)


def sum_bytes(grid: Grid) -> int:
    """Bytes that the running sums of one layer take, at most."""
    tokens = grid.tokens if grid.tokens <= FULL_TOKENS else SUBSET_TOKENS
    return HalfMatrix(tokens).size * MAX_GROUPS * (8 if tokens <= EXACT_TOKENS else 4)


def check_rows(layer: int, tokens: Tensor, images: int) -> None:
    """Refuse tokens that are not one row (N, C) per image: sums over windows would look like SSDC.

    Raises:
        AnatomyError: if there are more or fewer.
    """
    if len(tokens) != images:
        raise AnatomyError(
            f"layer {layer} gives {len(tokens)} rows of tokens for {images} images, so they are of "
            "windows or units; mend its anatomy to name a module outside of them"
        )
