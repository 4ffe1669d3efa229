"""transformers BEiT and Data2Vec-vision: relative bias, per layer or shared, and a class token."""

from __future__ import annotations

from torch import nn

from probe.families.base import Family
from probe.families.hf_sites import (
    added_table,
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
from probe.families.positions import carried_bias, scaled_table
from probe.types import Anatomy, Grid, PatchSite, PositionSite

EMBEDDINGS = ("BeitEmbeddings", "Data2VecVisionEmbeddings")
LAYERS = ("BeitLayer", "Data2VecVisionLayer")
BIASES = ("BeitRelativePositionBias", "Data2VecVisionRelativePositionBias")
RESIZED = (
    "bilinear over the offsets, not antialiased, in every run at another size; the class token's "
    "3 entries kept (transformers RelativePositionBias)"
)


def claims(model: nn.Module) -> bool:
    """Whether the model is built from these embeddings and layers."""
    return has(model, *EMBEDDINGS) and has(model, *LAYERS)


def anatomy(model: nn.Module, image_size: tuple[int, int]) -> Anatomy:
    """Sites at `image_size` (height, width); BEiT interpolates its tables to it by itself.

    The bias tables hold the entries of the class token in their last three rows, so alpha reaches
    them too.

    Raises:
        AnatomyError: if the tables are not square.
    """
    name, embeddings = only(model, *EMBEDDINGS)
    projection = embeddings.patch_embeddings
    own = pair(projection.image_size)
    check_square(own, image_size, always=True)
    positions = []
    if embeddings.position_embeddings is not None:
        table = dotted(name, "position_embeddings")
        positions.append(added_table("absolute", table, 1, patch_grid(own, projection.patch_size)))
    for bias, module in instances(model, *BIASES):
        table = dotted(bias, "relative_position_bias_table")
        positions.append(
            PositionSite(
                "relative_bias",
                table,
                0,
                scaled_table(table),
                carry=carried_bias(bias),
                grid=Grid(*module.window_size),
                resampling=RESIZED,
            )
        )
    return plain_anatomy(
        image_size,
        PatchSite(
            dotted(name, "patch_embeddings"),
            patch_grid(image_size, projection.patch_size),
            0,
            "NLC",
        ),
        [block for block, _ in instances(model, *LAYERS)],
        "layernorm_before",
        "attention",
        1,
        positions,
        dotted(parent(name), "layernorm"),
        class_index=0,
    )


FAMILY = Family("hf_beit", "hf", claims, anatomy, predict_logits)
