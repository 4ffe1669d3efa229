"""The patch interface: the linear map from a patch's pixels to its token, and what it loses."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from probe.errors import NotApplicable
from probe.hooks import submodule
from probe.types import LoadedModel

LEVEL = "exact algebra"
ASSUMES = (
    "the projection is linear in real-valued, normalised pixels; rounding to 8-bit pixels, and a "
    "norm behind the projection, are not part of it"
)
NEARLY = 0.01  # of the largest singular value: directions that hardly reach the token

Stem = Literal["patch", "overlapping"]


@dataclass(frozen=True, eq=False)
class Projection:
    """A patch projection as a matrix.

    `matrix` is float64 (d, D), D = channels * rows * cols of its kernel, in that order; `bias` is
    (d,). `kernel` and `stride` are (rows, cols) in pixels. `eps` is the rounding of the weights'
    dtype. Inputs are normalised pixels.
    """

    matrix: NDArray[np.float64]
    bias: NDArray[np.float64]
    kernel: tuple[int, int]
    stride: tuple[int, int]
    eps: float

    @property
    def stem(self) -> Stem:
        """Whether patches are disjoint or overlap."""
        return "patch" if self.kernel == self.stride else "overlapping"

    @cached_property
    def svd(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Singular values (D,), zeros where D > d, and right singular vectors (D, D) as rows."""
        _, values, rows = np.linalg.svd(self.matrix, full_matrices=True)
        return np.pad(values, (0, len(rows) - len(values))), rows

    @property
    def tolerance(self) -> float:
        """Singular values at or below it count as zero: max(d, D) * eps * the largest."""
        return max(self.matrix.shape) * self.eps * float(self.svd[0][0])

    @property
    def rank(self) -> int:
        """Numerical rank at `tolerance`."""
        return int(np.sum(self.svd[0] > self.tolerance))

    @property
    def null(self) -> NDArray[np.float64]:
        """Orthonormal basis (nullity, D) of what the token does not see."""
        return self.svd[1][self.rank :]


def read_projection(model: LoadedModel) -> Projection:
    """The patch projection of a loaded model.

    Raises:
        NotApplicable: if it is no single convolution or linear layer over patches.
    """
    site = model.anatomy.patches
    if site.refusal is not None:
        raise NotApplicable(site.refusal)
    found = [
        module
        for module in submodule(model.module, site.module).modules()
        if isinstance(module, nn.Conv2d | nn.Linear)
    ]
    if len(found) != 1 or not isinstance(found[0], nn.Conv2d):
        kinds = ", ".join(type(module).__name__ for module in found) or "no linear map"
        raise NotApplicable(
            f"tokens come from {kinds}, not from one convolution over patches, so the analysis of "
            "a patch does not apply"
        )
    conv: Any = found[0]
    if conv.in_channels != 3:
        raise NotApplicable(
            f"tokens come from a convolution over {conv.in_channels} channels of a stem, not over "
            "pixels, so the analysis of a patch does not apply"
        )
    padded = conv.padding not in ("valid", 0, (0, 0))
    if conv.groups != 1 or conv.dilation != (1, 1) or (padded and conv.kernel_size == conv.stride):
        raise NotApplicable("the projection is grouped, dilated or padded; it is no patch's map")
    weight = conv.weight.detach().to("cpu", torch.float64)
    bias = torch.zeros(len(weight)) if conv.bias is None else conv.bias.detach()
    return Projection(
        matrix=weight.flatten(1).numpy(),
        bias=bias.to("cpu", torch.float64).numpy(),
        kernel=conv.kernel_size,
        stride=conv.stride,
        eps=float(torch.finfo(conv.weight.dtype).eps),
    )


def rank_facts(projection: Projection) -> dict[str, Any]:
    """Rank, nullity and singular values, ready for JSON.

    Returns:
        `dim` D, `width` d, `rank`, `nullity` D - rank, `nullity_bound` max(0, D - d), `tolerance`,
        `singular_values` (largest first), `condition` (largest over smallest that counts),
        `nearly_lost`: directions that count but lie below 1 % of the largest.
    """
    values = projection.svd[0]
    width, dim = projection.matrix.shape
    rank = projection.rank
    kept = values[:rank]
    return {
        "stem": projection.stem,
        "kernel": list(projection.kernel),
        "stride": list(projection.stride),
        "dim": dim,
        "width": width,
        "rank": rank,
        "nullity": dim - rank,
        "nullity_bound": max(0, dim - width),
        "tolerance": projection.tolerance,
        "singular_values": [float(value) for value in values[: min(width, dim)]],
        "condition": float(kept[0] / kept[-1]) if rank else None,
        "nearly_lost": int(np.sum(kept < NEARLY * kept[0])) if rank else 0,
    }


def overlap_rank(projection: Projection, side: int = 2) -> dict[str, Any]:
    """Rank of an overlapping projection as a map from all pixels under side x side tokens.

    A pixel is seen by several tokens, so what one token loses another may keep: the rank of one
    kernel says little, and this one bounds what a whole image loses.

    Args:
        projection: an overlapping one.
        side: tokens along each axis of the piece of grid that is analysed.
    """
    (kr, kc), (sr, sc) = projection.kernel, projection.stride
    rows, cols = kr + (side - 1) * sr, kc + (side - 1) * sc
    width, dim = projection.matrix.shape
    channels = dim // (kr * kc)
    kernel = projection.matrix.reshape(width, channels, kr, kc)
    whole = np.zeros((side, side, width, channels, rows, cols))
    for r in range(side):
        for c in range(side):
            whole[r, c, :, :, r * sr : r * sr + kr, c * sc : c * sc + kc] = kernel
    matrix = whole.reshape(side * side * width, -1)
    values = np.linalg.svd(matrix, compute_uv=False)
    rank = int(np.sum(values > max(matrix.shape) * projection.eps * values[0]))
    return {"tokens": [side, side], "dim": matrix.shape[1], "rank": rank, "rows": matrix.shape[0]}
