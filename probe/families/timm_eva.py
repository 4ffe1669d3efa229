"""timm's Eva: EVA, EVA-02, DINOv3, and rotary ViTs (axial and mixed), with or without a table."""

from __future__ import annotations

from typing import Any

from timm.layers import RotaryEmbeddingDinoV3
from timm.models.eva import Eva, EvaBlockPostNorm
from torch import nn

from probe.families.base import Family
from probe.families.positions import carried_rows
from probe.families.timm_head import predict
from probe.families.timm_rotary import rotary_angles
from probe.families.timm_trunk import flat_anatomy, member
from probe.types import Anatomy, PositionSite
from probe.wiring import CarryTensors


def _claims(module: nn.Module) -> bool:
    return isinstance(module, Eva)


def _attention_norm(block: nn.Module) -> str | None:
    return None if isinstance(block, EvaBlockPostNorm) else "norm1"


def _resampling(rope: Any) -> str:
    """How the angles of another grid come about: all are made anew from the frequencies."""
    made = f"made anew for the new grid (timm {type(rope).__name__})"
    if isinstance(rope, RotaryEmbeddingDinoV3):
        along = {"separate": "each side", "max": "the longer side", "min": "the shorter side"}
        return (
            f"{made}: patch centres lie in -1..1 along {along[rope.normalize_coords]}, so that the "
            "angle per patch shrinks as the grid grows"
        )
    reference = getattr(rope, "ref_feat_shape", None)
    if reference is not None:
        rows, cols = reference
        return f"{made}: coordinates scaled to span the reference grid of {rows} x {cols} patches"
    return f"{made}: one step per patch as before, so that larger grids reach larger angles"


def _carried(rope: nn.Module) -> CarryTensors | None:
    """The tables that hold one row per patch token; None where every run makes them anew."""
    names = [
        f"rope.{name}"
        for name in ("pos_embed", "pos_embed_cached", "t_x", "t_y")
        if getattr(rope, name, None) is not None
    ]
    return carried_rows(*names) if names else None


def _anatomy(module: nn.Module, image_size: tuple[int, int]) -> Anatomy:
    eva = member(module, Eva)
    rotary: tuple[PositionSite, ...] = ()
    if eva.rope is not None:
        carry = None if eva.dynamic_img_size else _carried(eva.rope)
        rotary = (
            PositionSite(
                "rotary",
                "rope",
                rescale=rotary_angles(eva, "rope"),
                carry=carry,
                resampling=_resampling(eva.rope),
            ),
        )
    return flat_anatomy(eva, image_size, _attention_norm, rotary)


FAMILY = Family("timm_eva", "timm", _claims, _anatomy, predict)
