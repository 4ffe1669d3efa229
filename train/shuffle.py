"""RPT: patch tokens shuffled right after the patch projection, while training only."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn


class PatchShuffle:
    """A hook on the patch projection that puts the tokens of each image into `order`.

    `order` is int64 (B, N), set before every forward pass; token i becomes token `order[b, i]`, as
    in `probe.permute_patches`. In eval mode tokens stay in order.
    """

    def __init__(self, model: Any) -> None:
        """Hook `model.patch_embed`, whose output is (B, N, C)."""
        self.order: Tensor | None = None
        model.patch_embed.register_forward_hook(self._shuffled)

    def _shuffled(self, module: nn.Module, _args: Any, tokens: Tensor) -> Tensor:
        if not module.training:
            return tokens
        if self.order is None or self.order.shape != tokens.shape[:2]:
            raise RuntimeError("set the order of the batch before the forward pass")
        return tokens.gather(1, self.order[:, :, None].expand(-1, -1, tokens.shape[2]))
