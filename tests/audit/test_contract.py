"""The position contract against the tables and biases as the models use them."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.stats import spearmanr

from probe.audit.contract import CONSTANT, FLAT, position_contract, table_ssdc, window_offsets
from probe.errors import AnatomyError
from probe.hooks import submodule
from probe.numerics.association import spearman
from probe.types import Grid, LoadedModel, PositionSite
from tests.families.tiny import MAKERS, fresh, images_for


def distances(grid: Grid) -> NDArray[np.int64]:
    places = [(r, c) for r in range(grid.rows) for c in range(grid.cols)]
    return np.array([[abs(a - c) + abs(b - d) for c, d in places] for a, b in places])


def rank_correlation(similarity: NDArray[np.float64], grid: Grid) -> float:
    """Over ordered pairs of different tokens, by SciPy."""
    apart = distances(grid)
    pairs = apart > 0
    return float(spearmanr(similarity[pairs], -apart[pairs]).statistic)


@pytest.mark.parametrize("name", list(MAKERS))
def test_every_signal_of_every_family_has_its_entry(name: str) -> None:
    model = fresh(name)
    found = position_contract(model, images_for(model))
    json.dumps(found, allow_nan=False)
    sites = model.anatomy.positions
    assert [(one["kind"], one["where"]) for one in found] == [(s.kind, s.where) for s in sites]
    for one, site in zip(found, sites, strict=True):
        assert len(site.resampling) > 20
        assert one["resampling"] == site.resampling
        assert (one["level"], len(one["assumes"]) > 20) == ("exact algebra", True)
        assert one["token_norm"]["images"] == len(images_for(model))
        unlike = site.grid is None  # rows in some other order than that of a grid or window
        no_table = unlike or site.kind == "rotary"
        if site.kind in ("rotary", "convolutional", "gated", "mixing"):
            assert unlike
        assert (one["rotary"] is not None) is (site.kind == "rotary")
        assert (one["bias"] is not None) is (site.kind == "relative_bias" and not unlike)
        added = site.kind in ("absolute", "sinusoidal") and not unlike
        for number in ("norm", "ratio"):
            assert (one[number]["value"] is not None) is added
            assert (one[number]["reason"] is None) is added
        assert (one["table_ssdc"]["value"] is None) is no_table


def test_a_model_without_position_has_no_entry() -> None:
    model = fresh("timm_vit_no_pe")
    assert position_contract(model, images_for(model)) == []


@pytest.mark.parametrize(
    ("name", "prefix", "rows"),
    [
        ("timm_vit_wide", 1, 24),
        ("timm_vit_distilled", 2, 24),
        ("timm_vit_registers", 0, 24),
        ("timm_vit_registers_embedded", 4, 16),
        ("hf_deit", 2, 16),
        ("hf_siglip_24x48", 0, 16),
        ("hf_clip_40x24", 1, 16),
    ],
)
def test_a_table_and_its_prefix_rows(name: str, prefix: int, rows: int) -> None:
    model = fresh(name)
    (one,) = position_contract(model, images_for(model))
    owner, _, key = one["where"].rpartition(".")
    table = getattr(submodule(model.module, owner), key).detach().double().reshape(-1, 32)
    assert (one["prefix_rows"], one["prefix"]) == (prefix, prefix > 0)
    assert one["shape"][-2:] == [prefix + rows, 32]
    own = Grid(*one["grid"])
    assert own.tokens == rows == len(table) - prefix
    patches = table[prefix:].numpy()
    assert one["norm"]["value"] == pytest.approx(np.linalg.norm(patches, axis=1).mean())
    unit = patches / np.linalg.norm(patches, axis=1, keepdims=True)
    expected = rank_correlation(unit @ unit.T, own)
    assert one["table_ssdc"] == {"value": pytest.approx(expected, abs=1e-9), "reason": None}
    assert one["ratio"]["value"] == pytest.approx(one["norm"]["value"] / one["token_norm"]["value"])


def test_the_size_of_patch_tokens_is_that_of_the_projection() -> None:
    model = fresh("timm_vit_wide")
    images = images_for(model)
    embed: Any = model.module.patch_embed
    patches = images.unfold(2, 8, 8).unfold(3, 8, 8).permute(0, 2, 3, 1, 4, 5).flatten(3)
    tokens = patches @ embed.proj.weight.flatten(1).T + embed.proj.bias
    (one,) = position_contract(model, images)
    assert one["token_norm"]["value"] == pytest.approx(float(tokens.norm(dim=-1).mean()))
    assert one["token_norm"]["level"] == one["ratio"]["level"] == "measured on images"


def test_without_images_nothing_is_measured_on_images() -> None:
    (one,) = position_contract(fresh("timm_vit"))
    for number in ("token_norm", "ratio"):
        assert one[number]["value"] is None
        assert one[number]["reason"] == "no images were given to measure patch tokens on"
    assert one["norm"]["value"] > 0


def test_a_sincos_table_falls_off_with_distance() -> None:
    (one,) = position_contract(fresh("timm_vit_sincos"))
    assert one["kind"] == "sinusoidal"
    assert one["norm"]["value"] == pytest.approx(4)  # 32 channels: half of them 1 on average
    assert one["table_ssdc"]["value"] > 0.9


def own_bias(model: LoadedModel, name: str, site: PositionSite) -> NDArray[np.float64]:
    """The bias (heads, T, T) that attention adds, window tokens alone, by the library's code."""
    owner: Any = submodule(model.module, site.where.rpartition(".")[0])
    assert site.grid is not None
    tokens = site.grid.tokens
    with torch.no_grad():
        if "swin_v2" in name:
            mlp = owner.cpb_mlp if "timm" in name else owner.continuous_position_bias_mlp
            offsets = mlp(owner.relative_coords_table).flatten(0, -2)
            index = owner.relative_position_index.view(-1)
            bias = 16 * torch.sigmoid(offsets[index].view(tokens, tokens, -1).permute(2, 0, 1))
        elif "timm" in name:
            bias = owner._get_rel_pos_bias()[0]
        elif "beit" in name:
            bias = owner((site.grid.rows, site.grid.cols))[0]
        else:
            bias = owner()[0]
    return bias[:, -tokens:, -tokens:].double().numpy()


@pytest.mark.parametrize(
    "name",
    ["timm_swin", "timm_swin_v2", "timm_beit", "hf_swin", "hf_swin_v2", "hf_beit"],
)
def test_a_bias_by_all_pairs_of_a_window(name: str) -> None:
    model = fresh(name)
    for one, site in zip(position_contract(model), model.anatomy.positions, strict=True):
        bias, window = own_bias(model, name, site), Grid(*one["grid"])
        pairs = distances(window) > 0
        assert one["table_ssdc"]["value"] == pytest.approx(
            rank_correlation(bias.mean(axis=0), window), abs=1e-6
        )
        assert one["table_ssdc"]["heads"] == pytest.approx(
            [rank_correlation(head, window) for head in bias], abs=1e-6
        )
        assert one["bias"]["heads"] == len(bias)
        assert one["bias"]["sd"] == pytest.approx(
            np.mean([head[pairs].std() for head in bias]), rel=1e-5
        )
        assert one["bias"]["low"] == pytest.approx(bias[:, pairs].min())
        assert one["bias"]["high"] == pytest.approx(bias[:, pairs].max())
        assert one["prefix_rows"] == (3 if "beit" in name else 0)


def test_a_bias_that_falls_off_is_found_and_its_sign() -> None:
    model = fresh("timm_swin")
    table = model.module.layers[0].blocks[0].attn.relative_position_bias_table
    distance, _ = window_offsets(Grid(4, 4))
    with torch.no_grad():
        table.copy_(torch.from_numpy(np.stack([-distance, -distance], axis=1)))
    assert position_contract(model)[0]["table_ssdc"] == {
        "value": pytest.approx(1), "reason": None, "heads": pytest.approx([1, 1]),
    }  # fmt: skip
    with torch.no_grad():
        table.neg_()
    assert position_contract(model)[0]["table_ssdc"]["value"] == pytest.approx(-1)


@pytest.mark.parametrize("window", [Grid(2, 3), Grid(4, 4), Grid(1, 5), Grid(1, 1)])
def test_offsets_count_the_pairs_of_a_window(window: Grid) -> None:
    distance, pairs = window_offsets(window)
    counted = {int(d): 0 for d in distance}
    for value in distances(window).ravel():
        counted[int(value)] += int(value > 0)
    for value, count in counted.items():
        assert pairs[distance == value].sum() == count
    assert pairs.sum() == window.tokens * (window.tokens - 1)


def test_counted_spearman_is_that_of_repeated_items() -> None:
    generator = np.random.default_rng(4)
    x, y = generator.integers(0, 5, 30).astype(float), generator.normal(size=30)
    counts = generator.integers(0, 4, 30)
    expected = spearmanr(np.repeat(x, counts), np.repeat(y, counts)).statistic
    assert spearman(x, y, counts) == pytest.approx(expected, abs=1e-12)
    assert spearman(x, y, np.ones(30, dtype=np.int64)) == spearman(x, y)


def test_tables_that_say_nothing() -> None:
    model = fresh("timm_vit")
    with torch.no_grad():
        model.module.pos_embed.zero_()
    (one,) = position_contract(model)
    assert one["table_ssdc"] == {"value": None, "reason": CONSTANT}
    assert one["norm"]["value"] == 0
    with torch.no_grad():
        model.module.pos_embed.fill_(math.nan)
    (one,) = position_contract(model, images_for(model))
    assert one["norm"] == {"value": None, "reason": "the table is not finite"}
    assert one["ratio"]["reason"] == "the table is not finite"
    swin = fresh("timm_swin")
    with torch.no_grad():
        swin.module.layers[0].blocks[0].attn.relative_position_bias_table.fill_(2)
    first = position_contract(swin)[0]
    assert first["table_ssdc"] == {"value": None, "reason": FLAT, "heads": [None, None]}
    assert first["bias"] == {"heads": 2, "sd": 0, "low": 2, "high": 2}


def test_equal_rows_are_no_similarity() -> None:
    assert math.isnan(table_ssdc(torch.ones(16, 8, dtype=torch.float64), Grid(4, 4)))


def test_a_table_that_is_not_as_declared() -> None:
    model = fresh("timm_vit")
    (site,) = model.anatomy.positions
    wrong = replace(model.anatomy, positions=(replace(site, grid=Grid(4, 5)),))
    with pytest.raises(AnatomyError, match="'pos_embed' holds 16 patch rows, which its declared"):
        position_contract(replace(model, anatomy=wrong))


def test_a_window_that_is_not_as_declared() -> None:
    model = fresh("timm_swin")
    site = model.anatomy.positions[0]
    wrong = replace(model.anatomy, positions=(replace(site, grid=Grid(5, 5)),))
    with pytest.raises(AnatomyError, match="holds 49 offsets, fewer than"):
        position_contract(replace(model, anatomy=wrong))


@pytest.mark.parametrize("name", ["timm_vit", "timm_swin"])
def test_what_lies_in_no_order_of_a_grid_is_not_read(name: str) -> None:
    model = fresh(name)
    site = replace(model.anatomy.positions[0], grid=None)
    (one,) = position_contract(
        replace(model, anatomy=replace(model.anatomy, positions=(site,))), images_for(model)
    )
    assert one["norm"]["value"] is None
    assert one["table_ssdc"]["value"] is None
    assert one["assumes"] == (
        "it is stored in another order than that of the tokens of one grid or window"
    )


def test_position_from_convolutions_says_so() -> None:
    model = fresh("timm_vit_no_pe")
    site = PositionSite("convolutional", "patch_embed", resampling="none needed: convolutions")
    with_site = replace(model, anatomy=replace(model.anatomy, positions=(site,)))
    (one,) = position_contract(with_site)
    for number in ("norm", "ratio", "table_ssdc"):
        assert one[number]["value"] is None
    assert one["norm"]["reason"] == "position comes from convolutions, which hold no table"
    assert one["shape"] is None


def test_nothing_is_left_in_the_model() -> None:
    model = fresh("timm_swin_v2")
    position_contract(model, images_for(model))
    assert all(not module._forward_hooks for module in model.module.modules())


def test_a_table_in_channels_first_is_read_row_by_row() -> None:
    model = fresh("timm_pit")
    (one,) = position_contract(model)
    table = model.module.pos_embed.detach().double()[0]
    assert one["shape"] == [1, *table.shape]
    assert one["grid"] == list(table.shape[1:])
    assert one["norm"]["value"] == pytest.approx(float(table.norm(dim=0).mean()))
    unit = (table / table.norm(dim=0)).flatten(1).T.numpy()
    expected = rank_correlation(unit @ unit.T, Grid(*table.shape[1:]))
    assert one["table_ssdc"]["value"] == pytest.approx(expected, abs=1e-9)


def test_a_table_that_a_module_makes_is_what_it_adds() -> None:
    model = fresh("timm_xcit")
    grid = model.anatomy.patches.grid
    with torch.no_grad():
        table = model.module.pos_embed(1, grid.rows, grid.cols)[0].double()
    one, *others = position_contract(model, images_for(model))
    assert (one["kind"], one["grid"]) == ("sinusoidal", [grid.rows, grid.cols])
    assert one["norm"]["value"] == pytest.approx(float(table.norm(dim=0).mean()))
    assert one["ratio"]["value"] > 0
    assert one["assumes"].startswith("read off what a module adds; its similarity is the cosine")
    assert {other["kind"] for other in others} == {"convolutional"}


def test_gated_position_has_no_table() -> None:
    _, one, _ = position_contract(fresh("timm_convit"))
    assert one["kind"] == "gated"
    for number in ("norm", "ratio", "table_ssdc"):
        assert one[number]["value"] is None
    assert one["norm"]["reason"] == (
        "position has an attention of its own, mixed with that of the content by a gate"
    )
    assert one["assumes"] == one["norm"]["reason"]
