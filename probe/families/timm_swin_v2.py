"""timm's Swin V2: as Swin, but post-norm, and with a bounded bias from an MLP in every block."""

from __future__ import annotations

from typing import Any

from timm.models.swin_transformer_v2 import SwinTransformerV2
from torch import nn

from probe.families.base import Family
from probe.families.positions import bounded_bias, carried_index, log_spaced
from probe.families.timm_head import predict
from probe.families.timm_swin import staged_anatomy
from probe.families.timm_trunk import member
from probe.types import Anatomy, Grid, PositionSite, TokenSite


def _claims(module: nn.Module) -> bool:
    return isinstance(module, SwinTransformerV2)


def _attn_in(layer: int, block: str, grid: Grid) -> TokenSite:
    return TokenSite(layer, "attn_in", block, grid, 0, "NHWC", side="input")


def _bias(name: str, block: Any) -> PositionSite:
    mlp = f"{name}.attn.cpb_mlp"
    index = carried_index(f"{name}.attn.relative_position_index")
    return PositionSite(
        "relative_bias",
        mlp,
        rescale=bounded_bias(),
        max_alpha=1.0,
        carry=index,
        grid=Grid(*block.attn.window_size),
        resampling=log_spaced(block.attn.pretrained_window_size),
    )


def _anatomy(module: nn.Module, image_size: tuple[int, int]) -> Anatomy:
    return staged_anatomy(member(module, SwinTransformerV2), image_size, _attn_in, _bias)


FAMILY = Family("timm_swin_v2", "timm", _claims, _anatomy, predict)
