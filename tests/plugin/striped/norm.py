"""A metric: how long tokens are."""

from __future__ import annotations

from torch import Tensor

from probe.metrics.added import TokenMetric
from probe.types import Grid


def token_norm(tokens: Tensor, grid: Grid) -> Tensor:
    return tokens.norm(dim=2).mean(dim=1)


METRIC = TokenMetric("token_norm", "mean L2 norm of patch tokens, in the model's units", token_norm)
