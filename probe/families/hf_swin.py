"""transformers Swin and Swin V2: several grids, windows, and relative bias as table or as MLP.

The Swins of Donut and MaskFormer are kin of the first, Swin2SR, on one grid, of the second.
"""

from __future__ import annotations

from math import ceil
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
    only,
    pair,
    parent,
    part,
    predict_logits,
)
from probe.families.positions import bounded_bias, carried_index, log_spaced, scaled_table
from probe.families.timm_layers import from_convolutions
from probe.types import Anatomy, FeatureSite, Grid, PatchSite, PositionSite, Side, TokenSite
from probe.wiring import AttentionSite, Merge

SECOND = ("Swinv2Embeddings", "Swin2SREmbeddings")
EMBEDDINGS = ("SwinEmbeddings", "DonutSwinEmbeddings", "MaskFormerSwinEmbeddings", *SECOND)
STAGES = (
    "SwinStage", "DonutSwinStage", "MaskFormerSwinStage", "Swinv2Stage", "Swin2SRStage"
)  # fmt: skip
TABLES = ("SwinRelativePositionBias", "DonutSwinSelfAttention", "MaskFormerSwinSelfAttention")
MLPS = ("Swinv2SelfAttention", "Swin2SRSelfAttention")
KEPT = "kept: windows keep their size at every image size (transformers does not resize this table)"


def claims(model: nn.Module) -> bool:
    """Whether the model is built from Swin's embeddings and stages, of either version."""
    return has(model, *EMBEDDINGS) and has(model, *STAGES)


def anatomy(model: nn.Module, image_size: tuple[int, int]) -> Anatomy:
    """Sites at `image_size` (height, width), every stage with its own grid and all tokens of it.

    Images are padded to whole patches and grids to even sizes before merging, so sizes round up;
    windows are padded inside the blocks and never seen here. Swin V2 norms after attention: its
    `attn_in` is the block's input.

    Raises:
        AnatomyError: if a stage's grid is smaller than a window of Swin (V1), whose bias table
            cannot shrink, or the library's own absolute table does not fit.
    """
    name, embeddings = only(model, *EMBEDDINGS)
    post_norm = has(model, *SECOND)
    grid = _first_grid(model, embeddings, image_size)
    patches = PatchSite(dotted(name, "patch_embeddings"), grid, 0, "NLC")
    attn_in: list[TokenSite] = []
    block_out: list[TokenSite] = []
    attention: list[AttentionSite] = []
    merges: list[Merge] = []
    convolutions: list[PositionSite] = []
    for stage_name, stage in instances(model, *STAGES):
        held = part(stage, "blocks", "layers")
        for i, block in enumerate(getattr(stage, held)):
            where = dotted(stage_name, f"{held}.{i}")
            if not post_norm:
                _check_window(block, grid, image_size)
            layer, read = len(attn_in), where if post_norm else dotted(where, "layernorm_before")
            side: Side = "input" if post_norm else "output"
            attn_in.append(TokenSite(layer, "attn_in", read, grid, 0, "NLC", side))
            block_out.append(TokenSite(layer, "block_out", where, grid, 0, "NLC"))
            attention.append(_attention(layer, where, block, grid))
        if getattr(stage, "downsample", None) is not None:
            grid = Grid(ceil(grid.rows / 2), ceil(grid.cols / 2))
            merges.append(Merge(len(attn_in), 2, 2))
        if getattr(stage, "conv", None) is not None:
            convolutions.append(from_convolutions(dotted(stage_name, "conv")))
    last = dotted(parent(name), "layernorm")
    return Anatomy(
        image_size=image_size,
        patches=patches,
        attn_in=tuple(attn_in),
        block_out=tuple(block_out),
        positions=(
            *_absolute(model, name, embeddings, image_size),
            *_biases(model),
            *convolutions,
        ),
        features=FeatureSite(last, grid, 0, "NLC", None) if _has_module(model, last) else None,
        attention=tuple(attention),
        merges=tuple(merges),
    )


def _first_grid(model: nn.Module, embeddings: Any, image_size: tuple[int, int]) -> Grid:
    """Images are padded to whole patches, those of Swin2SR to whole windows of patches."""
    restored = instances(model, "Swin2SRModel")
    patch = restored[0][1].config.patch_size if restored else embeddings.patch_embeddings.patch_size
    whole = restored[0][1].config.window_size if restored else 1
    sides = (
        ceil(size / (side * whole)) * whole
        for size, side in zip(image_size, pair(patch), strict=True)
    )
    return Grid(*sides)


def _attention(layer: int, where: str, block: Any, grid: Grid) -> AttentionSite:
    """Windows as wide as the grid are not shifted where the block decides so in every run.

    Others keep what they were built with.
    """
    side, shift = int(block.window_size), int(block.shift_size)
    decides = hasattr(block, "set_shift_and_window_size")
    if decides and min(grid.rows, grid.cols) <= side:
        side, shift = min(grid.rows, grid.cols), 0
    where = dotted(where, "attention")
    return AttentionSite(layer, where, (side, side), (shift, shift), "attention_mask")


def _check_window(block: Any, grid: Grid, image_size: tuple[int, int]) -> None:
    attention = block.attention
    window = getattr(attention, part(attention, "relative_position_bias", "self")).window_size[0]
    if min(grid.rows, grid.cols) < window:
        raise AnatomyError(
            f"at {image_size[0]} x {image_size[1]} pixels a stage has {grid.rows} x {grid.cols} "
            f"tokens, fewer than one window of {window} x {window}; use a larger image size"
        )


def _absolute(
    model: nn.Module, name: str, embeddings: Any, image_size: tuple[int, int]
) -> list[PositionSite]:
    if embeddings.position_embeddings is None:
        return []
    projection = embeddings.patch_embeddings
    if embeddings.position_embeddings.shape[1] != projection.num_patches:
        raise AnatomyError(
            "transformers gives Swin V2's absolute table one row too many, so such a model cannot "
            "run; use one without `use_absolute_embeddings`"
        )
    check_square(_own_size(projection), image_size, always=False)
    table = dotted(name, "position_embeddings")
    return [added_table("absolute", table, 0, Grid(*projection.grid_size))]


def _own_size(projection: Any) -> tuple[int, int]:
    (rows, cols), (height, width) = projection.grid_size, pair(projection.patch_size)
    return rows * height, cols * width


def _biases(model: nn.Module) -> list[PositionSite]:
    sites = []
    for bias, module in instances(model, *TABLES):
        table = dotted(bias, "relative_position_bias_table")
        index = carried_index(dotted(bias, "relative_position_index"))
        sites.append(
            PositionSite(
                "relative_bias",
                table,
                0,
                scaled_table(table),
                carry=index,
                grid=Grid(*module.window_size),
                resampling=KEPT,
            )
        )
    for attention, module in instances(model, *MLPS):
        mlp = dotted(attention, "continuous_position_bias_mlp")
        index = carried_index(dotted(attention, "relative_position_index"))
        sites.append(
            PositionSite(
                "relative_bias",
                mlp,
                0,
                bounded_bias(),
                max_alpha=1.0,
                carry=index,
                grid=Grid(*module.window_size),
                resampling=log_spaced(module.pretrained_window_size),
            )
        )
    return sites


def _has_module(model: nn.Module, name: str) -> bool:
    return name in dict(model.named_modules())


FAMILY = Family("hf_swin", "hf", claims, anatomy, predict_logits)
