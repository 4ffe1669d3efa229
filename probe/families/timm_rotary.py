"""How alpha reaches the angles of timm's rotary embeddings, each class its own way."""

from __future__ import annotations

from timm.layers import (
    RotaryEmbeddingCat,
    RotaryEmbeddingDinoV3,
    RotaryEmbeddingMixed,
    RotaryEmbeddingMRope,
)
from torch import nn

from probe.errors import AnatomyError
from probe.families.positions import rotary_bands, rotary_periods, scaled_table
from probe.hooks import submodule
from probe.wiring import SwapTensors


def rotary_angles(model: nn.Module, where: str) -> SwapTensors:
    """The rule for the rotary embedding called `where`.

    Raises:
        AnatomyError: if it is of a class whose angles cannot be scaled.
    """
    rope = submodule(model, where)
    if isinstance(rope, RotaryEmbeddingCat):
        return rotary_bands(where)
    if isinstance(rope, RotaryEmbeddingDinoV3):
        return rotary_periods(where)
    # These two make their angles from the frequencies in every forward pass.
    if isinstance(rope, RotaryEmbeddingMixed):
        return scaled_table(f"{where}.freqs")
    if isinstance(rope, RotaryEmbeddingMRope):
        return scaled_table(f"{where}.inv_freq")
    raise AnatomyError(
        f"rotary positions come from {type(rope).__name__}, whose angles this version cannot scale"
    )
