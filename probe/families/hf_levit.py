"""transformers LeViT: a stem of convolutions, biased attention without norms, a shrinking grid."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch import nn

from probe.errors import AnatomyError
from probe.families.base import Family
from probe.families.hf_sites import dotted, has, instances, only, parent, predict_logits
from probe.families.positions import scaled_table
from probe.families.timm_layers import stem_site
from probe.types import Anatomy, FeatureSite, Grid, PatchSite, PositionSite, TokenSite

STEM, STAGE = "LevitPatchEmbeddings", "LevitStage"
ATTENTION, SHRINKING = "LevitAttention", "LevitAttentionSubsample"
KEPT = "kept: the bias has one value per distance along rows and columns, of its own grid alone"


def claims(model: nn.Module) -> bool:
    """Whether the model is built from LeViT's stem and stages."""
    return has(model, STEM) and has(model, STAGE)


def anatomy(model: nn.Module, image_size: tuple[int, int]) -> Anatomy:
    """Sites at `image_size` (height, width).

    A layer is an attention with the MLP behind it. Nothing is normed before attention, so `attn_in`
    is what it gets. The attention that shrinks the grid between stages is a layer too, from one
    grid to the next; none is declared for the audit, as its queries are fewer than its keys.

    Raises:
        AnatomyError: if the stem gives another grid than the model is built for.
    """
    stem, _ = only(model, STEM)
    stages = instances(model, STAGE)
    first = stem_site(model, stem, image_size, "NCHW")
    patches, grid = PatchSite(stem, first.grid, 0, "NLC"), first.grid
    built = len(instances(model, ATTENTION)[0][1].attention_bias_idxs)
    if grid.rows != grid.cols or grid.tokens != built:
        raise AnatomyError(
            f"at {image_size[0]} x {image_size[1]} px the stem gives {grid.rows} x {grid.cols} "
            f"tokens, but the model is built for {built}; run it at its own image size"
        )
    attn_in: list[TokenSite] = []
    block_out: list[TokenSite] = []
    positions: list[PositionSite] = []
    for name, module in instances(model, ATTENTION, SHRINKING):
        table: Any = module
        where = dotted(name, "attention_biases")
        positions.append(
            PositionSite(
                "relative_bias",
                where,
                # What the first run makes of the table is kept otherwise.
                rescale=replace(scaled_table(where), caches=(f"{name}.attention_bias_cache",)),
                resampling=KEPT,
            )
        )
        layer, own = len(attn_in), parent(name)
        attn_in.append(TokenSite(layer, "attn_in", name, grid, 0, "NLC", "input"))
        if type(module).__name__ == SHRINKING:
            grid, own = Grid(table.resolution_out, table.resolution_out), name
        block_out.append(TokenSite(layer, "block_out", _with_mlp(model, own), grid, 0, "NLC"))
    last = dotted(stages[-1][0], f"layers.{len(stages[-1][1].layers) - 1}")
    return Anatomy(
        image_size=image_size,
        patches=patches,
        attn_in=tuple(attn_in),
        block_out=tuple(block_out),
        positions=tuple(positions),
        features=FeatureSite(last, grid, 0, "NLC", None),
    )


def _with_mlp(model: nn.Module, own: str) -> str:
    """The residual layer that ends a block: the MLP's behind the attention's, if there is one."""
    stage, _, number = own.rpartition(".")
    after = dotted(stage, str(int(number) + 1))
    modules = dict(model.named_modules())
    mlp = modules.get(dotted(after, "module"))
    return after if type(mlp).__name__ == "LevitMLPLayer" else own


FAMILY = Family("hf_levit", "hf", claims, anatomy, predict_logits)
