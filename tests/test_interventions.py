"""RPI and positional scaling, beyond what every family promises in tests/families."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.random import PCG64, Generator, SeedSequence
from torch import Tensor

from probe.errors import NoEffect, NotApplicable, UsageError
from probe.hooks import submodule
from probe.interventions import (
    permute_patches,
    rpi_permutations,
    scalable_positions,
    scale_positions,
)
from probe.types import (
    Grid,
    LoadedModel,
    Permutation,
    PermutationMode,
    PositionSite,
)
from probe.wiring import EditOutput, SwapTensors
from tests.families.tiny_timm import tiny_models

MODELS = tiny_models()
GRID = Grid(4, 4)


@pytest.fixture
def vit() -> LoadedModel:
    return MODELS["timm_vit"]()


def images(model: LoadedModel, count: int = 3) -> Tensor:
    generator = torch.Generator().manual_seed(2)
    return torch.randn(count, 3, *model.anatomy.image_size, generator=generator)


def forward(model: LoadedModel, count: int = 3) -> Tensor:
    with torch.no_grad():
        return model.forward(images(model, count))


def drawn(seed: int, draw: int, index: int, tokens: int) -> list[int]:
    return Generator(PCG64(SeedSequence([seed, draw, index]))).permutation(tokens).tolist()


@pytest.mark.parametrize(("seed", "draw"), [(0, 0), (7, 0), (7, 3)])
@pytest.mark.parametrize(
    ("mode", "named"),
    [("image", [5, 0, 999]), ("shared", [0, 0, 0]), ("batch", [5, 0, 999])],
)
def test_permutations_are_numpys(
    mode: PermutationMode, named: list[int], seed: int, draw: int
) -> None:
    grid = Grid(3, 5)
    rows = rpi_permutations(grid, [5, 0, 999], Permutation(mode, seed, draw))
    assert rows.dtype == torch.int64
    assert rows.tolist() == [drawn(seed, draw, index, 15) for index in named]


def test_a_known_permutation_stays_what_it_is() -> None:
    """A change of NumPy's streams would change every published number."""
    (row,) = rpi_permutations(Grid(2, 3), [2], Permutation("image", seed=1, draw=0)).tolist()
    assert row == drawn(1, 0, 2, 6)
    assert row == [1, 5, 3, 2, 0, 4]


def test_one_batch_is_one_permutation(vit: LoadedModel) -> None:
    numbers = [4, 4, 4]
    rows = rpi_permutations(GRID, numbers, Permutation("batch", seed=0))
    assert rows.tolist() == [drawn(0, 0, 4, 16)] * 3
    with permute_patches(vit, rows):
        batch = forward(vit)
    with permute_patches(vit, rows[0]):
        assert torch.equal(forward(vit), batch)


@pytest.mark.parametrize(
    "rows",
    [
        torch.arange(15),
        torch.arange(17),
        torch.zeros(16, dtype=torch.int64),
        torch.arange(1, 17),
        torch.stack([torch.arange(16), torch.arange(16).clamp(max=14)]),
        torch.arange(16).expand(1, 2, 16),
        torch.arange(16.0),
        torch.tensor(0),
    ],
    ids=["short", "long", "constant", "from one", "one bad row", "3-D", "float", "0-D"],
)
def test_what_is_no_permutation_is_refused(vit: LoadedModel, rows: Tensor) -> None:
    expected = (
        "permutations must be integers of shape (B, 16) or (16,), each row a permutation of "
        f"0..15; got {rows.dtype} {tuple(rows.shape)}"
    )
    with pytest.raises(UsageError) as error, permute_patches(vit, rows):
        pass
    assert str(error.value) == expected


def test_permutations_for_another_batch_are_refused(vit: LoadedModel) -> None:
    rows = torch.arange(16).flip(0).expand(2, 16)
    with (
        pytest.raises(UsageError, match=r"^2 permutations were given for 3 images$"),
        permute_patches(vit, rows),
    ):
        forward(vit)
    with permute_patches(vit, rows.int()):
        narrow = forward(vit, 2)
    with permute_patches(vit, rows):
        assert torch.equal(forward(vit, 2), narrow)


@pytest.mark.parametrize("alpha", [-1e-9, 2.0001, float("inf"), float("nan")])
def test_alpha_out_of_range(vit: LoadedModel, alpha: float) -> None:
    with pytest.raises(UsageError) as error, scale_positions(vit, alpha):
        pass
    assert str(error.value) == f"alpha must lie in [0, 2], got {alpha!r}"


def test_a_bounded_bias_takes_no_alpha_above_one() -> None:
    model = MODELS["timm_swin_v2"]()
    site = next(p for p in model.anatomy.positions if p.max_alpha == 1)
    with pytest.raises(UsageError) as error, scale_positions(model, 1.25):
        pass
    assert str(error.value) == (
        f"alpha must not exceed 1 for '{site.where}', whose bias is bounded; got 1.25"
    )


def test_where_nothing_can_be_scaled(vit: LoadedModel) -> None:
    bare = replace(vit.anatomy, positions=())
    with pytest.raises(NotApplicable, match=r"^the model has no positional signal, so there is "):
        scalable_positions(bare)
    both = tuple(PositionSite(kind, kind) for kind in ("convolutional", "absolute"))
    peg = replace(vit.anatomy, positions=both[:1])
    with pytest.raises(NotApplicable) as error:
        scalable_positions(peg)
    assert str(error.value) == (
        "positions come from convolutional layers, which alpha does not scale"
    )
    with pytest.raises(NotApplicable) as error:
        scalable_positions(replace(vit.anatomy, positions=both), "rotary")
    assert str(error.value) == "the model has no rotary signal (it has: absolute, convolutional)"


def test_a_signal_that_cannot_be_scaled_is_left_out_among_others(vit: LoadedModel) -> None:
    peg = PositionSite("convolutional", "patch_embed")
    anatomy = replace(vit.anatomy, positions=(peg, *vit.anatomy.positions))
    assert scalable_positions(anatomy) == list(vit.anatomy.positions)


@pytest.mark.parametrize("alpha", [1, 1.0])
def test_alpha_one_touches_nothing(vit: LoadedModel, alpha: float) -> None:
    table, bare = vit.module.pos_embed, forward(vit)
    with scale_positions(vit, alpha):
        assert vit.module.pos_embed is table
        assert torch.equal(forward(vit), bare)


def test_alpha_multiplies_the_whole_table(vit: LoadedModel) -> None:
    table = vit.module.pos_embed
    before = table.clone()
    with scale_positions(vit, 0.25, "absolute"):
        assert torch.equal(vit.module.pos_embed, before * 0.25)  # the class row too
    assert vit.module.pos_embed is table
    assert torch.equal(table, before)


def test_zero_tables_are_untrained(vit: LoadedModel) -> None:
    with torch.no_grad():
        vit.module.pos_embed.zero_()
    message = "the positional tables are all zero (untrained), so alpha cannot act on them"
    for alpha in (0.0, 0.5):
        with pytest.raises(NotApplicable) as error, scale_positions(vit, alpha):
            pass
        assert str(error.value) == message
    with scale_positions(vit, 1.0):
        forward(vit)


def test_one_zero_table_among_others_is_no_reason(vit: LoadedModel) -> None:
    (site,) = vit.anatomy.positions
    assert isinstance(site.rescale, SwapTensors)
    dead = PositionSite("relative_bias", "norm.bias", rescale=_times("norm.bias"))
    with torch.no_grad():
        vit.module.norm.bias.zero_()
    both = replace(vit, anatomy=replace(vit.anatomy, positions=(dead, site)))
    with scale_positions(vit, 0.5):
        expected = forward(vit)
    with scale_positions(both, 0.5):
        assert torch.equal(forward(vit), expected)


def test_an_edit_that_changes_nothing_fails_loudly(vit: LoadedModel) -> None:
    still = PositionSite("relative_bias", "norm", rescale=EditOutput(lambda x, alpha: x))
    model = replace(vit, anatomy=replace(vit.anatomy, positions=(still,)))
    with pytest.raises(NoEffect) as error, scale_positions(model, 0.5):
        forward(model)
    assert str(error.value) == "scaling 'norm' by 0.5 changed nothing"
    assert len(submodule(vit.module, "norm")._forward_hooks) == 0


def _times(name: str) -> SwapTensors:
    return SwapTensors(lambda model, alpha: {name: model.get_parameter(name) * alpha})


@pytest.mark.parametrize(
    "name", ["timm_vit", "timm_eva_rope_mixed_ape", "timm_swin", "timm_swin_v2"]
)
def test_rpi_and_alpha_compose_in_either_order(name: str) -> None:
    model = MODELS[name]()
    rows = rpi_permutations(model.anatomy.patches.grid, [0, 1, 2], Permutation("image", 0))

    def shuffle() -> Any:
        return permute_patches(model, rows)

    def scale() -> Any:
        return scale_positions(model, 0.5)

    def under(*contexts: Callable[[], Any]) -> Tensor:
        if not contexts:
            return forward(model)
        with contexts[0]():
            return under(*contexts[1:])

    clean, rpi, scaled = under(), under(shuffle), under(scale)
    both = under(shuffle, scale)
    assert torch.equal(both, under(scale, shuffle))
    assert not any(torch.equal(both, other) for other in (clean, rpi, scaled))
    assert torch.equal(under(), clean)


def test_alpha_acts_on_positions_and_rpi_on_tokens(vit: LoadedModel) -> None:
    """What enters block 0 is the shuffled projection plus the scaled table, computed by hand."""
    rows = rpi_permutations(GRID, [0, 1, 2], Permutation("image", 3))
    entered: list[Tensor] = []
    handle = vit.module.blocks[0].register_forward_pre_hook(
        lambda _m, args: entered.append(args[0])
    )
    with permute_patches(vit, rows), scale_positions(vit, 0.25):
        forward(vit)
    handle.remove()
    with torch.no_grad():
        projected = vit.module.patch_embed.proj(images(vit)).flatten(2).transpose(1, 2)
    moved = np.take_along_axis(projected.numpy(), rows.numpy()[:, :, None], axis=1)
    expected = moved + 0.25 * vit.module.pos_embed[:, 1:].detach().numpy()
    np.testing.assert_allclose(entered[0][:, 1:].numpy(), expected, rtol=0, atol=1e-6)
