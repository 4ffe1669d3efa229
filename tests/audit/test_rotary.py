"""Angles per patch against the sines and cosines that the blocks are given."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from timm.layers import RotaryEmbedding, RotaryEmbeddingCat
from torch import nn

from probe.audit.rotary import LISTED, Rotation, read_rotation, rotary_facts
from probe.errors import AnatomyError
from probe.types import Grid, LoadedModel
from tests.families.tiny import fresh, images_for

TURNS = 2 * math.pi
ROTARY = [
    "timm_eva_02", "timm_eva_rope", "timm_eva_rope_registers", "timm_eva_rope_dynamic",
    "timm_eva_rope_mixed", "timm_eva_rope_mixed_ape", "timm_eva_mrope", "timm_eva_dinov3",
    "timm_eva_dinov3_dynamic",
]  # fmt: skip


def angles_in_use(model: LoadedModel) -> NDArray[np.float64]:
    """The angle of every token and pair, per block, from the table that each block gets.

    Shape (blocks, ..., rows, cols, pairs), modulo 2 pi.
    """
    seen: list[torch.Tensor] = []
    rope: Any = model.module.rope

    def keep(_module: nn.Module, _args: Any, kwargs: dict[str, Any]) -> None:
        seen.append(kwargs["rope"].double())

    handles = [
        block.register_forward_pre_hook(keep, with_kwargs=True) for block in model.module.blocks
    ]
    with torch.no_grad():
        model.forward(images_for(model))
    for handle in handles:
        handle.remove()
    sine, cosine = torch.stack(seen).chunk(2, dim=-1)
    whole = torch.atan2(sine, cosine)
    half = getattr(rope, "rotate_half", False) or type(rope).__name__ == "RotaryEmbeddingMRope"
    pairs = whole[..., : whole.shape[-1] // 2] if half else whole[..., ::2]
    grid = model.anatomy.patches.grid
    return pairs.unflatten(-2, (grid.rows, grid.cols)).numpy()


def turn(angle: NDArray[np.float64]) -> NDArray[np.float64]:
    """An angle modulo 2 pi, in -pi..pi."""
    return (angle + math.pi) % TURNS - math.pi


@pytest.mark.parametrize("name", ROTARY)
def test_steps_are_those_of_the_table_in_use(name: str) -> None:
    model = fresh(name)
    rotation = read_rotation(model.module.rope, model.anatomy.patches.grid)
    angles = angles_in_use(model)
    down, across = np.diff(angles, axis=-3), np.diff(angles, axis=-2)
    for steps, found in ((rotation.rows, down), (rotation.cols, across)):
        # (blocks, heads, pairs) or (pairs,), against (blocks[, heads], rows, cols, pairs)
        wanted = steps[:, :, None, None, :] if steps.ndim == 3 else steps
        np.testing.assert_allclose(turn(found - wanted), 0, atol=2e-5)
    assert float(np.abs(rotation.rows).max()) > 0.01
    assert float(np.abs(rotation.cols).max()) > 0.01


@pytest.mark.parametrize("name", ["hf_dinov3_24x40", "hf_mlcd_40x32", "hf_pixtral"])
def test_steps_are_those_of_the_cosines_that_transformers_makes(name: str) -> None:
    model = fresh(name)
    grid, (site,) = model.anatomy.patches.grid, model.anatomy.positions
    rope: Any = model.module.get_submodule(site.where)
    seen: list[Any] = []
    handle = rope.register_forward_hook(lambda _m, _a, out: seen.append(out))
    with torch.no_grad():
        model.forward(images_for(model))
    handle.remove()
    cosine, sine = (part[: grid.tokens].double() for part in seen[0])
    whole = torch.atan2(sine, cosine)
    angles = whole[:, : whole.shape[1] // 2].unflatten(0, (grid.rows, grid.cols)).numpy()
    rotation = read_rotation(rope, grid)
    for steps, found in (
        (rotation.rows, np.diff(angles, axis=0)),
        (rotation.cols, np.diff(angles, axis=1)),
    ):
        np.testing.assert_allclose(turn(found - steps), 0, atol=2e-5)
    assert min(np.abs(rotation.rows).max(), np.abs(rotation.cols).max()) > 0.01


def test_rows_and_columns_exchanged_are_caught() -> None:
    model = fresh("timm_eva_dinov3")  # 4 x 6 patches: other steps along each axis
    rotation = read_rotation(model.module.rope, model.anatomy.patches.grid)
    down = np.diff(angles_in_use(model), axis=-3)
    assert np.abs(turn(down - rotation.cols)).max() > 0.1


def test_facts_of_an_axial_rotation() -> None:
    grid = Grid(4, 4)
    facts = rotary_facts(read_rotation(fresh("timm_eva_rope").module.rope, grid), grid)
    # Heads of 16 channels: 4 frequencies per axis, 1 down to 10000 ** -0.75.
    assert facts["frequencies"] == pytest.approx([1, 0.1, 0.01, 0.001])
    assert facts["angles_per_patch"] == pytest.approx({"min": 0.001, "max": 1})
    assert facts["axes"]["rows"] == pytest.approx({"min": 0.001, "max": 1})
    assert facts["axes"]["cols"] == facts["axes"]["rows"]
    assert facts["wraps_at"] == pytest.approx(TURNS)
    assert facts["longest"] == pytest.approx(1000 * TURNS)
    rest = {key: facts[key] for key in ("direction", "shared", "pairs", "inert", "listed")}
    assert rest == {
        "direction": "axial", "shared": True, "pairs": 8, "inert": 0, "listed": "all",
    }  # fmt: skip


@pytest.mark.parametrize(("cols", "inside"), [(7, False), (8, True)])
def test_wrapping_inside_the_grid(cols: int, inside: bool) -> None:
    """At 1 radian per patch a turn takes 6.28 patches, and 7 columns are 6 apart at most."""
    grid = Grid(2, cols)
    rope = RotaryEmbeddingCat(16, in_pixels=False, feat_shape=[2, cols])
    assert rotary_facts(read_rotation(rope, grid), grid)["wraps_inside"] is inside


def test_a_reference_grid_sets_the_steps() -> None:
    grid = Grid(4, 6)
    facts = rotary_facts(read_rotation(fresh("timm_eva_02").module.rope, grid), grid)
    assert facts["axes"]["rows"]["max"] == pytest.approx(1)
    assert facts["axes"]["cols"]["max"] == pytest.approx(4 / 6)


def test_normalised_coordinates_set_the_steps() -> None:
    grid = Grid(4, 6)
    facts = rotary_facts(read_rotation(fresh("timm_eva_dinov3").module.rope, grid), grid)
    # The shortest period is 1, and coordinates run from -1 to 1.
    assert facts["axes"]["rows"]["max"] == pytest.approx(TURNS * 2 / 4)
    assert facts["axes"]["cols"]["max"] == pytest.approx(TURNS * 2 / 6)
    assert facts["wraps_at"] == pytest.approx(2)


def test_mixed_pairs_have_directions_of_their_own() -> None:
    grid = Grid(4, 6)
    facts = rotary_facts(read_rotation(fresh("timm_eva_rope_mixed").module.rope, grid), grid)
    assert (facts["direction"], facts["shared"], facts["pairs"]) == ("mixed", False, 8)
    # Redrawing touches no frequency here; two magnitudes of 4, each in two directions.
    assert facts["angles_per_patch"]["max"] == pytest.approx(1)


def test_temporal_pairs_stand_still() -> None:
    grid = Grid(4, 6)
    rope = fresh("timm_eva_mrope").module.rope
    facts = rotary_facts(read_rotation(rope, grid), grid)
    assert facts["inert"] == int((rope.axis == 0).sum()) == 3
    assert len(facts["frequencies"]) == 5


def test_many_frequencies_are_listed_as_quantiles() -> None:
    steps = np.random.default_rng(0).uniform(0.1, 2, (3, 2, 40))
    facts = rotary_facts(Rotation(steps, steps[::-1], (2, 3, 2, 40)), Grid(4, 4))
    speed = np.hypot(steps, steps[::-1]).ravel()
    assert facts["listed"] == f"{LISTED} quantiles of 240"
    assert len(facts["frequencies"]) == LISTED
    assert facts["frequencies"][0] == pytest.approx(speed.max())
    assert facts["frequencies"][-1] == pytest.approx(speed.min())
    assert facts["inert"] == 0


def test_nothing_turns() -> None:
    still = np.zeros(4)
    facts = rotary_facts(Rotation(still, still, (2,)), Grid(4, 4))
    assert facts["angles_per_patch"] is None
    assert (facts["wraps_at"], facts["longest"], facts["wraps_inside"]) == (None, None, False)
    assert (facts["inert"], facts["frequencies"]) == (4, [])


@pytest.mark.parametrize(
    "rope",
    [RotaryEmbedding(16, in_pixels=False), RotaryEmbeddingCat(16, in_pixels=True), nn.Identity()],
)
def test_another_rotary_module_is_refused(rope: nn.Module) -> None:
    with pytest.raises(AnatomyError, match=f"come from {type(rope).__name__}, whose angles"):
        read_rotation(rope, Grid(4, 4))
