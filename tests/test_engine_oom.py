"""A batch that does not fit into memory is halved, and no number moves."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from probe import engine
from probe.data.memory import InMemory
from probe.errors import OutOfMemory, is_out_of_memory
from probe.plan import Settings
from probe.records import PassRecord
from probe.session import measure_loaded
from probe.store import Store
from probe.types import Condition, LoadedModel, Permutation, Task
from tests.cli.command import TINY, as_json, invoke
from tests.small_runs import Counted, counting, passes_of, pictures, ready, run, undecided

CUDA = "CUDA out of memory. Tried to allocate 2.00 GiB."
CPU = "[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 2 bytes"
CLEAN = Condition()
RPI = Condition(Permutation("image", seed=3, draw=1))
JPEG = Condition(corruption="jpeg(quality=5)")
WORK = [Task(CLEAN, top1=True), Task(RPI), Task(JPEG, ssdc=False, top1=True)]
IMAGES = pictures(23)
EIGHT = Settings(batch_size=8)


@contextmanager
def room_for(model: LoadedModel, images: int, message: str = CUDA, *, after: int = 0) -> Any:
    """The second block has room for so many images at once, from its `after`-th call on.

    The first block's tokens are in the sums by then, and the second's are not.
    """
    calls = 0

    def full(_module: Any, args: Any) -> None:
        nonlocal calls
        calls += 1
        if calls > after and len(args[0]) > images:
            raise torch.OutOfMemoryError(message) if message == CUDA else RuntimeError(message)

    handle = model.module.blocks[1].register_forward_pre_hook(full)
    try:
        yield
    finally:
        handle.remove()


def assert_equal(found: list[PassRecord], expected: list[PassRecord]) -> None:
    """Numbers to 1e-6, predictions exactly."""
    for one, other in zip(found, expected, strict=True):
        assert (one.key, one.images, one.skipped) == (other.key, other.images, other.skipped)
        assert len(one.layers) == len(other.layers)
        for a, b in zip(one.layers, other.layers, strict=True):
            assert a.value == pytest.approx(b.value, abs=1e-6)
            np.testing.assert_allclose(
                np.array(a.leave_one_out), np.array(b.leave_one_out), rtol=0, atol=1e-6
            )
            np.testing.assert_allclose(a.null, b.null, rtol=0, atol=1e-6)
        for name in ("predicted", "correct"):
            np.testing.assert_array_equal(getattr(one, name), getattr(other, name))


def model_and(size: int, **settings: Any) -> tuple[LoadedModel, list[PassRecord]]:
    """A tiny model, and what it gives when asked for batches of `size` at once."""
    model = undecided(ready(), IMAGES)
    return model, run(model, IMAGES, WORK, Settings(batch_size=size, **settings))


@pytest.mark.parametrize("message", [CUDA, CPU])
@pytest.mark.parametrize("average", ["similarity", "image"])
def test_a_halved_run_equals_one_of_that_size(message: str, average: Any) -> None:
    model, expected = model_and(2, average=average)
    with room_for(model, 3, message):
        found = run(model, IMAGES, WORK, replace(EIGHT, average=average))
    assert_equal(found, expected)
    assert {frozenset(record.machine.items()) for record in found} == {
        frozenset({"batch_size": 2, "workers": 0, "halved_from": 8}.items())
    }
    assert all("halved_from" not in record.machine for record in expected)


@pytest.mark.parametrize("after", range(1, 9))
@pytest.mark.parametrize("stored", [False, True])
def test_memory_that_runs_out_later_loses_and_doubles_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: int, stored: bool
) -> None:
    """Whichever pass and batch it hits: three passes of three batches, two with sums."""
    monkeypatch.setattr(engine, "SAVE_EVERY", -1.0)
    model, expected = model_and(4)
    counts: list[int] = []
    with room_for(model, 4, after=after):
        found = run(model, IMAGES, WORK, EIGHT, Store(tmp_path) if stored else None, counts.append)
    assert_equal(found, expected)
    assert found[0].machine["batch_size"] == 4
    assert min(counts) > 0
    assert sum(counts) == 3 * len(IMAGES)
    assert not stored or list((tmp_path / "partial").iterdir()) == []


def test_only_the_pass_that_was_hit_goes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is whole is run once; what is torn goes on from what was saved before its batch."""
    monkeypatch.setattr(engine, "SAVE_EVERY", -1.0)
    model, sizes = counting(ready())
    with room_for(model, 4, after=3):  # the second pass, in its second batch
        run(model, IMAGES, [CLEAN, RPI], EIGHT, Store(tmp_path))
    assert sizes == [8, 8, 8, 8, 4, 4, 4, 4, 3, 3]
    sizes.clear()
    with room_for(model, 4, after=3):  # with nothing saved, the second pass starts again
        run(model, IMAGES, [CLEAN, RPI], EIGHT)
    assert sizes == [8, 8, 8, 8, 4, 4, 4, 4, 4, 4, 3, 3]


def test_predictions_alone_are_never_torn() -> None:
    model, sizes = counting(ready())
    with room_for(model, 4, after=2):
        run(model, IMAGES, WORK[2:], EIGHT)
    assert sizes == [8, 8, 7, 4, 3]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_lack_of_memory_while_images_are_made_ready(
    monkeypatch: pytest.MonkeyPatch, workers: int
) -> None:
    """Before any model has seen them, on the way to the device."""
    model, expected = model_and(2)
    normalise = engine.normalise

    def full(images: Any, *rest: Any) -> Any:
        if len(images) > 2:
            raise torch.OutOfMemoryError(CUDA)
        return normalise(images, *rest)

    monkeypatch.setattr(engine, "normalise", full)
    assert_equal(run(model, IMAGES, WORK, replace(EIGHT, workers=workers)), expected)


def test_an_interrupt_after_halving_keeps_whole_sums(tmp_path: Path) -> None:
    model, expected = model_and(4)
    left = 7

    def stop(_images: int) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            raise KeyboardInterrupt

    with room_for(model, 4), pytest.raises(KeyboardInterrupt):
        run(model, IMAGES, WORK, EIGHT, Store(tmp_path), stop)
    assert len(list((tmp_path / "partial").iterdir())) == 3
    assert_equal(run(model, IMAGES, WORK, Settings(batch_size=4), Store(tmp_path)), expected)


def test_one_image_that_does_not_fit_is_one_clear_error(tmp_path: Path) -> None:
    model = ready()
    with room_for(model, 0), pytest.raises(OutOfMemory) as error:
        run(model, IMAGES, WORK, EIGHT, Store(tmp_path))
    assert str(error.value) == (
        "out of memory with one image per forward pass; choose a smaller --image-size, "
        "--dtype bfloat16 or another --device"
    )
    assert not (tmp_path / "passes").exists()


def test_permutations_by_batch_are_never_changed() -> None:
    model = ready()
    paper = Condition(Permutation("batch", seed=3))
    for work in ([paper], [CLEAN, paper]):
        with room_for(model, 4), pytest.raises(OutOfMemory) as error:
            run(model, IMAGES, work, EIGHT)
        assert str(error.value) == (
            "out of memory with 8 images per forward pass, and the paper's protocol draws one "
            "permutation per batch, so a smaller one is another measurement; choose it with "
            "--batch-size"
        )


def test_another_error_is_not_taken_for_it() -> None:
    model = ready()
    sizes: list[int] = []

    def broken(_module: Any, args: Any) -> None:
        sizes.append(len(args[0]))
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied (8x4 and 3x2)")

    model.module.blocks[1].register_forward_pre_hook(broken)
    with pytest.raises(RuntimeError, match=r"^mat1 and mat2 shapes"):
        run(model, IMAGES, [CLEAN], EIGHT)
    assert sizes == [8]


def allocate_too_much() -> Any:
    return torch.empty(2**50)


def allocate_too_much_of_numpy() -> Any:
    return np.empty(2**55)


@pytest.mark.parametrize("allocate", [allocate_too_much, allocate_too_much_of_numpy])
def test_the_libraries_own_errors_are_recognised(allocate: Callable[[], Any]) -> None:
    with pytest.raises((RuntimeError, MemoryError)) as error:
        allocate()
    assert is_out_of_memory(error.value)


def test_an_image_that_could_not_be_read_is_counted_once() -> None:
    class Holed(Counted):
        def read(self, position: int) -> Any:
            from probe.errors import UnreadableImage

            if position == 40:
                raise UnreadableImage("forty", "it is damaged")
            return super().read(position)

    model = ready()
    source = Holed(pictures(100))
    expected = run(model, source, [CLEAN, RPI], Settings(batch_size=4))
    for after in (8, 9, 10, 11):
        with room_for(model, 4, after=after):
            found = run(model, source, [CLEAN, RPI], EIGHT)
        assert_equal(found, expected)
        assert found[0].skipped == (("forty", "it is damaged"),)
        assert found[0].images == 99


def test_what_was_halved_is_said(tmp_path: Path) -> None:
    """In the notes, also where the records are taken from the store."""
    model, source = ready(), InMemory(IMAGES)
    with room_for(model, 3):
        first = measure_loaded(model, source, WORK[1:2], EIGHT, runs=tmp_path)
    again = measure_loaded(model, source, WORK[1:2], EIGHT, runs=tmp_path)
    assert again.reused == 1
    for measured in (first, again):
        assert measured.notes == (
            *model.notes,
            "out of memory with 8 images per forward pass: run with 2",
        )
    assert measure_loaded(model, source, WORK[1:2], EIGHT).notes == model.notes


def test_a_command_goes_on_with_a_smaller_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    normalise, room = engine.normalise, 4

    def full(images: Any, *rest: Any) -> Any:
        if len(images) > room:
            raise RuntimeError(CPU)
        return normalise(images, *rest)

    (plain,) = as_json(*TINY, "--limit", "12", "--batch-size", "3", "--runs", "a")["results"]
    monkeypatch.setattr(engine, "normalise", full)
    (halved,) = as_json(*TINY, "--limit", "12", "--batch-size", "12", "--runs", "b")["results"]
    assert halved["notes"][-1] == "out of memory with 12 images per forward pass: run with 3"
    for one, other in zip(halved["layers"], plain["layers"], strict=True):
        assert one["rpi"]["value"] == pytest.approx(other["rpi"]["value"], abs=1e-6)
    room = 0
    found = invoke("ssdc", *TINY, "--limit", "12", "--runs", "c")
    assert found.exit_code == 1
    assert found.stderr == (
        "probe: timm:test_vit: out of memory with one image per forward pass; choose a smaller "
        "--image-size, --dtype bfloat16 or another --device\n"
    )
    key = passes_of([CLEAN], EIGHT)[0].key
    assert Store(tmp_path / "c").load_partial(key) is None
