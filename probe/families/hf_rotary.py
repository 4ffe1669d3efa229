"""ViTs of transformers whose positions are rotations: DINOv3, Sapiens 2 and MLCD."""

from __future__ import annotations

from torch import nn

from probe.families.base import Family
from probe.families.hf_sites import (
    dotted,
    has,
    instances,
    only,
    parent,
    part,
    patch_grid,
    plain_anatomy,
    predict_logits,
)
from probe.families.positions import scaled_table
from probe.types import Anatomy, PatchSite, PositionSite

EMBEDDINGS = ("DINOv3ViTEmbeddings", "Sapiens2Embeddings", "MLCDVisionEmbeddings")
LAYERS = ("DINOv3ViTLayer", "Sapiens2Layer", "MLCDEncoderLayer")
ROTATIONS = (
    "DINOv3ViTRopePositionEmbedding", "Sapiens2RopePositionEmbedding", "MLCDRotaryEmbedding"
)  # fmt: skip
SCALED = "made for the grid of every run; coordinates run from -1 to 1 at every size"
COUNTED = "made for the grid of every run; coordinates count patches"


def claims(model: nn.Module) -> bool:
    """Whether the model is built from these embeddings and layers."""
    return has(model, *EMBEDDINGS) and has(model, *LAYERS)


def anatomy(model: nn.Module, image_size: tuple[int, int]) -> Anatomy:
    """Sites at `image_size` (height, width); the patch projection is a bare convolution (NCHW).

    Angles are made from `inv_freq` in every run. MLCD rotates its class token too, by angles of its
    own, which alpha scales with the others.

    Raises:
        AnatomyError: if the image holds no patch.
    """
    name, embeddings = only(model, *EMBEDDINGS)
    where, _ = only(model, *ROTATIONS)
    trunk = parent(name)
    patch = part(embeddings, "patch_embeddings", "patch_embedding")
    grid = patch_grid(image_size, embeddings.config.patch_size)
    registers = getattr(embeddings, "register_tokens", None)
    of_class = getattr(model.get_submodule(trunk), "class_pos_emb", None)
    angles = [dotted(where, "inv_freq")]
    angles += [] if of_class is None else [dotted(trunk, "class_pos_emb")]
    blocks = instances(model, *LAYERS)
    last = dotted(trunk, "norm")
    return plain_anatomy(
        image_size,
        PatchSite(dotted(name, patch), grid, 0, "NCHW"),
        [block for block, _ in blocks],
        part(blocks[0][1], "norm1", "layer_norm1"),
        part(blocks[0][1], "attention", "self_attn"),
        1 + (0 if registers is None else registers.shape[1]),
        [
            PositionSite(
                "rotary",
                where,
                rescale=scaled_table(*angles),
                resampling=SCALED if of_class is None else COUNTED,
            )
        ],
        last if last in dict(model.named_modules()) else blocks[-1][0],
        class_index=0,
    )


FAMILY = Family("hf_rotary", "hf", claims, anatomy, predict_logits)
