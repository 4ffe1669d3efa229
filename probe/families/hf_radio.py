"""transformers RADIO: several class tokens and registers, and a table cut to the image's shape."""

from __future__ import annotations

from torch import nn

from probe.errors import AnatomyError
from probe.families.base import Family
from probe.families.hf_sites import (
    dotted,
    has,
    instances,
    only,
    patch_grid,
    plain_anatomy,
    predict_logits,
)
from probe.families.positions import scaled_table
from probe.types import Anatomy, Grid, PatchSite, PositionSite

EMBEDDINGS, LAYER = "RadioPatchEmbeddings", "RadioLayer"
CROPPED = (
    "bilinear, not antialiased, in every run, to a square as wide as the longer side of the grid, "
    "from which the grid is cut (transformers RadioPatchEmbeddings)"
)


def claims(model: nn.Module) -> bool:
    """Whether the model is built from RADIO's embeddings and layers."""
    return has(model, EMBEDDINGS) and has(model, LAYER)


def anatomy(model: nn.Module, image_size: tuple[int, int]) -> Anatomy:
    """Sites at `image_size` (height, width); prefix tokens have no row in the table.

    Raises:
        AnatomyError: if patches do not fill the image.
    """
    name, embeddings = only(model, EMBEDDINGS)
    side = int(embeddings.patch_size)
    grid = patch_grid(image_size, side)
    if image_size != (grid.rows * side, grid.cols * side):
        raise AnatomyError(
            f"RADIO cuts images into whole patches, and {image_size[0]} x {image_size[1]} px do "
            f"not fall into patches of {side} px; use a multiple of it"
        )
    table = dotted(name, "position_embedding")
    blocks = [block for block, _ in instances(model, LAYER)]
    return plain_anatomy(
        image_size,
        PatchSite(dotted(name, "patch_projection"), grid, 0, "NLC"),
        blocks,
        "norm1",
        "attention",
        embeddings.cls_register_token.shape[0],
        [
            PositionSite(
                "absolute",
                table,
                rescale=scaled_table(table),
                grid=Grid(embeddings.max_rows, embeddings.max_cols),
                resampling=CROPPED,
            )
        ],
        blocks[-1],
        class_index=0,
    )


FAMILY = Family("hf_radio", "hf", claims, anatomy, predict_logits)
