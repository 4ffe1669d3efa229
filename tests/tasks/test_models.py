"""Real models: what is shown to them, and that one without positions cannot tell arrangements."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

from probe.errors import CheckpointError, DataError
from probe.loading import load_model
from probe.numerics.proportions import wilson
from probe.tasks import arrangement, scale
from probe.tasks.design import scenes
from probe.tasks.frame import frame_of
from probe.tasks.reader import Reader
from probe.tasks.run import Plan, run_tasks
from probe.types import LoadedModel
from probe.zoo import load_zoo
from tests.small_runs import counting, ready
from tests.tasks.checks import DIGITS, group


@cache
def digits(variant: str) -> LoadedModel:
    return load_model(load_zoo()[f"digits_{variant}_s0"], device="cpu")


@cache
def arranged(variant: str) -> dict[str, Any]:
    plan = Plan(train=800, test=128, seeds=(0, 1))
    entries, _, _ = run_tasks(digits(variant), [arrangement.TASK], plan, "class", batch_size=64)
    return entries[0]


def test_a_model_without_positions_is_at_chance_whatever_the_arrangement() -> None:
    for level in arranged("none")["levels"]:
        found = level["accuracy"]
        assert found["low"] <= 0.5 <= found["high"]
        assert abs(found["value"] - 0.5) < 0.06


@pytest.mark.parametrize("variant", ["ape", "rope"])
def test_a_model_with_positions_is_above_chance(variant: str) -> None:
    levels = arranged(variant)["levels"]
    correct, images = (sum(level[key] for level in levels) for key in ("correct", "images"))
    assert wilson(correct, images)[0] > 0.6
    assert levels[-1]["accuracy"]["low"] > 0.7


@pytest.mark.parametrize("pool", ["class", "mean", "both"])
def test_without_positions_both_scenes_of_a_pair_have_the_same_features(pool: Any) -> None:
    gaps = {}
    for variant in ("none", "ape"):
        seen = Reader(digits(variant), pool, 16).read(
            scene for index in range(8) for scene in group(arrangement.TASK, DIGITS, 2.0, index)
        )
        pairs = seen.features.reshape(8, 2, -1)
        gaps[variant] = np.abs(pairs[:, 0] - pairs[:, 1]).max() / seen.features.std()
    assert gaps["none"] < 1e-4 < 1e-2 < gaps["ape"]


def test_scenes_reach_the_model_as_they_are() -> None:
    model = ready("vit_wide")
    shown: list[torch.Tensor] = []
    forward = model.forward

    def keep(images: torch.Tensor) -> Any:
        shown.append(images)
        return forward(images)

    frame = frame_of(model)
    told: list[int] = []
    reader = Reader(replace(model, forward=keep), "mean", 5, told.append)
    made = list(scenes(scale.TASK, frame, "size", 0.5, seed=0, part="test", groups=range(3)))
    seen = reader.read(made)
    assert [len(one) for one in shown] == told == [5, 5, 2]
    assert reader.count == 12
    pixels = torch.cat(shown).permute(0, 2, 3, 1)
    back = ((pixels * 0.5 + 0.5) * 255).round().to(torch.uint8).numpy()
    assert np.array_equal(back, np.stack([scene.image for scene in made]))
    assert seen.features.shape == (12, 32)
    assert seen.features.dtype == np.float64
    assert seen.labels.tolist() == [0, 1, 2, 3] * 3
    again = Reader(model, "mean", 12)
    assert np.allclose(again.read(made).features, seen.features, atol=1e-5)
    assert again.digest == reader.digest
    again.read(made[:1])
    assert again.digest != reader.digest


def test_features_that_are_not_finite_are_refused() -> None:
    model = ready("vit")
    with torch.no_grad():
        next(model.module.parameters()).fill_(float("nan"))
    made = group(scale.TASK, frame_of(model), 0.5)
    with pytest.raises(DataError, match="not finite; choose --dtype float32"):
        Reader(model, "mean", 4).read(made)


def test_a_model_without_preprocessing_is_refused() -> None:
    with pytest.raises(CheckpointError, match="carries no preprocessing"):
        Reader(replace(ready("vit"), preprocess=None), "mean", 4)


def test_the_same_seed_gives_the_same_result() -> None:
    plan = Plan(train=40, test=8, seeds=(3,))
    model, sizes = counting(digits("rope"))
    first = run_tasks(model, [scale.TASK], plan, "mean", batch_size=16)
    entries, digest, count = run_tasks(model, [scale.TASK], plan, "mean", batch_size=16)
    assert (entries, digest, count) == first
    assert 2 * count == sum(sizes)
    other, changed, _ = run_tasks(
        model, [scale.TASK], replace(plan, seeds=(4,)), "mean", batch_size=16
    )
    assert (other != entries, changed != digest) == (True, True)
