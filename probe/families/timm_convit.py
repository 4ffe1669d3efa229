"""timm's ConViT: gated positional self-attention first, then a class token and plain attention."""

from __future__ import annotations

from typing import Any

from timm.models.convit import GPSA, ConVit
from torch import nn

from probe.errors import AnatomyError
from probe.families.base import Family
from probe.families.positions import carried_pairs
from probe.families.timm_head import predict
from probe.families.timm_layers import Layers
from probe.families.timm_trunk import FIXED, added_table, member, patch_site
from probe.types import Anatomy, FeatureSite, PositionSite

OFFSETS = (
    "made anew where the number of tokens changes: offsets in tokens along both axes, and their "
    "squared length (timm GPSA)"
)


def _claims(module: nn.Module) -> bool:
    return isinstance(module, ConVit)


def _gated(where: str) -> PositionSite:
    """Position has an attention of its own, which a gate mixes with that of the content.

    Nothing is added to scores, and what a factor should act on, the positional scores or the gate,
    no definition says: alpha leaves it alone.
    """
    carry = carried_pairs(f"{where}.rel_indices")
    return PositionSite("gated", f"{where}.pos_proj", carry=carry, resampling=OFFSETS)


def _anatomy(module: nn.Module, image_size: tuple[int, int]) -> Anatomy:
    convit: Any = member(module, ConVit)
    layers, prefix = Layers(patch_site(convit, image_size)), 0
    gated: list[PositionSite] = []
    for layer, block in enumerate(convit.blocks):
        if layer == convit.local_up_to_layer and convit.cls_token is not None:
            prefix = 1
        layers.block(f"blocks.{layer}", prefix=prefix, attention="attn")
        if isinstance(block.attn, GPSA):
            gated.append(_gated(f"blocks.{layer}.attn"))
    grid = layers.grid
    if gated and grid.rows != grid.cols:
        raise AnatomyError(
            f"gated positional attention counts offsets on a square grid, and {image_size[0]} x "
            f"{image_size[1]} px give {grid.rows} x {grid.cols} tokens; use a square image size"
        )
    table = added_table(convit, 0, FIXED)
    features = FeatureSite("norm", grid, prefix, "NLC", 0 if prefix else None)
    return layers.anatomy(image_size, (*table, *gated), features)


FAMILY = Family("timm_convit", "timm", _claims, _anatomy, predict)
