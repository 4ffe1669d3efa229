"""Passes that stop after the second block's input: the same numbers from fewer blocks."""

from __future__ import annotations

from typing import Any

import pytest

from probe.plan import Settings
from probe.types import Condition, LoadedModel, Permutation, Task
from tests.families.tiny import MAKERS, Watch
from tests.small_runs import pictures, prepared, run, strong, top1

RPI = Permutation("image", seed=3)
ALPHAS = (1.0, 0.5, 0.0)
NAMES = [
    "timm_vit", "timm_vit_post_norm", "timm_vit_parallel", "timm_eva_rope", "timm_swin",
    "timm_swin_v2", "timm_beit", "timm_beit_shared", "hf_vit", "hf_beit", "hf_swin", "hf_swin_v2",
]  # fmt: skip


def block_calls(model: LoadedModel) -> list[int]:
    """How often each block has run to its end, counted from now on."""
    counts = [0] * len(model.anatomy.block_out)

    def count(number: int) -> Any:
        def hook(*_: Any) -> None:
            counts[number] += 1

        return hook

    for number, site in enumerate(model.anatomy.block_out):
        model.module.get_submodule(site.module).register_forward_hook(count(number))
    return counts


@pytest.mark.parametrize("name", NAMES)
def test_a_stopped_pass_equals_the_whole_one_bit_for_bit(name: str) -> None:
    model = strong(prepared(MAKERS[name]()))
    images = pictures(5, model.anatomy.image_size)
    conditions = [Condition(p, alpha) for p in (None, RPI) for alpha in ALPHAS]
    settings = Settings(batch_size=3)
    whole = run(model, images, [Task(one) for one in conditions], settings)
    watch = Watch(model.module)
    stopped = run(model, images, [Task(one, last_layer=1) for one in conditions], settings)
    assert watch.changes() == []
    for full, short in zip(whole, stopped, strict=True):
        assert len(short.layers) == 2
        assert len(full.layers) == len(model.anatomy.attn_in)
        first = [one.model_dump(mode="json") for one in full.layers[:2]]
        assert [one.model_dump(mode="json") for one in short.layers] == first
        assert short.layers[1].value is not None
        assert (short.images, short.key == full.key) == (5, False)
    values = [record.layers[1].value for record in stopped]
    assert len(set(values)) == len(values)


@pytest.mark.parametrize("name", NAMES)
def test_it_runs_one_block_where_the_whole_pass_runs_all(name: str) -> None:
    model = prepared(MAKERS[name]())
    images, settings = pictures(5, model.anatomy.image_size), Settings(batch_size=2)
    calls = block_calls(model)
    work = [Task(Condition(RPI, alpha), last_layer=1) for alpha in ALPHAS]
    run(model, images, work, settings)
    assert calls == [9] + [0] * (len(calls) - 1)
    run(model, images, [Condition(RPI)], settings)
    assert calls == [12] + [3] * (len(calls) - 1)


def test_stopped_and_whole_passes_share_one_reading() -> None:
    model = prepared(MAKERS["timm_vit"]())
    images, rpi = pictures(6), Condition(RPI)
    work = [Task(rpi, last_layer=1), *top1(Condition()), Task(rpi), *top1(rpi)]
    together = run(model, images, work)
    for task, record in zip(work, together, strict=True):
        (alone,) = run(model, images, [task])
        assert alone.to_json() == record.to_json()


def test_the_last_layer_may_be_the_first_or_beyond_the_end() -> None:
    model = prepared(MAKERS["timm_vit"]())
    images, calls = pictures(3), block_calls(model)
    first, beyond = run(model, images, [Task(Condition(), last_layer=n) for n in (0, 9)])
    assert (len(first.layers), len(beyond.layers)) == (1, 3)
    assert calls == [1, 1, 1]


def test_at_block_outputs_it_stops_after_the_second_block() -> None:
    model = prepared(MAKERS["timm_vit"]())
    images, calls = pictures(3), block_calls(model)
    settings = Settings("block_out", batch_size=4)
    (short,) = run(model, images, [Task(Condition(), last_layer=1)], settings)
    assert calls == [1, 1, 0]
    (full,) = run(model, images, [Condition()], settings)
    assert [one.value for one in short.layers] == [one.value for one in full.layers[:2]]
