"""timm's VOLO: outlookers that mix neighbours, then a table and attention, a late class token."""

from __future__ import annotations

from typing import Any

from timm.models.volo import VOLO, Downsample, Outlooker
from torch import nn

from probe.errors import AnatomyError
from probe.families.base import Family
from probe.families.positions import scaled_table, table_kind
from probe.families.timm_head import predict
from probe.families.timm_layers import Layers, stem_site
from probe.families.timm_trunk import FIXED, member
from probe.types import Anatomy, FeatureSite, Grid, PositionSite

OUTLOOKS = "none needed: an outlook reaches as many neighbours on a grid of any size"
TABLE_BEFORE = 2  # the part of the network that the table is added in front of


def _claims(module: nn.Module) -> bool:
    return isinstance(module, VOLO)


def _anatomy(module: nn.Module, image_size: tuple[int, int]) -> Anatomy:
    """Outlookers weigh neighbours by their offset, as convolutions do, and know place from that.

    No attention is declared: that of outlookers compares no tokens.
    """
    volo: Any = member(module, VOLO)
    layers = Layers(stem_site(volo, "patch_embed", image_size, "NCHW"))
    positions = []
    for i, part in enumerate(volo.network):
        if i == TABLE_BEFORE and volo.pos_embed is not None:
            positions.append(_table(volo, layers.grid, image_size))
        if isinstance(part, Downsample):
            layers.merge(part.proj)
            continue
        for b, block in enumerate(part):
            name = f"network.{i}.{b}"
            layers.block(name, layout="NHWC")
            if isinstance(block, Outlooker):
                positions.append(PositionSite("convolutional", f"{name}.attn", resampling=OUTLOOKS))
    prefix = 0 if volo.post_network is None else 1
    features = FeatureSite("norm", layers.grid, prefix, "NLC", 0 if prefix else None)
    return layers.anatomy(image_size, tuple(positions), features)


def _table(volo: Any, grid: Grid, image_size: tuple[int, int]) -> PositionSite:
    table = volo.pos_embed
    made_for = Grid(*table.shape[1:3])
    if made_for != grid:
        raise AnatomyError(
            f"'pos_embed' is made for {made_for.rows} x {made_for.cols} tokens, and "
            f"{image_size[0]} x {image_size[1]} px give {grid.rows} x {grid.cols}; load the model "
            "with that image size"
        )
    return PositionSite(
        table_kind(table.flatten(1, 2), prefix=0),
        "pos_embed",
        rescale=scaled_table("pos_embed"),
        grid=made_for,
        resampling=FIXED,
        layout="NHWC",
    )


FAMILY = Family("timm_volo", "timm", _claims, _anatomy, predict)
