"""transformers ViT, DeiT (always with a distillation token), ViT-MSN and the encoder of ViT-MAE."""

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
from probe.families.positions import table_kind
from probe.types import Anatomy, PatchSite

EMBEDDINGS = ("ViTEmbeddings", "DeiTEmbeddings", "ViTMSNEmbeddings", "ViTMAEEmbeddings")
LAYERS = ("ViTLayer", "DeiTLayer", "ViTMSNLayer", "ViTMAELayer")


def claims(model: nn.Module) -> bool:
    """Whether the model is built from these embeddings and layers."""
    return has(model, *EMBEDDINGS) and has(model, *LAYERS)


def anatomy(model: nn.Module, image_size: tuple[int, int]) -> Anatomy:
    """Sites at `image_size` (height, width).

    Raises:
        AnatomyError: if the position table cannot be brought to that size.
    """
    name, embeddings = only(model, *EMBEDDINGS)
    projection = embeddings.patch_embeddings
    own = pair(projection.image_size)
    check_square(own, image_size, always=False)
    table = dotted(name, "position_embeddings")
    prefix = embeddings.position_embeddings.shape[1] - projection.num_patches
    grid = patch_grid(image_size, projection.patch_size)
    trunk = parent(name)
    # The decoder of a masked autoencoder is built from the same layers, outside the trunk.
    blocks = [block for block, _ in instances(model, *LAYERS) if parent(parent(block)) == trunk]
    # Masked autoencoders fix their table by design; untrained ones leave it at zero.
    fixed = has(model, "ViTMAEEmbeddings")
    kind = "sinusoidal" if fixed else table_kind(embeddings.position_embeddings, prefix)
    return plain_anatomy(
        image_size,
        PatchSite(dotted(name, "patch_embeddings"), grid, 0, "NLC"),
        blocks,
        "layernorm_before",
        "attention",
        prefix,
        [added_table(kind, table, prefix, patch_grid(own, projection.patch_size))],
        dotted(trunk, "layernorm"),
        class_index=0,
    )


FAMILY = Family("hf_vit", "hf", claims, anatomy, predict_logits)
