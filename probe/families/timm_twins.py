"""timm's Twins, PCPVT and SVT: stages of patches, position from one convolution (PEG) in each."""

from __future__ import annotations

from typing import Any

from timm.models.twins import Twins
from torch import nn

from probe.families.base import Family
from probe.families.timm_head import predict
from probe.families.timm_layers import Layers, from_convolutions, stem_site
from probe.families.timm_trunk import member
from probe.types import Anatomy, FeatureSite


def _claims(module: nn.Module) -> bool:
    return isinstance(module, Twins)


def _anatomy(module: nn.Module, image_size: tuple[int, int]) -> Anatomy:
    """The PEG stands behind the first block of every stage, outside it.

    No attention is declared: queries meet keys that stand for several tokens each, and where SVT
    compares tokens inside windows it cuts them inside the attention.
    """
    twins: Any = member(module, Twins)
    layers = Layers(stem_site(twins, "patch_embeds.0", image_size, "NLC"))
    for s, blocks in enumerate(twins.blocks):
        if s > 0:
            layers.merge(twins.patch_embeds[s].proj)
        for b in range(len(blocks)):
            layers.block(f"blocks.{s}.{b}")
    positions = tuple(from_convolutions(f"pos_block.{s}") for s in range(len(twins.pos_block)))
    features = FeatureSite("norm", layers.grid, 0, "NLC", class_index=None)
    return layers.anatomy(image_size, positions, features)


FAMILY = Family("timm_twins", "timm", _claims, _anatomy, predict)
