"""transformers SwiftFormer: convolutional blocks, and additive attention at each stage's end."""

from __future__ import annotations

from typing import Any

from torch import nn

from probe.families.base import Family
from probe.families.hf_sites import dotted, has, instances, only, predict_logits
from probe.families.timm_layers import convolved, from_convolutions, stem_site
from probe.types import Anatomy, FeatureSite, PositionSite, TokenSite

STEM, BLOCK = "SwiftFormerPatchEmbedding", "SwiftFormerEncoderBlock"
CONVOLUTIONAL, SHRINKING = "SwiftFormerConvEncoder", "SwiftFormerEmbeddings"


def claims(model: nn.Module) -> bool:
    """Whether the model is built from SwiftFormer's stem and blocks."""
    return has(model, STEM) and has(model, BLOCK)


def anatomy(model: nn.Module, image_size: tuple[int, int]) -> Anatomy:
    """Sites at `image_size` (height, width).

    Layers are the blocks with attention; they norm nothing before it, so `attn_in` is what
    attention gets. No attention is declared: tokens meet one sum over all of them.

    Raises:
        AnatomyError: if nothing is left of the image.
    """
    stem, _ = only(model, STEM)
    patches = stem_site(model, stem, image_size, "NCHW")
    grid = patches.grid
    attn_in: list[TokenSite] = []
    block_out: list[TokenSite] = []
    positions: list[PositionSite] = []
    for name, module in instances(model, BLOCK, CONVOLUTIONAL, SHRINKING):
        kind, part = type(module).__name__, module
        if kind == SHRINKING:
            conv: Any = part.proj
            grid = convolved(conv, grid)
        elif kind == CONVOLUTIONAL:
            positions.append(from_convolutions(dotted(name, "depth_wise_conv")))
        else:
            layer = len(attn_in)
            positions.append(
                from_convolutions(dotted(name, "local_representation.depth_wise_conv"))
            )
            attn_in.append(
                TokenSite(layer, "attn_in", dotted(name, "attn"), grid, 0, "NLC", "input")
            )
            block_out.append(TokenSite(layer, "block_out", name, grid, 0, "NCHW"))
    normed = isinstance(getattr(model, "norm", None), nn.BatchNorm2d)
    last = "norm" if normed else block_out[-1].module
    return Anatomy(
        image_size=image_size,
        patches=patches,
        attn_in=tuple(attn_in),
        block_out=tuple(block_out),
        positions=tuple(positions),
        features=FeatureSite(last, grid, 0, "NCHW", None),
    )


FAMILY = Family("hf_swiftformer", "hf", claims, anatomy, predict_logits)
