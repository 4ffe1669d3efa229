"""Hooks and interventions under arbitrary permutations, factors and nestings."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from probe.errors import AnatomyError
from probe.hooks import edit_output, swap_tensors
from probe.interventions import permute_patches, rpi_permutations, scale_positions
from probe.types import Permutation
from tests.families.tiny import IMAGES, Watch, fresh, run, same, tensors

few = settings(max_examples=12)
names = st.sampled_from(["timm_vit_wide", "timm_vit_dynamic", "timm_swin_padded", "timm_eva_02"])


@few
@given(name=names, seed=st.integers(0, 2**31), draw=st.integers(0, 9))
def test_a_permutation_and_its_inverse_cancel(name: str, seed: int, draw: int) -> None:
    model = fresh(name)
    grid = model.anatomy.patches.grid
    order = rpi_permutations(grid, range(IMAGES), Permutation("image", seed, draw))
    bare = run(model)
    with permute_patches(model, order), permute_patches(model, order.argsort(dim=1)):
        assert same(bare, run(model))
    assert same(bare, run(model))


@few
@given(
    name=names,
    alphas=st.lists(st.sampled_from([0.0, 0.25, 0.5, 1.0, 1.7, 2.0]), min_size=1, max_size=4),
)
def test_nested_scaling_unwinds_in_any_depth(name: str, alphas: list[float]) -> None:
    model = fresh(name)
    bare, watch = run(model), Watch(model.module)
    with ExitStack() as stack:
        for depth, alpha in enumerate(alphas):
            if 0 in alphas[:depth]:  # nothing is left to scale
                break
            stack.enter_context(scale_positions(model, alpha))
        run(model)
    assert watch.changes() == []
    assert same(bare, run(model))


@few
@given(
    shift=st.floats(-2, 2).filter(lambda x: abs(x) > 1e-3),
    wrap=st.sampled_from([tuple, list, lambda parts: parts[0]]),
)
def test_edit_output_changes_the_first_tensor_only(
    shift: float, wrap: Callable[[tuple[Tensor, str]], Any]
) -> None:
    class Inner(nn.Module):
        def forward(self, x: Tensor) -> Any:
            return wrap((x, "kept"))

    model, x = nn.Sequential(Inner()), torch.ones(2)
    before = model(x)
    with edit_output(model, "0", lambda t: t + shift):
        after = model(x)
    assert type(after) is type(before)
    torch.testing.assert_close(tensors(after)[0], x + shift)
    if not isinstance(after, Tensor):
        assert after[1] == "kept"
    assert torch.equal(tensors(model(x))[0], x)


def test_swap_refuses_other_names_and_shapes() -> None:
    model = nn.Sequential(nn.Linear(2, 3))
    with (
        pytest.raises(AnatomyError, match=r"no tensor '0\.wight'"),
        swap_tensors(model, {"0.wight": torch.zeros(3, 2)}),
    ):
        pass
    with (
        pytest.raises(
            AnatomyError, match=r"'0\.weight' has shape \(3, 2\), its replacement \(2,\)"
        ),
        swap_tensors(model, {"0.weight": torch.zeros(2)}),
    ):
        pass
