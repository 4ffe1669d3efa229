"""timm's VisionTransformer: ViT, DeiT (also distilled), CLIP, SigLIP, MAE, DINO, BEiT-3."""

from __future__ import annotations

from timm.models.vision_transformer import ParallelThingsBlock, ResPostBlock, VisionTransformer
from torch import nn

from probe.errors import AnatomyError
from probe.families.base import Family
from probe.families.timm_head import predict
from probe.families.timm_trunk import flat_anatomy, member
from probe.types import Anatomy


def _claims(module: nn.Module) -> bool:
    return isinstance(module, VisionTransformer)


def _attention_norm(block: nn.Module) -> str | None:
    if isinstance(block, ParallelThingsBlock):
        raise AnatomyError(
            "a ParallelThingsBlock runs several attentions, each with its own norm, so there is no "
            "one input to read; its model cannot be read"
        )
    if isinstance(block, ResPostBlock):
        return None
    for norm in ("norm1", "in_norm"):  # in_norm feeds attention and MLP of the parallel blocks
        if isinstance(getattr(block, norm, None), nn.Module):
            return norm
    raise AnatomyError(f"a {type(block).__name__} has no norm before its attention to read")


def _anatomy(module: nn.Module, image_size: tuple[int, int]) -> Anatomy:
    return flat_anatomy(member(module, VisionTransformer), image_size, _attention_norm)


FAMILY = Family("timm_vit", "timm", _claims, _anatomy, predict)
