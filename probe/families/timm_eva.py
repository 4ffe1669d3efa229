"""timm's Eva: EVA, EVA-02, DINOv3, and rotary ViTs (axial and mixed), with or without a table."""

from __future__ import annotations

from timm.layers import (
    RotaryEmbeddingCat,
    RotaryEmbeddingDinoV3,
    RotaryEmbeddingMixed,
    RotaryEmbeddingMRope,
)
from timm.models.eva import Eva, EvaBlockPostNorm
from torch import nn

from probe.errors import AnatomyError
from probe.families.base import Family
from probe.families.positions import rotary_bands, rotary_periods, scaled_table
from probe.families.timm_head import predict
from probe.families.timm_trunk import flat_anatomy, member
from probe.types import Anatomy, PositionSite, SwapTensors


def _claims(module: nn.Module) -> bool:
    return isinstance(module, Eva)


def _attention_norm(block: nn.Module) -> str | None:
    return None if isinstance(block, EvaBlockPostNorm) else "norm1"


def _angles(rope: nn.Module) -> SwapTensors:
    if isinstance(rope, RotaryEmbeddingCat):
        return rotary_bands("rope")
    if isinstance(rope, RotaryEmbeddingDinoV3):
        return rotary_periods("rope")
    # These two make their angles from the frequencies in every forward pass.
    if isinstance(rope, RotaryEmbeddingMixed):
        return scaled_table("rope.freqs")
    if isinstance(rope, RotaryEmbeddingMRope):
        return scaled_table("rope.inv_freq")
    raise AnatomyError(
        f"rotary positions come from {type(rope).__name__}, whose angles this version cannot scale"
    )


def _anatomy(module: nn.Module, image_size: tuple[int, int]) -> Anatomy:
    eva = member(module, Eva)
    rotary: tuple[PositionSite, ...] = ()
    if eva.rope is not None:
        rotary = (PositionSite("rotary", "rope", rescale=_angles(eva.rope)),)
    return flat_anatomy(eva, image_size, _attention_norm, rotary)


FAMILY = Family("timm_eva", "timm", _claims, _anatomy, predict)
