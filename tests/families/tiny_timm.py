"""Tiny random-weight models of every timm family, in all shapes that differ in anatomy."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from timm.layers import build_sincos2d_pos_embed
from timm.models.beit import Beit
from timm.models.cait import Cait
from timm.models.convit import ConVit
from timm.models.convnext import ConvNeXt
from timm.models.davit import DaVit
from timm.models.deit import VisionTransformerDistilled
from timm.models.eva import Eva
from timm.models.focalnet import FocalNet
from timm.models.gcvit import GlobalContextVit
from timm.models.hiera import Hiera
from timm.models.levit import Levit
from timm.models.mlp_mixer import MlpMixer
from timm.models.nest import Nest
from timm.models.pit import PoolingVisionTransformer
from timm.models.pvt_v2 import PyramidVisionTransformerV2
from timm.models.resnet import BasicBlock, ResNet
from timm.models.swin_transformer import SwinTransformer
from timm.models.swin_transformer_v2 import SwinTransformerV2
from timm.models.swin_transformer_v2_cr import SwinTransformerV2Cr
from timm.models.tiny_vit import TinyVit
from timm.models.tnt import TNT
from timm.models.twins import Twins
from timm.models.vision_transformer import ParallelScalingBlock, ResPostBlock, VisionTransformer
from timm.models.vision_transformer_relpos import VisionTransformerRelPos
from timm.models.volo import VOLO
from timm.models.xcit import Xcit
from torch import nn

from probe.coverage.redraw import redraw
from probe.families.base import family_of
from probe.types import Identity, LoadedModel, ModelSpec

FLAT = {"patch_size": 8, "embed_dim": 32, "depth": 3, "num_heads": 2, "num_classes": 7}
ROTARY = {"use_rot_pos_emb": True, "use_abs_pos_emb": False}
DINOV3 = ROTARY | {
    "rope_type": "dinov3", "rope_temperature": 100.0, "rope_rotate_half": True,
    "num_reg_tokens": 4, "no_embed_class": True, "init_values": 1e-5, "use_fc_norm": False,
}  # fmt: skip
STAGED = {
    "patch_size": 4, "embed_dim": 16, "depths": (2, 2), "num_heads": (2, 4), "window_size": 4,
    "num_classes": 7, "drop_path_rate": 0.0,
}  # fmt: skip
STAGED_V2 = STAGED | {"pretrained_window_sizes": (0, 0)}
POOLED = {
    "patch_size": 8, "stride": 4, "base_dims": (8, 8), "depth": (2, 2), "heads": (2, 4),
    "num_classes": 7,
}  # fmt: skip
PYRAMID = {
    "embed_dims": (16, 32), "depths": (2, 2), "num_heads": (2, 4), "sr_ratios": (2, 1),
    "mlp_ratios": (2, 2), "num_classes": 7,
}  # fmt: skip
FOCAL = {"embed_dim": 16, "depths": (2, 2), "num_classes": 7, "drop_path_rate": 0.0}
DUAL = {
    "embed_dims": (16, 32), "depths": (1, 1), "num_heads": (2, 4), "window_size": 4,
    "num_classes": 7,
}  # fmt: skip
GLOBAL = {
    "embed_dim": 16, "depths": (2, 2), "num_heads": (2, 4), "window_size": (4, 4), "num_classes": 7,
}  # fmt: skip
LEVIT = {
    "embed_dim": (32, 64), "key_dim": 8, "depth": (1, 1), "num_heads": (2, 4), "num_classes": 7,
}  # fmt: skip
PADDED = {
    "embed_dims": (8, 16, 32), "depths": (1, 1, 1), "num_heads": (1, 2, 2),
    "window_sizes": (2, 3, 2), "num_classes": 7,
}  # fmt: skip
PIXELS = {
    "patch_size": 16, "embed_dim": 16, "inner_dim": 8, "depth": 2, "num_heads_inner": 2,
    "num_heads_outer": 2, "num_classes": 7,
}  # fmt: skip
UNITS = {
    "embed_dim": 16, "stages": (1, 1, 1), "q_pool": 2, "mask_unit_size": (4, 4),
    "mask_unit_attn": (True, False, False), "num_classes": 7, "head_init_scale": 1.0,
}  # fmt: skip
NESTED = {
    "patch_size": 4, "num_levels": 2, "embed_dims": (16, 32), "num_heads": (2, 4),
    "depths": (1, 1), "num_classes": 7,
}  # fmt: skip
CONVOLVED = {"depths": (1, 1, 1, 1), "dims": (8, 16, 16, 16), "num_classes": 7}
OUTLOOK = {
    "layers": [2, 2], "embed_dims": [16, 32], "num_heads": [2, 4], "patch_size": 4,
    "stem_hidden_dim": 8, "downsamples": (True, False), "outlook_attention": (True, False),
    "num_classes": 7,
}  # fmt: skip


def load_tiny(module: nn.Module, image_size: tuple[int, int], name: str = "tiny") -> LoadedModel:
    """A module with redrawn weights, declared by the family that claims it."""
    redraw(module).eval().requires_grad_(False)
    family = family_of(module, "timm")
    predict = family.predict(module)
    return LoadedModel(
        spec=ModelSpec(name, f"timm:{name}"),
        identity=Identity(f"timm:{name}", None, "random:0"),
        family=family.name,
        module=module,
        anatomy=family.anatomy(module, image_size),
        preprocess=None,
        forward=module,
        predict=predict,
        classes=None if predict is None else 7,
    )


def sincos_vit(img_size: tuple[int, int], **options: Any) -> nn.Module:
    """A ViT whose table is fixed sin-cos with a zero class row, as MAE makes it."""
    module = VisionTransformer(img_size, **FLAT, **options)
    grid = list(module.patch_embed.grid_size)
    with torch.no_grad():
        module.pos_embed.zero_()
        module.pos_embed[:, 1:] = build_sincos2d_pos_embed(grid, 32, interleave_sin_cos=True)
    return module


def convit(img_size: tuple[int, int], **options: Any) -> nn.Module:
    """A ConViT that has run once, in which it makes and keeps the offsets of its tokens."""
    module = ConVit(img_size, **FLAT | {"embed_dim": 8, "num_heads": 4}, **options).eval()
    with torch.no_grad():
        module(torch.zeros(1, 3, *img_size))
    return module


def any_size(build: Callable[..., nn.Module], **options: Any) -> Callable[..., nn.Module]:
    """The builder of a model that is made without an image size."""
    return lambda img_size: build(**options)


def tiny_models() -> dict[str, Callable[[], LoadedModel]]:
    """Every tiny model by name; calling the value builds it anew, the same each time."""
    square, wide = (32, 32), (32, 48)
    vit = partial(VisionTransformer, **FLAT)
    # timm starts these heads a thousand times smaller, which would hide small effects.
    eva = partial(Eva, **FLAT, head_init_scale=1.0)
    beit = partial(Beit, **FLAT, init_values=1e-5, head_init_scale=1.0)
    swin, swin2 = partial(SwinTransformer, **STAGED), partial(SwinTransformerV2, **STAGED_V2)
    made: dict[str, tuple[Callable[..., nn.Module], tuple[int, int]]] = {
        "vit": (vit, square),
        "vit_wide": (vit, wide),
        "vit_distilled": (partial(VisionTransformerDistilled, **FLAT), wide),
        "vit_deit3": (partial(vit, no_embed_class=True, init_values=1e-6), square),
        "vit_registers": (partial(vit, reg_tokens=4, no_embed_class=True), wide),
        "vit_registers_embedded": (partial(vit, reg_tokens=3), square),
        "vit_registers_gap": (
            partial(vit, class_token=False, global_pool="avg", reg_tokens=4, no_embed_class=True),
            square,
        ),
        "vit_no_class": (partial(vit, class_token=False, global_pool="avg"), wide),
        "vit_siglip": (partial(vit, class_token=False, global_pool="map"), square),
        "vit_clip": (partial(vit, pre_norm=True), square),
        "vit_features": (partial(vit, num_classes=0), square),
        "vit_dynamic": (partial(vit, dynamic_img_size=True), wide),
        "vit_sincos": (sincos_vit, wide),
        "vit_post_norm": (partial(vit, block_fn=ResPostBlock), square),
        "vit_parallel": (partial(vit, block_fn=ParallelScalingBlock), square),
        "vit_no_pe": (partial(vit, pos_embed="none"), wide),
        "vit_no_pe_no_class": (
            partial(vit, pos_embed="none", class_token=False, global_pool="avg"),
            square,
        ),
        "eva_absolute": (eva, square),
        "eva_no_pe": (partial(eva, use_abs_pos_emb=False), square),
        "eva_02": (
            partial(
                eva, use_rot_pos_emb=True, swiglu_mlp=True, scale_mlp=True, ref_feat_shape=(4, 4)
            ),
            wide,
        ),
        "eva_rope": (partial(eva, **ROTARY), square),
        "eva_rope_registers": (
            partial(eva, **ROTARY, num_reg_tokens=1, class_token=False, rope_grid_indexing="xy"),
            wide,
        ),
        "eva_rope_dynamic": (partial(eva, **ROTARY, dynamic_img_size=True), wide),
        "eva_rope_mixed": (partial(eva, **ROTARY, rope_type="mixed"), wide),
        "eva_rope_mixed_ape": (
            partial(eva, use_rot_pos_emb=True, rope_type="mixed", no_embed_class=True),
            square,
        ),
        "eva_mrope": (
            partial(eva, **ROTARY, rope_type="mrope", rope_mrope_section=(2, 3, 3)),
            wide,
        ),
        "eva_dinov3": (partial(eva, **DINOV3), wide),
        "eva_dinov3_dynamic": (partial(eva, **DINOV3, dynamic_img_size=True), wide),
        "eva_post_norm": (partial(eva, use_post_norm=True), square),
        "beit": (partial(beit, use_abs_pos_emb=False, use_rel_pos_bias=True), wide),
        "beit_shared": (partial(beit, use_abs_pos_emb=False, use_shared_rel_pos_bias=True), square),
        "beit_both": (partial(beit, use_rel_pos_bias=True), square),
        "swin": (swin, square),
        "swin_padded": (swin, (40, 48)),
        "swin_v2": (swin2, square),
        "swin_v2_wide": (swin2, wide),
        "cait": (partial(Cait, **FLAT, depth_token_only=2), wide),
        "cait_gap": (partial(Cait, **FLAT, global_pool="avg"), square),
        "xcit": (partial(Xcit, **FLAT, cls_attn_layers=2), wide),
        "xcit_no_pe": (partial(Xcit, **FLAT, use_pos_embed=False, tokens_norm=True), square),
        "pit": (partial(PoolingVisionTransformer, **POOLED), wide),
        "pit_distilled": (partial(PoolingVisionTransformer, **POOLED, distilled=True), square),
        "convit": (partial(convit, local_up_to_layer=2), square),
        "convit_no_pe": (partial(convit, local_up_to_layer=1, use_pos_embed=False), square),
        "pvt_v2": (any_size(PyramidVisionTransformerV2, **PYRAMID), wide),
        "pvt_v2_odd": (any_size(PyramidVisionTransformerV2, **PYRAMID), (36, 52)),
        "pvt_v2_linear": (any_size(PyramidVisionTransformerV2, **PYRAMID, linear=True), square),
        "twins_pcpvt": (partial(Twins, **PYRAMID), wide),
        "twins_svt": (partial(Twins, **PYRAMID, wss=(4, 4)), square),
        "focalnet": (any_size(FocalNet, **FOCAL), wide),
        "focalnet_post_norm": (
            any_size(
                FocalNet, **FOCAL, use_post_norm=True, use_overlap_down=True, layerscale_value=1e-4
            ),
            square,
        ),
        "davit": (any_size(DaVit, **DUAL), wide),
        "davit_odd": (any_size(DaVit, **DUAL, down_kernel_size=3, named_blocks=True), (36, 52)),
        "davit_padded": (any_size(DaVit, **DUAL, channel_attn_v2=True), (36, 52)),
        "gcvit": (partial(GlobalContextVit, **GLOBAL), square),
        "volo": (partial(VOLO, **OUTLOOK), wide),
        "levit": (partial(Levit, **LEVIT), (64, 96)),
        "tiny_vit": (any_size(TinyVit, **PADDED), wide),
        "mixer": (partial(MlpMixer, patch_size=8, num_blocks=2, embed_dim=16, num_classes=7), wide),
        "tnt": (partial(TNT, **PIXELS), wide),
        "relpos": (partial(VisionTransformerRelPos, **FLAT), wide),
        "relpos_shared": (
            partial(VisionTransformerRelPos, **FLAT, rel_pos_type="bias", shared_rel_pos=True),
            square,
        ),
        "hiera": (partial(Hiera, **UNITS), wide),
        "nest": (partial(Nest, **NESTED), square),
        "swin_cr": (partial(SwinTransformerV2Cr, **STAGED), square),
        "resnet": (
            any_size(ResNet, block=BasicBlock, layers=(1, 1, 1, 1), num_classes=7),
            (64, 64),
        ),
        "convnext": (any_size(ConvNeXt, **CONVOLVED), (64, 96)),
    }
    return {
        f"timm_{name}": partial(_make, f"timm_{name}", build, size)
        for name, (build, size) in made.items()
    }


def _make(name: str, build: Callable[..., nn.Module], image_size: tuple[int, int]) -> LoadedModel:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        return load_tiny(build(img_size=image_size), image_size, name)
