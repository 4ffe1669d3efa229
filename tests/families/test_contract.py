"""What every family promises, on tiny random-weight models of all of them."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from probe.errors import AnatomyError, NoEffect, NotApplicable, UsageError
from probe.families.base import families, family_of
from probe.hooks import edit_output, observe, submodule
from probe.interventions import permute_patches, scale_positions
from probe.types import Grid, LoadedModel, TokenSite
from probe.wiring import EditOutput
from tests.families.tiny import (
    ALL_MAKERS,
    IMAGES,
    Watch,
    all_sites,
    fresh,
    images_for,
    named,
    permutations,
    read,
    run,
    same,
    staged,
    tensors,
    windowed,
)

STAGED = named(staged, ALL_MAKERS)
# What no rule silences stays, but for convolutions, which the test itself takes away.
UNSILENCED = named(
    lambda a: any(site.kind in ("gated", "mixing") for site in a.positions), ALL_MAKERS
)
WINDOWED = named(windowed, ALL_MAKERS)
UNSCALED = {"convolutional", "gated", "mixing"}
permuted_model = pytest.mark.parametrize(
    "name", named(lambda a: a.patches.refusal is None, ALL_MAKERS)
)
every_model = pytest.mark.parametrize("name", list(ALL_MAKERS))
flat_model = pytest.mark.parametrize(
    "name", [name for name in ALL_MAKERS if name not in {*STAGED, *UNSILENCED, *WINDOWED}]
)


def shuffled(tokens: Tensor, order: Tensor) -> Tensor:
    return torch.stack([image[rows] for image, rows in zip(tokens, order, strict=True)])


def scalable(model: LoadedModel) -> bool:
    return any(site.rescale is not None for site in model.anatomy.positions)


def with_zero_positions(model: LoadedModel) -> ExitStack:
    stack = ExitStack()
    if scalable(model):
        stack.enter_context(scale_positions(model, 0.0))
    return stack


def without_convolutions(model: LoadedModel) -> ExitStack:
    """What convolutions add to the tokens is taken away: the declared ones, and no others."""
    stack = ExitStack()
    for site in model.anatomy.positions:
        if site.kind == "convolutional":
            stack.enter_context(edit_output(model.module, site.where, torch.zeros_like))
    return stack


@every_model
def test_capture_changes_no_output(name: str, watched: LoadedModel) -> None:
    bare = run(watched)
    with observe(watched.module, all_sites(watched), lambda site, tokens: None):
        seen = run(watched)
    assert same(bare, seen)


@every_model
def test_layers_come_in_order_with_the_declared_grid(name: str, watched: LoadedModel) -> None:
    anatomy = watched.anatomy
    found = read(watched, all_sites(watched))
    order = [(s.layer, s.point) for s in found]
    count = len(anatomy.attn_in)
    assert count >= 2
    assert order == [(i, p) for i in range(count) for p in ("attn_in", "block_out")]
    for site, tokens in found.items():
        assert tokens.shape[:2] == (IMAGES, site.grid.tokens)
        assert tokens.dtype == torch.float32
        assert torch.isfinite(tokens).all()
    for before, after in zip(anatomy.attn_in, anatomy.block_out, strict=True):
        assert before.prefix == after.prefix
    # Grids only shrink, and between and inside blocks only where the model has stages.
    sides = [(site.grid.rows, site.grid.cols) for site in found]
    sides.insert(0, (anatomy.patches.grid.rows, anatomy.patches.grid.cols))
    assert sides == sorted(sides, reverse=True)
    if name not in STAGED:
        assert len(set(sides)) == 1


@every_model
def test_feature_site_holds_the_last_grid(name: str, watched: LoadedModel) -> None:
    features = watched.anatomy.features
    if features is None:
        return
    site = TokenSite(
        0, "block_out", features.module, features.grid, features.prefix, features.layout
    )
    (tokens,) = read(watched, [site]).values()
    assert tokens.shape[:2] == (IMAGES, watched.anatomy.block_out[-1].grid.tokens)
    assert features.class_index is None or 0 <= features.class_index < features.prefix


@every_model
def test_predict_gives_one_logit_per_class(name: str, watched: LoadedModel) -> None:
    with torch.no_grad():
        output = watched.forward(images_for(watched))
    if watched.predict is None:
        assert watched.classes is None
    else:
        assert watched.predict(output).shape == (IMAGES, watched.classes)


@permuted_model
def test_identity_and_alpha_one_change_no_bit(name: str, watched: LoadedModel) -> None:
    bare = run(watched)
    with permute_patches(watched, torch.arange(watched.anatomy.patches.grid.tokens)):
        assert same(bare, run(watched))
    if scalable(watched):
        with scale_positions(watched, 1.0):
            assert same(bare, run(watched))


@permuted_model
@pytest.mark.parametrize("fails", [False, True])
def test_nothing_is_left_behind(name: str, watched: LoadedModel, fails: bool) -> None:
    bare, watch = run(watched), Watch(watched.module)
    with ExitStack() as guard:
        if fails:
            guard.enter_context(pytest.raises(ZeroDivisionError))
        with (
            observe(watched.module, all_sites(watched), lambda site, tokens: None),
            permute_patches(watched, permutations(watched)),
            with_zero_positions(watched),
        ):
            moved = run(watched)
            assert watch.changes() != []
            with permute_patches(watched, permutations(watched, "shared")):
                run(watched)
                if fails:
                    raise ZeroDivisionError
    assert watch.changes() == []
    assert not same(bare, moved)
    assert same(bare, run(watched))


@permuted_model
def test_rpi_moves_token_identities_exactly(name: str, watched: LoadedModel) -> None:
    patches = watched.anatomy.patches
    place = (patches.module, patches.grid, patches.prefix, patches.layout)
    site = TokenSite(0, "attn_in", *place, arrangement=patches.arrangement)
    order = permutations(watched)
    assert len({tuple(row) for row in order.tolist()}) == IMAGES
    (clean,) = read(watched, [site]).values()
    with permute_patches(watched, order):
        (moved,) = read(watched, [site]).values()
    assert torch.equal(moved, shuffled(clean, order))
    assert not torch.equal(moved, clean)


@flat_model
def test_without_positions_a_flat_model_is_equivariant(name: str) -> None:
    """At alpha 0, or with no positional signal, patch tokens permute and all else stays."""
    model = fresh(name)
    assert {site.grid for site in all_sites(model)} == {model.anatomy.patches.grid}
    model.module.double()
    images, order = images_for(model, torch.float64), permutations(model)
    sites = model.anatomy.block_out
    prefixes: list[Tensor] = []
    last = submodule(model.module, sites[-1].module)
    handle = last.register_forward_hook(
        lambda _m, _a, out: prefixes.append(tensors(out)[sites[-1].element][:, : sites[-1].prefix])
    )
    with with_zero_positions(model), without_convolutions(model):
        clean = read(model, sites, images)
        with permute_patches(model, order):
            moved = read(model, sites, images)
    handle.remove()
    for site in sites:
        torch.testing.assert_close(moved[site], shuffled(clean[site], order), rtol=0, atol=1e-9)
    torch.testing.assert_close(prefixes[1], prefixes[0], rtol=0, atol=1e-9)


@pytest.mark.parametrize("name", STAGED)
def test_stages_shrink_their_grid(name: str, watched: LoadedModel) -> None:
    grids = [site.grid for site in watched.anatomy.attn_in]
    first, last = grids[0], grids[-1]
    while first.rows > last.rows:
        first = Grid(-(-first.rows // 2), -(-first.cols // 2))
    assert first == last
    assert grids == sorted(grids, reverse=True)


@every_model
def test_each_signal_acts_alone_and_leaves_nothing(name: str, watched: LoadedModel) -> None:
    bare = run(watched)
    for position in watched.anatomy.positions:
        assert (position.rescale is None) is (position.kind in UNSCALED)
        if position.rescale is None:
            continue
        alone = replace(watched, anatomy=replace(watched.anatomy, positions=(position,)))
        with scale_positions(alone, 0.5):
            half = run(watched)
        with scale_positions(alone, 0.0):
            none = run(watched)
        assert not same(bare, half), position.where
        assert not same(half, none), position.where
        assert all(torch.isfinite(t).all() for t in none)
        assert same(bare, run(watched)), position.where


@every_model
def test_signals_are_scaled_by_kind(name: str, watched: LoadedModel) -> None:
    kinds = {position.kind for position in watched.anatomy.positions}
    if not kinds:
        with (
            pytest.raises(NotApplicable, match="no positional signal, so there is nothing"),
            scale_positions(watched, 0.5),
        ):
            pass
    unscaled = kinds & UNSCALED
    for kind in unscaled:
        with (
            pytest.raises(NotApplicable, match=f"come from {kind} layers, which alpha does not"),
            scale_positions(watched, 0.5, kind),
        ):
            pass
    for kind in {"absolute", "sinusoidal", "relative_bias", "rotary"} - kinds if kinds else ():
        with (
            pytest.raises(NotApplicable, match=rf"no {kind} signal \(it has: "),
            scale_positions(watched, 0.5, kind),
        ):
            pass
    outputs = []
    for kind in sorted(kinds - unscaled):
        with scale_positions(watched, 0.5, kind):
            outputs.append(run(watched))
    assert len(outputs) < 2 or not same(outputs[0], outputs[1])


@permuted_model
def test_what_did_not_run_had_no_effect(name: str, watched: LoadedModel) -> None:
    with (
        pytest.raises(NoEffect, match=r"never ran inside the context, so nothing was changed"),
        permute_patches(watched, permutations(watched)),
    ):
        pass
    if any(isinstance(p.rescale, EditOutput) for p in watched.anatomy.positions):
        with (
            pytest.raises(NoEffect, match="never ran inside the context"),
            scale_positions(watched, 0.5),
        ):
            pass


@pytest.mark.parametrize("name", named(lambda a: a.patches.refusal is not None))
def test_where_nothing_can_be_permuted_rpi_says_so(name: str, watched: LoadedModel) -> None:
    with (
        pytest.raises(NotApplicable, match="RPI does not apply: a convolutional network has no"),
        permute_patches(watched, permutations(watched)),
    ):
        pass


@every_model
def test_a_wrong_grid_is_refused(name: str, watched: LoadedModel) -> None:
    site = watched.anatomy.attn_in[0]
    wrong = replace(site, grid=Grid(site.grid.rows + 1, site.grid.cols))
    with pytest.raises(AnatomyError, match=rf"tokens at '{site.module}' have shape"):
        read(watched, [wrong])


@every_model
def test_alpha_stays_in_range(name: str, watched: LoadedModel) -> None:
    if not watched.anatomy.positions:
        return
    for alpha in (-0.1, 2.5, float("nan")):
        with (
            pytest.raises(UsageError, match=r"alpha must lie in \[0, 2\], got"),
            scale_positions(watched, alpha),
        ):
            pass
    if any(p.max_alpha == 1 for p in watched.anatomy.positions):
        with (
            pytest.raises(UsageError, match="alpha must not exceed 1 for"),
            scale_positions(watched, 1.5),
        ):
            pass


@every_model
def test_exactly_one_family_claims_it(name: str, watched: LoadedModel) -> None:
    library = "hf" if name.startswith("hf_") else "timm"
    assert family_of(watched.module, library).name == watched.family


def test_every_family_has_a_tiny_model() -> None:
    built = {fresh(name).family for name in ALL_MAKERS}
    assert built == set(families())


def test_all_layouts_and_a_rectangle_are_among_the_models() -> None:
    models = [fresh(name) for name in ALL_MAKERS]
    assert {m.anatomy.patches.layout for m in models} >= {"NLC", "NHWC", "NCHW"}
    assert {m.anatomy.attn_in[0].side for m in models} == {"input", "output"}
    assert any(m.anatomy.patches.grid.rows != m.anatomy.patches.grid.cols for m in models)
    assert {p.kind for m in models for p in m.anatomy.positions} == {
        "absolute", "sinusoidal", "relative_bias", "rotary", "convolutional", "gated", "mixing"
    }  # fmt: skip


def test_untrained_zero_tables_are_named() -> None:
    model = fresh("timm_beit")
    with torch.no_grad():
        for position in model.anatomy.positions:
            model.module.get_parameter(position.where).zero_()
    with (
        pytest.raises(NotApplicable, match=r"all zero \(untrained\), so alpha cannot act"),
        scale_positions(model, 0.5),
    ):
        pass
