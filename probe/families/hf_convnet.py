"""Convolutional networks of transformers: baselines without tokens, whose stages are layers."""

from __future__ import annotations

from torch import nn

from probe.families.base import Family
from probe.families.hf_sites import has, instances, predict_logits
from probe.families.timm_convnet import stages_anatomy
from probe.types import Anatomy

STAGES = (
    "BitStage", "ConvNextStage", "ConvNextV2Stage", "DINOv3ConvNextStage", "RegNetStage",
    "ResNetStage",
)  # fmt: skip
# Systems that are built on such a network, and have tokens behind it.
SYSTEMS = ("DPTViTLayer", "DetrEncoder", "MaskFormerPixelLevelModule")


def claims(model: nn.Module) -> bool:
    """Whether the model has such stages, and nothing on top of them."""
    return has(model, *STAGES) and not has(model, *SYSTEMS)


def anatomy(model: nn.Module, image_size: tuple[int, int]) -> Anatomy:
    """A layer per stage, of (B, C, rows, cols), at `image_size` (height, width)."""
    return stages_anatomy(model, image_size, [name for name, _ in instances(model, *STAGES)])


FAMILY = Family("hf_convnet", "hf", claims, anatomy, predict_logits)
