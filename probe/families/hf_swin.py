"""transformers Swin and Swin V2: several grids, windows, and relative bias as table or as MLP."""

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
    predict_logits,
)
from probe.families.positions import bounded_bias, carried_index, log_spaced, scaled_table
from probe.types import Anatomy, FeatureSite, Grid, PatchSite, PositionSite, Side, TokenSite
from probe.wiring import AttentionSite, Merge

EMBEDDINGS = ("SwinEmbeddings", "Swinv2Embeddings")
STAGES = ("SwinStage", "Swinv2Stage")
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
    post_norm = has(model, "Swinv2Embeddings")
    height, width = pair(embeddings.patch_embeddings.patch_size)
    grid = Grid(ceil(image_size[0] / height), ceil(image_size[1] / width))
    patches = PatchSite(dotted(name, "patch_embeddings"), grid, 0, "NLC")
    attn_in: list[TokenSite] = []
    block_out: list[TokenSite] = []
    attention: list[AttentionSite] = []
    merges: list[Merge] = []
    for stage_name, stage in instances(model, *STAGES):
        for i, block in enumerate(stage.blocks):
            where = dotted(stage_name, f"blocks.{i}")
            if not post_norm:
                _check_window(block, grid, image_size)
            layer, read = len(attn_in), where if post_norm else dotted(where, "layernorm_before")
            side: Side = "input" if post_norm else "output"
            attn_in.append(TokenSite(layer, "attn_in", read, grid, 0, "NLC", side))
            block_out.append(TokenSite(layer, "block_out", where, grid, 0, "NLC"))
            attention.append(_attention(layer, where, block, grid))
        if stage.downsample is not None:
            grid = Grid(ceil(grid.rows / 2), ceil(grid.cols / 2))
            merges.append(Merge(len(attn_in), 2, 2))
    last = dotted(parent(name), "layernorm")
    return Anatomy(
        image_size=image_size,
        patches=patches,
        attn_in=tuple(attn_in),
        block_out=tuple(block_out),
        positions=(*_absolute(model, name, embeddings, image_size), *_biases(model)),
        features=FeatureSite(last, grid, 0, "NLC", None) if _has_module(model, last) else None,
        attention=tuple(attention),
        merges=tuple(merges),
    )


def _attention(layer: int, where: str, block: Any, grid: Grid) -> AttentionSite:
    """Windows as wide as the grid are not shifted; Swin decides so in every run."""
    side, shift = int(block.window_size), int(block.shift_size)
    if min(grid.rows, grid.cols) <= side:
        side, shift = min(grid.rows, grid.cols), 0
    return AttentionSite(
        layer, dotted(where, "attention"), (side, side), (shift, shift), "attention_mask"
    )


def _check_window(block: Any, grid: Grid, image_size: tuple[int, int]) -> None:
    window = block.attention.relative_position_bias.window_size[0]
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
    for bias, module in instances(model, "SwinRelativePositionBias"):
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
    for attention, module in instances(model, "Swinv2SelfAttention"):
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
