"""Counts against published figures and by hand."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from probe.audit.budget import activation_bytes, budget
from probe.audit.hardware import measure
from probe.loading import load_model
from probe.types import ModelSpec
from tests.families.tiny import MAKERS


def test_deit_small_costs_what_is_published() -> None:
    spec = ModelSpec("deit_small", "timm:deit_small_patch16_224.fb_in1k")
    found = budget(load_model(spec, random_init=True, device="cpu"))
    assert found["params"] == 22_050_664
    assert found["macs"] / 1e9 == pytest.approx(4.60, abs=0.01)
    assert (found["image_tokens"], found["prefix_tokens"]) == (196, 1)
    assert found["convention"].startswith("one multiply-add counts once")
    assert found["activation_bytes"] > 50e6
    assert found["reason"] is None


def test_multiply_adds_by_hand() -> None:
    model = MAKERS["timm_vit"]()
    tokens, width, depth, patches = 17, 32, 3, 16
    block = tokens * width * (3 + 1 + 4 + 4) * width + 2 * tokens * tokens * width
    wanted = patches * 192 * width + depth * block + width * 7
    assert budget(model)["macs"] == wanted


def test_activations_grow_with_the_image_and_leave_nothing_behind() -> None:
    small, large = MAKERS["timm_vit"](), MAKERS["timm_vit_wide"]()
    asked = [parameter.requires_grad for parameter in small.module.parameters()]
    first, reason = activation_bytes(small)
    second, _ = activation_bytes(large)
    assert reason is None
    assert first is not None
    assert second is not None
    assert 1.3 * first < second < 2.2 * first
    assert asked == [parameter.requires_grad for parameter in small.module.parameters()]


def test_activations_by_hand() -> None:
    """A linear layer keeps its input, and a ReLU its output: 4 x 5 and 4 x 7 floats."""
    from dataclasses import replace

    model = MAKERS["timm_vit"]()
    layers = nn.Sequential(nn.Linear(5, 7), nn.ReLU())
    given = torch.zeros(4, 5)
    tiny = replace(model, module=layers, forward=lambda images: layers(given))
    assert activation_bytes(tiny) == (4 * 4 * (5 + 7), None)


def test_hardware_says_what_was_measured() -> None:
    found = measure(MAKERS["timm_vit"](), batch=2, rounds=1)
    assert found["images_per_second"] > 0
    assert found["peak_memory_bytes"] > 1e6
    assert (found["device"], found["dtype"], found["batch"]) == ("cpu", "float32", 2)
    assert found["memory"] == "resident, of the whole process so far"
