"""timm's DaViT: windows of tokens and attention over channels in turn, place from convolutions."""

from __future__ import annotations

from typing import Any

from timm.models.davit import DaVit
from torch import nn

from probe.families.base import Family
from probe.families.timm_head import predict
from probe.families.timm_layers import Layers, from_convolutions, stem_site
from probe.families.timm_trunk import member
from probe.types import Anatomy, FeatureSite


def _claims(module: nn.Module) -> bool:
    return isinstance(module, DaVit)


def _anatomy(module: nn.Module, image_size: tuple[int, int]) -> Anatomy:
    """Every block of a pair, spatial and channel, is a layer; its norm sees a sequence of tokens.

    No attention is declared, since every other layer compares channels, not tokens.
    """
    davit: Any = member(module, DaVit)
    layers = Layers(stem_site(davit, "stem", image_size, "NCHW"))
    positions = []
    for s, stage in enumerate(davit.stages):
        if not isinstance(stage.downsample, nn.Identity):
            layers.merge(stage.downsample.conv, filled=bool(stage.downsample.even_k))
        for b, pair in enumerate(stage.blocks):
            for part, _ in pair.named_children():
                name = f"stages.{s}.blocks.{b}.{part}"
                layers.block(name, layout="NCHW", norm_layout="NLC")
                positions.extend([from_convolutions(f"{name}.{cpe}") for cpe in ("cpe1", "cpe2")])
    features = FeatureSite("norm_pre", layers.grid, 0, "NCHW", class_index=None)
    return layers.anatomy(image_size, tuple(positions), features)


FAMILY = Family("timm_davit", "timm", _claims, _anatomy, predict)
