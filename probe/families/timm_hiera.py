"""timm's Hiera: tokens stand in the order of mask units, and blocks at stage ends pool them."""

from __future__ import annotations

from typing import Any

from timm.models.hiera import Hiera
from torch import Tensor, nn

from probe.families.base import Family
from probe.families.timm_head import predict
from probe.families.timm_layers import stem_site
from probe.families.timm_signals import added_tables
from probe.families.timm_trunk import member
from probe.types import Anatomy, Grid, PatchSite, TokenSite
from probe.wiring import Arrangement


def _claims(module: nn.Module) -> bool:
    return isinstance(module, Hiera)


def _rolled(hiera: Any, block: int) -> Arrangement:
    """Tokens as block `block` gives them, back in the order of the grid by timm's own `reroll`."""

    def split(tokens: Tensor) -> Tensor:
        return hiera.reroll(tokens, block).flatten(1, 2)

    return Arrangement(split)


def _anatomy(module: nn.Module, image_size: tuple[int, int]) -> Anatomy:
    """No attention is declared: mask units are no windows in row-major order."""
    hiera: Any = member(module, Hiera)
    patches: PatchSite = stem_site(hiera, "patch_embed", image_size, "NLC")
    attn_in, block_out = [], []
    for layer in range(len(hiera.blocks)):
        name, before = f"blocks.{layer}", max(layer - 1, 0)
        taken, given = (Grid(*hiera.reroll.schedule[block][1]) for block in (before, layer))
        attn_in.append(
            TokenSite(
                layer, "attn_in", f"{name}.norm1", taken, 0, "NLC",
                arrangement=_rolled(hiera, before),
            )
        )  # fmt: skip
        block_out.append(
            TokenSite(layer, "block_out", name, given, 0, "NLC", arrangement=_rolled(hiera, layer))
        )
    return Anatomy(
        image_size=image_size,
        patches=patches,
        attn_in=tuple(attn_in),
        block_out=tuple(block_out),
        positions=added_tables(hiera, 0, patches.grid),
    )


FAMILY = Family("timm_hiera", "timm", _claims, _anatomy, predict)
