"""Rotary positions: by how much every pair of channels turns for one patch, and where that wraps.

A pair of channels of queries and keys is turned by an angle that is linear in the token's row and
column; attention then sees the difference of two tokens' angles. What a pair can tell apart follows
from its angle per patch alone: at 2 pi over it, it has come round.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from timm.layers import (
    RotaryEmbeddingCat,
    RotaryEmbeddingDinoV3,
    RotaryEmbeddingMixed,
    RotaryEmbeddingMRope,
)
from torch import Tensor, nn

from probe.errors import AnatomyError
from probe.types import Grid

# Rotary modules of transformers that make angles from `inv_freq`, rows first, in every run: those
# whose coordinates span -1..1 at every size, and those whose coordinates count patches.
SPANNING = ("DINOv3ViTRopePositionEmbedding", "Sapiens2RopePositionEmbedding")
COUNTING = ("MLCDRotaryEmbedding",)
# Of Pixtral, with frequencies of rows first and then those of columns.
APART = "PixtralVisionRotaryEmbedding"
LISTED = 64  # frequencies that are listed one by one; of more, as many quantiles
ASSUMES = (
    "angles follow from the stored frequencies and the grid, and hold for every image; one full "
    "turn of a pair is one wavelength"
)


@dataclass(frozen=True, eq=False)
class Rotation:
    """Radians by which every rotary pair turns for one patch down (`rows`) and across (`cols`).

    Both are float64 of one shape: (pairs,) where all blocks and heads turn alike, else (blocks,
    heads, pairs). A pair that stands still in both is inert. `shape` is that of the frequencies.
    """

    rows: NDArray[np.float64]
    cols: NDArray[np.float64]
    shape: tuple[int, ...]

    @property
    def speed(self) -> NDArray[np.float64]:
        """Radians per patch along each pair's own direction, of those that turn, fastest first."""
        speed = np.hypot(self.rows, self.cols).ravel()
        return np.sort(speed[speed > 0])[::-1]


def read_rotation(rope: nn.Module, grid: Grid) -> Rotation:
    """The rotation that a rotary module applies on `grid`, from its frequencies.

    Raises:
        AnatomyError: for a rotary module of another kind.
    """
    sides = (grid.rows, grid.cols)
    module: Any = rope
    if isinstance(rope, RotaryEmbeddingCat) and module.grid_type == "index":
        reference = module.ref_feat_shape or sides
        units = [new / side for side, new in zip(sides, reference, strict=True)]
        return _axial(module.bands, units, module.grid_indexing)
    if isinstance(rope, RotaryEmbeddingDinoV3):
        by = {"max": max(sides), "min": min(sides)}.get(module.normalize_coords)
        units = [2 * (2 * math.pi) / (by or side) for side in sides]  # coordinates span -1..1
        rotation = _axial(1 / module.periods.double(), units, module.grid_indexing)
        return Rotation(rotation.rows, rotation.cols, tuple(module.periods.shape))
    if isinstance(rope, RotaryEmbeddingMixed):
        first, second = _array(module.freqs)
        rows, cols = (second, first) if module.grid_indexing == "xy" else (first, second)
        return Rotation(rows, cols, tuple(module.freqs.shape))
    if isinstance(rope, RotaryEmbeddingMRope):
        frequency, axis = _array(module.inv_freq), module.axis.cpu().numpy()
        rows, cols = (np.where(axis == which, frequency, 0.0) for which in (1, 2))
        return Rotation(rows, cols, tuple(module.inv_freq.shape))
    kind = type(rope).__name__
    if kind in SPANNING + COUNTING:
        units = [4 * math.pi / side if kind in SPANNING else 1.0 for side in sides]
        return _axial(module.inv_freq, units, "ij")
    if kind == APART:
        rows, cols = np.split(_array(module.inv_freq), 2)
        still, shape = np.zeros(len(rows)), tuple(module.inv_freq.shape)
        return Rotation(np.concatenate([rows, still]), np.concatenate([still, cols]), shape)
    raise AnatomyError(f"rotary positions come from {kind}, whose angles this version cannot read")


def rotary_facts(rotation: Rotation, grid: Grid) -> dict[str, Any]:
    """What the rotation tells apart on `grid`, ready for JSON.

    Returns:
        `angles_per_patch` {min, max}: radians per patch along a pair's own direction, of the pairs
        that turn. `frequencies`: the distinct ones, radians per patch, fastest first; where they
        are more than 64, 64 evenly spaced quantiles, which `listed` says. `wraps_at`: patches after
        which the fastest pair has come round (2 pi over its frequency); `longest` wavelength: the
        same of the slowest. `wraps_inside`: whether the fastest comes round inside the grid.
        `direction`: `axial` (a pair turns with the row or with the column) or `mixed`. `axes`:
        {rows, cols}, {min, max} radians per patch along that axis, of the pairs that turn with it.
        `shared`: whether all blocks and heads turn alike. `pairs` per head, and the `inert` ones.
    """
    speed = rotation.speed
    distinct = _distinct(speed)
    few = len(distinct) <= LISTED
    inert = rotation.rows.size - len(speed)
    both = (rotation.rows != 0) & (rotation.cols != 0)
    return {
        "angles_per_patch": _range(speed),
        "frequencies": distinct
        if few
        else [float(v) for v in np.quantile(speed, np.linspace(1, 0, LISTED))],
        "listed": "all" if few else f"{LISTED} quantiles of {len(speed)}",
        "wraps_at": _wavelength(speed.max(initial=0)),
        "longest": _wavelength(speed.min(initial=math.inf)),
        "wraps_inside": bool(len(speed) and _turns_inside(rotation, grid)),
        "direction": "mixed" if both.any() else "axial",
        "axes": {
            name: _range(np.abs(steps[steps != 0]))
            for name, steps in (("rows", rotation.rows), ("cols", rotation.cols))
        },
        "shared": rotation.rows.ndim == 1,
        "pairs": rotation.rows.shape[-1],
        "inert": inert // (rotation.rows.size // rotation.rows.shape[-1]),
    }


def _axial(frequencies: Tensor, units: Sequence[float], indexing: str) -> Rotation:
    """Half of the pairs turn with one axis, half with the other; `xy` puts the columns first."""
    found, still = _array(frequencies), np.zeros(len(frequencies))
    down, across = (found * unit for unit in units)
    shape = tuple(frequencies.shape)
    if indexing == "xy":
        return Rotation(np.concatenate([still, down]), np.concatenate([across, still]), shape)
    return Rotation(np.concatenate([down, still]), np.concatenate([still, across]), shape)


def _array(tensor: Tensor) -> NDArray[np.float64]:
    found: NDArray[np.float64] = tensor.detach().double().cpu().numpy()
    return found


def _distinct(speed: NDArray[np.float64]) -> list[float]:
    """Without what differs by rounding alone, fastest first."""
    kept: list[float] = []
    for value in speed.tolist():
        if not kept or kept[-1] - value > 1e-6 * kept[-1]:
            kept.append(value)
    return kept


def _turns_inside(rotation: Rotation, grid: Grid) -> bool:
    """Whether some pair makes a full turn between two tokens of the grid."""
    widest = np.abs(rotation.rows) * (grid.rows - 1) + np.abs(rotation.cols) * (grid.cols - 1)
    return bool(widest.max() >= 2 * math.pi)


def _range(values: NDArray[np.float64]) -> dict[str, float] | None:
    if len(values) == 0:
        return None
    return {"min": float(values.min()), "max": float(values.max())}


def _wavelength(speed: float) -> float | None:
    """Patches per turn; None where nothing turns."""
    return 2 * math.pi / float(speed) if 0 < speed < math.inf else None
