"""Tensors as rows: one position with all its channels, be it of a sequence, a window or a map."""

from __future__ import annotations

from math import prod
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.ConvTranspose2d)
POOLS = (nn.AvgPool2d, nn.MaxPool2d, nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool2d)
ROUNDING = 1e-6  # of the largest change: a token that is reached changes by more
Shape = tuple[int, ...]
Marks = tuple[Tensor, ...]


def usable(value: Any) -> Tensor | None:
    """The tensor, or the first of several, if it has rows."""
    head = value[0] if isinstance(value, tuple | list) and value else value
    is_one = isinstance(head, Tensor) and head.is_floating_point() and head.ndim >= 2
    return head if is_one else None


def is_norm(part: nn.Module) -> bool:
    """Whether it normalises: by class, or by the name of a class that contains nothing else."""
    if isinstance(part, (nn.LayerNorm, nn.GroupNorm, _BatchNorm)):
        return True
    return "norm" in type(part).__name__.lower() and not any(True for _ in part.children())


def is_dense(part: nn.Module | None) -> bool:
    """Whether it projects channels."""
    return isinstance(part, (nn.Linear, *CONVOLUTIONS))


def is_leaf(part: nn.Module) -> bool:
    """Whether the axis of its channels is known."""
    return is_dense(part) or isinstance(part, POOLS) or is_norm(part)


def channels(part: nn.Module, shape: Shape) -> int:
    """The axis of the channels, for a leaf."""
    if isinstance(part, (*CONVOLUTIONS, *POOLS, nn.GroupNorm, _BatchNorm)):
        return 1
    if getattr(part, "data_format", "") == "channels_first":
        return 1
    weight = None if isinstance(part, nn.Linear) else getattr(part, "weight", None)
    if not isinstance(weight, Tensor) or type(part).__name__.endswith("2d"):
        return 1 if type(part).__name__.endswith("2d") else -1
    return -1 if weight.numel() == shape[-1] else 1


def rows(value: Tensor, axis: int) -> Tensor:
    """(rows, channels)."""
    return value.movedim(axis, -1).flatten(0, -2)


def marks(part: nn.Module, value: Tensor) -> Marks:
    """A number per row that changes with it; by both axes where channels may be on either."""
    axes = (channels(part, tuple(value.shape)),) if is_leaf(part) else (-1, 1)
    return tuple(_mark(rows(value, axis)) for axis in axes)


def _mark(found: Tensor) -> Tensor:
    weights = torch.rand(found.shape[-1], generator=torch.Generator().manual_seed(1)) + 0.5
    return found @ weights.to(found)


def changed(before: Marks | None, now: Marks) -> Shape:
    """The rows that differ by more than rounding, along the axis on which there are fewer."""
    if before is None:
        return ()
    found = []
    for one, other in zip(now, before, strict=True):
        if one.shape == other.shape:
            apart = (one - other).abs()
            found.append(tuple((apart > ROUNDING * apart.max()).nonzero().flatten().tolist()))
    return min(found, key=len, default=())


def disturbed(value: Tensor, axis: int, row: int, times: float) -> Tensor:
    """`value` with noise on one row, of so many times the spread of all values."""
    new = value.clone()  # as it lies in memory: another kernel would round every row otherwise
    moved = new.movedim(axis, -1)
    noise = torch.randn(moved.shape[-1], generator=torch.Generator().manual_seed(2))
    spread = times * float(value.std()) or 1.0
    moved[_places(row, list(moved.shape[:-1]))] += noise.to(moved) * spread
    return new


def confined(value: Tensor, before: Tensor, axis: int, row: int, taken: Shape) -> Tensor:
    """`before` but for one row of `value`: where `row` of an input of shape `taken` comes to lie.

    Where nothing has changed there, it is the row that has changed most.
    """
    moved, then = value.movedim(axis, -1), before.movedim(axis, -1)
    apart = (moved - then).abs().sum(-1)
    inside = [size for place, size in enumerate(taken) if place != axis % len(taken)]
    if len(inside) != apart.ndim or not apart[_scaled(row, inside, tuple(apart.shape))] > 0:
        return alone(value, before, axis)
    own = _scaled(row, inside, tuple(apart.shape))
    kept = then.clone()
    kept[own] = moved[own]
    return kept.movedim(-1, axis)


def alone(value: Tensor, before: Tensor, axis: int) -> Tensor:
    """`before` but for the row of `value` that is farthest from it."""
    moved, then = value.movedim(axis, -1), before.movedim(axis, -1)
    apart = (moved - then).abs().sum(-1)
    if not apart.any():
        return value
    own = _places(int(apart.argmax()), list(apart.shape))
    kept = then.clone()
    kept[own] = moved[own]
    return kept.movedim(-1, axis)


def _scaled(row: int, inside: list[int], outside: Shape) -> Shape:
    places = zip(_places(row, inside), inside, outside, strict=True)
    return tuple(place * after // before for place, before, after in places)


def _places(row: int, sizes: list[int]) -> Shape:
    return tuple(row // prod(sizes[place + 1 :]) % size for place, size in enumerate(sizes))
