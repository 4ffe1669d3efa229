"""Pyramids of transformers: PVT, PVT v2, CvT, SegFormer, GLPN and PoolFormer.

Every stage begins with a strided convolution, from the image or from the stage before; blocks then
mix tokens by attention to fewer keys, or by pooling.
"""

from __future__ import annotations

from typing import Any

from torch import nn

from probe.errors import AnatomyError
from probe.families.base import Family
from probe.families.hf_sites import dotted, has, instances, pair, parent, part, predict_logits
from probe.families.positions import scaled_table
from probe.families.timm_layers import Layers, convolved, from_convolutions
from probe.types import Anatomy, Grid, Layout, PatchSite, PositionSite

EMBEDDINGS = (
    "PvtPatchEmbeddings", "PvtV2OverlapPatchEmbeddings", "CvtConvEmbeddings",
    "SegformerOverlapPatchEmbeddings", "GLPNOverlapPatchEmbeddings", "PoolFormerEmbeddings",
)  # fmt: skip
LAYERS = (
    "PvtLayer", "PvtV2BlockLayer", "CvtLayer", "SegformerLayer", "GLPNLayer", "PoolFormerLayer"
)  # fmt: skip
POOLED, POOLED_NORM = "PoolFormerLayer", "PoolFormerGroupNorm"
# What takes in neighbours inside blocks: convolutions over the grid, and pooling.
NEIGHBOURS = ("dwconv", "spatial_reduction", "sequence_reduction", "sr", "pooling")
PROJECTIONS = "CvtSelfAttentionProjection"
FIXED = "kept: transformers does not resize these tables, so the model runs at its own size alone"


def claims(model: nn.Module) -> bool:
    """Whether the model is built from these embeddings and layers."""
    return has(model, *EMBEDDINGS) and has(model, *LAYERS)


def anatomy(model: nn.Module, image_size: tuple[int, int]) -> Anatomy:
    """Sites at `image_size` (height, width), each stage with its own grid.

    A class token joins in the last stage of PVT and CvT. No attention is declared: queries meet
    keys that stand for several tokens each.

    Raises:
        AnatomyError: if nothing is left of the image, or its size is not that of PVT's tables.
    """
    layout: Layout = "NCHW" if has(model, POOLED) else "NLC"
    stages, layers, positions = instances(model, *EMBEDDINGS), None, []
    blocks: dict[str, list[str]] = {}
    for name, _ in instances(model, *LAYERS):
        blocks.setdefault(parent(name), []).append(name)
    for (name, embedding), held in zip(stages, blocks.values(), strict=True):
        conv = part(embedding, "projection", "proj")
        if layers is None:
            first = convolved(getattr(embedding, conv), Grid(*image_size))
            if min(first.rows, first.cols) < 1:
                raise AnatomyError(f"an image of {image_size[0]} x {image_size[1]} px is too small")
            layers = Layers(PatchSite(dotted(name, conv), first, 0, "NCHW"))
        else:
            layers.merge(getattr(embedding, conv))
        prefix = _class_tokens(model, name, embedding)
        positions += _table(name, embedding, prefix, image_size)
        norm = part(model.get_submodule(held[0]), "layer_norm_1", "layernorm_before", "before_norm")
        for block in held:
            layers.block(block, norm=norm, prefix=prefix, layout=layout)
            positions += _neighbours(model, block)
    if layers is None:
        raise AnatomyError(f"{type(model).__name__} has no stages; check the family")
    last = layers.last(held[-1], _final_norm(model, held), prefix, layout)
    return layers.anatomy(image_size, tuple(positions), last)


def _class_tokens(model: nn.Module, name: str, embedding: Any) -> int:
    """How many class tokens join where a stage begins: PVT's embedding or CvT's stage holds one."""
    holders = (embedding, model.get_submodule(parent(parent(name))))
    return int(any(isinstance(getattr(h, "cls_token", None), nn.Parameter) for h in holders))


def _table(
    name: str, embedding: Any, prefix: int, image_size: tuple[int, int]
) -> list[PositionSite]:
    table = getattr(embedding, "position_embeddings", None)
    if table is None:
        return []
    own, where = pair(embedding.config.image_size), dotted(name, "position_embeddings")
    if own != image_size:
        raise AnatomyError(
            f"this model's tables are made for {own[0]} x {own[1]} px, and transformers garbles "
            "them at another size; run the model at that image size"
        )
    (rows, cols), (height, width) = pair(embedding.image_size), pair(embedding.patch_size)
    grid = Grid(rows // height, cols // width)
    return [
        PositionSite("absolute", where, prefix, scaled_table(where), grid=grid, resampling=FIXED)
    ]


def _neighbours(model: nn.Module, block: str) -> list[PositionSite]:
    """What takes in neighbours inside a block, outermost modules only."""
    inner: Any = model.get_submodule(block)
    found: list[str] = []
    for name, module in inner.named_modules():
        known = name.rpartition(".")[2] in NEIGHBOURS or type(module).__name__ == PROJECTIONS
        if known and not any(name.startswith(f"{outer}.") for outer in found):
            found.append(name)
    return [from_convolutions(dotted(block, name)) for name in found]


def _final_norm(model: nn.Module, held: list[str]) -> str | None:
    """The norm behind the last stage's blocks, where transformers runs one on all tokens."""
    if type(getattr(model, "norm", None)).__name__ == POOLED_NORM:
        return "norm"
    trunk = parent(parent(held[-1]))
    number = parent(held[-1]).rpartition(".")[2]
    for name in (trunk, parent(trunk)):
        norms = getattr(model.get_submodule(name), "layer_norm", None)
        if isinstance(norms, nn.ModuleList):
            return dotted(name, f"layer_norm.{number}")
        if norms is not None:
            return dotted(name, "layer_norm")
    return None


FAMILY = Family("hf_pyramid", "hf", claims, anatomy, predict_logits)
