"""transformers BEiT: relative position bias, per layer or shared, and a class token."""

from __future__ import annotations

from torch import nn

from probe.families.base import Family
from probe.families.hf_sites import (
    check_square,
    dotted,
    has,
    instances,
    only,
    pair,
    parent,
    patch_grid,
    plain_anatomy,
    predict_logits,
)
from probe.families.positions import scaled_table
from probe.types import Anatomy, PatchSite, PositionSite

EMBEDDINGS, LAYER, BIAS = "BeitEmbeddings", "BeitLayer", "BeitRelativePositionBias"


def claims(model: nn.Module) -> bool:
    """Whether the model is built from BEiT's embeddings and layers."""
    return has(model, EMBEDDINGS) and has(model, LAYER)


def anatomy(model: nn.Module, image_size: tuple[int, int]) -> Anatomy:
    """Sites at `image_size` (height, width); BEiT interpolates its tables to it by itself.

    The bias tables hold the entries of the class token in their last three rows, so alpha reaches
    them too.

    Raises:
        AnatomyError: if the tables are not square.
    """
    name, embeddings = only(model, EMBEDDINGS)
    projection = embeddings.patch_embeddings
    check_square(pair(projection.image_size), image_size, always=True)
    positions = []
    if embeddings.position_embeddings is not None:
        table = dotted(name, "position_embeddings")
        positions.append(PositionSite("absolute", table, 1, scaled_table(table)))
    for bias, _ in instances(model, BIAS):
        table = dotted(bias, "relative_position_bias_table")
        positions.append(PositionSite("relative_bias", table, 0, scaled_table(table)))
    return plain_anatomy(
        image_size,
        PatchSite(
            dotted(name, "patch_embeddings"),
            patch_grid(image_size, projection.patch_size),
            0,
            "NLC",
        ),
        [block for block, _ in instances(model, LAYER)],
        "layernorm_before",
        1,
        positions,
        dotted(parent(name), "layernorm"),
        class_index=0,
    )


FAMILY = Family("hf_beit", "hf", claims, anatomy, predict_logits)
