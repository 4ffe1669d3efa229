"""Permutation defects over every family, by explicit arithmetic, and with planted mistakes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from timm.models.vision_transformer import VisionTransformer

from probe.audit.symmetry import symmetry, tolerance
from probe.audit.three import explicit_attention, three_tokens
from probe.errors import NotApplicable
from probe.types import Anatomy, PositionSite
from tests.families.tiny import attending, fresh, named, plain, silent, staged, windowed
from tests.families.tiny_timm import FLAT, load_tiny
from tests.small_runs import strong

POSITIONLESS = {"timm_vit_no_pe", "timm_vit_no_pe_no_class", "timm_eva_no_pe"}


def readable(anatomy: Anatomy) -> bool:
    """Without position nothing of place is left, and every block can be permuted by itself."""
    return plain(anatomy) and silent(anatomy) and not windowed(anatomy)


MADE_ANEW = named(lambda a: any(s.kind == "rotary" and s.carry is None for s in a.positions))


@pytest.mark.parametrize(
    "name", named(lambda a: plain(a) and silent(a) and not staged(a) and not windowed(a))
)
def test_global_models_commute_without_position_alone(name: str) -> None:
    model = strong(fresh(name))
    for one in symmetry(model):
        limit = tolerance(model, one.block)
        assert one.scope == "network"
        assert one.defect_without_position is not None
        assert one.defect_without_position < limit
        assert one.defect_with_position is not None
        if name in POSITIONLESS:
            assert one.defect_with_position < limit
        else:
            assert one.defect_with_position > 10 * limit
        if name in MADE_ANEW:
            assert one.defect_joint is None
            assert one.reason == (
                "the rotation is made anew in every run, so it cannot be permuted with the tokens"
            )
        else:
            assert one.defect_joint is not None
            assert one.defect_joint < limit
            assert one.reason is None


@pytest.mark.parametrize("name", named(windowed))
def test_windows_remain_without_position(name: str) -> None:
    model = strong(fresh(name))
    for one, site in zip(symmetry(model), model.anatomy.attention, strict=True):
        limit = tolerance(model, one.block)
        assert one.scope == "block"
        assert one.defect_with_position is not None
        assert one.defect_with_position > 10 * limit
        assert one.defect_joint is not None
        assert one.defect_joint < limit
        assert one.defect_within_windows is not None
        assert one.defect_within_windows < limit
        assert one.defect_without_position is not None
        grid = model.anatomy.block_out[one.block].grid
        if site.window == (grid.rows, grid.cols):
            assert one.remains is None
            assert one.defect_without_position < limit
        else:
            assert one.remains == "window partition"
            assert one.defect_without_position > 10 * limit


@pytest.mark.parametrize(
    "name",
    named(lambda a: plain(a) and attending(a) and staged(a) and silent(a) and not windowed(a)),
)
def test_blocks_of_global_attention_commute_in_every_stage(name: str) -> None:
    """A table is in the tokens when the first block gets them; a block alone knows no place."""
    model = strong(fresh(name))
    for one in symmetry(model):
        limit = tolerance(model, one.block)
        assert (one.scope, one.remains, one.reason) == ("block", None, None)
        assert one.defect_with_position is not None
        assert one.defect_with_position < limit
        assert one.defect_without_position is not None
        assert one.defect_without_position < limit
        assert one.defect_joint is None


def test_windows_that_are_not_declared_are_named() -> None:
    """Its blocks cut the grid inside: without position place stays, and it is not said where."""
    model = strong(fresh("timm_swin_cr"))
    assert model.anatomy.attention == ()
    found = symmetry(model)
    for one in found:
        assert one.remains == "who attends to whom, which the family does not declare"
    first = found[0].defect_without_position
    assert first is not None
    assert first > 10 * tolerance(model, 0)


@pytest.mark.parametrize("name", named(lambda a: plain(a) and not silent(a)))
def test_what_cannot_be_silenced_is_named(name: str) -> None:
    model = strong(fresh(name))
    kinds = {site.kind for site in model.anatomy.positions if site.rescale is None}
    gated = kinds == {"gated"}
    kind = ", ".join(sorted(kinds))
    whole = not staged(model.anatomy)
    for one in symmetry(model):
        limit = tolerance(model, one.block)
        assert one.scope == ("network" if whole else "block")
        assert one.defect_without_position is None
        assert one.reason is not None
        assert one.reason.startswith(f"position comes from {kind} layers, which cannot be silenced")
        assert one.defect_with_position is not None
        if whole:
            assert one.defect_with_position > 10 * limit
        if gated:
            assert one.defect_joint is not None
            assert one.defect_joint < limit
        else:
            assert one.defect_joint is None
            assert one.reason.endswith("which no permutation moves")


@pytest.mark.parametrize("name", named(lambda a: not plain(a)))
def test_blocks_that_give_other_tokens_than_they_take_are_left_out(name: str) -> None:
    with pytest.raises(NotApplicable, match="does not hold one grid of tokens in row-major order"):
        symmetry(fresh(name))


def test_a_signal_that_stays_is_seen() -> None:
    """The planted mistake: a bias that is declared as carried along, but is not."""
    model = fresh("timm_beit")
    sites = tuple(
        replace(site, carry=replace(site.carry, tensors=lambda module, order: {}))
        for site in model.anatomy.positions
    )
    wrong = replace(model, anatomy=replace(model.anatomy, positions=sites))
    found = symmetry(wrong)
    assert all(one.defect_joint > tolerance(wrong, one.block) for one in found)


def test_an_undeclared_table_is_seen() -> None:
    model = fresh("timm_vit")
    hidden = replace(model, anatomy=replace(model.anatomy, positions=()))
    found = symmetry(hidden)
    assert all(one.defect_without_position > 10 * tolerance(hidden, one.block) for one in found)


def test_position_from_layers_is_not_silenced() -> None:
    model = fresh("timm_vit_no_pe")
    site = PositionSite("convolutional", "patch_embed")
    named = replace(model, anatomy=replace(model.anatomy, positions=(site,)))
    (first, *_) = symmetry(named)
    assert first.defect_without_position is None
    assert first.reason == (
        "position comes from convolutional layers, which cannot be silenced; position comes from "
        "convolutional layers, which no permutation moves"
    )


def test_the_first_block_against_explicit_arithmetic() -> None:
    """One block of one head, by NumPy alone: with a table, and without."""
    module: Any = VisionTransformer(
        img_size=16, **FLAT | {"depth": 1, "num_heads": 1, "num_classes": 0}
    )
    model = load_tiny(module, (16, 16))
    (one,) = symmetry(model, permutations=1)
    assert one.defect_with_position is not None
    from probe.audit.graph import noise
    from probe.audit.symmetry import orders_of

    order = orders_of(4, 0, 1)[0].numpy()
    with torch.no_grad():
        patches = module.patch_embed(noise(model, 0))[0].double().numpy()
    weight = {k: v.double().numpy() for k, v in module.state_dict().items()}

    def normed(x: np.ndarray, name: str) -> np.ndarray:
        mean, var = x.mean(1, keepdims=True), x.var(1, keepdims=True)
        scaled = (x - mean) / np.sqrt(var + module.blocks[0].norm1.eps)
        return scaled * weight[f"blocks.0.{name}.weight"] + weight[f"blocks.0.{name}.bias"]

    def block(tokens: np.ndarray) -> np.ndarray:
        x = np.concatenate([weight["cls_token"][0], tokens]) + weight["pos_embed"][0]
        inner = normed(x, "norm1") @ weight["blocks.0.attn.qkv.weight"].T
        query, key, value = np.split(inner + weight["blocks.0.attn.qkv.bias"], 3, axis=1)
        score = query @ key.T / np.sqrt(32)
        score = np.exp(score - score.max(1, keepdims=True))
        mixed = score / score.sum(1, keepdims=True) @ value
        x = x + mixed @ weight["blocks.0.attn.proj.weight"].T + weight["blocks.0.attn.proj.bias"]
        hidden = normed(x, "norm2") @ weight["blocks.0.mlp.fc1.weight"].T
        hidden = torch.nn.functional.gelu(
            torch.from_numpy(hidden + weight["blocks.0.mlp.fc1.bias"])
        ).numpy()
        return (x + hidden @ weight["blocks.0.mlp.fc2.weight"].T + weight["blocks.0.mlp.fc2.bias"])[
            1:
        ]

    before, after = block(patches)[order], block(patches[order])
    wanted = np.linalg.norm(after - before) / np.linalg.norm(before)
    assert one.defect_with_position == pytest.approx(wanted, rel=1e-4)


def test_three_tokens_over_all_six_permutations() -> None:
    found = three_tokens()
    assert found["permutations"] == 6
    assert found["without_position"] < 1e-14
    assert found["joint"] < 1e-14
    assert found["with_table"] > 0.1
    assert found["with_bias"] > 0.1


def test_explicit_attention_is_torchs() -> None:
    generator = torch.Generator().manual_seed(0)
    x, weights = torch.randn(5, 4, generator=generator), torch.randn(3, 4, 4, generator=generator)
    bias = torch.randn(5, 5, generator=generator)
    query, key, value = (x @ matrix for matrix in weights)
    wanted = torch.nn.functional.scaled_dot_product_attention(
        query[None], key[None], value[None], attn_mask=bias
    )[0]
    found = explicit_attention(x.double().numpy(), weights.double().numpy(), bias.double().numpy())
    assert np.allclose(found, wanted.numpy(), atol=1e-5)
