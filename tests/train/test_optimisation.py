"""Learning rates, groups of parameters and averaged weights against formulas written by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from probe.families.controlled import Network, build
from tests.train.tiny_data import small_recipe
from train.optimisation import averaged, optimiser, rate_factor, set_rate
from train.sections import Training

NETWORK = Network(8, 4, width=16, depth=1, heads=2, classes=3)
VECTORS = {
    "cls_token",
    "patch_embed.proj.bias",
    "blocks.0.norm1.weight",
    "blocks.0.norm1.bias",
    "blocks.0.attn.qkv.bias",
    "blocks.0.attn.proj.bias",
    "blocks.0.norm2.weight",
    "blocks.0.norm2.bias",
    "blocks.0.mlp.fc1.bias",
    "blocks.0.mlp.fc2.bias",
    "norm.weight",
    "norm.bias",
    "head.bias",
}
MATRICES = {
    "patch_embed.proj.weight",
    "blocks.0.attn.qkv.weight",
    "blocks.0.attn.proj.weight",
    "blocks.0.mlp.fc1.weight",
    "blocks.0.mlp.fc2.weight",
    "head.weight",
}


def training(*changes: str) -> Training:
    return small_recipe("x", *(f"train.{change}" for change in changes)).train


def groups(how: Training, variant: Any) -> list[tuple[set[str], float, float]]:
    """(names, weight decay, factor) of each group."""
    model = build(NETWORK, variant, 0)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    return [
        ({names[id(p)] for p in group["params"]}, group["weight_decay"], group["factor"])
        for group in optimiser(model, how).param_groups
    ]


def test_matrices_alone_are_shrunk_and_the_table_has_its_own_rate() -> None:
    how = training("decay=matrices", "weight_decay=0.3", "position_lr_factor=8")
    assert groups(how, "ape") == [
        (MATRICES, 0.3, 1.0),
        (VECTORS, 0.0, 1.0),
        ({"pos_embed"}, 0.0, 8.0),
    ]
    for variant in ("rope", "none", "spe"):
        assert groups(how, variant) == [(MATRICES, 0.3, 1.0), (VECTORS, 0.0, 1.0)]


def test_everything_is_shrunk_where_the_recipe_says_so() -> None:
    how = training("decay=all", "weight_decay=0.3", "position_lr_factor=2")
    assert groups(how, "rpt") == [(MATRICES | VECTORS, 0.3, 1.0), ({"pos_embed"}, 0.3, 2.0)]
    # The fixed table of spe is never touched.
    assert groups(how, "spe") == [(MATRICES | VECTORS, 0.3, 1.0)]


@pytest.mark.parametrize("name", ["adam", "adamw"])
def test_one_step_against_the_formula(name: str) -> None:
    how = training(
        f"optimizer={name}",
        "lr=0.01",
        "betas=[0.8, 0.9]",
        "weight_decay=0.3",
        "decay=all",
        "warmup=0",
        "position_lr_factor=4",
    )
    model = build(NETWORK, "ape", 0)
    optimizer = optimiser(model, how)
    set_rate(optimizer, how, 0, 10)
    before = {n: p.detach().double().clone() for n, p in model.named_parameters()}
    generator = torch.Generator().manual_seed(0)
    gradients = {n: torch.randn(p.shape, generator=generator) for n, p in model.named_parameters()}
    for key, parameter in model.named_parameters():
        parameter.grad = gradients[key].clone()
    optimizer.step()
    for key, parameter in model.named_parameters():
        rate = 0.01 * (4 if key == "pos_embed" else 1)
        old, gradient = before[key], gradients[key].double()
        if name == "adam":
            # The paper's: decay is part of the gradient.
            gradient = gradient + 0.3 * old
        else:
            old = old * (1 - rate * 0.3)
        # After one step the corrected moments are the gradient and its square.
        expected = old - rate * gradient / (gradient.abs() + 1e-8)
        torch.testing.assert_close(parameter.detach().double(), expected, atol=1e-6, rtol=1e-5)


def test_the_rate_warms_up_and_falls_as_a_cosine() -> None:
    how = training("schedule=cosine", "warmup=0.2")
    found = [rate_factor(how, step, 10) for step in range(10)]
    cosine = [0.5 * (1 + math.cos(math.pi * k / 8)) for k in range(8)]
    assert found == pytest.approx([0.5, 1.0, *cosine])
    assert found[2] == 1.0
    assert 0 < found[9] < 0.05
    constant = training("schedule=constant", "warmup=0.3")
    assert [rate_factor(constant, step, 10) for step in range(10)] == pytest.approx(
        [1 / 3, 2 / 3, *[1.0] * 8]
    )
    assert [rate_factor(training("warmup=0"), 0, n) for n in (1, 5)] == [1.0, 1.0]


@given(st.integers(1, 300), st.floats(0, 0.99), st.sampled_from(["cosine", "constant"]))
def test_rates_are_factors(steps: int, warmup: float, schedule: str) -> None:
    how = small_recipe("x").train.model_copy(update={"warmup": warmup, "schedule": schedule})
    found = [rate_factor(how, step, steps) for step in range(steps)]
    assert all(0 < factor <= 1 for factor in found)
    top = min(round(warmup * steps), steps - 1)
    assert found[: top + 1] == sorted(found[: top + 1])
    assert found[top:] == sorted(found[top:], reverse=True)


def test_every_group_gets_its_rate() -> None:
    how = training("lr=0.5", "position_lr_factor=8", "warmup=0.5", "schedule=cosine")
    optimizer = optimiser(build(NETWORK, "ape", 0), how)
    assert set_rate(optimizer, how, 0, 8) == pytest.approx(0.125)
    assert [group["lr"] for group in optimizer.param_groups] == pytest.approx([0.125, 0.125, 1.0])
    assert set_rate(optimizer, how, 6, 8) == pytest.approx(0.25)
    assert [group["lr"] for group in optimizer.param_groups] == pytest.approx([0.25, 0.25, 2.0])


def test_averaged_weights_against_the_recursion() -> None:
    model = build(NETWORK, "ape", 0)
    ema = averaged(model, 0.9)
    generator = torch.Generator().manual_seed(0)
    expected: dict[str, torch.Tensor] = {}
    for update in range(6):
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=generator))
                new = parameter.double()
                # The average starts at the weights after the first step.
                expected[name] = 0.9 * expected[name] + 0.1 * new if update else new
        ema.update_parameters(model)
    for name, parameter in ema.module.named_parameters():
        torch.testing.assert_close(parameter.double(), expected[name], atol=1e-6, rtol=1e-5)
    assert {n for n, _ in ema.module.named_parameters()} == {n for n, _ in model.named_parameters()}
