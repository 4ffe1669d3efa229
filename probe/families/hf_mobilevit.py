"""transformers MobileViT and MobileViT v2: convolutions, and transformers over unfolded patches.

RPI shuffles what the stem gives: stages join what they are given to what their transformers make
of it, so the image's own order would go round a later place. A block of a transformer compares
tokens at the same place inside their 2 x 2 patch.
"""

from __future__ import annotations

from typing import Any

from torch import nn

from probe.errors import AnatomyError
from probe.families.base import Family
from probe.families.hf_folded import folded
from probe.families.hf_sites import dotted, has, instances, predict_logits
from probe.families.timm_layers import convolved, from_convolutions
from probe.types import Anatomy, FeatureSite, Grid, PatchSite, PositionSite, TokenSite

STAGES = ("MobileViTLayer", "MobileViTV2Layer")
BEFORE = ("MobileViTMobileNetLayer", "MobileViTV2MobileNetLayer")
SECOND = "MobileViTV2Layer"
BLOCKS = ("MobileViTTransformerLayer", "MobileViTV2TransformerLayer")


def claims(model: nn.Module) -> bool:
    """Whether the model is built from the stages of either version."""
    return has(model, *STAGES) and has(model, *BLOCKS)


def anatomy(model: nn.Module, image_size: tuple[int, int]) -> Anatomy:
    """Sites at `image_size` (height, width), of every transformer with its own grid.

    Version 1 stretches a grid that patches do not fill; its tokens then have the stretched one.

    Raises:
        AnatomyError: if patches do not fill the first grid, or in version 2 any.
    """
    second = has(model, SECOND)
    grids = _grids(model, image_size)
    attn_in: list[TokenSite] = []
    block_out: list[TokenSite] = []
    positions: list[PositionSite] = []
    stem = next(n for n, _ in model.named_modules() if n.rpartition(".")[2] == "conv_stem")
    conv: Any = model.get_submodule(dotted(stem, "convolution"))
    patches = PatchSite(stem, convolved(conv, Grid(*image_size)), 0, "NCHW")
    positions += [from_convolutions(name) for name, _ in instances(model, *BEFORE)]
    for name, stage in instances(model, *STAGES):
        grid, side = grids[name], int(stage.patch_height)
        if (grid.rows % side or grid.cols % side) and (second or not attn_in):
            raise AnatomyError(
                f"at {image_size[0]} x {image_size[1]} px a stage has {grid.rows} x {grid.cols} "
                f"tokens, which patches of {side} x {side} do not fill; use a multiple of "
                f"{side * 32} px"
            )
        last = FeatureSite(name, grid, 0, "NCHW", None)
        grid = Grid(-(-grid.rows // side) * side, -(-grid.cols // side) * side)
        sizes = (side, side, grid.rows // side, grid.cols // side)
        unfolded = folded(sizes, rows=(2, 0), cols=(3, 1), first=second)
        for number in range(len(stage.transformer.layer)):
            block = dotted(name, f"transformer.layer.{number}")
            layer, norm = len(attn_in), dotted(block, "layernorm_before")
            attn_in.append(TokenSite(layer, "attn_in", norm, grid, 0, "NLC", arrangement=unfolded))
            block_out.append(
                TokenSite(layer, "block_out", block, grid, 0, "NLC", arrangement=unfolded)
            )
        convolutions = ("downsampling_layer", "conv_kxk", "fusion")
        positions += [
            from_convolutions(dotted(name, part))
            for part in convolutions
            if getattr(stage, part, None) is not None
        ]
    return Anatomy(
        image_size=image_size,
        patches=patches,
        attn_in=tuple(attn_in),
        block_out=tuple(block_out),
        positions=tuple(positions),
        features=last,
    )


def _grids(model: nn.Module, image_size: tuple[int, int]) -> dict[str, Grid]:
    """The grid of every stage with a transformer: strided convolutions shrink it, in order."""
    found: dict[str, Grid] = {}
    grid = Grid(*image_size)
    stages = [name for name, _ in instances(model, *STAGES)]
    for name, module in model.named_modules():
        conv: Any = module
        if isinstance(module, nn.Conv2d) and max(conv.stride) > 1:
            grid = convolved(conv, grid)
        for stage in stages:
            if name.startswith(f"{stage}.conv_1x1"):
                found.setdefault(stage, grid)
    return found


FAMILY = Family("hf_mobilevit", "hf", claims, anatomy, predict_logits)
