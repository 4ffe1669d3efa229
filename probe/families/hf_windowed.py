"""ViTs of transformers for dense tasks, in windows and whole: ViTDet, the towers of SAM and SAM 3.

Norms come before windows are cut, so that sites hold the grid. No attention is declared: windows
are cut, padded and put together inside blocks.
"""

from __future__ import annotations

from typing import Any

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
    predict_logits,
)
from probe.families.positions import scaled_table
from probe.families.timm_layers import from_convolutions
from probe.types import (
    Anatomy,
    FeatureSite,
    Layout,
    PatchSite,
    PositionSite,
    TokenSite,
)

VITDET, SAM3 = "VitDetEmbeddings", "Sam3ViTPatchEmbeddings"
EMBEDDINGS = (VITDET, SAM3, "SamPatchEmbeddings", "SamHQPatchEmbeddings")
LAYERS = ("VitDetLayer", "Sam3ViTLayer", "SamVisionLayer", "SamHQVisionLayer")
BY_QUERY = (
    "linear between offsets in every run at another size; rows and columns have a table each, "
    "which meets the queries"
)
TILED = "tiled over the grid, not interpolated (transformers Sam3ViTEmbeddings)"
KEPT = "kept: transformers does not resize this table, so the model runs at its own size alone"
BUILT = "built for the model's own image size; windows count from their own corner"


def claims(model: nn.Module) -> bool:
    """Whether the model is built from these embeddings and layers."""
    return has(model, *EMBEDDINGS) and has(model, *LAYERS)


def anatomy(model: nn.Module, image_size: tuple[int, int]) -> Anatomy:
    """Sites at `image_size` (height, width).

    Raises:
        AnatomyError: if the model does not take that size.
    """
    name, embedding = only(model, *EMBEDDINGS)
    blocks = instances(model, *LAYERS)
    _check_size(model, embedding, blocks[0][1], image_size)
    grid = patch_grid(image_size, embedding.patch_size)
    norm = part(blocks[0][1], "norm1", "layer_norm1")
    out: Layout = "NCHW" if has(model, VITDET) else "NHWC"
    positions = [*_table(model, name, embedding)]
    for block, module in blocks:
        positions += _inside(block, module)
    return Anatomy(
        image_size=image_size,
        patches=PatchSite(dotted(name, "projection"), grid, 0, "NCHW"),
        attn_in=tuple(
            TokenSite(i, "attn_in", dotted(block, norm), grid, 0, "NHWC")
            for i, (block, _) in enumerate(blocks)
        ),
        block_out=tuple(
            TokenSite(i, "block_out", block, grid, 0, out) for i, (block, _) in enumerate(blocks)
        ),
        positions=tuple(positions),
        features=FeatureSite(blocks[-1][0], grid, 0, out, None),
    )


def _check_size(model: nn.Module, embedding: Any, block: Any, image_size: tuple[int, int]) -> None:
    own = pair(block.config.image_size if has(model, SAM3) else embedding.image_size)
    if not has(model, VITDET) and own != image_size:
        raise AnatomyError(
            f"this model takes images of {own[0]} x {own[1]} px, not {image_size[0]} x "
            f"{image_size[1]}; run it at that image size"
        )


def _table(model: nn.Module, name: str, embedding: Any) -> list[PositionSite]:
    holder = name if has(model, VITDET) else parent(name)
    key = "pos_embed" if has(model, "SamPatchEmbeddings", "SamHQPatchEmbeddings") else None
    where = dotted(holder, key or "position_embeddings")
    table = getattr(model.get_submodule(holder), key or "position_embeddings", None)
    if table is None:
        return []
    own = patch_grid(pair(embedding.image_size), embedding.patch_size)
    if has(model, VITDET):  # its first row was a class token's, which it does not have
        return [added_table("absolute", where, 1, own)]
    how = TILED if has(model, SAM3) else KEPT
    return [PositionSite("absolute", where, 0, scaled_table(where), grid=own, resampling=how)]


def _inside(block: str, module: Any) -> list[PositionSite]:
    """Signals of one block: rotations, or tables by row and column, and a convolution behind it."""
    found = []
    attention = part(module, "attention", "attn")
    if getattr(module, "rotary_emb", None) is not None:
        where = dotted(block, "rotary_emb")
        angles = scaled_table(dotted(where, "inv_freq"))
        found.append(PositionSite("rotary", where, rescale=angles, resampling=BUILT))
    if getattr(getattr(module, attention), "rel_pos_h", None) is not None:
        tables = [dotted(block, attention, f"rel_pos_{axis}") for axis in "hw"]
        found.append(
            PositionSite(
                "relative_bias", tables[0], rescale=scaled_table(*tables), resampling=BY_QUERY
            )
        )
    if getattr(module, "residual", None) is not None:
        found.append(from_convolutions(dotted(block, "residual")))
    return found


FAMILY = Family("hf_windowed", "hf", claims, anatomy, predict_logits)
