"""ViTs of transformers' detectors: YOLOS, LW-DETR's ViT and RF-DETR's DINOv2.

YOLOS has detection tokens behind the grid. The others hold windows as images of their own, in
RF-DETR each with a class token.
"""

from __future__ import annotations

from functools import partial
from math import isqrt
from typing import Any

from torch import Tensor, nn

from probe.errors import AnatomyError
from probe.families.base import Family
from probe.families.hf_folded import folded
from probe.families.hf_sites import (
    added_table,
    dotted,
    has,
    instances,
    only,
    pair,
    part,
    patch_grid,
    predict_logits,
)
from probe.families.positions import scaled_table
from probe.types import Anatomy, Grid, PatchSite, PositionSite, TokenSite
from probe.wiring import Arrangement

YOLOS, LWDETR, RFDETR = "YolosEmbeddings", "LwDetrViTEmbeddings", "RfDetrDinov2Embeddings"
EMBEDDINGS = (YOLOS, LWDETR, RFDETR)
LAYERS = ("YolosLayer", "LwDetrViTLayer", "RfDetrDinov2Layer")
MIDDLE = "InterpolateMidPositionEmbeddings"
RESIZED = (
    "bicubic, not antialiased, in every run; rows of the class and detection tokens kept "
    "(transformers YolosEmbeddings)"
)


def claims(model: nn.Module) -> bool:
    """Whether the model is built from these embeddings and layers, without a detector on top."""
    return has(model, *EMBEDDINGS) and has(model, *LAYERS)


def anatomy(model: nn.Module, image_size: tuple[int, int]) -> Anatomy:
    """Sites at `image_size` (height, width), of patch tokens alone; no attention is declared.

    Raises:
        AnatomyError: if windows do not fill the grid.
    """
    name, embeddings = only(model, *EMBEDDINGS)
    nested = getattr(embeddings, "patch_embeddings", None)
    projection: Any = embeddings if nested is None else nested
    where = dotted(name, "" if nested is None else "patch_embeddings", "projection")
    grid = patch_grid(image_size, projection.patch_size)
    read = _arrangement(model, embeddings, grid)
    blocks = instances(model, *LAYERS)
    norm = part(blocks[0][1], "layernorm_before", "norm1")
    return Anatomy(
        image_size=image_size,
        patches=PatchSite(where, grid, 0, "NCHW"),
        attn_in=tuple(
            TokenSite(i, "attn_in", dotted(block, norm), grid, 0, "NLC", arrangement=read)
            for i, (block, _) in enumerate(blocks)
        ),
        block_out=tuple(
            TokenSite(i, "block_out", block, grid, 0, "NLC", arrangement=read)
            for i, (block, _) in enumerate(blocks)
        ),
        positions=tuple(_tables(model, name, projection, embeddings)),
    )


def _arrangement(model: nn.Module, embeddings: Any, grid: Grid) -> Arrangement:
    if has(model, YOLOS):
        before, after = embeddings.cls_token.shape[1], embeddings.detection_tokens.shape[1]
        return Arrangement(partial(_between, before, grid.tokens, after))
    classes = has(model, RFDETR)
    if classes:
        side = int(embeddings.config.num_windows)
    else:
        side = isqrt(instances(model, "LwDetrViTLayer")[0][1].num_windows)
    # RF-DETR cuts windows as if rows were columns, which fits square grids alone.
    if grid.rows % side or grid.cols % side or (classes and grid.rows != grid.cols):
        raise AnatomyError(
            f"a grid of {grid.rows} x {grid.cols} tokens does not fall into {side} x {side} equal "
            "windows; use another image size"
        )
    window = (grid.rows // side, grid.cols // side)
    whole = folded((side, side, *window), rows=(0, 2), cols=(1, 3))
    if not classes:
        return whole
    return Arrangement(partial(_without_classes, side * side, window[0] * window[1], whole))


def _between(before: int, count: int, after: int, tokens: Tensor) -> Tensor:
    if tokens.shape[1] != before + count + after:
        return tokens  # refused as what it is: not the declared grid
    return tokens[:, before : before + count]


def _without_classes(windows: int, count: int, whole: Arrangement, tokens: Tensor) -> Tensor:
    """Whether windows stand in the batch or in one sequence: each begins with its class token."""
    if tokens.shape[:-1].numel() % (windows * (count + 1)):
        return tokens
    return whole.split(tokens.reshape(-1, windows, count + 1, tokens.shape[-1])[:, :, 1:])


def _tables(model: nn.Module, name: str, projection: Any, owner: Any) -> list[PositionSite]:
    where = dotted(name, "position_embeddings")
    if has(model, YOLOS):
        found = [PositionSite("absolute", where, 1, scaled_table(where), resampling=RESIZED)]
        for middle, _ in instances(model, MIDDLE):  # added again behind every block but the last
            table = dotted(middle, "mid_position_embeddings")
            found.append(
                PositionSite("absolute", table, 1, scaled_table(table), resampling=RESIZED)
            )
        return found
    if owner.position_embeddings is None:
        return []
    own = patch_grid(pair(projection.image_size), projection.patch_size)
    return [added_table("absolute", where, 1, own, has(model, RFDETR))]


FAMILY = Family("hf_detectors", "hf", claims, anatomy, predict_logits)
