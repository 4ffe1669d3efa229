"""Corruptions in the engine: on 8-bit images of the model's size, once per image, the same ever."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor

from probe.corruptions import parse
from probe.corruptions.kinds import KINDS, Kind, Parameter
from probe.data.memory import InMemory
from probe.data.preprocess import named_preprocess, normalise
from probe.derive.fragility import fragility_result, shared_images
from probe.errors import DataError
from probe.plan import Settings
from probe.store import Store
from probe.types import Condition, LoadedModel, Permutation, Task
from tests.families.tiny_timm import FLAT, load_tiny
from tests.small_runs import Counted, counting, pictures, ready, run, top1

CLEAN = Condition()
JPEG, BLUR = "jpeg(quality=5)", "gaussian_blur(sigma=2.5,kernel=5)"
NOISE = "gaussian_noise(severity=3)"
RPI = Condition(Permutation("image", seed=3))
NINE = pictures(9)


def seen(model: LoadedModel) -> tuple[LoadedModel, list[Tensor]]:
    """The model, and a list that gets every batch of pixels it is given."""
    given: list[Tensor] = []

    def forward(images: Tensor) -> Any:
        given.append(images.clone())
        return model.forward(images)

    return replace(model, forward=forward), given


def inputs(source: Any, corruption: str | None, **settings: Any) -> Tensor:
    """What the model gets of every image under one corruption."""
    model, given = seen(ready())
    run(model, source, top1(Condition(corruption=corruption)), Settings(**settings))
    return torch.cat(given)


@pytest.mark.parametrize("name", [None, JPEG, BLUR, "true_gaussian_blur(sigma=2.5)", NOISE])
def test_corruption_sits_before_normalisation_on_8_bits(name: str | None) -> None:
    """Bit-equal to corrupting and normalising by hand, and so are the predictions."""
    model = ready()
    assert model.preprocess is not None
    images = NINE if name is None else [
        parse(name).apply(image, 5, index) for index, image in enumerate(NINE)
    ]  # fmt: skip
    expected = normalise(torch.from_numpy(np.stack(images)), model.preprocess, torch.float32, "cpu")
    assert torch.equal(inputs(NINE, name, seed=5, batch_size=4), expected)
    (record,) = run(model, NINE, top1(Condition(corruption=name)), Settings(seed=5))
    with torch.no_grad():
        logits = model.module(expected)
    assert record.predicted is not None
    assert record.predicted.tolist() == logits.argmax(dim=1).tolist()


def test_ssdc_is_measured_on_corrupted_images_too() -> None:
    blurred = [parse(BLUR).apply(image, 0, index) for index, image in enumerate(NINE)]
    (clean,) = run(ready(), blurred, [CLEAN])
    (record,) = run(ready(), NINE, [Condition(corruption=BLUR)])
    assert [one.value for one in record.layers] == [one.value for one in clean.layers]


def test_it_acts_after_resize_and_crop() -> None:
    """Of 1000 x 750 noise a blur at model size leaves sd 4.95; one before the resize 11.3."""
    image = np.random.default_rng(0).integers(0, 256, (750, 1000, 3), dtype=np.uint8)
    half = {"mean": (0.0,) * 3, "std": (1.0,) * 3, "interpolation": "bilinear"}
    preprocess = replace(named_preprocess("imagenet", (224, 224)), **half)
    vit = VisionTransformer(img_size=224, **(FLAT | {"patch_size": 56}))
    model, given = seen(replace(load_tiny(vit, (224, 224)), preprocess=preprocess))
    run(model, InMemory([Image.fromarray(image)]), top1(Condition(corruption=BLUR)))
    assert given[0].shape == (1, 3, 224, 224)
    assert float(given[0].std()) * 255 == pytest.approx(4.95, abs=0.15)


@pytest.mark.parametrize("name", [JPEG, NOISE])
def test_seed_and_index_alone_name_a_corruption(name: str) -> None:
    base = inputs(NINE, name, seed=5)
    for size in (1, 4):
        assert torch.equal(inputs(NINE, name, seed=5, batch_size=size), base)
    assert torch.equal(inputs(NINE, name, seed=5, workers=2), base)
    source = InMemory(NINE, limit=4)
    assert source.indices == [0, 2, 4, 6]
    assert torch.equal(inputs(source, name, seed=5), base[source.indices])
    assert torch.equal(inputs(NINE, name, seed=6), base) == (name == JPEG)


def test_each_image_has_noise_of_its_own() -> None:
    same = inputs([NINE[0]] * 3, NOISE)
    assert not torch.equal(same[0], same[1])
    assert not torch.equal(same[1], same[2])


def test_each_image_is_read_once_and_corrupted_once_for_all_conditions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[int] = []

    def counted(image: NDArray[np.uint8], _: Any, *, level: int) -> NDArray[np.uint8]:
        calls.append(level)
        return image // np.uint8(level)

    plant(monkeypatch, counted)
    source = Counted(NINE)
    model, sizes = counting(ready())
    dim = "brittle(level=2)"
    conditions = [
        CLEAN, RPI, Condition(alpha=0.5), Condition(corruption=JPEG), Condition(corruption=dim),
        Condition(alpha=0.5, corruption=dim), replace(RPI, corruption=dim),
        Condition(corruption="brittle(level=3)"),
    ]  # fmt: skip
    work = [Task(RPI, last_layer=1), *top1(*conditions)]
    together = run(model, source, work, Settings(batch_size=4))
    assert source.reads == 9
    assert sorted(calls) == [2] * 9 + [3] * 9
    assert sizes == [4] * 18 + [1] * 9
    for task, record in zip(work, together, strict=True):
        (alone,) = run(ready(), NINE, [task], Settings(batch_size=4))
        assert alone.to_json() == record.to_json()


def plant(monkeypatch: pytest.MonkeyPatch, function: Callable[..., Any]) -> None:
    """A corruption called brittle, with one parameter."""
    level = Parameter("level", "l", whole=True, low=1, high=9)
    kind = Kind("brittle", "brittle(level=1)", (level,), function)
    monkeypatch.setitem(KINDS, "brittle", kind)


def fails_on(*numbers: int) -> Callable[..., NDArray[np.uint8]]:
    """Dims every picture but those of NINE with these numbers."""
    bad = [NINE[number] for number in numbers]

    def function(image: NDArray[np.uint8], _: Any, *, level: int) -> NDArray[np.uint8]:
        if any(np.array_equal(image, one) for one in bad):
            raise ValueError("too odd\nfor words")
        return image // np.uint8(level)

    return function


BRITTLE = Condition(corruption="brittle(level=2)")
WHY = "brittle(level=2) failed on image 5: too odd; leave that image out"
MIXED = [*top1(CLEAN, BRITTLE, Condition(corruption=JPEG), RPI), Task(RPI)]


@pytest.mark.parametrize("size", [1, 3, 4, 64])
def test_an_image_it_fails_on_is_left_out_of_its_own_passes_alone(
    monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    """Equal keys are equal numbers: no pass depends on what else is measured with it."""
    plant(monkeypatch, fails_on(5))
    settings = Settings(batch_size=size)
    records = run(ready(), NINE, MIXED, settings)
    alone = [run(ready(), NINE, [task], settings)[0] for task in MIXED]
    assert [r.to_json() for r in records] == [r.to_json() for r in alone]
    rest = [number for number in range(9) if number != 5]
    for task, record in zip(MIXED, records, strict=True):
        brittle = task.condition == BRITTLE
        assert record.images == (8 if brittle else 9)
        assert record.skipped == ((("image-5", WHY),) if brittle else ())
        if record.predicted is not None:
            assert (record.predicted[5] == -1) == brittle
            assert (record.predicted[rest] >= 0).all()
    assert len(records[4].layers[0].leave_one_out) == 9


def test_what_compares_passes_takes_the_images_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, fails_on(5))
    records = [
        one.model_copy(update={"settings": {"seed": 0, "resolved": "vit", "family": "timm_vit"}})
        for one in run(ready(), NINE, top1(CLEAN, BRITTLE, Condition(corruption=JPEG)))
    ]
    corruptions = [parse("brittle(level=2)"), parse(JPEG)]
    shifted = list(zip(corruptions, records[1:], strict=True))
    found = fragility_result("vit", records[0], shifted)
    assert found["images"] == 8
    assert found["skipped"] == [("image-5", WHY)]
    among = shared_images(records)
    assert among.tolist() == [number != 5 for number in range(9)]
    changed = [(records[0].predicted != one.predicted)[among].sum() for one in records[1:]]
    assert [row["agreement_fs"]["value"] for row in found["corruptions"]] == pytest.approx(
        [count / 8 for count in changed]
    )


def test_two_corruptions_that_fail_name_the_image_each(monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, fails_on(5))
    work = top1(CLEAN, BRITTLE, Condition(corruption="brittle(level=3)"))
    clean, two, three = run(ready(), NINE, work)
    assert clean.skipped == ()
    assert two.skipped == (("image-5", WHY),)
    assert three.skipped == (("image-5", WHY.replace("level=2", "level=3")),)


@pytest.mark.parametrize("at", [6, 8, 10, 14])
def test_an_interrupted_run_with_a_failure_goes_on(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, at: int
) -> None:
    """One of nine images is far more than the 1 % that may be unreadable, and is no such image."""
    plant(monkeypatch, fails_on(1))
    settings, left = Settings(batch_size=3), at
    whole = run(ready(), NINE, MIXED, settings)

    def stop(_images: int) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            raise KeyboardInterrupt

    store = Store(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        run(ready(), NINE, MIXED, settings, store, stop)
    rest = run(ready(), NINE, MIXED, settings, store)
    assert [r.to_json() for r in rest] == [r.to_json() for r in whole]


def test_a_corruption_that_fails_on_all_images_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, fails_on(*range(9)))
    with pytest.raises(DataError) as error:
        run(ready(), NINE, top1(CLEAN, BRITTLE))
    assert str(error.value) == (
        "every image had to be left out, the first, 'image-0', since brittle(level=2) failed on "
        "image 0: too odd; leave that image out"
    )
