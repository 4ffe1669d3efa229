"""What each timm family declares: sites, prefix tokens, heads, and what it refuses to read."""

from __future__ import annotations

from typing import Any

import pytest
import timm
import torch
from timm.models.convit import ConVit
from timm.models.eva import Eva
from timm.models.gcvit import GlobalContextVit
from timm.models.pit import PoolingVisionTransformer
from timm.models.swin_transformer import SwinTransformer
from timm.models.twins import Twins
from timm.models.vision_transformer import (
    DiffParallelScalingBlock,
    ParallelThingsBlock,
    VisionTransformer,
)
from timm.models.volo import VOLO
from torch import nn

from probe.errors import AnatomyError
from probe.families.base import families, family_of
from probe.families.timm_build import blueprint
from probe.families.timm_loader import load_timm
from probe.families.timm_trunk import patch_site
from probe.hooks import observe
from probe.types import Grid, ModelSpec
from tests.families.tiny import fresh
from tests.families.tiny_timm import FLAT, GLOBAL, OUTLOOK, POOLED, PYRAMID, STAGED, load_tiny


def images(size: tuple[int, int] = (32, 32)) -> torch.Tensor:
    return torch.randn(2, 3, *size, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    ("name", "prefix", "table", "class_index"),
    [
        ("timm_vit", 1, 1, 0),
        ("timm_vit_distilled", 2, 2, 0),
        ("timm_vit_deit3", 1, 0, 0),
        ("timm_vit_registers", 5, 0, 0),
        ("timm_vit_registers_embedded", 4, 4, 0),
        ("timm_vit_registers_gap", 4, 0, None),
        ("timm_vit_no_class", 0, 0, None),
        ("timm_vit_siglip", 0, 0, None),
        ("timm_eva_02", 1, 1, 0),
        ("timm_eva_rope_mixed_ape", 1, 0, 0),
        ("timm_eva_rope_registers", 1, None, None),
        ("timm_eva_dinov3", 5, None, 0),
        ("timm_beit_both", 1, 1, 0),
        ("timm_swin", 0, None, None),
        ("timm_pvt_v2", 0, None, None),
        ("timm_twins_svt", 0, None, None),
    ],
)
def test_prefix_tokens_are_counted(
    name: str, prefix: int, table: int | None, class_index: int | None
) -> None:
    anatomy = fresh(name).anatomy
    assert {site.prefix for site in anatomy.attn_in + anatomy.block_out} == {prefix}
    assert anatomy.patches.prefix == 0
    tables = [p.prefix for p in anatomy.positions if p.where == "pos_embed"]
    assert tables == ([] if table is None else [table])
    assert anatomy.features is not None
    assert anatomy.features.class_index == class_index


@pytest.mark.parametrize(
    ("name", "kinds"),
    [
        ("timm_vit", ["absolute"]),
        ("timm_vit_sincos", ["sinusoidal"]),
        ("timm_vit_no_pe", []),
        ("timm_eva_02", ["absolute", "rotary"]),
        ("timm_eva_rope", ["rotary"]),
        ("timm_eva_rope_mixed", ["rotary"]),
        ("timm_eva_rope_mixed_ape", ["absolute", "rotary"]),
        ("timm_eva_dinov3", ["rotary"]),
        ("timm_beit", ["relative_bias"] * 3),
        ("timm_beit_shared", ["relative_bias"]),
        ("timm_beit_both", ["absolute", *["relative_bias"] * 3]),
        ("timm_swin", ["relative_bias"] * 4),
        ("timm_swin_v2", ["relative_bias"] * 4),
        ("timm_cait", ["absolute"]),
        ("timm_xcit", ["sinusoidal", *["convolutional"] * 3]),
        ("timm_xcit_no_pe", ["convolutional"] * 3),
        ("timm_pit", ["absolute"]),
        ("timm_convit", ["absolute", "gated", "gated"]),
        ("timm_convit_no_pe", ["gated"]),
        ("timm_pvt_v2", ["convolutional"] * 4),
        ("timm_twins_pcpvt", ["convolutional"] * 2),
        ("timm_focalnet", ["convolutional"] * 4),
        ("timm_davit", ["convolutional"] * 8),
        ("timm_gcvit", ["convolutional", "relative_bias", "relative_bias"] * 2),
        ("timm_volo", ["convolutional", "convolutional", "absolute"]),
    ],
)
def test_position_kinds(name: str, kinds: list[str]) -> None:
    positions = fresh(name).anatomy.positions
    assert [p.kind for p in positions] == kinds
    assert {p.max_alpha for p in positions} <= ({1.0} if name == "timm_swin_v2" else {2.0})


@pytest.mark.parametrize(
    ("name", "module", "side"),
    [
        ("timm_vit", "blocks.1.norm1", "output"),
        ("timm_vit_parallel", "blocks.1.in_norm", "output"),
        ("timm_vit_post_norm", "blocks.1", "input"),
        ("timm_eva_02", "blocks.1.norm1", "output"),
        ("timm_eva_post_norm", "blocks.1", "input"),
        ("timm_beit", "blocks.1.norm1", "output"),
        ("timm_swin", "layers.0.blocks.1.norm1", "output"),
        ("timm_swin_v2", "layers.0.blocks.1", "input"),
    ],
)
def test_attention_input_is_the_norm_or_the_block_input(name: str, module: str, side: str) -> None:
    site = fresh(name).anatomy.attn_in[1]
    assert (site.module, site.side) == (module, side)


@pytest.mark.parametrize("name", ["timm_vit", "timm_eva_post_norm", "timm_vit_post_norm"])
def test_attention_gets_the_declared_tokens(name: str) -> None:
    """What attention really takes, read at the attention module itself."""
    model = fresh(name)
    site, seen = model.anatomy.attn_in[1], {}
    block = model.module.blocks[1]
    block.attn.register_forward_pre_hook(lambda _m, args: seen.update(taken=args[0]))
    part = model.module.get_submodule(site.module)
    if site.side == "output":
        part.register_forward_hook(lambda _m, _a, out: seen.update(declared=out))
    else:
        part.register_forward_pre_hook(lambda _m, args: seen.update(declared=args[0]))
    model.forward(images())
    assert torch.equal(seen["taken"], seen["declared"])


@pytest.mark.parametrize(
    ("name", "prefixes", "last", "class_index"),
    [
        ("timm_cait", [0, 0, 0], 1, 0),
        ("timm_xcit", [0, 0, 0], 1, 0),
        ("timm_pit", [1, 1, 1, 1], 1, 0),
        ("timm_pit_distilled", [2, 2, 2, 2], 2, 0),
        ("timm_convit", [0, 0, 1], 1, 0),
        ("timm_convit_no_pe", [0, 1, 1], 1, 0),
        ("timm_volo", [0, 0, 0, 0], 1, 0),
    ],
)
def test_class_tokens_that_join_late(
    name: str, prefixes: list[int], last: int, class_index: int
) -> None:
    anatomy = fresh(name).anatomy
    assert [site.prefix for site in anatomy.attn_in] == prefixes
    assert [site.prefix for site in anatomy.block_out] == prefixes
    assert {p.prefix for p in anatomy.positions} == {0}
    assert anatomy.features is not None
    assert (anatomy.features.prefix, anatomy.features.class_index) == (last, class_index)


@pytest.mark.parametrize(
    ("name", "grids"),
    [
        ("timm_xcit", [Grid(4, 6)] * 3),
        ("timm_pit", [Grid(7, 11)] * 2 + [Grid(4, 6)] * 2),
        ("timm_pvt_v2_odd", [Grid(9, 13)] * 2 + [Grid(5, 7)] * 2),
        ("timm_twins_pcpvt", [Grid(8, 12)] * 2 + [Grid(4, 6)] * 2),
        ("timm_focalnet_post_norm", [Grid(8, 8)] * 2 + [Grid(4, 4)] * 2),
        ("timm_davit_odd", [Grid(9, 13)] * 2 + [Grid(5, 7)] * 2),
        ("timm_davit_padded", [Grid(9, 13)] * 2 + [Grid(5, 7)] * 2),
        ("timm_gcvit", [Grid(8, 8)] * 2 + [Grid(4, 4)] * 2),
        ("timm_volo", [Grid(8, 12)] * 2 + [Grid(4, 6)] * 2),
    ],
)
def test_grids_follow_from_the_convolutions(name: str, grids: list[Grid]) -> None:
    anatomy = fresh(name).anatomy
    assert [site.grid for site in anatomy.block_out] == grids
    overlaps = {
        "timm_pit": 1, "timm_pvt_v2_odd": 1, "timm_twins_pcpvt": 0, "timm_focalnet_post_norm": 1,
        "timm_davit_odd": 1, "timm_davit_padded": 0, "timm_gcvit": 1, "timm_volo": 0,
    }  # fmt: skip
    assert [m.overlap for m in anatomy.merges] == ([overlaps[name]] if name in overlaps else [])


def test_swin_layers_are_counted_across_stages() -> None:
    anatomy = fresh("timm_swin_padded").anatomy
    assert [s.layer for s in anatomy.block_out] == [0, 1, 2, 3]
    assert [s.grid for s in anatomy.block_out] == [Grid(10, 12)] * 2 + [Grid(5, 6)] * 2
    assert [s.module for s in anatomy.block_out][1:3] == ["layers.0.blocks.1", "layers.1.blocks.0"]
    assert anatomy.features is not None
    assert (anatomy.features.grid, anatomy.features.layout) == (Grid(5, 6), "NHWC")


def test_dynamic_models_declare_the_size_they_are_run_at() -> None:
    model = load_tiny(VisionTransformer(32, **FLAT, dynamic_img_size=True), (48, 64))
    assert model.anatomy.patches.grid == Grid(6, 8)
    assert model.anatomy.positions[0].prefix == 1  # of the table, which is for 4 x 4
    assert model.forward(images((48, 64))).shape == (2, 7)


# What is refused


@pytest.mark.parametrize(
    ("module", "size", "text"),
    [
        (
            VisionTransformer(32, **FLAT, block_fn=ParallelThingsBlock),
            (32, 32),
            "a ParallelThingsBlock runs several attentions, each with its own norm",
        ),
        (
            VisionTransformer(32, **FLAT),
            (32, 48),
            "takes images of 32 x 32 px, not 32 x 48; load it with that image size",
        ),
        (
            VisionTransformer(32, **FLAT, dynamic_img_size=True),
            (7, 32),
            "an image of 7 x 32 px holds no patch",
        ),
        (
            PoolingVisionTransformer(32, **POOLED),
            (32, 48),
            "takes images of 32 x 32 px, not 32 x 48; load it with that image size",
        ),
        (
            ConVit((32, 48), **FLAT | {"embed_dim": 16}),
            (32, 48),
            "offsets on a square grid, and 32 x 48 px give 4 x 6 tokens; use a square image size",
        ),
        (
            GlobalContextVit(img_size=32, **GLOBAL),
            (64, 64),
            "stage 0 is made for 8 x 8 tokens, and 64 x 64 px give 16 x 16; load the model",
        ),
        (
            VOLO(img_size=32, **OUTLOOK),
            (32, 48),
            "made for 4 x 4 tokens, and 32 x 48 px give 4 x 6; load the model with that image",
        ),
        (
            Twins((32, 32), **PYRAMID),
            (3, 32),
            "an image of 3 x 32 px holds no patch",
        ),
    ],
)
def test_unreadable_members_are_refused(module: nn.Module, size: Any, text: str) -> None:
    with pytest.raises(AnatomyError) as caught:
        family_of(module, "timm").anatomy(module, size)
    assert text in str(caught.value)


def test_hybrid_stems_give_the_tokens_of_their_last_grid() -> None:
    module = timm.create_model("vit_tiny_r_s16_p8_224", depth=2)
    anatomy = family_of(module, "timm").anatomy(module, (224, 224))
    assert anatomy.patches.grid == Grid(7, 7)
    assert {site.grid for site in anatomy.attn_in} == {Grid(7, 7)}


def test_other_stems_are_refused() -> None:
    module = VisionTransformer(32, **FLAT)
    module.patch_embed = nn.Conv2d(3, 32, 8, 8)
    with pytest.raises(AnatomyError, match="patches come from Conv2d, which is neither a patch"):
        family_of(module, "timm").anatomy(module, (32, 32))


def test_a_table_that_fits_neither_way_is_refused() -> None:
    module = VisionTransformer(32, **FLAT, reg_tokens=4)
    module.pos_embed = nn.Parameter(torch.zeros(1, 17, 32))
    with pytest.raises(
        AnatomyError, match="'pos_embed' has 17 rows for 16 patch tokens and 5 pref"
    ):
        family_of(module, "timm").anatomy(module, (32, 32))


def test_unknown_rotations_are_refused() -> None:
    module = Eva(32, **FLAT, use_rot_pos_emb=True)
    module.rope = nn.Identity()
    with pytest.raises(AnatomyError, match="rotary positions come from Identity, whose angles"):
        family_of(module, "timm").anatomy(module, (32, 32))


@pytest.mark.parametrize("name", ["timm_eva", "timm_beit", "timm_swin", "timm_swin_v2"])
def test_a_forced_family_that_does_not_fit_says_so(name: str) -> None:
    module = VisionTransformer(32, **FLAT)
    with pytest.raises(
        AnatomyError, match="but the model is a VisionTransformer; leave the family"
    ):
        family_of(module, "timm", forced=name).anatomy(module, (32, 32))


@pytest.mark.parametrize("name", ["vgg11", "regnety_002", "convformer_s18"])
def test_other_architectures_are_claimed_by_no_family(name: str) -> None:
    with pytest.raises(AnatomyError, match="no family reads the architecture timm"):
        family_of(blueprint(name, {}), "timm")


def test_differential_parallel_blocks_can_be_read() -> None:
    options = FLAT | {"block_fn": DiffParallelScalingBlock}
    model = load_tiny(VisionTransformer(32, **options), (32, 32))
    assert model.anatomy.attn_in[0].module == "blocks.0.in_norm"


def test_layouts_of_the_patch_embedding() -> None:
    assert patch_site(VisionTransformer(32, **FLAT), (32, 32)).layout == "NLC"
    dynamic = VisionTransformer(32, **FLAT, dynamic_img_size=True)
    assert patch_site(dynamic, (32, 32)).layout == "NHWC"
    assert patch_site(SwinTransformer(32, **STAGED), (32, 32)).layout == "NHWC"


def test_families_of_timm() -> None:
    names = {name for name, family in families().items() if family.library == "timm"}
    assert names >= {"timm_vit", "timm_eva", "timm_beit", "timm_swin", "timm_swin_v2"}


@pytest.mark.parametrize(
    "name",
    [
        "vit_medium_patch16_rope_reg1_gap_256", "vit_small_patch16_rope_ape_224",
        "vit_small_patch16_rope_mixed_224", "vit_small_patch14_reg4_dinov2",
        "beit3_base_patch16_224", "deit3_small_patch16_224", "aimv2_large_patch14_224",
        "vit_so400m_patch14_siglip_384", "eva02_tiny_patch14_224",
    ],
)  # fmt: skip
def test_registered_architectures_give_the_declared_tokens(name: str) -> None:
    options = {"depth": 2, "embed_dim": 48, "num_heads": 3}
    module = timm.create_model(name, **options).eval()
    size = tuple(module.pretrained_cfg["input_size"][-2:])
    model = load_tiny(module, size, name)
    seen: list[tuple[int, ...]] = []
    with (
        torch.no_grad(),
        observe(module, model.anatomy.attn_in, lambda _site, t: seen.append(tuple(t.shape))),
    ):
        module(images(size))
    patch = module.patch_embed.patch_size[0]
    assert seen == [(2, (size[0] // patch) * (size[1] // patch), 48)] * 2


@pytest.mark.parametrize(
    ("name", "options", "size"),
    [
        ("cait_xxs24_224", {"depth": 2, "embed_dim": 48}, (224, 224)),
        ("xcit_nano_12_p16_224", {"depth": 2}, (224, 224)),
        ("xcit_nano_12_p8_224", {"depth": 2}, (224, 224)),
        ("xcit_nano_12_p16_224", {"depth": 2}, (160, 96)),
        ("pit_ti_224", {}, (224, 224)),
        ("pit_ti_distilled_224", {}, (136, 200)),
        ("convit_tiny", {"depth": 2, "local_up_to_layer": 1}, (224, 224)),
        ("pvt_v2_b0", {}, (224, 224)),
        ("pvt_v2_b0", {}, (200, 136)),
        ("pvt_v2_b2_li", {"depths": (1, 1, 1, 1)}, (224, 224)),
        ("twins_pcpvt_small", {"depths": (1, 1, 1, 1)}, (224, 224)),
        ("twins_svt_small", {"depths": (2, 2, 2, 2)}, (96, 160)),
        ("focalnet_tiny_srf", {}, (224, 160)),
        ("davit_tiny", {"depths": (1, 1, 1, 1)}, (224, 160)),
        ("gcvit_xxtiny", {}, (224, 224)),
        ("volo_d1_224", {}, (224, 224)),
    ],
)
def test_registered_architectures_load_at_their_sizes(
    name: str, options: dict[str, Any], size: tuple[int, int]
) -> None:
    """Through the loader, whose sizes and options must suit stems of every kind."""
    raw = load_timm(
        ModelSpec("tiny", f"timm:{name}", options=options),
        image_size=size,
        random_init=True,
        seed=0,
    )
    assert raw.image_size == size
    anatomy = family_of(raw.module, "timm").anatomy(raw.module, size)
    seen: list[tuple[int, int]] = []
    with (
        torch.no_grad(),
        observe(
            raw.module, anatomy.block_out, lambda site, t: seen.append((site.layer, t.shape[1]))
        ),
    ):
        assert raw.forward(images(size)).shape == (2, 1000)
    assert seen == [(site.layer, site.grid.tokens) for site in anatomy.block_out]
