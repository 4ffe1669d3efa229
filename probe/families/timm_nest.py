"""timm's NesT: the grid is cut into blocks of the image before attention, and pooled between."""

from __future__ import annotations

from functools import partial
from typing import Any

from timm.models.nest import Nest, deblockify
from torch import Tensor, nn

from probe.families.base import Family
from probe.families.positions import scaled_table
from probe.families.timm_head import predict
from probe.families.timm_layers import from_convolutions
from probe.families.timm_trunk import member, patch_site
from probe.types import Anatomy, Grid, Layout, PositionSite, Side, TokenSite
from probe.wiring import Arrangement

CUT = "bicubic over the whole grid, when the checkpoint is loaded (timm resize_pos_embed)"


def _claims(module: nn.Module) -> bool:
    return isinstance(module, Nest)


def _joined(side: int, tokens: Tensor) -> Tensor:
    """Blocks of the image (B, blocks, side * side, C), back on the grid by timm's own function."""
    return deblockify(tokens, side).flatten(1, 2)


def _anatomy(module: nn.Module, image_size: tuple[int, int]) -> Anatomy:
    """No attention is declared: every block of the image is a sequence of its own."""
    nest: Any = member(module, Nest)
    patches = patch_site(nest, image_size)
    grid = patches.grid
    attn_in: list[TokenSite] = []
    block_out: list[TokenSite] = []
    positions: list[PositionSite] = []
    cut = Arrangement(partial(_joined, int(nest.block_size)))
    for i, level in enumerate(nest.levels):
        if not isinstance(level.pool, nn.Identity):
            grid = Grid(grid.rows // 2, grid.cols // 2)
            positions.append(from_convolutions(f"levels.{i}.pool"))
        table = f"levels.{i}.pos_embed"
        positions.append(
            PositionSite("absolute", table, rescale=scaled_table(table), resampling=CUT)
        )
        for b in range(len(level.transformer_encoder)):
            layer, name = len(attn_in), f"levels.{i}.transformer_encoder.{b}"
            place: tuple[Grid, int, Layout, Side, Arrangement] = (grid, 0, "NLC", "output", cut)
            attn_in.append(TokenSite(layer, "attn_in", f"{name}.norm1", *place))
            block_out.append(TokenSite(layer, "block_out", name, *place))
    return Anatomy(
        image_size=image_size,
        patches=patches,
        attn_in=tuple(attn_in),
        block_out=tuple(block_out),
        positions=tuple(positions),
    )


FAMILY = Family("timm_nest", "timm", _claims, _anatomy, predict)
