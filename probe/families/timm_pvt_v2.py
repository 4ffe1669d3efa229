"""timm's PVT v2: overlapping patches, keys on a smaller grid, position from convolutions."""

from __future__ import annotations

from typing import Any

from timm.models.pvt_v2 import PyramidVisionTransformerV2
from torch import nn

from probe.families.base import Family
from probe.families.timm_head import predict
from probe.families.timm_layers import Layers, from_convolutions, stem_site
from probe.families.timm_trunk import member
from probe.types import Anatomy, FeatureSite


def _claims(module: nn.Module) -> bool:
    return isinstance(module, PyramidVisionTransformerV2)


def _anatomy(module: nn.Module, image_size: tuple[int, int]) -> Anatomy:
    """No attention is declared: queries meet keys that stand for several tokens each."""
    pvt: Any = member(module, PyramidVisionTransformerV2)
    layers = Layers(stem_site(pvt, "patch_embed", image_size, "NHWC"))
    positions = []
    for s, stage in enumerate(pvt.stages):
        if stage.downsample is not None:
            layers.merge(stage.downsample.proj)
        for b in range(len(stage.blocks)):
            name = f"stages.{s}.blocks.{b}"
            layers.block(name)
            positions.append(from_convolutions(f"{name}.mlp.dwconv"))
    norm = f"stages.{len(pvt.stages) - 1}.norm"
    features = FeatureSite(norm, layers.grid, 0, "NLC", class_index=None)
    return layers.anatomy(image_size, tuple(positions), features)


FAMILY = Family("timm_pvt_v2", "timm", _claims, _anatomy, predict)
