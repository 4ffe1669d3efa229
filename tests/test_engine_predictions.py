"""Top-1 predictions of the engine: the model's own, judged, stored and resumed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from probe.data.labels import LabelMap, map_labels
from probe.data.memory import InMemory
from probe.errors import DataError, UsageError
from probe.plan import Settings, make_passes
from probe.records import PassRecord
from probe.store import Store
from probe.types import Condition, LoadedModel, Permutation, Task
from tests.families.tiny import MAKERS
from tests.small_runs import (
    counting,
    permutation,
    pictures,
    prepared,
    ready,
    run,
    strong,
    top1,
    undecided,
)

CLEAN = Condition()
RPI = Condition(Permutation("image", seed=3))
HALF = Condition(alpha=0.5)
JPEG = Condition(corruption="jpeg(quality=5)")
TWELVE = pictures(12)
# A tiny model's classes: 7; what images 0..11 are said to be, three of them nothing.
SAID: list[int | str | None] = [0, 1, None, 3, 4, 5, 6, 0, None, 2, 3, None]


def pixels(image: np.ndarray) -> Tensor:
    """What a model that wants mean and sd 0.5 gets of one image."""
    return (torch.from_numpy(image).permute(2, 0, 1)[None].float() / 255 - 0.5) / 0.5


def by_hand(model: LoadedModel, images: list[np.ndarray]) -> list[int]:
    """The module's own answers, one image at a time and without the engine."""
    assert model.predict is not None
    with torch.no_grad():
        return [int(model.predict(model.module(pixels(one))).argmax()) for one in images]


def labelled(images: list[np.ndarray], said: list[int | str | None]) -> tuple[InMemory, LabelMap]:
    source = InMemory(images, said)
    return source, map_labels(source, said, 7, None, None)


@pytest.fixture(scope="module")
def model() -> LoadedModel:
    """A tiny ViT whose answers differ from image to image."""
    return undecided(strong(ready()), TWELVE)


def answers(record: PassRecord) -> list[int]:
    assert record.predicted is not None
    return record.predicted.tolist()


def test_predictions_are_the_models_own(model: LoadedModel) -> None:
    (record,) = run(model, TWELVE, top1(CLEAN))
    assert answers(record) == by_hand(model, TWELVE)
    assert len(set(answers(record))) > 2
    assert (record.layers, record.images) == ((), 12)
    assert record.correct is not None
    assert record.correct.tolist() == [-1] * 12


@pytest.mark.parametrize("name", ["timm_swin", "timm_vit_no_class", "hf_deit", "hf_swin_v2"])
def test_predictions_of_other_families_are_their_own(name: str) -> None:
    model = prepared(MAKERS[name]())
    images = pictures(6, model.anatomy.image_size)
    undecided(model, images)
    (record,) = run(model, images, top1(CLEAN), Settings(batch_size=4))
    with torch.no_grad():
        outputs = [model.module(pixels(one)) for one in images]
    logits = [out if isinstance(out, Tensor) else out.logits for out in outputs]
    assert answers(record) == [int(one.argmax()) for one in logits]
    assert len(set(answers(record))) > 1


@pytest.mark.parametrize("name", ["timm_vit_distilled", "hf_deit_teacher"])
def test_distilled_models_predict_with_the_mean_of_both_heads(name: str) -> None:
    model = prepared(MAKERS[name]())
    images = pictures(24, model.anatomy.image_size)
    undecided(model, images)
    (record,) = run(model, images, top1(CLEAN))
    module: Any = model.module
    heads = []
    with torch.no_grad():
        for image in images:
            if name.startswith("timm"):
                tokens = module.forward_features(pixels(image))
                heads.append((module.head(tokens[:, 0]), module.head_dist(tokens[:, 1])))
            else:
                tokens = module.base_model(pixels(image)).last_hidden_state
                first = module.cls_classifier(tokens[:, 0])
                heads.append((first, module.distillation_classifier(tokens[:, 1])))
    assert answers(record) == [int(((a + b) / 2).argmax()) for a, b in heads]
    for one in (0, 1):
        assert answers(record) != [int(pair[one].argmax()) for pair in heads]


@pytest.mark.parametrize(("size", "workers"), [(1, 0), (3, 0), (64, 0), (3, 2)])
def test_batch_size_and_workers_change_nothing(model: LoadedModel, size: int, workers: int) -> None:
    source, labels = labelled(TWELVE, SAID)
    work = top1(CLEAN, RPI, HALF, JPEG)
    base = run(model, source, work, labels=labels)
    others = run(model, source, work, Settings(batch_size=size, workers=workers), labels=labels)
    for one, other in zip(base, others, strict=True):
        assert answers(one) == answers(other)
        assert np.array_equal(one.correct, other.correct)  # type: ignore[arg-type]


def test_conditions_predict_otherwise(model: LoadedModel) -> None:
    images = pictures(60, seed=2)
    found = [answers(r) for r in run(model, images, top1(CLEAN, RPI, HALF, JPEG))]
    assert len({tuple(one) for one in found}) == 4


def test_rpi_predictions_are_those_of_shuffled_tokens(model: LoadedModel) -> None:
    (record,) = run(model, TWELVE, top1(RPI))
    module: Any = model.module
    expected = []
    with torch.no_grad():
        for index, image in enumerate(TWELVE):
            tokens = module.patch_embed(pixels(image))[:, permutation(3, 0, index, 16)]
            tokens = torch.cat([module.cls_token, tokens], dim=1) + module.pos_embed
            for block in module.blocks:
                tokens = block(tokens)
            expected.append(int(module.forward_head(module.norm(tokens)).argmax()))
    assert answers(record) == expected


def test_answers_are_judged_by_their_labels(model: LoadedModel) -> None:
    own = by_hand(model, TWELVE)
    said: list[int | str | None] = [
        None if n % 4 == 3 else one if n % 2 else (one + 1) % 7 for n, one in enumerate(own)
    ]
    source, labels = labelled(TWELVE, said)
    (record,) = run(model, source, top1(CLEAN), labels=labels)
    assert record.correct is not None
    expected = [-1 if n % 4 == 3 else n % 2 for n in range(12)]
    assert record.correct.tolist() == expected
    assert answers(record) == own


def test_a_label_outside_the_head_is_refused(model: LoadedModel) -> None:
    _, labels = labelled(TWELVE, SAID)
    other = InMemory(TWELVE, [*SAID[:9], 7, 3, None])
    with pytest.raises(DataError, match=r"^label '7' of 'image-9' is none of the labels that map"):
        run(model, other, top1(CLEAN), labels=labels)


def test_ssdc_and_predictions_of_one_pass_are_those_of_two(model: LoadedModel) -> None:
    both = Task(RPI, ssdc=True, top1=True)
    together, apart, alone = run(model, TWELVE, [both, Task(RPI), *top1(RPI)])
    parts = [one.model_dump(mode="json") for one in (together, apart, alone)]
    assert parts[0]["layers"] == parts[1]["layers"] != []
    assert parts[0]["predicted"] == parts[2]["predicted"] is not None
    assert (parts[1]["predicted"], parts[2]["layers"]) == (None, [])


def test_a_model_without_a_head_is_refused() -> None:
    with pytest.raises(UsageError) as error:
        run(ready("vit_features"), TWELVE, top1(CLEAN))
    assert str(error.value) == (
        "timm:timm_vit_features has no head to predict with; fit one with `probe readout` and "
        "give it as --readout FILE"
    )
    assert len(run(ready("vit_features"), TWELVE, [CLEAN])[0].layers) == 3


def test_logits_that_are_not_finite_are_refused() -> None:
    model = ready()
    with torch.no_grad():
        model.module.head.bias[3] = float("nan")
    with pytest.raises(DataError, match=r"^the model gives logits that are not finite; try"):
        run(model, TWELVE, top1(CLEAN))


@pytest.mark.parametrize(
    "task",
    [
        Task(CLEAN, ssdc=False, top1=False),
        Task(CLEAN, top1=True, last_layer=1),
    ],
)
def test_a_task_that_measures_nothing_is_refused(task: Task) -> None:
    with pytest.raises(UsageError, match=r"^a pass under 'clean' measures nothing that it can rea"):
        make_passes([task], Settings(), {"resolved": "tiny"})


def test_labels_are_in_the_key_of_predictions_alone() -> None:
    def keys(labels: Any) -> list[str]:
        tasks = [Task(CLEAN), *top1(CLEAN), Task(CLEAN, last_layer=1)]
        common = {"resolved": "tiny", "labels": labels}
        return [one.key for one in make_passes(tasks, Settings(), common)]

    one, other = keys({"kind": "folder"}), keys({"kind": "file"})
    assert [a == b for a, b in zip(one, other, strict=True)] == [True, False, True]
    assert len(set(one)) == 3


class Stop:
    """A progress callback that interrupts on its n-th call."""

    def __init__(self, at: int) -> None:
        self.left = at

    def __call__(self, _images: int) -> None:
        self.left -= 1
        if self.left == 0:
            raise KeyboardInterrupt


@pytest.mark.parametrize("at", [1, 2, 5, 9, 11, 12])
def test_an_interrupted_run_goes_on(model: LoadedModel, tmp_path: Path, at: int) -> None:
    """Nothing is run twice, and records are the same to the byte."""
    source, labels = labelled(TWELVE, SAID)
    settings = Settings(batch_size=4)
    work = [*top1(CLEAN, JPEG), Task(RPI, last_layer=1), Task(HALF, top1=True)]
    whole = run(model, source, work, settings, labels=labels)
    counted, sizes = counting(model)
    store = Store(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        run(counted, source, work, settings, store, Stop(at), labels=labels)
    rest = run(counted, source, work, settings, store, labels=labels)
    assert sum(sizes) == 48
    assert [r.to_json() for r in rest] == [r.to_json() for r in whole]
    for record in whole:
        stored = store.load(record.model, record.condition, record.key)
        assert stored is not None
        assert stored.to_json() == record.to_json()
        assert PassRecord.from_json(record.to_json()).to_json() == record.to_json()


def test_another_batch_size_goes_on_too(model: LoadedModel, tmp_path: Path) -> None:
    source, labels = labelled(TWELVE, SAID)
    work = top1(CLEAN, RPI, JPEG)
    whole = run(model, source, work, labels=labels)
    store = Store(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        run(model, source, work, Settings(batch_size=3), store, Stop(5), labels=labels)
    rest = run(model, source, work, Settings(batch_size=5), store, labels=labels)
    for one, other in zip(rest, whole, strict=True):
        assert answers(one) == answers(other)
        assert np.array_equal(one.correct, other.correct)  # type: ignore[arg-type]


def test_a_stored_prediction_takes_a_few_bytes(model: LoadedModel) -> None:
    short = len(run(model, TWELVE, top1(CLEAN))[0].to_json())
    long = len(run(model, TWELVE * 11, top1(CLEAN))[0].to_json())
    assert (long - short) / 120 < 8


def test_what_does_not_apply_has_a_reason_and_no_predictions() -> None:
    model = ready("vit_no_pe")
    clean, none = run(model, pictures(3, (32, 48)), top1(CLEAN, HALF))
    assert none.reason == "the model has no positional signal, so there is nothing to scale"
    assert (none.predicted, none.correct, none.images) == (None, None, 0)
    assert len(answers(clean)) == 3
