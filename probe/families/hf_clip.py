"""The vision towers of transformers CLIP (one class token) and SigLIP (no prefix token)."""

from __future__ import annotations

from torch import nn

from probe.families.base import Family
from probe.families.hf_sites import (
    added_table,
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

EMBEDDINGS = ("CLIPVisionEmbeddings", "SiglipVisionEmbeddings")
LAYERS = ("CLIPEncoderLayer", "SiglipEncoderLayer")
TEXT = ("CLIPTextEmbeddings", "SiglipTextEmbeddings")


def claims(model: nn.Module) -> bool:
    """Whether the model is one of these vision towers, without its text tower."""
    return has(model, *EMBEDDINGS) and has(model, *LAYERS) and not has(model, *TEXT)


def anatomy(model: nn.Module, image_size: tuple[int, int]) -> Anatomy:
    """Sites at `image_size` (height, width); the patch projection is a bare convolution (NCHW).

    Raises:
        AnatomyError: if the model has no single vision tower, or the image holds no patch.
    """
    name, embeddings = only(model, *EMBEDDINGS)
    grid = patch_grid(image_size, embeddings.patch_size)
    prefix = embeddings.num_positions - embeddings.num_patches
    own = patch_grid(pair(embeddings.image_size), embeddings.patch_size)
    table = dotted(name, "position_embedding.weight")
    blocks = [block for block, _ in instances(model, *LAYERS)]
    # CLIP norms its pooled class token alone, so its last block is the last token sequence.
    last = blocks[-1] if prefix else dotted(parent(name), "post_layernorm")
    return plain_anatomy(
        image_size,
        PatchSite(dotted(name, "patch_embedding"), grid, 0, "NCHW"),
        blocks,
        "layer_norm1",
        "self_attn",
        prefix,
        [added_table("absolute", table, prefix, own)],
        last,
        class_index=0 if prefix else None,
    )


FAMILY = Family("hf_clip", "hf", claims, anatomy, predict_logits)
