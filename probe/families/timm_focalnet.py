"""timm's FocalNet: no attention; tokens are modulated by what convolutions gather around them."""

from __future__ import annotations

from typing import Any

from timm.models.focalnet import FocalNet
from torch import nn

from probe.families.base import Family
from probe.families.timm_head import predict
from probe.families.timm_layers import Layers, from_convolutions, stem_site
from probe.families.timm_trunk import member
from probe.types import Anatomy, FeatureSite


def _claims(module: nn.Module) -> bool:
    return isinstance(module, FocalNet)


def _anatomy(module: nn.Module, image_size: tuple[int, int]) -> Anatomy:
    """`attn_in` is what focal modulation takes, which stands where others have attention.

    Where blocks norm afterwards, `norm1` hands the block's input on.
    """
    focal: Any = member(module, FocalNet)
    layers = Layers(stem_site(focal, "stem", image_size, "NCHW"))
    positions = []
    for s, stage in enumerate(focal.layers):
        if not isinstance(stage.downsample, nn.Identity):
            layers.merge(stage.downsample.proj)
        for b in range(len(stage.blocks)):
            name = f"layers.{s}.blocks.{b}"
            layers.block(name, layout="NCHW")
            positions.append(from_convolutions(f"{name}.modulation"))
    features = FeatureSite("norm", layers.grid, 0, "NCHW", class_index=None)
    return layers.anatomy(image_size, tuple(positions), features)


FAMILY = Family("timm_focalnet", "timm", _claims, _anatomy, predict)
