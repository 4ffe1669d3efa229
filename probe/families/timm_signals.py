"""Positional signals of timm models found by structure: tables, biases, rotations, convolutions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from timm.layers import (
    RelPosBias,
    RelPosBiasTf,
    RelPosMlp,
    RotaryEmbedding,
    RotaryEmbeddingCat,
    RotaryEmbeddingDinoV3,
    RotaryEmbeddingMixed,
    RotaryEmbeddingMRope,
)
from timm.models import edgenext, xcit
from timm.models.gemma4_vit import Gemma4RotaryEmbedding2D
from timm.models.mlp_mixer import MixerBlock, ResBlock, SpatialGatingUnit
from timm.models.sequencer import RNN2dBase
from timm.models.swin_transformer_v2_cr import WindowMultiHeadAttention
from torch import nn

from probe.families.dry_run import CACHE
from probe.families.positions import (
    GEOMETRIC,
    bounded_bias,
    carried_index,
    log_spaced,
    scaled_output,
    scaled_table,
    table_kind,
)
from probe.families.timm_layers import SLIDES
from probe.families.timm_rotary import rotary_angles
from probe.types import Grid, Layout, PositionKind, PositionSite
from probe.wiring import SwapTensors

KEPT = (
    "left to timm: resized where its loader or its forward pass knows how, else weights load at "
    "their own size alone"
)
TABLES = {
    "pos_embed", "pos_embed1", "pos_embed2", "pos_embed3", "pos_embed_0", "pos_embed_1",
    "patch_pos", "position_embedding_table",
}  # fmt: skip
# For one axis, repeated in every window, or shared by all patches.
PARTIAL = {"pos_embed_win", "pos_embed_window", "pos_embed_x", "pos_embed_y", "pixel_pos"}
ROTARY = (
    RotaryEmbedding, RotaryEmbeddingCat, RotaryEmbeddingDinoV3, RotaryEmbeddingMixed,
    RotaryEmbeddingMRope,
)  # fmt: skip
INDEXED: dict[type[nn.Module], str] = {
    MixerBlock: "mlp_tokens", ResBlock: "linear_tokens", SpatialGatingUnit: "", RNN2dBase: ""
}  # fmt: skip
BOUND = "none: the weights belong to indices, and so to their own image size"
RUNS = "none needed: a recurrence runs along rows and columns of any length"
PAIRS = (("rel_pos_h", "rel_pos_w"), ("height_rel", "width_rel"))


def window_bias(name: str, window: Sequence[int], resampling: str) -> PositionSite:
    """The table of a timm `RelPosBias` for windows of (rows, cols) tokens."""
    table = f"{name}.relative_position_bias_table"
    return PositionSite(
        "relative_bias",
        table,
        rescale=scaled_table(table),
        carry=carried_index(f"{name}.relative_position_index"),
        grid=Grid(*window),
        resampling=resampling,
    )


def relative_biases(module: nn.Module) -> tuple[PositionSite, ...]:
    """Every relative bias in a module, in the order of its parts.

    Where a query is multiplied with a table of offsets, once for rows and once for columns, the
    bias depends on content too, but is proportional to the table, which alpha scales.
    """
    return tuple(site for name, part in module.named_modules() for site in _biases(name, part))


def _biases(name: str, part: Any) -> Iterator[PositionSite]:
    if isinstance(part, RelPosBias):
        yield window_bias(name, part.window_size, f"where the window changes: {GEOMETRIC}")
    elif isinstance(part, RelPosBiasTf):
        table = f"{name}.relative_position_bias_table"
        yield PositionSite("relative_bias", table, rescale=scaled_table(table), resampling=KEPT)
    elif isinstance(part, RelPosMlp):
        bounded = part.mode == "swin"
        yield PositionSite(
            "relative_bias",
            f"{name}.mlp",
            rescale=bounded_bias() if bounded else scaled_output(),
            max_alpha=1.0 if bounded else 2.0,
            carry=carried_index(f"{name}.relative_position_index"),
            resampling=log_spaced(part.pretrained_window_size),
        )
    elif isinstance(part, WindowMultiHeadAttention):
        yield PositionSite(
            "relative_bias",
            f"{name}.meta_mlp",
            rescale=scaled_output(),
            resampling=log_spaced((0, 0)),
        )
    elif isinstance(getattr(part, CACHE, None), dict):
        table = f"{name}.attention_biases"
        rescale = SwapTensors(scaled_table(table).tensors, caches=(f"{name}.{CACHE}",))
        yield PositionSite("relative_bias", table, rescale=rescale, resampling=KEPT)
    for pair in PAIRS:
        if all(isinstance(getattr(part, key, None), nn.Parameter) for key in pair):
            for key in pair:
                table = f"{name}.{key}"
                yield PositionSite(
                    "relative_bias", table, rescale=scaled_table(table), resampling=KEPT
                )


def added_tables(
    module: nn.Module, prefix: int, grid: Grid, maps: Layout = "NCHW"
) -> tuple[PositionSite, ...]:
    """Every table that a module adds to its tokens, under the names that timm gives them.

    `grid` is that of the patch projection, with `prefix` tokens in front; `maps` the layout of
    tables of four axes, which may be made for another grid. A table for some other order of
    tokens, for one axis or for a window is declared without a grid.
    """
    found = []
    for name, table in module.named_parameters():
        own = name.rpartition(".")[2]
        if own not in TABLES | PARTIAL:
            continue
        layout: Layout = "NLC"
        kind: PositionKind = "absolute"
        made_for, rows, shape = None, 0, tuple(table.shape)
        if own in PARTIAL:
            layout = "NLC" if len(shape) == 3 else maps
        elif len(shape) == 3 and shape[1] in (grid.tokens, prefix + grid.tokens):
            made_for, rows = grid, shape[1] - grid.tokens
            kind = table_kind(table, rows)
        elif len(shape) == 4 and maps == "NHWC":
            made_for, layout = Grid(*shape[1:3]), maps
            kind = table_kind(table.flatten(1, 2), 0)
        elif len(shape) == 4:
            made_for, layout = Grid(*shape[2:]), maps
            kind = table_kind(table.flatten(2).mT, 0)
        found.append(
            PositionSite(
                kind,
                name,
                prefix=rows,
                rescale=scaled_table(name),
                grid=made_for,
                resampling=KEPT,
                layout=layout,
            )
        )
    return tuple(found)


def rotations(module: nn.Module) -> tuple[PositionSite, ...]:
    """Every rotary embedding, whose angles are made anew in every run.

    Raises:
        AnatomyError: if alpha cannot reach one.
    """
    found = []
    for name, part in module.named_modules():
        if isinstance(part, ROTARY):
            rescale = rotary_angles(module, name)
        elif isinstance(part, Gemma4RotaryEmbedding2D):
            rescale = scaled_table(f"{name}.inv_freq")
        else:
            continue
        made = f"made anew for every grid (timm {type(part).__name__})"
        found.append(PositionSite("rotary", name, rescale=rescale, resampling=made))
    return tuple(found)


def index_mixers(module: nn.Module) -> tuple[PositionSite, ...]:
    """Layers whose weights belong to the index of a token, or that read tokens in their order."""
    found = []
    for name, part in module.named_modules():
        for kind, inner in INDEXED.items():
            if isinstance(part, kind):
                where = f"{name}.{inner}".rstrip(".")
                resampling = RUNS if kind is RNN2dBase else BOUND
                found.append(PositionSite("mixing", where, resampling=resampling))
    return tuple(found)


def fourier_codes(module: nn.Module) -> tuple[PositionSite, ...]:
    """Every code of sines and cosines that a module adds to its tokens, made anew in every run."""
    return tuple(
        PositionSite(
            "sinusoidal",
            name,
            rescale=scaled_output(),
            resampling="made anew in every run (timm PositionalEncodingFourier)",
            layout="NCHW",
        )
        for name, part in module.named_modules()
        if isinstance(part, edgenext.PositionalEncodingFourier | xcit.PositionalEncodingFourier)
    )


def convolutions(module: nn.Module, inside: str) -> tuple[PositionSite, ...]:
    """The children of the part called `inside` that mix neighbours by convolution or pooling.

    They know place from neighbours and padding; alpha does not reach them.
    """
    return tuple(
        PositionSite("convolutional", f"{inside}.{name}", resampling=SLIDES)
        for name, part in module.get_submodule(inside).named_children()
        if any(_slides(one) for one in part.modules())
    )


def _slides(part: Any) -> bool:
    """Whether windows of a convolution or a pooling overlap: disjoint ones only merge tokens."""
    if not isinstance(part, nn.Conv2d | nn.AvgPool2d | nn.MaxPool2d):
        return False
    size, step = _sides(part.kernel_size), _sides(part.stride)
    return max(size) > 1 and size != step


def _sides(value: Any) -> tuple[int, int]:
    rows, cols = (value, value) if isinstance(value, int) else value
    return int(rows), int(cols)
