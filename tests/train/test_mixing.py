"""Targets and losses against their formulas."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from probe.errors import UsageError
from tests.train.tiny_data import small_recipe
from train.mixing import Objective


def objective(*changes: str, seed: int = 0) -> Objective:
    return Objective(small_recipe("x", *changes), 5, seed)


def batch(count: int = 8) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.rand(count, 3, 8, 8, generator=generator), torch.arange(count) % 5


def log_softmax(logits: Tensor) -> np.ndarray:
    values = logits.double().numpy()
    return values - np.log(np.exp(values).sum(axis=1, keepdims=True))


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_loss_without_mixing(smoothing: float) -> None:
    asked = objective(f"train.label_smoothing={smoothing}")
    images, labels = batch()
    found, target = asked.mixed(images, labels, (0, 0, 0))
    assert found is images
    assert target is labels
    logits = torch.randn(8, 5, generator=torch.Generator().manual_seed(2))
    smooth = np.full((8, 5), smoothing / 5)
    smooth[np.arange(8), labels.numpy()] += 1 - smoothing
    expected = -(smooth * log_softmax(logits)).sum(axis=1).mean()
    assert asked.loss(logits, target).item() == pytest.approx(expected, rel=1e-6)


def test_mixup_blends_each_image_with_its_mirror_in_the_batch() -> None:
    asked = objective("augment.mixup=0.8", "train.label_smoothing=0.1")
    shares = []
    for step in range(20):
        images, labels = batch()
        found, target = asked.mixed(images.clone(), labels, (step, 0, 0))
        other = images.flip(0)
        share = ((found - other) * (images - other)).sum() / (images - other).square().sum()
        torch.testing.assert_close(found, share * images + (1 - share) * other)
        smooth = torch.full((8, 5), 0.02)
        smooth[torch.arange(8), labels] += 0.9
        torch.testing.assert_close(target, share * smooth + (1 - share) * smooth.flip(0))
        shares.append(share.item())
        logits = torch.randn(8, 5, generator=torch.Generator().manual_seed(step))
        expected = -(target.double().numpy() * log_softmax(logits)).sum(axis=1).mean()
        assert asked.loss(logits, target).item() == pytest.approx(expected, rel=1e-5)
    assert min(shares) >= 0
    assert max(shares) <= 1
    assert len(set(shares)) == 20


def test_cutmix_pastes_a_box_and_counts_its_pixels() -> None:
    asked = objective("augment.cutmix=1.0", "train.label_smoothing=0")
    sizes = set()
    for step in range(20):
        images, labels = batch()
        found, target = asked.mixed(images.clone(), labels, (step, 0, 0))
        pasted = (found != images).any(dim=1)
        assert torch.equal(found, torch.where(pasted[:, None], images.flip(0), images))
        rows, columns = pasted[0].any(dim=1), pasted[0].any(dim=0)
        assert torch.equal(pasted, (rows[:, None] & columns)[None].expand(8, -1, -1))
        share = 1 - pasted[0].double().mean().item()
        hot = torch.nn.functional.one_hot(labels, 5).float()
        torch.testing.assert_close(target, share * hot + (1 - share) * hot.flip(0))
        sizes.add(share)
    assert len(sizes) > 5


def test_both_take_turns() -> None:
    asked = objective("augment.mixup=0.8", "augment.cutmix=1.0")
    cut = 0
    for step in range(60):
        images, labels = batch()
        found, _ = asked.mixed(images.clone(), labels, (step, 0, 0))
        cut += bool((found == images).any())
    assert 15 < cut < 45


def test_a_function_of_seed_and_time_that_leaves_global_generators_alone() -> None:
    def mixed(asked: Objective, *when: int) -> Tensor:
        return asked.mixed(*batch(), when)[0]

    one = objective("augment.mixup=0.8", "augment.cutmix=1.0")
    before = (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state())
    first = [mixed(one, step, 0, 0) for step in range(3)]
    assert random.getstate() == before[0]
    assert np.random.get_state()[1].tolist() == before[1]
    assert torch.equal(torch.get_rng_state(), before[2])
    again = objective("augment.mixup=0.8", "augment.cutmix=1.0")
    np.random.seed(7)
    assert all(torch.equal(mixed(again, step, 0, 0), first[step]) for step in (2, 0, 1))
    for other in (
        mixed(one, 3, 0, 0),
        mixed(one, 0, 1, 0),
        mixed(one, 0, 0, 1),
        mixed(objective("augment.mixup=0.8", "augment.cutmix=1.0", seed=1), 0, 0, 0),
    ):
        assert not torch.equal(other, first[0])


def test_an_odd_number_of_images_cannot_be_paired() -> None:
    images: Any = batch(7)
    with pytest.raises(UsageError) as caught:
        objective("augment.mixup=0.8").mixed(*images, (0, 0, 0))
    assert str(caught.value) == (
        "mixup and CutMix pair the images of a forward pass, and 7 is odd; change --set "
        "train.batch or train.accumulate, or the number of processes"
    )
    assert objective().mixed(*images, (0, 0, 0))[0] is images[0]
