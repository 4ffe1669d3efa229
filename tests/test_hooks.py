"""Token layouts, edits and swapped tensors, on modules small enough to check by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from probe.errors import AnatomyError, NoEffect
from probe.hooks import (
    edit_output,
    edit_patches,
    first_tensor,
    join_tokens,
    observe,
    split_tokens,
    submodule,
    swap_tensors,
    with_first,
)
from probe.types import Grid, PatchSite, TokenSite

ROWS, COLS, CHANNELS = 2, 3, 4


class Tokens(nn.Module):
    """Gives what it is given, as a keyword too."""

    def forward(self, x: Any) -> Any:
        return x


def laid_out(layout: str, prefix: int, grid: Grid, batch: int, channels: int) -> Tensor:
    """Numbered tokens: patch token n of image b has the values (b, n, 0), (b, n, 1), ..."""
    count = prefix + grid.tokens
    numbered = torch.arange(batch * count * channels).view(batch, count, channels)
    if layout == "NLC":
        return numbered
    spread = numbered.view(batch, grid.rows, grid.cols, channels)
    return spread if layout == "NHWC" else spread.permute(0, 3, 1, 2).contiguous()


cases = st.tuples(
    st.sampled_from([("NLC", 0), ("NLC", 1), ("NLC", 5), ("NHWC", 0), ("NCHW", 0)]),
    st.builds(Grid, st.integers(1, 5), st.integers(1, 5)),
    st.integers(1, 3),
    st.integers(1, 4),
)


@given(cases)
def test_split_gives_row_major_patch_tokens_and_join_undoes_it(case: Any) -> None:
    (layout, prefix), grid, batch, channels = case
    tokens = laid_out(layout, prefix, grid, batch, channels)
    patches = split_tokens(tokens, grid, prefix, layout, "here")
    count = prefix + grid.tokens
    expected = torch.arange(batch * count * channels).view(batch, count, channels)[:, prefix:]
    assert torch.equal(patches, expected)
    joined = join_tokens(patches, tokens, grid, prefix, layout)
    assert torch.equal(joined, tokens)
    moved = join_tokens(-patches, tokens, grid, prefix, layout)
    assert torch.equal(split_tokens(moved, grid, prefix, layout, "here"), -patches)
    if layout == "NLC":
        assert torch.equal(moved[:, :prefix], tokens[:, :prefix])


@pytest.mark.parametrize(
    ("layout", "prefix", "shape", "expected"),
    [
        ("NLC", 1, (2, 6, 4), r"NLC \(B, 1 \+ 2\*3, C\) was declared"),
        ("NLC", 0, (2, 2, 3, 4), r"NLC \(B, 0 \+ 2\*3, C\) was declared"),
        ("NHWC", 0, (2, 3, 2, 4), r"NHWC \(B, 2, 3, C\) without prefix tokens was declared"),
        ("NHWC", 1, (2, 2, 3, 4), r"NHWC \(B, 2, 3, C\) without prefix tokens was declared"),
        ("NCHW", 0, (2, 4, 3, 2), r"NCHW \(B, C, 2, 3\) without prefix tokens was declared"),
        ("NCHW", 0, (2, 6, 4), r"NCHW \(B, C, 2, 3\) without prefix tokens was declared"),
    ],
)
def test_tokens_that_do_not_fit_are_named(
    layout: Any, prefix: int, shape: tuple[int, ...], expected: str
) -> None:
    with pytest.raises(AnatomyError, match=rf"'blocks.0' have shape \(.*\), but {expected}") as e:
        split_tokens(torch.zeros(shape), Grid(ROWS, COLS), prefix, layout, "blocks.0")
    assert str(shape) in str(e.value)
    assert str(e.value).endswith("the image size or the model's anatomy does not fit")


@pytest.mark.parametrize("value", [(), None, {"tokens": torch.ones(1)}, ("a", torch.ones(1))])
def test_what_holds_no_tensor_is_refused(value: Any) -> None:
    with pytest.raises(AnatomyError, match=r"'head' gives a \w+, not tokens; check the anatomy"):
        first_tensor(value, "head")


def test_the_first_tensor_is_replaced_and_the_rest_kept() -> None:
    old, new = torch.zeros(1), torch.ones(1)
    assert with_first(old, new) is new
    assert with_first((old, "rest"), new) == (new, "rest")
    replaced = with_first([old, "rest"], new)
    assert isinstance(replaced, list)
    assert replaced == [new, "rest"]


def test_a_missing_module_is_named() -> None:
    model = nn.Sequential(Tokens())
    site = TokenSite(0, "attn_in", "0.norm", Grid(1, 2), 0, "NLC")
    with pytest.raises(AnatomyError, match=r"the model has no module '0\.norm'; check the anatomy"):
        submodule(model, "0.norm")
    with pytest.raises(AnatomyError, match=r"no module '0\.norm'"), observe(model, [site], print):
        pass


def test_observe_reads_output_input_and_keyword_input() -> None:
    grid = Grid(ROWS, COLS)
    model = nn.Sequential(Tokens())
    sites = [
        TokenSite(0, "attn_in", "0", grid, 1, "NLC", side="input"),
        TokenSite(0, "block_out", "0", grid, 1, "NLC"),
    ]
    seen: list[tuple[str, Tensor]] = []
    tokens = laid_out("NLC", 1, grid, 2, CHANNELS)
    with observe(model, sites, lambda site, t: seen.append((site.side, t))):
        model(tokens)
        model[0](x=tokens)
    model(tokens)
    assert [side for side, _ in seen] == ["input", "output"] * 2
    assert all(torch.equal(t, tokens[:, 1:]) for _, t in seen)


def test_an_observer_that_fails_on_a_later_site_leaves_no_hook() -> None:
    model = nn.Sequential(Tokens())
    good = TokenSite(0, "attn_in", "0", Grid(1, 2), 0, "NLC")
    bad = TokenSite(1, "attn_in", "1", Grid(1, 2), 0, "NLC")
    with pytest.raises(AnatomyError, match="no module '1'"), observe(model, [good, bad], print):
        pass
    assert len(model[0]._forward_hooks) == 0


def test_an_edit_that_never_ran_has_no_effect() -> None:
    model = nn.Sequential(Tokens(), Tokens())
    message = (
        "module '1' never ran inside the context, so nothing was changed; "
        "run the model inside it, or check the anatomy"
    )
    with pytest.raises(NoEffect) as error, edit_output(model, "1", torch.neg):
        model[0](torch.ones(1))
    assert str(error.value) == message
    assert len(model[1]._forward_hooks) == 0
    site = PatchSite("1", Grid(1, 2), 0, "NLC")
    with (
        pytest.raises(NoEffect, match="module '1' never ran"),
        edit_patches(model, site, torch.neg),
    ):
        pass


def test_an_exception_inside_is_not_hidden_by_no_effect() -> None:
    model = nn.Sequential(Tokens())
    with pytest.raises(KeyError, match="inside"), edit_output(model, "0", torch.neg):
        raise KeyError("inside")
    assert len(model[0]._forward_hooks) == 0


@pytest.mark.parametrize(("layout", "prefix"), [("NLC", 2), ("NHWC", 0), ("NCHW", 0)])
def test_edit_patches_leaves_prefix_tokens_and_the_layout(layout: Any, prefix: int) -> None:
    grid = Grid(ROWS, COLS)
    model = nn.Sequential(Tokens())
    tokens = laid_out(layout, prefix, grid, 2, CHANNELS)
    with edit_patches(model, PatchSite("0", grid, prefix, layout), torch.neg):
        edited = model(tokens)
    assert edited.shape == tokens.shape
    patches = split_tokens(tokens, grid, prefix, layout, "0")
    assert torch.equal(split_tokens(edited, grid, prefix, layout, "0"), -patches)
    if prefix:
        assert torch.equal(edited[:, :prefix], tokens[:, :prefix])


def test_edits_nest_and_the_inner_one_acts_last() -> None:
    model = nn.Sequential(Tokens())
    with edit_output(model, "0", lambda t: t + 1), edit_output(model, "0", lambda t: t * 10):
        assert model(torch.tensor([1.0])).item() == 20
    assert model(torch.tensor([1.0])).item() == 1


@pytest.mark.parametrize("fails", [False, True])
def test_swapped_tensors_come_back_as_the_same_objects(fails: bool) -> None:
    model = nn.BatchNorm1d(2)
    parameter, buffer = model.weight, model.running_mean
    optimiser = torch.optim.SGD([parameter], lr=0.1)
    new = {"weight": torch.full((2,), 5.0), "running_mean": torch.full((2,), 7.0)}
    try:
        with swap_tensors(model, new):
            assert isinstance(model.weight, nn.Parameter)
            assert model.weight.tolist() == [5, 5]
            assert model.running_mean is new["running_mean"]
            if fails:
                raise KeyError("inside")
    except KeyError:
        assert fails
    assert model.weight is parameter
    assert model.running_mean is buffer
    assert optimiser.param_groups[0]["params"][0] is model.weight
    assert parameter.tolist() == [1, 1]


def test_a_swap_that_fails_half_way_puts_the_first_half_back() -> None:
    model = nn.Linear(2, 3)
    weight = model.weight
    with (
        pytest.raises(AnatomyError, match=r"the model has no tensor 'bios'; check the anatomy"),
        swap_tensors(model, {"weight": torch.zeros(3, 2), "bios": torch.zeros(3)}),
    ):
        pass
    assert model.weight is weight
