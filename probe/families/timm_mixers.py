"""Where the blocks of timm's trunks take the tokens that they mix, by the class of the block."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from timm.layers.bottleneck_attn import BottleneckAttn
from timm.layers.halo_attn import HaloAttn
from timm.models import (
    byobnet,
    coat,
    cpubone,
    deepseek_vit,
    edgenext,
    efficientformer,
    efficientformer_v2,
    efficientvim,
    efficientvit_mit,
    efficientvit_msra,
    eva,
    fastvit,
    gemma4_vit,
    hieradet_sam2,
    iformer,
    levit,
    lowformer,
    maxxvit,
    metaformer,
    mlp_mixer,
    mvitv2,
    nextvit,
    sequencer,
    shvit,
    swiftformer,
    swin_transformer_v2_cr,
    tiny_vit,
    tnt,
    visformer,
    vision_transformer,
    vision_transformer_relpos,
    vision_transformer_sam,
)
from timm.models._efficientnet_blocks import MobileAttention
from timm.models.csatv2 import TransformerBlock as CsatBlock
from torch import Tensor, nn

from probe.errors import AnatomyError
from probe.types import Grid, Layout, Side
from probe.wiring import Arrangement


def _every(_block: Any) -> bool:
    return True


@dataclass(frozen=True)
class Mixer:
    """How one class of blocks mixes tokens by something else than a convolution.

    `feed` is the module in the block that is read, `side` which side of it, `layout` that of a
    tensor of four axes there and `out` in what the block gives (three axes are NLC). `when` tells
    the blocks of that class that do mix so. `arrange` is needed where neither layout fits.
    """

    feed: str
    side: Side = "output"
    layout: Layout = "NCHW"
    out: Layout = "NCHW"
    when: Callable[[Any], bool] = _every
    arrange: Callable[[Any, Grid], Arrangement] | None = None


def _unwindowed(block: Any, grid: Grid) -> Arrangement:
    """Of windows (B * windows, side * side, C), with padding below and on the right."""
    side = int(block.window_size)
    down, across = -(-grid.rows // side), -(-grid.cols // side)

    def split(tokens: Tensor) -> Tensor:
        cut = tokens.reshape(-1, down, across, side, side, tokens.shape[-1]).transpose(2, 3)
        whole = cut.reshape(len(cut), down * side, across * side, -1)
        return whole[:, : grid.rows, : grid.cols].flatten(1, 2)

    return Arrangement(split)


def _unfolded(block: Any, grid: Grid) -> Arrangement:
    """Of MobileViT's patches, one sequence per place inside a patch: (B * places, patches, C).

    MobileViT v2 has them as (B, C, places, patches).
    """
    high, wide = block.patch_size
    down, across = grid.rows // high, grid.cols // wide
    if (down * high, across * wide) != (grid.rows, grid.cols):
        raise AnatomyError(
            f"{grid.rows} x {grid.cols} tokens do not fill patches of {high} x {wide}, and would "
            "be interpolated; choose an image size that fits"
        )

    def split(tokens: Tensor) -> Tensor:
        if tokens.ndim == 4:
            places = tokens.permute(0, 2, 3, 1)
        else:
            places = tokens.reshape(-1, high * wide, *tokens.shape[1:])
        cut = places.reshape(len(places), high, wide, down, across, -1)
        return cut.permute(0, 3, 1, 4, 2, 5).flatten(1, 4)

    return Arrangement(split)


UNFOLDED = Mixer("norm1", arrange=_unfolded)


def _attends(block: Any) -> bool:
    return isinstance(block.attn, nn.Module) and not isinstance(block.attn, nn.Identity)


def _normed(block: Any) -> bool:
    return _attends(block) and isinstance(block.attn.main, nn.Sequential)


def _attention_or_pooling(block: Any) -> bool:
    return isinstance(block.token_mixer, metaformer.Attention | metaformer.Pooling)


def _knows_offsets(block: Any) -> bool:
    return isinstance(block.self_attn, BottleneckAttn | HaloAttn)


MIXERS: Mapping[type[nn.Module], tuple[Mixer, ...]] = {
    coat.SerialBlock: (Mixer("norm1"),),
    deepseek_vit.DeepseekVitBlock: (Mixer("norm1"),),
    eva.EvaBlock: (Mixer("norm1"),),
    eva.EvaBlockPostNorm: (Mixer("", "input"),),
    gemma4_vit.Gemma4Block: (Mixer("norm1"),),
    tnt.Block: (Mixer("norm_out"),),
    vision_transformer.Block: (Mixer("norm1"),),
    vision_transformer_relpos.RelPosBlock: (Mixer("norm1"),),
    vision_transformer_relpos.ResPostRelPosBlock: (Mixer("", "input"),),
    byobnet.SelfAttnBlock: (Mixer("self_attn", "input", when=_knows_offsets),),
    cpubone.CPUBoneBlock: (Mixer("total.0.0.main.0"),),
    CsatBlock: (Mixer("pos_embed"),),
    edgenext.SplitTransposeBlock: (Mixer("norm_xca"),),
    efficientformer.MetaBlock1d: (Mixer("norm1"),),
    efficientformer.MetaBlock2d: (Mixer("token_mixer", "input"),),
    efficientformer_v2.EfficientFormerV2Block: (
        Mixer("token_mixer", "input", when=lambda block: block.token_mixer is not None),
    ),
    efficientformer_v2.Downsample: (
        Mixer("attn", "input", when=lambda block: block.attn is not None),
    ),
    efficientvim.EfficientViMBlock: (Mixer("norm"),),
    efficientvit_mit.EfficientVitBlock: (Mixer("context_module.main", "input"),),
    efficientvit_msra.EfficientVitBlock: (Mixer("mixer.m", "input"),),
    fastvit.AttentionBlock: (Mixer("norm"),),
    hieradet_sam2.MultiScaleBlock: (Mixer("norm1", layout="NHWC", out="NHWC"),),
    iformer.SHMABlock: (Mixer("mixer.module", "input"),),
    levit.LevitBlock: (Mixer("attn", "input"),),
    levit.LevitDownsample: (Mixer("attn_downsample", "input"),),
    lowformer.LowFormerBlock: (
        Mixer("attn.main.0", when=_normed),
        Mixer("attn.main", "input", when=lambda block: _attends(block) and not _normed(block)),
    ),
    maxxvit.ParallelPartitionAttention: (Mixer("norm1", layout="NHWC", out="NHWC"),),
    maxxvit.PartitionAttention2d: (Mixer("norm1"),),
    maxxvit.PartitionAttentionCl: (Mixer("norm1", layout="NHWC", out="NHWC"),),
    maxxvit.TransformerBlock2d: (Mixer("norm1"),),
    metaformer.MetaFormerBlock: (Mixer("norm1", when=_attention_or_pooling),),
    mlp_mixer.MixerBlock: (Mixer("norm1"),),
    mlp_mixer.ResBlock: (Mixer("norm1"),),
    mlp_mixer.SpatialGatingBlock: (Mixer("mlp_channels.gate.norm"),),
    MobileAttention: (Mixer("norm"),),
    mvitv2.MultiScaleBlock: (Mixer("norm1"),),
    nextvit.NextTransformerBlock: (Mixer("norm1"),),
    sequencer.Sequencer2dBlock: (Mixer("norm1", layout="NHWC", out="NHWC"),),
    shvit.BasicBlock: (
        Mixer("mixer.m.pre_norm", when=lambda block: not isinstance(block.mixer, nn.Identity)),
    ),
    swiftformer.Block: (Mixer("attn", "input"),),
    swin_transformer_v2_cr.SwinTransformerV2CrBlock: (
        Mixer("", "input", layout="NHWC", out="NHWC"),
    ),
    tiny_vit.TinyVitBlock: (Mixer("attn.norm", out="NHWC", arrange=_unwindowed),),
    vision_transformer_sam.Block: (Mixer("norm1", layout="NHWC", out="NHWC"),),
    visformer.Block: (Mixer("norm1", when=_attends),),
}


def mixer_of(block: nn.Module) -> Mixer | None:
    """How a block mixes its tokens, None for one that does so by convolutions or not at all."""
    return next((one for one in MIXERS.get(type(block), ()) if one.when(block)), None)
