"""Which images a step sees: a function of seed and step, however it is shared out."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from probe.data.preprocess import normalise
from probe.errors import DataError
from probe.families.controlled import build
from tests.train.tiny_data import in_memory, small_recipe, write_folder
from train.batches import Batch, Steps, stream
from train.evaluate import count_correct
from train.mixing import Objective
from train.optimisation import averaged, optimiser, set_rate
from train.parts import load_parts
from train.recipe import Recipe, load_recipe

AUGMENTED = (
    "augment.flip=true",
    "augment.shift=2",
    "augment.resized_crop=[0.3, 1]",
    "augment.rand_augment=rand-m9-mstd0.5-inc1",
)
PLAIN = ("augment.flip=false", "augment.shift=0")


def recipe(*changes: str, variant: str = "rpt", batch: int = 8) -> Recipe:
    return small_recipe("x", f"train.batch={batch}", *changes, variant=variant)


def equal(one: Batch, other: Batch) -> bool:
    pairs = [(one.pixels, other.pixels), (one.labels, other.labels)]
    if one.order is not None and other.order is not None:
        pairs.append((one.order, other.order))
    return (one.order is None) is (other.order is None) and all(
        a.dtype == b.dtype and torch.equal(a, b) for a, b in pairs
    )


def test_a_batch_is_what_it_says() -> None:
    batch = Steps(in_memory(20), recipe(), 0)[0]
    assert (batch.pixels.shape, batch.pixels.dtype) == ((8, 8, 8, 3), torch.uint8)
    assert (batch.labels.shape, batch.labels.dtype) == ((8,), torch.int64)
    assert batch.order is not None
    assert (batch.order.shape, batch.order.dtype) == ((8, 4), torch.int64)
    assert Steps(in_memory(20), recipe(variant="ape"), 0)[0].order is None


@given(st.integers(4, 30), st.integers(1, 4), st.integers(0, 5))
def test_every_epoch_is_a_permutation_without_repeats(count: int, batch: int, seed: int) -> None:
    """Labels number the images here, so they tell which were taken."""
    steps = Steps(in_memory(count, classes=count), recipe(*PLAIN, batch=batch), seed)
    assert steps.per_epoch == count // batch
    epochs = []
    for epoch in range(2):
        taken: list[int] = []
        for place in range(steps.per_epoch):
            found = steps[epoch * steps.per_epoch + place]
            taken += found.labels.tolist()
            expected = steps.part.images[found.labels.numpy()]
            assert np.array_equal(found.pixels.numpy(), expected)
        assert len(set(taken)) == len(taken) == steps.per_epoch * batch
        epochs.append(taken)
    if count >= 12:
        assert epochs[0] != epochs[1]
        assert epochs[0] != list(range(len(epochs[0])))


def test_rows_of_a_part_are_looked_up() -> None:
    whole = in_memory(12, classes=12)
    part = type(whole)(whole.images, np.arange(1, 12, 2), np.arange(1, 12, 2))
    steps = Steps(part, recipe(*PLAIN, batch=6), 0)
    batch = steps[3]
    assert sorted(batch.labels.tolist()) == [1, 3, 5, 7, 9, 11]
    assert np.array_equal(batch.pixels.numpy(), whole.images[batch.labels.numpy()])


def test_a_function_of_seed_and_step_alone() -> None:
    part = in_memory(20)
    forward = Steps(part, recipe(*AUGMENTED), 3)
    made = [forward[step] for step in range(5)]
    backward = Steps(part, recipe(*AUGMENTED), 3)
    assert all(equal(backward[step], made[step]) for step in (4, 1, 3, 0, 2))
    other = Steps(part, recipe(*AUGMENTED), 4)
    for step in range(5):
        batch, before = other[step], made[step]
        assert not torch.equal(batch.pixels, before.pixels)
        assert batch.order is not None
        assert before.order is not None
        assert not torch.equal(batch.order, before.order)


@pytest.mark.parametrize("change", ["none", *AUGMENTED, "all"])
@pytest.mark.parametrize("processes", [2, 4])
def test_shares_of_processes_make_up_the_batch(change: str, processes: int) -> None:
    chosen = {"none": PLAIN, "all": AUGMENTED}.get(change, (*PLAIN, change))
    part = in_memory(20)
    alone = Steps(part, recipe(*chosen), 1)
    shared = [
        Steps(part, recipe(*chosen), 1, processes=processes, rank=rank) for rank in range(processes)
    ]
    for step in range(3):
        parts = [steps[step] for steps in shared]
        assert {len(part.labels) for part in parts} == {8 // processes}
        joined = Batch(
            torch.cat([part.pixels for part in parts]),
            torch.cat([part.labels for part in parts]),
            torch.cat([part.order for part in parts if part.order is not None]),
        )
        assert equal(joined, alone[step])


def test_a_batch_that_processes_cannot_share() -> None:
    with pytest.raises(DataError) as caught:
        Steps(in_memory(20), recipe(), 0, processes=3)
    assert str(caught.value) == (
        "a batch of 8 cannot be shared by 3 processes; change --set train.batch, or their number"
    )


def test_workers_change_nothing() -> None:
    steps = Steps(in_memory(20), recipe(*AUGMENTED), 2)
    none = list(stream(steps, 1, 7, 0))
    two = list(stream(steps, 1, 7, 2))
    assert len(none) == len(two) == 6
    assert all(equal(one, other) for one, other in zip(none, two, strict=True))
    assert all(equal(batch, steps[step]) for step, batch in enumerate(none, 1))


def test_rpt_permutes_each_image_afresh_at_each_step() -> None:
    steps = Steps(in_memory(20, side=32), recipe("image.size=32", batch=16), 0)
    found = [steps[step].order for step in range(6)]
    orders = torch.cat([order for order in found if order is not None])
    assert orders.shape == (96, 64)
    assert torch.equal(orders.sort(dim=1).values, torch.arange(64).expand(96, -1))
    assert len({tuple(row) for row in orders.tolist()}) == 96
    # Every token comes to every place about equally often: means of 96 uniform draws.
    means = orders.double().mean(dim=0)
    assert (means - 31.5).abs().max() < 5 * 18.5 / 96**0.5


def test_batches_are_split_in_order() -> None:
    batch = Steps(in_memory(20), recipe(), 0)[0]
    parts = list(batch.split(4))
    assert [len(part.labels) for part in parts] == [2, 2, 2, 2]
    assert torch.equal(torch.cat([part.pixels for part in parts]), batch.pixels)
    assert torch.equal(torch.cat([part.labels for part in parts]), batch.labels)
    orders = [part.order for part in parts if part.order is not None]
    assert batch.order is not None
    assert torch.equal(torch.cat(orders), batch.order)
    plain = Steps(in_memory(20), recipe(variant="ape"), 0)[0]
    assert [part.order for part in plain.split(2)] == [None, None]


@pytest.mark.parametrize("workers", [0, 2])
def test_global_generators_are_left_alone(workers: int) -> None:
    steps = Steps(in_memory(20), recipe(*AUGMENTED), 2)
    before = (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state())
    assert len(list(stream(steps, 0, 3, workers))) == 3
    assert random.getstate() == before[0]
    assert np.random.get_state()[1].tolist() == before[1]
    assert torch.equal(torch.get_rng_state(), before[2])


def test_top1_is_counted_over_images() -> None:
    """A model that names an image by its brightest channel."""

    class Brightest(torch.nn.Module):
        def forward(self, images: torch.Tensor) -> torch.Tensor:
            assert not self.training
            return images.mean(dim=(2, 3))

    part = in_memory(30)
    preprocess = recipe().image.preprocess()
    scaled = (part.images / 255 - np.array(preprocess.mean)) / np.array(preprocess.std)
    expected = int((scaled.mean(axis=(1, 2)).argmax(axis=1) == part.labels).sum())
    assert 0 < expected < 30
    model = Brightest().train()
    for batch in (256, 7):
        assert count_correct(model, part, preprocess, torch.device("cpu"), batch) == expected
    assert model.training
    half = type(part)(part.images, part.rows[::2], part.labels[::2])
    other = int((scaled.mean(axis=(1, 2)).argmax(axis=1) == part.labels)[::2].sum())
    assert count_correct(model, half, preprocess, torch.device("cpu")) == other


def test_the_deit_recipe_takes_two_steps(tmp_path: Path) -> None:
    """A folder through the whole pipeline of `imagenet100-deit`, cut down in size alone."""
    write_folder(tmp_path / "data", {"train": 8, "val": 2}, side=50)
    cut = load_recipe(
        "imagenet100-deit",
        "rpt",
        [
            f"data.source={tmp_path / 'data'}",
            "data.classes=",
            "data.validation=0.25",
            "image.size=32",
            "augment.stored=40",
            "model.patch_size=8",
            "model.width=16",
            "model.heads=2",
            "model.depth=2",
            "train.batch=8",
            "train.epochs=1",
        ],
    )
    parts = load_parts(cut, tmp_path / "cache")
    assert parts.data["images"] == {"train": 18, "validation": 6, "test": 6}
    steps, objective = Steps(parts.train, cut, 0), Objective(cut, 3, 0)
    assert steps.per_epoch == 2
    model = build(cut.network(3), "rpt", 0)
    optimizer = optimiser(model, cut.train)
    ema = averaged(model, cut.train.ema or 0)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    for step, batch in enumerate(stream(steps, 0, 2, 0)):
        assert batch.pixels.shape == (8, 32, 32, 3)
        assert batch.labels.shape == (8,)
        assert batch.order is not None
        assert batch.order.shape == (8, 16)
        set_rate(optimizer, cut.train, step, 2)
        pixels = normalise(batch.pixels, cut.image.preprocess(), torch.float32, "cpu")
        pixels, target = objective.mixed(pixels, batch.labels, (step, 0, 0))
        assert (pixels.shape, target.shape) == ((8, 3, 32, 32), (8, 3))
        torch.testing.assert_close(target.sum(dim=1), torch.ones(8))
        loss = objective.loss(model(pixels), target)
        assert 0.2 < loss.item() < 3
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        ema.update_parameters(model)
    moved = [not torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True)]
    assert all(moved)
    right = count_correct(ema.module, parts.validation, cut.image.preprocess(), torch.device("cpu"))
    assert 0 <= right <= 6
