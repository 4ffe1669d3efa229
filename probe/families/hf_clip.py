"""Image towers of two-tower models of transformers: CLIP, SigLIP 1 and 2, AIMv2, BLIP, their kin.

The towers of Idefics 3 and SmolVLM are kin of SigLIP.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from probe.errors import AnatomyError
from probe.families.base import Family
from probe.families.hf_sites import (
    added_table,
    dotted,
    has,
    instances,
    only,
    pair,
    parent,
    part,
    patch_grid,
    plain_anatomy,
    predict_logits,
)
from probe.families.positions import scaled_table
from probe.types import Anatomy, Grid, PatchSite, PositionSite
from probe.wiring import EditOutput

PREFIXED = (
    "CLIPVisionEmbeddings", "ChineseCLIPVisionEmbeddings", "AltCLIPVisionEmbeddings",
    "MetaClip2VisionEmbeddings", "BlipVisionEmbeddings", "OwlViTVisionEmbeddings",
    "Owlv2VisionEmbeddings",
)  # fmt: skip
FRACTIONAL = ("Idefics3VisionEmbeddings", "SmolVLMVisionEmbeddings")
FIXED, PATCHES = "Aimv2VisionEmbeddings", "Siglip2VisionEmbeddings"
EMBEDDINGS = (*PREFIXED, *FRACTIONAL, FIXED, PATCHES, "SiglipVisionEmbeddings")
LAYERS = (
    "CLIPEncoderLayer", "ChineseCLIPVisionLayer", "AltCLIPEncoderLayer", "MetaClip2EncoderLayer",
    "BlipEncoderLayer", "OwlViTEncoderLayer", "Owlv2EncoderLayer", "Idefics3EncoderLayer",
    "SmolVLMEncoderLayer", "Aimv2EncoderLayer", "SiglipEncoderLayer", "Siglip2EncoderLayer",
)  # fmt: skip
TEXT = ("CLIPTextEmbeddings", "SiglipTextEmbeddings", "Siglip2TextEmbeddings")
NEAREST = (
    "kept: every place takes the row of the table that is nearest to it as a fraction of the image"
)
MADE = "made for the grid of every run, by a formula"


def claims(model: nn.Module) -> bool:
    """Whether the model is one of these image towers, without its text tower."""
    return has(model, *EMBEDDINGS) and has(model, *LAYERS) and not has(model, *TEXT)


def anatomy(model: nn.Module, image_size: tuple[int, int]) -> Anatomy:
    """Sites at `image_size` (height, width); the patch projection is a bare convolution (NCHW).

    SigLIP 2 takes patches in place of an image, projected one by one.

    Raises:
        AnatomyError: if the model has no single image tower, or does not take that size.
    """
    name, embeddings = only(model, *EMBEDDINGS)
    grid = patch_grid(image_size, embeddings.patch_size)
    prefix = 1 if has(model, *PREFIXED) else 0
    projection = part(embeddings, "patch_embedding", "patch_embed")
    blocks = instances(model, *LAYERS)
    block = blocks[0][1]
    trunk = parent(name)
    # Towers with a class token norm it alone, or once more, so their last block is read.
    last = dotted(trunk, "rms_norm" if has(model, FIXED) else "post_layernorm")
    return plain_anatomy(
        image_size,
        PatchSite(dotted(name, projection), grid, 0, "NLC" if has(model, PATCHES) else "NCHW"),
        [block for block, _ in blocks],
        part(block, "layer_norm1", "rms_norm1"),
        part(block, "self_attn", "attention"),
        prefix,
        [_table(model, name, embeddings, prefix, image_size, grid)],
        blocks[-1][0] if prefix else last,
        class_index=0 if prefix else None,
    )


def _table(
    model: nn.Module,
    name: str,
    embeddings: Any,
    prefix: int,
    image_size: tuple[int, int],
    grid: Grid,
) -> PositionSite:
    if getattr(embeddings, "position_embedding", None) is None:
        return PositionSite("sinusoidal", name, rescale=_formula(embeddings, grid), resampling=MADE)
    table = dotted(name, "position_embedding")
    if not isinstance(embeddings.position_embedding, nn.Parameter):
        table = f"{table}.weight"
    if has(model, PATCHES):
        side = int(embeddings.position_embedding_size)
        return added_table("absolute", table, 0, Grid(side, side), True, "bilinear")
    config = getattr(embeddings, "config", embeddings)
    own_size = pair(config.image_size)
    own = patch_grid(own_size, embeddings.patch_size)
    if has(model, *FRACTIONAL):
        return PositionSite("absolute", table, 0, scaled_table(table), grid=own, resampling=NEAREST)
    if has(model, FIXED) and own_size != image_size:
        raise AnatomyError(
            f"this model's table is made for {own_size[0]} x {own_size[1]} px and is not "
            "interpolated; run the model at that image size"
        )
    return added_table("absolute", table, prefix, own)


def _formula(embeddings: Any, grid: Grid) -> EditOutput:
    """AIMv2 makes its table in every run and adds it, so alpha takes off what is too much."""
    from transformers.models.aimv2.modeling_aimv2 import build_2d_sinusoidal_position_embedding

    made = build_2d_sinusoidal_position_embedding(
        height=grid.rows,
        width=grid.cols,
        embed_dim=embeddings.config.hidden_size,
        dtype=torch.float64,
    )
    half = made.shape[-1] // 2
    table = torch.cat([made[:, half:], made[:, :half]], dim=1)  # columns come first
    return EditOutput(lambda tokens, alpha: tokens - (1 - alpha) * table.to(tokens))


FAMILY = Family("hf_clip", "hf", claims, anatomy, predict_logits)
