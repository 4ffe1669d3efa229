"""transformers DINOv2, with and without registers, and the kin of it in TIPS v2."""

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
from probe.types import Anatomy, PatchSite

EMBEDDINGS = ("Dinov2Embeddings", "Dinov2WithRegistersEmbeddings", "Tipsv2VisionEmbeddings")
LAYERS = ("Dinov2Layer", "Dinov2WithRegistersLayer", "Tipsv2VisionLayer")
TIPS = EMBEDDINGS[2]


def claims(model: nn.Module) -> bool:
    """Whether the model is built from these embeddings and layers."""
    return has(model, *EMBEDDINGS) and has(model, *LAYERS)


def anatomy(model: nn.Module, image_size: tuple[int, int]) -> Anatomy:
    """Sites at `image_size` (height, width); DINOv2 interpolates its table to it by itself.

    Registers join behind the class token after the table was added: they count among the prefix
    tokens of every site, and have no row in the table.

    Raises:
        AnatomyError: if the position table is not square.
    """
    name, embeddings = only(model, *EMBEDDINGS)
    projection = embeddings.patch_embeddings
    own, smooth = pair(projection.image_size), has(model, *EMBEDDINGS[1:])
    method = "bilinear" if has(model, TIPS) else "bicubic"
    check_square(own, image_size, always=True)
    table = dotted(name, "position_embeddings")
    rows = embeddings.position_embeddings.shape[1] - projection.num_patches
    registers = getattr(embeddings, "register_tokens", None)
    grid = patch_grid(image_size, projection.patch_size)
    own_grid = patch_grid(own, projection.patch_size)
    return plain_anatomy(
        image_size,
        PatchSite(dotted(name, "patch_embeddings"), grid, 0, "NLC"),
        [block for block, _ in instances(model, *LAYERS)],
        "norm1",
        "attention",
        rows + (0 if registers is None else registers.shape[1]),
        [added_table("absolute", table, rows, own_grid, smooth, method)],
        dotted(parent(name), "layernorm"),
        class_index=0,
    )


FAMILY = Family("hf_dinov2", "hf", claims, anatomy, predict_logits)
