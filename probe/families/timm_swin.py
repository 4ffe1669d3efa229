"""timm's Swin: stages of NHWC grids, pre-norm blocks, one bias table per block."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from timm.models.swin_transformer import SwinTransformer
from torch import nn

from probe.families.base import Family
from probe.families.positions import GEOMETRIC, carried_index, scaled_table
from probe.families.timm_head import predict
from probe.families.timm_trunk import member, patch_site
from probe.types import Anatomy, FeatureSite, Grid, PositionSite, TokenSite
from probe.wiring import AttentionSite, Merge


def staged_anatomy(
    module: Any,
    image_size: tuple[int, int],
    attn_in: Callable[[int, str, Grid], TokenSite],
    bias: Callable[[str, Any], PositionSite],
) -> Anatomy:
    """Anatomy of a trunk of stages, layers counted across them.

    Tokens are read on the whole grid, before a block cuts it into windows. A stage that merges
    patches halves its grid, rounded up. `attn_in(layer, block name, grid)` and `bias(block name,
    block)` say what differs between the two versions.
    """
    patches = patch_site(module, image_size)
    grid, layer = patches.grid, 0
    inputs, outputs, positions = [], [], []
    attention, merges = [], []
    for s, stage in enumerate(module.layers):
        if not isinstance(stage.downsample, nn.Identity):
            grid = Grid((grid.rows + 1) // 2, (grid.cols + 1) // 2)
            merges.append(Merge(layer, 2, 2))
        for b, block in enumerate(stage.blocks):
            name = f"layers.{s}.blocks.{b}"
            inputs.append(attn_in(layer, name, grid))
            outputs.append(TokenSite(layer, "block_out", name, grid, 0, "NHWC"))
            positions.append(bias(name, block))
            window, shift = tuple(block.window_size), tuple(block.shift_size)
            attention.append(AttentionSite(layer, f"{name}.attn", window, shift, "mask"))
            layer += 1
    features = FeatureSite("norm", grid, 0, "NHWC", class_index=None)
    return Anatomy(
        image_size=image_size,
        patches=patches,
        attn_in=tuple(inputs),
        block_out=tuple(outputs),
        positions=tuple(positions),
        features=features,
        attention=tuple(attention),
        merges=tuple(merges),
    )


def _claims(module: nn.Module) -> bool:
    return isinstance(module, SwinTransformer)


def _attn_in(layer: int, block: str, grid: Grid) -> TokenSite:
    return TokenSite(layer, "attn_in", f"{block}.norm1", grid, 0, "NHWC")


def _bias(name: str, block: Any) -> PositionSite:
    table = f"{name}.attn.relative_position_bias_table"
    index = carried_index(f"{name}.attn.relative_position_index")
    return PositionSite(
        "relative_bias",
        table,
        rescale=scaled_table(table),
        carry=index,
        grid=Grid(*block.attn.window_size),
        resampling=f"kept: windows keep their size (where one changes, {GEOMETRIC})",
    )


def _anatomy(module: nn.Module, image_size: tuple[int, int]) -> Anatomy:
    return staged_anatomy(member(module, SwinTransformer), image_size, _attn_in, _bias)


FAMILY = Family("timm_swin", "timm", _claims, _anatomy, predict)
