"""timm's PiT: global attention in stages, between which a convolution pools the grid."""

from __future__ import annotations

from typing import Any

from timm.models.pit import PoolingVisionTransformer
from torch import nn

from probe.families.base import Family
from probe.families.positions import scaled_table, table_kind
from probe.families.timm_head import predict
from probe.families.timm_layers import Layers, stem_site
from probe.families.timm_trunk import FIXED, check_size, member
from probe.types import Anatomy, FeatureSite, PositionSite


def _claims(module: nn.Module) -> bool:
    return isinstance(module, PoolingVisionTransformer)


def _anatomy(module: nn.Module, image_size: tuple[int, int]) -> Anatomy:
    """Prefix tokens go along through all stages; the last norm gets them without the grid."""
    pit: Any = member(module, PoolingVisionTransformer)
    check_size(pit.patch_embed.img_size, image_size)
    layers, prefix = Layers(stem_site(pit, "patch_embed", image_size, "NCHW")), int(pit.num_tokens)
    last = ""
    for s, stage in enumerate(pit.transformers):
        if stage.pool is not None:
            layers.merge(stage.pool.conv)
        for b in range(len(stage.blocks)):
            last = f"transformers.{s}.blocks.{b}"
            layers.block(last, prefix=prefix, attention="attn")
    table = PositionSite(
        table_kind(pit.pos_embed.flatten(2).mT, prefix=0),
        "pos_embed",
        rescale=scaled_table("pos_embed"),
        grid=layers.patches.grid,
        resampling=FIXED,
        layout="NCHW",
    )
    features = FeatureSite(last, layers.grid, prefix, "NLC", class_index=0)
    return layers.anatomy(image_size, (table,), features)


FAMILY = Family("timm_pit", "timm", _claims, _anatomy, predict)
