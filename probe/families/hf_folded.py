"""Tokens of transformers models that do not stand row by row: windows, mask units, packs."""

from __future__ import annotations

from math import prod

from torch import Tensor

from probe.wiring import Arrangement


def folded(
    sizes: tuple[int, ...], rows: tuple[int, ...], cols: tuple[int, ...], *, first: bool = False
) -> Arrangement:
    """Tokens whose index runs over several axes, outside of which the batch runs.

    Args:
        sizes: of these axes, the slowest first.
        rows: which of them the rows of the grid run over, the slowest first.
        cols: the same of its columns.
        first: whether the channels come first, right after the batch, (B, C, ...), and not last.
    """
    order = rows + cols

    def split(tokens: Tensor) -> Tensor:
        if first:
            tokens = tokens.flatten(2).transpose(1, 2)
        channels = tokens.shape[-1]
        if tokens.numel() % (prod(sizes) * channels):
            return tokens  # refused as what it is: not the declared grid
        axes = tokens.reshape(-1, *sizes, channels)
        return axes.permute(0, *(axis + 1 for axis in order), axes.ndim - 1).flatten(1, -2)

    def join(patches: Tensor, tokens: Tensor) -> Tensor:
        axes = patches.unflatten(1, [sizes[axis] for axis in order])
        back = axes.permute(
            0, *(order.index(axis) + 1 for axis in range(len(order))), axes.ndim - 1
        )
        if first:
            return back.flatten(1, -2).transpose(1, 2).reshape(tokens.shape)
        return back.reshape(tokens.shape)

    return Arrangement(split, join)
