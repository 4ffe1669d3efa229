"""transformers Hiera, in the order of its mask units, and the Hiera of SAM 2, in that of the grid.

The first block of a stage pools its queries: what it gives out stands on a smaller grid than what
it gets.
"""

from __future__ import annotations

from typing import Any

from torch import nn

from probe.errors import AnatomyError
from probe.families.base import Family
from probe.families.hf_folded import folded
from probe.families.hf_sites import added_table, dotted, has, instances, only, pair, predict_logits
from probe.families.positions import scaled_table
from probe.families.timm_layers import convolved
from probe.types import (
    Anatomy,
    FeatureSite,
    Grid,
    Layout,
    PatchSite,
    PositionSite,
    TokenSite,
)
from probe.wiring import Arrangement

UNROLLED, IN_ORDER = "HieraEmbeddings", "Sam2HieraDetModel"
LAYERS = ("HieraLayer", "Sam2MultiScaleBlock")
WINDOW = "tiled over the grid, not interpolated (transformers Sam2HieraDetModel)"
BACKGROUND = "bicubic, not antialiased, in every run (transformers Sam2HieraDetModel)"


def claims(model: nn.Module) -> bool:
    """Whether the model is built from the blocks of either."""
    return has(model, UNROLLED, IN_ORDER) and has(model, *LAYERS)


def anatomy(model: nn.Module, image_size: tuple[int, int]) -> Anatomy:
    """Sites at `image_size` (height, width). No attention is declared: queries are pooled.

    Raises:
        AnatomyError: if mask units, or tables for windows, do not fill the grid.
    """
    name, embedding = only(model, UNROLLED, IN_ORDER)
    unrolled = has(model, UNROLLED)
    patch = dotted(name, "patch_embeddings" if unrolled else "patch_embed")
    projection: Any = model.get_submodule(patch)
    grid = convolved(projection.projection, Grid(*image_size))
    site: Layout = "NLC" if unrolled else "NCHW"
    where = patch if unrolled else dotted(patch, "projection")
    patches, blocks = PatchSite(where, grid, 0, site), instances(model, *LAYERS)
    left = len(instances(model, "HieraStage")) - 1 if unrolled else 0
    if grid.rows % 2**left or grid.cols % 2**left:
        raise AnatomyError(
            f"at {image_size[0]} x {image_size[1]} px the grid has {grid.rows} x {grid.cols} "
            f"tokens, which units of {2**left} x {2**left} do not fill; use a multiple of "
            f"{2**left * projection.projection.stride[0]} px"
        )
    if not unrolled:
        tile = embedding.pos_embed_window.shape[2:]
        if grid.rows % tile[0] or grid.cols % tile[1]:
            raise AnatomyError(
                f"at {image_size[0]} x {image_size[1]} px the grid has {grid.rows} x {grid.cols} "
                f"tokens, which tables of {tile[0]} x {tile[1]} do not tile; use another size"
            )
    layout: Layout = "NLC" if unrolled else "NHWC"
    attn_in: list[TokenSite] = []
    block_out: list[TokenSite] = []
    for layer, (block, module) in enumerate(blocks):
        norm = dotted(block, "layernorm_before" if unrolled else "layer_norm1")
        order = _units(grid, left) if unrolled else None
        attn_in.append(TokenSite(layer, "attn_in", norm, grid, 0, layout, arrangement=order))
        if module.query_stride not in (None, 1):
            grid, left = Grid(grid.rows // 2, grid.cols // 2), left - 1
        order = _units(grid, left) if unrolled else None
        block_out.append(TokenSite(layer, "block_out", block, grid, 0, layout, arrangement=order))
    return Anatomy(
        image_size=image_size,
        patches=patches,
        attn_in=tuple(attn_in),
        block_out=tuple(block_out),
        positions=tuple(_tables(name, embedding, unrolled)),
        features=FeatureSite(blocks[-1][0], grid, 0, layout, None),
    )


def _units(grid: Grid, left: int) -> Arrangement:
    """Order of tokens while `left` poolings by 2 x 2 are to come: what each pools stands apart."""
    sizes = (2, 2) * left + (grid.rows // 2**left, grid.cols // 2**left)
    rows, cols = (tuple(range(2 * left + axis, -1, -2)) for axis in (0, 1))
    return folded(sizes, rows, cols)


def _tables(name: str, embedding: Any, unrolled: bool) -> list[PositionSite]:
    if unrolled:
        size, stride = pair(embedding.patch_embeddings.image_size), pair(embedding.patch_stride)
        own = Grid(size[0] // stride[0], size[1] // stride[1])
        return [added_table("absolute", dotted(name, "position_embeddings"), 0, own)]
    found = []
    for key, how in (("pos_embed", BACKGROUND), ("pos_embed_window", WINDOW)):
        where, table = dotted(name, key), getattr(embedding, key)
        found.append(
            PositionSite(
                "absolute",
                where,
                0,
                scaled_table(where),
                grid=Grid(*table.shape[2:]),
                resampling=how,
                layout="NCHW",
            )
        )
    return found


FAMILY = Family("hf_hiera", "hf", claims, anatomy, predict_logits)
