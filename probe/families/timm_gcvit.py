"""timm's GC ViT: windows, every other of them queried by what convolutions make of the image."""

from __future__ import annotations

from typing import Any

from timm.models.gcvit import GlobalContextVit
from torch import nn

from probe.errors import AnatomyError
from probe.families.base import Family
from probe.families.timm_head import predict
from probe.families.timm_layers import Layers, from_convolutions, stem_site
from probe.families.timm_signals import window_bias
from probe.families.timm_trunk import FIXED, member
from probe.types import Anatomy, FeatureSite, Grid


def _claims(module: nn.Module) -> bool:
    return isinstance(module, GlobalContextVit)


def _anatomy(module: nn.Module, image_size: tuple[int, int]) -> Anatomy:
    """No attention is declared: global queries are no tokens of the grid.

    Windows and global queries fit one image size alone.
    """
    gcvit: Any = member(module, GlobalContextVit)
    layers = Layers(stem_site(gcvit, "stem", image_size, "NCHW"))
    positions = []
    for s, stage in enumerate(gcvit.stages):
        if not isinstance(stage.downsample, nn.Identity):
            layers.merge(stage.downsample.reduction)
        rows, cols = stage.feat_size
        if layers.grid != Grid(rows, cols):
            raise AnatomyError(
                f"stage {s} is made for {rows} x {cols} tokens, and {image_size[0]} x "
                f"{image_size[1]} px give {layers.grid.rows} x {layers.grid.cols}; load the model "
                "with that image size"
            )
        positions.append(from_convolutions(f"stages.{s}.global_block"))
        for b, block in enumerate(stage.blocks):
            name = f"stages.{s}.blocks.{b}"
            layers.block(name, layout="NHWC")
            positions.append(window_bias(f"{name}.attn.rel_pos", block.window_size, FIXED))
    norm = f"stages.{len(gcvit.stages) - 1}.norm"
    features = FeatureSite(norm, layers.grid, 0, "NHWC", class_index=None)
    return layers.anatomy(image_size, tuple(positions), features)


FAMILY = Family("timm_gcvit", "timm", _claims, _anatomy, predict)
