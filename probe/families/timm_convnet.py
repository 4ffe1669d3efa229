"""timm's ResNet and ConvNeXt: baselines without tokens, whose stages are read as layers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from timm.models.convnext import ConvNeXt
from timm.models.resnet import ResNet
from torch import nn

from probe.errors import AnatomyError
from probe.families.base import Family
from probe.families.dry_run import dry_run
from probe.families.timm_head import predict
from probe.families.timm_layers import from_convolutions
from probe.types import Anatomy, Grid, PatchSite, TokenSite

NO_TOKENS = "a convolutional network has no patch tokens that could change places"

STAGES: Mapping[type[nn.Module], Callable[[Any], list[str]]] = {
    ConvNeXt: lambda module: [f"stages.{i}" for i in range(len(module.stages))],
    ResNet: lambda module: [f"layer{i}" for i in (1, 2, 3, 4)],
}


def stages_anatomy(module: nn.Module, image_size: tuple[int, int], stages: list[str]) -> Anatomy:
    """Anatomy of a convolutional network: every stage is a layer, read where it begins and ends.

    `attn_in` is a stage's input and `block_out` its output, both of whole grids (NCHW). RPI does
    not apply, and alpha does not reach what convolutions know of place.
    """
    seen = dry_run(module, image_size, stages)
    attn_in, block_out = [], []
    for layer, name in enumerate(stages):
        ran = seen[name]
        taken, given = Grid(*ran.taken[2:]), Grid(*ran.given[2:])
        attn_in.append(TokenSite(layer, "attn_in", name, taken, 0, "NCHW", side="input"))
        block_out.append(TokenSite(layer, "block_out", name, given, 0, "NCHW"))
    return Anatomy(
        image_size=image_size,
        patches=PatchSite(stages[0], attn_in[0].grid, 0, "NCHW", refusal=NO_TOKENS),
        attn_in=tuple(attn_in),
        block_out=tuple(block_out),
        positions=tuple(from_convolutions(name) for name in stages),
    )


def _claims(module: nn.Module) -> bool:
    return isinstance(module, tuple(STAGES))


def _anatomy(module: nn.Module, image_size: tuple[int, int]) -> Anatomy:
    for kind, stages in STAGES.items():
        if isinstance(module, kind):
            return stages_anatomy(module, image_size, stages(module))
    raise AnatomyError(
        f"this family reads ResNet and ConvNeXt, but the model is a {type(module).__name__}; "
        "leave the family out"
    )


FAMILY = Family("timm_convnet", "timm", _claims, _anatomy, predict)
