"""Plain ViTs of transformers with an added table.

ViT, DeiT (always with a distillation token), ViT-MSN, the encoder of ViT-MAE, I-JEPA, Pixio,
ViTPose, and the image towers of FLAVA, DPT and InternVL.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch import nn

from probe.errors import AnatomyError
from probe.families.base import Family
from probe.families.hf_sites import (
    added_table,
    check_square,
    dotted,
    has,
    instances,
    interpolates_always,
    only,
    pair,
    parent,
    patch_grid,
    plain_anatomy,
    predict_logits,
)
from probe.families.positions import table_kind
from probe.families.timm_layers import convolved
from probe.types import Anatomy, Grid, PatchSite

EMBEDDINGS = (
    "ViTEmbeddings", "DeiTEmbeddings", "ViTMSNEmbeddings", "ViTMAEEmbeddings", "IJepaEmbeddings",
    "PixioEmbeddings", "FlavaImageEmbeddings", "DPTViTEmbeddings", "InternVLVisionEmbeddings",
    "QianfanOCRVisionEmbeddings", "VitPoseBackboneEmbeddings",
)  # fmt: skip
VITPOSE, GROUPS = "VitPoseBackboneEmbeddings", "GroupViTStage"
ONE_SIZE = "none: it runs at its own image size alone; the first row is added to every token"
LAYERS = (
    "ViTLayer", "DeiTLayer", "ViTMSNLayer", "ViTMAELayer", "IJepaLayer", "PixioLayer",
    "FlavaLayer", "DPTViTLayer", "InternVLVisionLayer", "QianfanOCRVisionLayer",
    "VitPoseBackboneLayer",
)  # fmt: skip


def claims(model: nn.Module) -> bool:
    """Whether the model is built from these embeddings and layers, or is GroupViT, refused."""
    return has(model, GROUPS) or (has(model, *EMBEDDINGS) and has(model, *LAYERS))


def anatomy(model: nn.Module, image_size: tuple[int, int]) -> Anatomy:
    """Sites at `image_size` (height, width).

    Raises:
        AnatomyError: if the position table cannot be brought to that size, or for GroupViT.
    """
    if has(model, GROUPS):
        raise AnatomyError(
            "GroupViT gathers its patch tokens into groups, which have no place on a grid, so it "
            "cannot be read; choose another image tower"
        )
    name, embeddings = only(model, *EMBEDDINGS)
    if has(model, VITPOSE) and int(getattr(model.config, "num_experts", 1)) > 1:
        raise AnatomyError(
            "a ViTPose with experts asks which data set an image is from, so it cannot be read; "
            "choose one without experts"
        )
    projection, table = embeddings.patch_embeddings, embeddings.position_embeddings
    own = pair(projection.image_size)
    patch_grid(image_size, projection.patch_size)
    grid = convolved(projection.projection, Grid(*image_size))
    of_class = getattr(embeddings, "cls_token", None)
    positions, prefix = [], 0 if of_class is None else int(of_class.shape[1])
    if table is not None:
        _check_size(model, embeddings, own, image_size)
        rows = table.shape[1] - projection.num_patches
        prefix = rows if prefix else 0
        # Masked autoencoders fix their table by design; untrained ones leave it at zero.
        fixed = has(model, "ViTMAEEmbeddings")
        kind = "sinusoidal" if fixed else table_kind(table, rows)
        method = "bilinear" if has(model, "DPTViTEmbeddings") else "bicubic"
        where = dotted(name, "position_embeddings")
        own_grid = patch_grid(own, projection.patch_size)
        positions = [added_table(kind, where, rows, own_grid, method=method)]
        if has(model, VITPOSE):
            positions = [replace(one, resampling=ONE_SIZE) for one in positions]
    trunk = parent(name)
    # The decoder of a masked autoencoder is built from the same layers, outside the trunk.
    holders = (trunk, dotted(trunk, "encoder"))
    blocks = [block for block, _ in instances(model, *LAYERS) if parent(parent(block)) in holders]
    return plain_anatomy(
        image_size,
        PatchSite(dotted(name, "patch_embeddings"), grid, 0, "NLC"),
        blocks,
        "layernorm_before",
        "attention",
        prefix,
        positions,
        dotted(trunk, "layernorm"),
        class_index=0 if prefix else None,
    )


def _check_size(
    model: nn.Module, embeddings: Any, own: tuple[int, int], image_size: tuple[int, int]
) -> None:
    if not has(model, VITPOSE):
        check_square(own, image_size, always=interpolates_always(embeddings))
    elif own != image_size:
        raise AnatomyError(
            f"ViTPose takes images of {own[0]} x {own[1]} px alone, not {image_size[0]} x "
            f"{image_size[1]}; run it at that image size"
        )


FAMILY = Family("hf_vit", "hf", claims, anatomy, predict_logits)
