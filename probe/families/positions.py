"""How alpha reaches each kind of positional signal: rules that families put into a `PositionSite`.

A rule is made from the dotted name of what it scales and acts on any module that has it there.
Every rule at alpha 0 leaves what a model without that signal would compute: a table of zeros, a
bias of zero, the identity rotation.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from math import isqrt
from typing import Any

import torch
from torch import Tensor, nn

from probe.errors import AnatomyError
from probe.hooks import submodule
from probe.types import PositionKind
from probe.wiring import CarryOutput, CarryTensors, EditOutput, SwapTensors

# A sin-cos row of C entries holds C/2 pairs with sin^2 + cos^2 = 1; learned rows never all do.
_SINCOS_TOLERANCE = 1e-3

# How timm resizes a bias table, per head.
GEOMETRIC = "linear between offsets in geometric progression (timm resize_rel_pos_bias_table)"


def table_kind(table: Tensor, prefix: int) -> PositionKind:
    """Whether an added table (1, prefix + N, C) is a fixed sin-cos table or a learned one.

    Decided by the values: every patch row of a sin-cos table has squared norm C/2, in whatever
    order the sines and cosines stand. A sin-cos table that was resampled to another grid no longer
    has, and counts as absolute; so does one without values, on the meta device.
    """
    if table.is_meta:
        return "absolute"
    rows = table.detach().reshape(-1, table.shape[-1])[prefix:].to(torch.float64)
    energy = rows.square().sum(dim=1) / (table.shape[-1] / 2)
    fixed = bool(((energy - 1).abs() < _SINCOS_TOLERANCE).all()) and len(rows) > 0
    return "sinusoidal" if fixed else "absolute"


def scaled_table(*names: str) -> SwapTensors:
    """Multiply parameters or buffers by alpha, whole.

    Right for added tables, for relative-bias tables, and for what rotation angles are proportional
    to (`freqs`, `inv_freq`) where no cached sine stands between.
    """

    def tensors(model: nn.Module, alpha: float) -> dict[str, Tensor]:
        return {name: _tensor(model, name) * alpha for name in names}

    return SwapTensors(tensors)


def scaled_output() -> EditOutput:
    """Multiply what a module gives by alpha, whole: right for a module whose output is a bias."""
    return EditOutput(lambda bias, alpha: bias * alpha)


def bounded_bias() -> EditOutput:
    """Scale Swin V2's bias, 16 sigmoid(z), through the output z of its MLP; alpha at most 1.

    z becomes logit(alpha sigmoid(z)), in float32 or better; at alpha 0 that is -inf, and the bias
    is exactly 0.
    """

    def edit(z: Tensor, alpha: float) -> Tensor:
        wide = z.to(torch.promote_types(z.dtype, torch.float32))
        return torch.logit(alpha * torch.sigmoid(wide)).to(z.dtype)

    return EditOutput(edit)


def log_spaced(pretrained: Sequence[int]) -> str:
    """How Swin V2's bias comes about at another size, by the window (rows, cols) of pretraining."""
    rows, cols = pretrained
    by = f"the pretraining window of {rows} x {cols}" if rows > 0 else "the window itself"
    return (
        "kept: windows keep their size (the MLP takes log-spaced offsets, normalised by "
        f"{by}, so that another window needs no resizing)"
    )


def rotary_bands(where: str) -> SwapTensors:
    """Scale the angles of timm's `RotaryEmbeddingCat`: its `bands`, and the table built from them.

    The table is rebuilt by the module's own builder, on the CPU like the one it replaces.
    """

    def tensors(model: nn.Module, alpha: float) -> dict[str, Tensor]:
        rope: Any = submodule(model, where)
        bands = _tensor(model, f"{where}.bands") * alpha
        new = {f"{where}.bands": bands}
        if rope.pos_embed is not None:
            cached = _tensor(model, f"{where}.pos_embed")
            new[f"{where}.pos_embed"] = rope._build_embed_cat(rope.feat_shape, bands.cpu()).to(
                cached
            )
        return new

    return SwapTensors(tensors)


def rotary_periods(where: str) -> SwapTensors:
    """Scale the angles of timm's `RotaryEmbeddingDinoV3`: `periods` divided, its table rebuilt.

    At alpha 0 the periods are infinite and every angle is 0.
    """

    def tensors(model: nn.Module, alpha: float) -> dict[str, Tensor]:
        rope: Any = submodule(model, where)
        periods = _tensor(model, f"{where}.periods")
        slower = periods / alpha if alpha else torch.full_like(periods, torch.inf)
        new = {f"{where}.periods": slower}
        if rope.pos_embed_cached is not None:
            cached = _tensor(model, f"{where}.pos_embed_cached")
            # A shallow twin with its own buffers runs the builder; the model is not touched.
            twin = copy.copy(rope)
            twin._buffers = dict(rope._buffers, periods=slower.cpu())
            new[f"{where}.pos_embed_cached"] = twin.get_embed(shape=rope.feat_shape).to(cached)
        return new

    return SwapTensors(tensors)


def carried_rows(*names: str) -> CarryTensors:
    """Move rotations with their tokens: the first axis of each tensor is the patch tokens'."""

    def tensors(model: nn.Module, order: Tensor) -> dict[str, Tensor]:
        return {name: _tensor(model, name)[order] for name in names}

    return CarryTensors(tensors)


def carried_index(name: str) -> CarryTensors:
    """Move a bias with its tokens through the index (T, T), or (T * T,), into its table.

    Rows and columns beyond those of `order` belong to prefix tokens, in front, and stay.
    """

    def tensors(model: nn.Module, order: Tensor) -> dict[str, Tensor]:
        index = _tensor(model, name)
        square = index.reshape(isqrt(index.numel()), -1)
        whole = _with_prefix(order, len(square))
        return {name: square[whole][:, whole].reshape(index.shape)}

    return CarryTensors(tensors)


def carried_pairs(name: str) -> CarryTensors:
    """Move what is stored of every pair of patch tokens, (1, N, N, ...), with the tokens."""

    def tensors(model: nn.Module, order: Tensor) -> dict[str, Tensor]:
        return {name: _tensor(model, name)[:, order][:, :, order]}

    return CarryTensors(tensors)


def carried_bias(module: str) -> CarryOutput:
    """Move a bias with its tokens through the output (..., T, T) of the module that makes it."""

    def edit(bias: Tensor, order: Tensor) -> Tensor:
        whole = _with_prefix(order, bias.shape[-1])
        return bias[..., whole, :][..., whole]

    return CarryOutput(module, edit)


def _with_prefix(order: Tensor, tokens: int) -> Tensor:
    prefix = tokens - len(order)
    return torch.cat([torch.arange(prefix), order + prefix])


def _tensor(model: nn.Module, name: str) -> Tensor:
    owner, _, key = name.rpartition(".")
    tensor = getattr(submodule(model, owner), key, None)
    if not isinstance(tensor, Tensor):
        raise AnatomyError(f"the model has no tensor '{name}'; check the anatomy")
    return tensor.detach()
