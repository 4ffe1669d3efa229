"""The trunks of timm that are read by structure: where their stems and their blocks are."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from timm import models
from timm.models.hieradet_sam2 import HieraDet
from torch import Tensor, nn

from probe.types import Grid, Layout
from probe.wiring import Arrangement


@dataclass(frozen=True)
class Trunk:
    """One class of trunks.

    `stem` is the module whose output is the patch projection, `layout` that of four axes there.
    `parts` hold the blocks and what convolutions stand between them. Of blocks only those `inside`
    a name count; `prefix` tokens stand in front where the model has no count of its own. `element`
    is which tensor of a block's output holds the tokens, `maps` the layout of position tables of
    four axes. `arrange` and `refusal` are those of the
    patch site; `unread(module)` says why a member is not read at all.
    """

    stem: str = "stem"
    parts: tuple[str, ...] = ("stages",)
    layout: Layout = "NCHW"
    inside: str = ""
    prefix: int = 0
    element: int = 0
    maps: Layout = "NCHW"
    arrange: Callable[[Grid], Arrangement] | None = None
    refusal: str | None = None
    unread: Callable[[Any], str | None] = lambda _module: None


def _pixels(grid: Grid) -> Arrangement:
    """Of TNT's pixels, one sequence per patch: (B * patches, pixels, C); a patch moves whole."""

    def split(pixels: Tensor) -> Tensor:
        return pixels.reshape(-1, grid.tokens, pixels.shape[1] * pixels.shape[2])

    def join(tokens: Tensor, pixels: Tensor) -> Tensor:
        return tokens.reshape(pixels.shape)

    return Arrangement(split, join)


def _parallel(module: Any) -> str | None:
    if module.parallel_blocks is None:
        return None
    return "its parallel blocks work on several grids at once, which are no layers in a row"


_STAGES = Trunk()
_PATCHES = Trunk("patch_embed")
_ENCODER = Trunk("patch_embed", (), "NHWC")
_WRAPPED = Trunk("encoder.patch_embed", (), "NHWC")
_MOBILE = Trunk("conv_stem", ("blocks",))

TRUNKS: Mapping[type[nn.Module], Trunk] = {
    models.ByobNet: _STAGES,
    models.CoaT: Trunk(
        "patch_embed1",
        tuple(f"{part}{stage}" for part in ("cpe", "crpe") for stage in range(1, 5)),
        prefix=1,
        unread=_parallel,
    ),
    models.CPUBone: _STAGES,
    models.CrossVit: Trunk(
        "patch_embed.1",
        (),
        inside=".blocks.1.",
        prefix=1,
        refusal="two branches cut the image into patches of their own, and no permutation moves "
        "both alike",
    ),
    models.CSATv2: Trunk("stem_dct"),
    models.DeepseekVitClassifier: _WRAPPED,
    models.DeepseekVitEncoder: _ENCODER,
    models.EdgeNeXt: _STAGES,
    models.EfficientFormer: _STAGES,
    models.EfficientFormerV2: _STAGES,
    models.EfficientViM: _PATCHES,
    models.EfficientVit: _STAGES,
    models.EfficientVitLarge: _STAGES,
    models.EfficientVitMsra: _PATCHES,
    models.FastVit: _STAGES,
    models.Gemma4VitClassifier: Trunk("encoder.patch_embed.input_proj", ()),
    models.Gemma4VitEncoder: Trunk("patch_embed.input_proj", ()),
    HieraDet: _ENCODER,
    models.IFormer: _STAGES,
    models.Levit: _STAGES,
    models.LowFormer: _STAGES,
    models.MaxxVit: _STAGES,
    models.MetaFormer: _STAGES,
    models.MlpMixer: Trunk("stem", ()),
    models.MobileNetV3: _MOBILE,
    models.MobileNetV5: _MOBILE,
    models.MobileNetV5Encoder: _MOBILE,
    models.MultiScaleVit: _PATCHES,
    models.NaFlexVit: Trunk("embeds.proj", (), maps="NHWC"),
    models.NextViT: _STAGES,
    models.Qwen3VitClassifier: _WRAPPED,
    models.Qwen3VitEncoder: _ENCODER,
    models.Sequencer2d: Trunk("stem", ("stages",), "NHWC"),
    models.SHViT: _PATCHES,
    models.SwiftFormer: _STAGES,
    models.SwinTransformerV2Cr: _PATCHES,
    models.TinyVit: _PATCHES,
    models.TNT: Trunk("pixel_embed", (), element=1, arrange=_pixels),
    models.VisionTransformerRelPos: Trunk("patch_embed", ()),
    models.VisionTransformerSAM: Trunk("patch_embed", (), "NHWC", maps="NHWC"),
    models.Visformer: Trunk("patch_embed1", ("stage1", "stage2", "stage3")),
}


def trunk_of(module: nn.Module) -> Trunk | None:
    """The trunk that a model is, None where it is none that is known."""
    return next((TRUNKS[kind] for kind in TRUNKS if isinstance(module, kind)), None)
