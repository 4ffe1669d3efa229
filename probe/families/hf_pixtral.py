"""The image tower of transformers' Pixtral: a batch of images becomes one sequence of patches."""

from __future__ import annotations

from torch import nn

from probe.families.base import Family
from probe.families.hf_folded import folded
from probe.families.hf_sites import dotted, has, instances, only, patch_grid, predict_logits
from probe.families.positions import scaled_table
from probe.types import Anatomy, PatchSite, PositionSite, TokenSite

TOWER, LAYER = "PixtralVisionModel", "PixtralAttentionLayer"
COUNTED = "made for the grid of every run; coordinates count patches"


def claims(model: nn.Module) -> bool:
    """Whether the model is this image tower."""
    return has(model, TOWER) and has(model, LAYER)


def anatomy(model: nn.Module, image_size: tuple[int, int]) -> Anatomy:
    """Sites at `image_size` (height, width), of one sequence that is taken apart by images.

    No attention is declared: a mask keeps the images of the sequence apart.

    Raises:
        AnatomyError: if the image holds no patch.
    """
    name, tower = only(model, TOWER)
    grid = patch_grid(image_size, tower.patch_size)
    apart = folded((grid.rows, grid.cols), rows=(0,), cols=(1,))
    blocks = [block for block, _ in instances(model, LAYER)]
    rotation = dotted(name, "patch_positional_embedding")
    return Anatomy(
        image_size=image_size,
        patches=PatchSite(dotted(name, "patch_conv"), grid, 0, "NCHW"),
        attn_in=tuple(
            TokenSite(
                i, "attn_in", dotted(block, "attention_norm"), grid, 0, "NLC", arrangement=apart
            )
            for i, block in enumerate(blocks)
        ),
        block_out=tuple(
            TokenSite(i, "block_out", block, grid, 0, "NLC", arrangement=apart)
            for i, block in enumerate(blocks)
        ),
        positions=(
            PositionSite(
                "rotary",
                rotation,
                rescale=scaled_table(dotted(rotation, "inv_freq")),
                resampling=COUNTED,
            ),
        ),
    )


FAMILY = Family("hf_pixtral", "hf", claims, anatomy, predict_logits)
