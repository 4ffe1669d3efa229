"""Trunks that are read by structure: what is read where, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
import timm
import torch
from timm.models.coat import CoaT
from timm.models.convnext import ConvNeXt
from timm.models.crossvit import CrossVit
from timm.models.edgenext import EdgeNeXt
from timm.models.mvitv2 import MultiScaleVit, MultiScaleVitCfg
from timm.models.naflexvit import NaFlexVit, NaFlexVitCfg
from torch import nn

from probe.coverage.build import enlarge
from probe.errors import AnatomyError, NotApplicable
from probe.families.base import family_of
from probe.families.timm_build import blueprint
from probe.hooks import observe
from probe.interventions import permute_patches, scale_positions
from probe.types import Grid, LoadedModel
from tests.families.tiny import fresh, images_for, permutations, read, run, same
from tests.families.tiny_timm import CONVOLVED, FLAT, load_tiny

BRANCHES = {
    "img_scale": (1.0, 1.0), "patch_size": (8, 16), "embed_dim": (16, 32), "num_heads": (2, 2),
    "depth": ((1, 2, 0),), "mlp_ratio": (2.0, 2.0, 1.0), "num_classes": 7,
}  # fmt: skip
SERIAL = {
    "patch_size": 4, "embed_dims": (16, 16, 16, 16), "serial_depths": (1, 1, 1, 1),
    "num_heads": 8, "mlp_ratios": (2, 2, 2, 2), "num_classes": 7,
}  # fmt: skip
POOLING = MultiScaleVitCfg(
    depths=(1, 1), embed_dim=(16, 32), num_heads=(1, 2), use_cls_token=True, use_abs_pos=True
)


def test_members_without_such_blocks_are_claimed_by_none() -> None:
    with pytest.raises(AnatomyError, match="no family reads the architecture timm"):
        family_of(blueprint("fastvit_t8", {}), "timm")


def test_a_forced_family_that_does_not_fit() -> None:
    with pytest.raises(AnatomyError, match="reads trunks with blocks that it knows, and the model"):
        family_of(nn.Identity(), "timm", "timm_generic").anatomy(nn.Identity(), (8, 8))
    with pytest.raises(AnatomyError, match="reads ResNet and ConvNeXt, but the model is a Iden"):
        family_of(nn.Identity(), "timm", "timm_convnet").anatomy(nn.Identity(), (8, 8))


def test_blocks_that_pool_their_queries_give_a_smaller_grid() -> None:
    model = load_tiny(MultiScaleVit(POOLING, (32, 32), num_classes=7), (32, 32))
    anatomy = model.anatomy
    assert [site.grid for site in anatomy.attn_in] == [Grid(8, 8), Grid(8, 8)]
    assert [site.grid for site in anatomy.block_out] == [Grid(8, 8), Grid(4, 4)]
    assert {site.prefix for site in (*anatomy.attn_in, *anatomy.block_out)} == {1}
    table, *biases = anatomy.positions[:5]
    assert (table.kind, table.prefix, table.grid) == ("absolute", 1, Grid(8, 8))
    assert [site.where.rpartition(".")[2] for site in biases] == ["rel_pos_h", "rel_pos_w"] * 2


def test_two_branches_are_read_in_one_and_never_permuted() -> None:
    model = load_tiny(CrossVit((32, 48), **BRANCHES), (32, 48))
    anatomy = model.anatomy
    assert [site.module for site in anatomy.block_out] == [f"blocks.0.blocks.1.{i}" for i in (0, 1)]
    assert anatomy.attn_in[0].grid == Grid(2, 3)
    assert [site.where for site in anatomy.positions] == ["pos_embed_0", "pos_embed_1"]
    with (
        pytest.raises(NotApplicable, match="RPI does not apply: two branches cut the image into"),
        permute_patches(model, torch.arange(6)),
    ):
        pass


def test_serial_blocks_are_read_and_parallel_ones_refused() -> None:
    serial = load_tiny(CoaT((64, 64), **SERIAL), (64, 64))
    assert [site.grid.rows for site in serial.anatomy.attn_in] == [16, 8, 4, 2]
    parallel = CoaT((64, 64), **SERIAL, parallel_depth=1)
    with pytest.raises(AnatomyError, match="cannot be read: its parallel blocks work on several"):
        family_of(parallel, "timm").anatomy(parallel, (64, 64))


def test_a_code_of_sines_inside_a_block_is_scaled() -> None:
    module = EdgeNeXt(
        dims=(16, 16, 32, 32), depths=(1, 1, 2, 1), global_block_counts=(0, 0, 1, 0),
        heads=(2, 2, 2, 2), use_pos_emb=(False, False, True, False), num_classes=7,
        head_init_scale=1.0,
    )  # fmt: skip
    model = load_tiny(module, (64, 96))
    assert [site.kind for site in model.anatomy.positions[:1]] == ["sinusoidal"]
    assert model.anatomy.attn_in[0].grid == Grid(4, 6)
    bare = run(model)
    with scale_positions(model, 0.0):
        assert not same(bare, run(model))


def test_attention_caches_do_not_hide_alpha() -> None:
    """The bias that a model keeps from an earlier run is neither used under alpha nor replaced."""
    model = fresh("timm_levit")
    bare = run(model)
    attention = model.module.stages[0].blocks[0].attn
    (kept,) = attention.attention_bias_cache.values()
    with scale_positions(model, 0.0):
        none = run(model)
        (silent,) = attention.attention_bias_cache.values()
    assert float(silent.abs().max()) == 0
    assert not same(bare, none)
    assert attention.attention_bias_cache["cpu"] is kept
    assert same(bare, run(model))


def test_mask_units_are_rolled_back_to_the_grid() -> None:
    model = fresh("timm_hiera")
    images, (first, *_), module = images_for(model), model.anatomy.attn_in, model.module
    with torch.no_grad():
        wanted = module.blocks[0].norm1(module._pos_embed(module.patch_embed(images)))
        _, grids = module.forward_intermediates(images, output_fmt="NHWC", coarse=False)
    torch.testing.assert_close(read(model, [first], images)[first], wanted)
    outputs = read(model, model.anatomy.block_out, images)
    assert len(outputs) == len(grids) == 3
    for found, grid in zip(outputs.values(), grids, strict=True):
        torch.testing.assert_close(found, grid.flatten(1, 2))


def test_blocks_of_the_image_are_joined_to_the_grid() -> None:
    model = fresh("timm_nest")
    images, (first, *_), level = images_for(model), model.anatomy.attn_in, model.module.levels[0]
    side, table = model.module.block_size, level.pos_embed
    assert (side, table.shape[1:3]) == (4, (4, 16))
    rows = torch.zeros(8, 8, 16)
    for block in range(4):
        r, c = side * (block // 2), side * (block % 2)
        rows[r : r + side, c : c + side] = table[0, block].unflatten(0, (side, side))
    with torch.no_grad():
        patches = model.module.patch_embed(images).flatten(2).mT
        wanted = level.transformer_encoder[0].norm1(patches + rows.flatten(0, 1))
    torch.testing.assert_close(read(model, [first], images)[first], wanted)


def test_windows_are_joined_to_the_grid_without_their_padding() -> None:
    model = fresh("timm_tiny_vit")
    images, block = images_for(model), model.module.stages[1].blocks[0]
    (first, second), taken = model.anatomy.attn_in, list[torch.Tensor]()
    assert (first.grid, second.grid, block.window_size) == (Grid(4, 6), Grid(2, 3), 3)
    handle = block.register_forward_pre_hook(lambda _m, args: taken.append(args[0]))
    found = read(model, [first, second], images)
    handle.remove()
    wanted = block.attn.norm(taken[0].flatten(1, 2))
    torch.testing.assert_close(found[first], wanted)


def loaded(name: str, size: tuple[int, int], **options: Any) -> LoadedModel:
    return load_tiny(timm.create_model(name, num_classes=7, **options), size)


def test_unfolded_patches_are_in_the_order_of_the_grid() -> None:
    model = loaded("mobilevit_xxs", (128, 128))
    first = model.anatomy.attn_in[0]
    assert first.grid == Grid(16, 16)
    images = torch.randn(1, 3, 128, 128, generator=torch.Generator().manual_seed(0))
    block = first.module.removesuffix(".transformer.0.norm1")
    with torch.no_grad():
        wanted: list[torch.Tensor] = []
        handle = model.module.get_submodule(f"{block}.conv_1x1").register_forward_hook(
            lambda _m, _a, out: wanted.append(out.flatten(2).mT)
        )
        found: list[torch.Tensor] = []
        with observe(model.module, [first], lambda _site, tokens: found.append(tokens)):
            model.forward(images)
        handle.remove()
        norm = model.module.get_submodule(first.module)
        torch.testing.assert_close(found[0], norm(wanted[0]))


def test_patches_that_would_be_interpolated_are_refused() -> None:
    module = timm.create_model("mobilevit_xxs").eval()
    with pytest.raises(AnatomyError, match="7 x 7 tokens do not fill patches of 2 x 2, and would"):
        family_of(module, "timm").anatomy(module, (224, 224))


def test_stages_of_a_convolutional_network_are_its_layers() -> None:
    model = load_tiny(ConvNeXt(**CONVOLVED), (64, 96))
    assert [site.grid for site in model.anatomy.attn_in] == [
        Grid(16, 24), Grid(16, 24), Grid(8, 12), Grid(4, 6)
    ]  # fmt: skip
    assert [site.grid for site in model.anatomy.block_out] == [
        Grid(16, 24), Grid(8, 12), Grid(4, 6), Grid(2, 3)
    ]  # fmt: skip
    with (
        pytest.raises(NotApplicable, match="come from convolutional layers, which alpha does not"),
        scale_positions(model, 0.5),
    ):
        pass


def test_flat_trunks_keep_their_prefix_tokens() -> None:
    anatomy = fresh("timm_relpos").anatomy
    assert FLAT["depth"] == len(anatomy.attn_in)
    assert {site.prefix for site in anatomy.attn_in} == {0}
    assert [site.kind for site in anatomy.positions] == ["relative_bias"] * 3


FLEXIBLE = {"patch_size": 8, "embed_dim": 48, "depth": 2, "num_heads": 2, "fc_norm": True}


@pytest.mark.parametrize("kind", ["axial", "mixed", "dinov3", "mrope"])
def test_rotations_of_any_kind_are_gone_at_alpha_zero(kind: str) -> None:
    """Tokens of a plain transformer without positions move with their patches, and only then."""
    cfg = NaFlexVitCfg(
        **FLEXIBLE,
        pos_embed="none",
        rope_type=kind,
        rope_rotate_half=kind in ("dinov3", "mrope"),
        rope_mrope_section=(4, 4, 4) if kind == "mrope" else None,
    )
    model = load_tiny(NaFlexVit(cfg, num_classes=7, img_size=(32, 48)), (32, 48))
    assert [site.kind for site in model.anatomy.positions] == ["rotary"]
    enlarge(model.module)
    order = permutations(model, "run")[0]
    last = model.anatomy.block_out[-1]

    def moved(alpha: float) -> tuple[torch.Tensor, torch.Tensor]:
        with scale_positions(model, alpha):
            clean = read(model, [last])[last]
            with permute_patches(model, order):
                return clean[:, order], read(model, [last])[last]

    torch.testing.assert_close(*moved(0.0))
    clean, shuffled = moved(1.0)
    assert (clean - shuffled).abs().max() > 1e-2


def test_a_map_of_positions_is_declared_as_it_is_made() -> None:
    cfg = NaFlexVitCfg(**FLEXIBLE, pos_embed="learned", pos_embed_grid_size=(6, 5))
    model = load_tiny(NaFlexVit(cfg, num_classes=7, img_size=(32, 48)), (32, 48))
    (table,) = model.anatomy.positions
    assert (table.where, table.grid, table.layout) == ("embeds.pos_embed", Grid(6, 5), "NHWC")
