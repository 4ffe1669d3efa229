"""Where transformers models keep their tokens and positions, family by family."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers as hf
from torch import Tensor, nn

from probe.errors import AnatomyError
from probe.families.base import family_of
from probe.hooks import observe
from probe.interventions import permute_patches, scale_positions
from probe.types import Grid, LoadedModel
from tests.families import tiny_hf

MODELS = tiny_hf.tiny_models()


def images(model: LoadedModel, count: int = 2) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(count, 3, *model.anatomy.image_size, generator=generator)


def read(model: LoadedModel, batch: Tensor) -> dict[tuple[str, int], Tensor]:
    """Patch tokens of every site, by point and layer."""
    found: dict[tuple[str, int], Tensor] = {}
    sites = model.anatomy.attn_in + model.anatomy.block_out
    with (
        torch.no_grad(),
        observe(
            model.module, sites, lambda site, t: found.update({(site.point, site.layer): t.clone()})
        ),
    ):
        model.forward(batch)
    return found


@pytest.mark.parametrize("name", MODELS)
def test_every_site_gives_the_declared_grid(name: str) -> None:
    model = MODELS[name]()
    tokens = read(model, images(model))
    for site in model.anatomy.attn_in + model.anatomy.block_out:
        assert tokens[site.point, site.layer].shape[:2] == (2, site.grid.tokens)
    layers = [site.layer for site in model.anatomy.attn_in]
    assert layers == [site.layer for site in model.anatomy.block_out] == [*range(len(layers))]


FAMILIES = {
    "vit": "hf_vit", "vit_msn": "hf_vit", "vit_mae": "hf_vit", "deit": "hf_vit",
    "dinov2": "hf_dinov2", "dinov2_backbone": "hf_dinov2", "dinov2_registers": "hf_dinov2",
    "beit": "hf_beit", "swin": "hf_swin", "swin_v2": "hf_swin", "clip": "hf_clip",
    "siglip": "hf_clip",
}  # fmt: skip


@pytest.mark.parametrize(("name", "family"), FAMILIES.items())
def test_each_network_has_one_family(name: str, family: str) -> None:
    assert tiny_hf.tiny_model(name).family == family


@pytest.mark.parametrize(
    ("name", "prefix", "table_prefix"),
    [
        ("vit", 1, 1),
        ("deit", 2, 2),
        ("deit_teacher", 2, 2),
        ("vit_mae", 1, 1),
        ("dinov2", 1, 1),
        ("dinov2_registers", 4, 1),
        ("clip", 1, 1),
        ("siglip", 0, 0),
    ],
)
def test_prefix_tokens_of_sites_and_of_tables(name: str, prefix: int, table_prefix: int) -> None:
    anatomy = tiny_hf.tiny_model(name).anatomy
    assert {site.prefix for site in anatomy.attn_in + anatomy.block_out} == {prefix}
    assert [p.prefix for p in anatomy.positions] == [table_prefix]
    assert anatomy.patches.prefix == 0


def test_registers_are_left_out_of_the_patch_tokens() -> None:
    """Moving the registers moves no patch token before the first attention, and all after it."""

    def drawn(seed: int) -> dict[tuple[str, int], Tensor]:
        generator = torch.Generator().manual_seed(seed)
        model = tiny_hf.tiny_model(
            "dinov2_registers",
            change=lambda net: net.embeddings.register_tokens.normal_(generator=generator),
        )
        return read(model, images(model))

    before, after = drawn(0), drawn(1)
    assert torch.equal(before["attn_in", 0], after["attn_in", 0])
    assert not torch.equal(before["block_out", 0], after["block_out", 0])


@pytest.mark.parametrize(
    ("name", "kinds"),
    [
        ("vit", ["absolute"]),
        ("vit_mae", ["sinusoidal"]),
        ("beit", ["relative_bias"] * 2),
        ("beit_shared", ["absolute", "relative_bias"]),
        ("swin", ["relative_bias"] * 4),
        ("swin_absolute", ["absolute"] + ["relative_bias"] * 4),
        ("swin_v2", ["relative_bias"] * 4),
        ("siglip", ["absolute"]),
    ],
)
def test_kinds_of_position(name: str, kinds: list[str]) -> None:
    assert [site.kind for site in tiny_hf.tiny_model(name).anatomy.positions] == kinds


def test_alpha_is_bounded_where_the_bias_saturates() -> None:
    sites = tiny_hf.tiny_model("swin_v2").anatomy.positions
    assert {site.max_alpha for site in sites} == {1.0}


@pytest.mark.parametrize(
    ("name", "size", "grids"),
    [
        ("swin", (32, 32), [(16, 16)] * 2 + [(8, 8)] * 2),
        ("swin", (44, 36), [(22, 18)] * 2 + [(11, 9)] * 2),
        ("swin", (35, 33), [(18, 17)] * 2 + [(9, 9)] * 2),
        ("swin_v2", (35, 44), [(18, 22)] * 2 + [(9, 11)] * 2),
        ("swin_v2", (10, 14), [(5, 7)] * 2 + [(3, 4)] * 2),
    ],
)
def test_swin_grids_round_up_where_it_pads(
    name: str, size: tuple[int, int], grids: list[tuple[int, int]]
) -> None:
    model = tiny_hf.tiny_model(name, size)
    assert [site.grid for site in model.anatomy.attn_in] == [Grid(*grid) for grid in grids]
    tokens = read(model, images(model))
    assert [tokens["block_out", i].shape[1] for i in range(4)] == [r * c for r, c in grids]


def test_swin_reads_the_grid_in_order_and_not_windows() -> None:
    """The tokens before the first attention are the normed patch embedding, row by row."""
    model = tiny_hf.tiny_model("swin")
    batch = images(model)
    swin = model.module.swin
    with torch.no_grad():
        patches = swin.embeddings.patch_embeddings.projection(batch).flatten(2).transpose(1, 2)
        expected = swin.encoder.layers[0].blocks[0].layernorm_before(swin.embeddings.norm(patches))
    torch.testing.assert_close(read(model, batch)["attn_in", 0], expected)


def test_swin_v2_reads_the_input_of_a_block() -> None:
    model = tiny_hf.tiny_model("swin_v2")
    tokens = read(model, images(model))
    assert torch.equal(tokens["attn_in", 1], tokens["block_out", 0])
    assert torch.equal(tokens["attn_in", 3], tokens["block_out", 2])


def test_a_stage_smaller_than_a_window_is_refused() -> None:
    with pytest.raises(AnatomyError, match=r"at 12 x 32 pixels a stage has 3 x 8 tokens, fewer"):
        tiny_hf.tiny_model("swin", (12, 32))


@pytest.mark.parametrize(
    ("kind", "config"),
    [
        ("Dinov2Model", hf.Dinov2Config(**tiny_hf.DINO | {"image_size": [28, 14]})),
        (
            "BeitModel",
            hf.BeitConfig(
                **tiny_hf.PLAIN | {"image_size": (32, 16)}, use_relative_position_bias=True
            ),
        ),
    ],
)
def test_tables_that_the_library_would_garble_are_refused(kind: str, config: Any) -> None:
    network = tiny_hf.build(kind, config)
    size = tuple(config.image_size)
    with pytest.raises(AnatomyError, match="interpolates square position tables only"):
        family_of(network, "hf").anatomy(network, size)


def test_an_oblong_vit_runs_at_its_own_size_alone() -> None:
    network = tiny_hf.build("ViTModel", hf.ViTConfig(**tiny_hf.PLAIN | {"image_size": (32, 16)}))
    family = family_of(network, "hf")
    assert family.anatomy(network, (32, 16)).patches.grid == Grid(4, 2)
    with pytest.raises(AnatomyError, match="run the model at that image size"):
        family.anatomy(network, (32, 32))


def test_an_image_without_a_patch_is_refused() -> None:
    with pytest.raises(AnatomyError, match="4 x 32 pixels holds no patch of 8 x 8"):
        tiny_hf.tiny_model("clip", (4, 32))


def test_a_whole_clip_model_has_no_family() -> None:
    network = tiny_hf.networks()["clip"]()
    with pytest.raises(AnatomyError, match="no family reads the architecture"):
        family_of(network, "hf")


@pytest.mark.parametrize("name", ["swin_v2", "beit", "swin", "beit_48x24"])
def test_relative_bias_is_scaled_whole(name: str) -> None:
    """Attention gets alpha times the bias that the model itself computes."""
    alpha = 0.25
    size = (48, 24) if name.endswith("48x24") else None

    def liven(network: nn.Module) -> None:
        for key, parameter in network.named_parameters():
            if "relative_position_bias_table" in key:
                parameter.normal_(generator=torch.Generator().manual_seed(len(key)))

    model = tiny_hf.tiny_model(name.removesuffix("_48x24"), size, liven)
    batch, bias = images(model, 1), bias_reader(model)
    plain = bias(batch)
    with scale_positions(model, alpha):
        scaled = bias(batch)
    assert plain.abs().max() > 0.1
    torch.testing.assert_close(scaled, alpha * plain, rtol=1e-4, atol=1e-4)
    with scale_positions(model, 0.0):
        assert bias(batch).abs().max() == 0


def bias_reader(model: LoadedModel) -> Callable[[Tensor], Tensor]:
    """The bias of the first block, taken from the module that computes it."""
    names = dict(model.module.named_modules())
    mlp = model.family == "hf_swin" and "swinv2" in names
    wanted = "continuous_position_bias_mlp" if mlp else "relative_position_bias"
    source = next(module for name, module in names.items() if name.endswith(wanted))

    def run(batch: Tensor) -> Tensor:
        taken: list[Tensor] = []
        handle = source.register_forward_hook(lambda _m, _a, output: taken.append(output))
        try:
            with torch.no_grad():
                model.forward(batch)
        finally:
            handle.remove()
        return 16 * torch.sigmoid(taken[0]) if mlp else taken[0]

    return run


def test_masked_autoencoder_keeps_every_patch_in_order() -> None:
    """Under RPI its tokens move as the permutation says, and nothing random is left."""
    model = tiny_hf.tiny_model(
        "vit_mae", change=lambda net: net.vit.embeddings.position_embeddings.zero_()
    )
    batch = images(model)
    order = torch.randperm(16, generator=torch.Generator().manual_seed(2))
    plain = read(model, batch)["attn_in", 0]
    with permute_patches(model, order):
        moved = read(model, batch)["attn_in", 0]
    assert torch.equal(moved, plain[:, order])
    assert torch.equal(read(model, batch)["attn_in", 0], plain)


def test_group_tokens_are_refused_by_name() -> None:
    entry = tiny_hf.LISTED["groupvit"]
    network = tiny_hf.build(entry["name"], hf.GroupViTVisionConfig(**entry["options"]))
    family = family_of(network, "hf")
    with pytest.raises(AnatomyError, match="GroupViT gathers its patch tokens into groups"):
        family.anatomy(network, (64, 64))
