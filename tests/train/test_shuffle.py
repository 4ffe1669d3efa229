"""RPT's shuffle is `permute_patches`, in training mode alone."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor

from probe.families.controlled import Network, Variant, build
from probe.families.timm_eva import FAMILY
from probe.interventions import permute_patches
from probe.types import Identity, LoadedModel, ModelSpec
from train.optimisation import averaged
from train.shuffle import PatchShuffle

NETWORK = Network(16, 4, width=16, depth=2, heads=2, classes=3)
TOKENS = 16


def orders(count: int) -> Tensor:
    generator = torch.Generator().manual_seed(3)
    return torch.stack([torch.randperm(TOKENS, generator=generator) for _ in range(count)])


def images(count: int) -> Tensor:
    return torch.randn(count, 3, 16, 16, generator=torch.Generator().manual_seed(4))


def loaded(module: Any) -> LoadedModel:
    return LoadedModel(
        spec=ModelSpec("tiny", "file:tiny"),
        identity=Identity("tiny", None, "random:0"),
        family=FAMILY.name,
        module=module,
        anatomy=FAMILY.anatomy(module, (16, 16)),
        preprocess=None,
        forward=module,
        predict=FAMILY.predict(module),
        classes=3,
    )


@pytest.mark.parametrize("variant", ["rpt", "spe", "rope"])
def test_the_same_as_rpi_in_training_and_nothing_in_evaluation(variant: Variant) -> None:
    shuffled, plain = build(NETWORK, variant, 0), build(NETWORK, variant, 0)
    hook = PatchShuffle(shuffled)
    hook.order = orders(3)
    with torch.no_grad():
        with permute_patches(loaded(plain), orders(3)):
            expected = plain(images(3))
        ordered = plain(images(3))
        assert torch.equal(shuffled(images(3)), expected)
        shuffled.eval()
        assert torch.equal(shuffled(images(3)), ordered)
        # No order is asked for then.
        hook.order = None
        assert torch.equal(shuffled(images(5)), plain(images(5)))
    assert not torch.allclose(expected, ordered)


def test_token_i_becomes_token_order_i() -> None:
    model: Any = build(NETWORK, "rpt", 0)
    with torch.no_grad():
        before = model.patch_embed(images(2))
        hook = PatchShuffle(model)
        hook.order = orders(2)
        after = model.patch_embed(images(2))
    for image in range(2):
        for place in range(TOKENS):
            assert torch.equal(after[image, place], before[image, hook.order[image, place]])


def test_gradients_go_back_through_the_shuffle() -> None:
    model: Any = build(NETWORK, "rpt", 0)
    hook = PatchShuffle(model)
    hook.order = orders(2)
    model(images(2)).sum().backward()
    assert model.patch_embed.proj.weight.grad.abs().sum() > 0


@pytest.mark.parametrize("order", [None, orders(3), orders(2)[:, :8]])
def test_an_order_of_another_batch_is_refused(order: Tensor | None) -> None:
    model = build(NETWORK, "rpt", 0)
    PatchShuffle(model).order = order
    with pytest.raises(RuntimeError, match="set the order of the batch before the forward pass"):
        model(images(2))


def test_averaged_weights_and_copies_evaluate_in_order() -> None:
    model = build(NETWORK, "rpt", 0)
    PatchShuffle(model).order = orders(2)
    ema = averaged(model, 0.9)
    ema.update_parameters(model)
    with torch.no_grad():
        expected = build(NETWORK, "rpt", 0).eval()(images(2))
        assert torch.equal(ema.module.eval()(images(2)), expected)
        assert torch.equal(copy.deepcopy(model).eval()(images(2)), expected)
