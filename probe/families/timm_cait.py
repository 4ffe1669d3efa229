"""timm's CaiT: the class token joins after the grid's own blocks, in blocks of class attention."""

from __future__ import annotations

from typing import Any

from timm.models.cait import Cait
from torch import nn

from probe.families.base import Family
from probe.families.timm_head import predict
from probe.families.timm_layers import Layers
from probe.families.timm_trunk import FIXED, added_table, member, patch_site
from probe.types import Anatomy, FeatureSite


def _claims(module: nn.Module) -> bool:
    return isinstance(module, Cait)


def _anatomy(module: nn.Module, image_size: tuple[int, int]) -> Anatomy:
    """Layers are the blocks of self-attention; class attention leaves patch tokens alone."""
    cait: Any = member(module, Cait)
    layers = Layers(patch_site(cait, image_size))
    for layer in range(len(cait.blocks)):
        layers.block(f"blocks.{layer}", attention="attn")
    prefix = int(cait.num_prefix_tokens)
    features = FeatureSite("norm", layers.grid, prefix, "NLC", 0 if prefix else None)
    return layers.anatomy(image_size, added_table(cait, 0, FIXED), features)


FAMILY = Family("timm_cait", "timm", _claims, _anatomy, predict)
