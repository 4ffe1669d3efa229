"""Passes of a model with a readout: a linear layer on its features, and a key of its own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from probe.data.memory import InMemory
from probe.errors import UsageError
from probe.interventions import permute_patches, rpi_permutations, scale_positions
from probe.plan import Settings
from probe.readout import Readout, fit_readout, pooled_features, with_readout
from probe.session import measure_loaded
from probe.types import Condition, LoadedModel, Permutation, Task
from tests.small_runs import pictures, ready, run, strong, top1

IMAGES = pictures(16)
CLEAN = Condition()
PERMUTATION = Permutation("image", seed=0)


@pytest.fixture(scope="module", params=["vit_features", "swin"])
def model(request: pytest.FixtureRequest) -> LoadedModel:
    """A headless ViT, and a Swin whose own head the readout replaces."""
    return strong(ready(request.param))


def fitted(model: LoadedModel, classes: int = 4, **options: Any) -> Readout:
    labels: list[Any] = [index % classes for index in range(16)]
    return fit_readout(model, InMemory(IMAGES, labels), grid=[1.0], **options)


def by_hand(model: LoadedModel, readout: Readout) -> list[int]:
    """Answers of a linear layer on the pooled features, one image at a time."""
    linear = torch.nn.Linear(len(readout.mean), len(readout.bias))
    found = []
    with torch.no_grad():
        linear.weight.copy_(readout.weight)
        linear.bias.copy_(readout.bias)
        for image in IMAGES:
            pixels = (torch.from_numpy(image).permute(2, 0, 1)[None].float() / 255 - 0.5) / 0.5
            features = pooled_features(model, pixels, readout.pool)
            found.append(int(linear((features - readout.mean) / readout.std).argmax()))
    return found


@pytest.mark.parametrize("pool", [None, "mean"])
def test_it_predicts_as_a_linear_layer_on_the_features(
    model: LoadedModel, pool: str | None
) -> None:
    readout = fitted(model, pool=pool)
    (record,) = run(with_readout(model, readout), IMAGES, top1(CLEAN), Settings(batch_size=5))
    assert record.predicted is not None
    assert record.predicted.tolist() == by_hand(model, readout)
    assert len(set(record.predicted.tolist())) > 2


def test_interventions_act_on_its_features(model: LoadedModel) -> None:
    readout = fitted(model)
    headed = with_readout(model, readout)
    conditions = [Condition(PERMUTATION), Condition(alpha=0.0)]
    shuffled, scaled = run(headed, IMAGES, top1(*conditions), Settings(batch_size=16))
    stacked = torch.from_numpy(np.stack(IMAGES)).permute(0, 3, 1, 2).float()
    pixels = (stacked / 255 - 0.5) / 0.5
    orders = rpi_permutations(model.anatomy.patches.grid, range(16), PERMUTATION)

    def answers(features: Tensor) -> list[int]:
        return [int(one) for one in readout.logits(features).argmax(dim=1)]

    with torch.no_grad():
        with permute_patches(model, orders):
            expected = answers(pooled_features(model, pixels, readout.pool))
        assert shuffled.predicted is not None
        assert shuffled.predicted.tolist() == expected
        with scale_positions(model, 0.0):
            expected = answers(pooled_features(model, pixels, readout.pool))
        assert scaled.predicted is not None
        assert scaled.predicted.tolist() == expected


def test_ssdc_is_the_models_own_whatever_its_readout(model: LoadedModel) -> None:
    headed = with_readout(model, fitted(model))
    rpi = Condition(PERMUTATION)
    for task in (Task(rpi), Task(rpi, last_layer=1)):
        bare, read = (run(one, IMAGES, [task])[0] for one in (model, headed))
        assert bare.to_json() == read.to_json()


def test_two_readouts_never_share_a_key(model: LoadedModel, tmp_path: Path) -> None:
    def key(readout: Readout | None) -> str:
        headed = model if readout is None else with_readout(model, readout)
        # A bare model cannot predict, but measures SSDC under the same settings.
        tasks = [Task(CLEAN)] if readout is None else top1(CLEAN)
        found = measure_loaded(headed, InMemory(IMAGES), tasks, Settings(), runs=tmp_path)
        assert found.reused == 0
        return found.records[0].key

    one = fitted(model)
    nudged = replace(one, bias=one.bias + torch.tensor([1e-6, 0, 0, 0]))
    others = [one, nudged, fitted(model, classes=3), fitted(model, pool="mean", seed=1), None]
    assert len({key(readout) for readout in others}) == 5
    again = measure_loaded(
        with_readout(model, one), InMemory(IMAGES), top1(CLEAN), Settings(), runs=tmp_path
    )
    assert again.reused == 1
    assert any("a linear readout (sha256:" in note for note in again.records[0].settings["notes"])


def test_features_of_another_size_are_refused(model: LoadedModel) -> None:
    one = fitted(model)
    size = len(one.mean)
    longer = {name: torch.ones(size + 1) for name in ("mean", "std")}
    wrong = replace(one, weight=torch.zeros(4, size + 1), **longer)
    with pytest.raises(UsageError) as error:
        run(with_readout(model, wrong), IMAGES, top1(CLEAN))
    assert str(error.value) == (
        f"the readout takes {size + 1} features per image, but the model gives {size}; fit one for "
        "this model with `probe readout`"
    )
