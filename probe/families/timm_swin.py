"""timm's Swin: stages of NHWC grids, pre-norm blocks, one bias table per block."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from timm.models.swin_transformer import SwinTransformer
from torch import nn

from probe.families.base import Family
from probe.families.positions import scaled_table
from probe.families.timm_head import predict
from probe.families.timm_trunk import member, patch_site
from probe.types import Anatomy, FeatureSite, Grid, PositionSite, TokenSite


def staged_anatomy(
    module: Any,
    image_size: tuple[int, int],
    attn_in: Callable[[int, str, Grid], TokenSite],
    bias: Callable[[str], PositionSite],
) -> Anatomy:
    """Anatomy of a trunk of stages, layers counted across them.

    Tokens are read on the whole grid, before a block cuts it into windows. A stage that merges
    patches halves its grid, rounded up. `attn_in(layer, block name, grid)` and `bias(block name)`
    say what differs between the two versions.
    """
    patches = patch_site(module, image_size)
    grid, layer = patches.grid, 0
    inputs, outputs, positions = [], [], []
    for s, stage in enumerate(module.layers):
        if not isinstance(stage.downsample, nn.Identity):
            grid = Grid((grid.rows + 1) // 2, (grid.cols + 1) // 2)
        for b in range(len(stage.blocks)):
            name = f"layers.{s}.blocks.{b}"
            inputs.append(attn_in(layer, name, grid))
            outputs.append(TokenSite(layer, "block_out", name, grid, 0, "NHWC"))
            positions.append(bias(name))
            layer += 1
    features = FeatureSite("norm", grid, 0, "NHWC", class_index=None)
    return Anatomy(image_size, patches, tuple(inputs), tuple(outputs), tuple(positions), features)


def _claims(module: nn.Module) -> bool:
    return isinstance(module, SwinTransformer)


def _attn_in(layer: int, block: str, grid: Grid) -> TokenSite:
    return TokenSite(layer, "attn_in", f"{block}.norm1", grid, 0, "NHWC")


def _bias(block: str) -> PositionSite:
    table = f"{block}.attn.relative_position_bias_table"
    return PositionSite("relative_bias", table, rescale=scaled_table(table))


def _anatomy(module: nn.Module, image_size: tuple[int, int]) -> Anatomy:
    return staged_anatomy(member(module, SwinTransformer), image_size, _attn_in, _bias)


FAMILY = Family("timm_swin", "timm", _claims, _anatomy, predict)
