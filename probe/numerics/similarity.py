"""Cosine similarities of patch tokens, summed over images in memory that does not grow.

Only the upper half is kept, in blocks of rows: block k holds rows r0..r1 against columns r0..N,
one after the other in a flat vector. That halves both the products and the memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

EXACT_TOKENS = 128


@dataclass(frozen=True)
class HalfMatrix:
    """The flat layout of the upper half of a symmetric (N, N) matrix."""

    tokens: int

    @cached_property
    def blocks(self) -> tuple[tuple[int, int, int], ...]:
        """(first row, end row, offset) of every block."""
        step = max(128, -(-self.tokens // 16))
        found, offset = [], 0
        for first in range(0, self.tokens, step):
            end = min(first + step, self.tokens)
            found.append((first, end, offset))
            offset += (end - first) * (self.tokens - first)
        return tuple(found)

    @cached_property
    def size(self) -> int:
        """Length of the flat vector."""
        first, end, offset = self.blocks[-1]
        return offset + (end - first) * (self.tokens - first)

    @cached_property
    def pairs(self) -> Tensor:
        """Where the pairs i < j, in their usual order, lie in the flat vector: int64 (pairs,)."""
        places = []
        for first, end, offset in self.blocks:
            rows = torch.arange(end - first)[:, None]
            cols = torch.arange(self.tokens - first)[None, :]
            flat = offset + rows * (self.tokens - first) + cols
            places.append(flat[cols > rows])
        return torch.cat(places)

    def row(self, token: int) -> Tensor:
        """Where the similarities of one token to all others, and to itself, lie: int64 (N,)."""
        places = []
        for other in range(self.tokens):
            low, high = min(token, other), max(token, other)
            first, _, offset = next(b for b in self.blocks if b[0] <= low < b[1])
            places.append(offset + (low - first) * (self.tokens - first) + high - first)
        return torch.tensor(places)

    def block(self, flat: Tensor, first: int, end: int, offset: int) -> Tensor:
        """One block of `flat` (..., size) as a (..., rows, columns) view."""
        width = self.tokens - first
        part = flat[..., offset : offset + (end - first) * width]
        return part.view(*flat.shape[:-1], end - first, width)


def unit_tokens(tokens: Tensor) -> Tensor:
    """Patch tokens (B, N, C), each divided by its length, in float32 or better; zero gives NaN.

    Up to 128 tokens are compared in float64: with so few pairs, two that swap ranks by rounding
    would be seen in SSDC.
    """
    exact = tokens.shape[1] <= EXACT_TOKENS and tokens.device.type != "mps"  # MPS has no float64
    wide = tokens.double() if exact or tokens.dtype == torch.float64 else tokens.float()
    unit: Tensor = wide / torch.linalg.vector_norm(wide, dim=-1, keepdim=True)
    return unit


def add_similarities(
    half: HalfMatrix, sums: Tensor, unit: Tensor, groups: NDArray[np.int64]
) -> None:
    """Add the cosine matrix of image b in `unit` (B, N, C) to `sums` (G, size) at row groups[b].

    Images whose groups follow one another go in one step, so that small grids need few.
    """
    ends = np.append(np.flatnonzero(np.diff(groups) != 1) + 1, len(groups))
    for start, stop in pairwise(np.append(0, ends)):
        some, own = unit[start:stop], sums[groups[start] : groups[stop - 1] + 1]
        for first, end, offset in half.blocks:
            half.block(own, first, end, offset).baddbmm_(
                some[:, first:end], some[:, first:].transpose(1, 2)
            )


def image_similarities(half: HalfMatrix, unit: Tensor) -> NDArray[np.floating]:
    """Cosines of all pairs of each image: (B, pairs), on the CPU."""
    flat = unit.new_empty(len(unit), half.size)
    for first, end, offset in half.blocks:
        width = half.tokens - first
        product = torch.bmm(unit[:, first:end], unit[:, first:].transpose(1, 2))
        flat[:, offset : offset + (end - first) * width] = product.flatten(1)
    picked = flat.index_select(1, half.pairs.to(flat.device))
    cosines: NDArray[np.floating] = picked.cpu().numpy()
    return cosines
