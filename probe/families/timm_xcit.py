"""timm's XCiT: attention over channels, tokens mixed by convolutions, a late class token."""

from __future__ import annotations

from typing import Any

from timm.models.xcit import Xcit
from torch import nn

from probe.families.base import Family
from probe.families.positions import scaled_output
from probe.families.timm_head import predict
from probe.families.timm_layers import Layers, from_convolutions, stem_site
from probe.families.timm_trunk import member
from probe.types import Anatomy, FeatureSite, PositionSite

FOURIER = (
    "made anew in every run: sines and cosines of row and column, each counted from 1 and scaled "
    "so that the last one is a full turn, then projected (timm PositionalEncodingFourier)"
)


def _claims(module: nn.Module) -> bool:
    return isinstance(module, Xcit)


def _anatomy(module: nn.Module, image_size: tuple[int, int]) -> Anatomy:
    """Layers are the blocks of cross-covariance attention, which compares channels, not tokens.

    No attention is declared, since none has tokens to compare; they meet in the convolutions of
    `local_mp`. Class attention, behind, leaves the grid alone but for layers on single tokens.
    """
    xcit: Any = member(module, Xcit)
    layers = Layers(stem_site(xcit, "patch_embed", image_size, "NLC"))
    positions = []
    if xcit.pos_embed is not None:
        positions.append(
            PositionSite(
                "sinusoidal",
                "pos_embed",
                rescale=scaled_output(),
                grid=layers.grid,
                resampling=FOURIER,
                layout="NCHW",
            )
        )
    for layer in range(len(xcit.blocks)):
        layers.block(f"blocks.{layer}")
        positions.append(from_convolutions(f"blocks.{layer}.local_mp"))
    prefix = int(xcit.num_prefix_tokens)
    features = FeatureSite("norm", layers.grid, prefix, "NLC", 0 if prefix else None)
    return layers.anatomy(image_size, tuple(positions), features)


FAMILY = Family("timm_xcit", "timm", _claims, _anatomy, predict)
