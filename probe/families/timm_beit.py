"""timm's Beit: BEiT and BEiT v2, with relative biases per block or shared."""

from __future__ import annotations

from typing import Any

from timm.models.beit import Beit
from torch import nn

from probe.families.base import Family
from probe.families.positions import GEOMETRIC, carried_index, scaled_table
from probe.families.timm_head import predict
from probe.families.timm_trunk import flat_anatomy, member
from probe.types import Anatomy, Grid, PositionSite


def _claims(module: nn.Module) -> bool:
    return isinstance(module, Beit)


def _bias(where: str, window: tuple[int, int]) -> PositionSite:
    table = f"{where}.relative_position_bias_table"  # its last 3 rows are the class token's
    index = carried_index(f"{where}.relative_position_index")
    return PositionSite(
        "relative_bias",
        table,
        rescale=scaled_table(table),
        carry=index,
        grid=Grid(*window),
        resampling=f"when the checkpoint is loaded: {GEOMETRIC}; the class token's 3 entries kept",
    )


def _anatomy(module: nn.Module, image_size: tuple[int, int]) -> Anatomy:
    beit: Any = member(module, Beit)
    biases = [
        _bias(f"blocks.{layer}.attn", block.attn.window_size)
        for layer, block in enumerate(beit.blocks)
        if block.attn.relative_position_bias_table is not None
    ]
    if beit.rel_pos_bias is not None:
        biases.append(_bias("rel_pos_bias", beit.rel_pos_bias.window_size))
    return flat_anatomy(beit, image_size, lambda _block: "norm1", tuple(biases))


FAMILY = Family("timm_beit", "timm", _claims, _anatomy, predict)
