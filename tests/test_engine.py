"""The engine's records: equal to the long way round, and to themselves however they were run."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from probe import engine
from probe.data.memory import InMemory
from probe.data.open import open_data
from probe.errors import CheckpointError, DataError
from probe.metrics.finish import finalise_together
from probe.metrics.ssdc import CONSTANT, SSDCStatistic
from probe.numerics.intervals import interval
from probe.plan import Settings
from probe.records import PassRecord
from probe.saver import Saver
from probe.store import State, Store
from probe.types import Condition, Grid, Permutation, PermutationMode
from tests.small_runs import (
    Counted,
    counting,
    passes_of,
    permutation,
    pictures,
    ready,
    run,
    ssdc_by_hand,
    tokens_by_hand,
)

CLEAN = Condition()
RPI = Condition(Permutation("image", seed=3, draw=1))
BOTH = [CLEAN, RPI]
EIGHT = pictures(8)


def assert_same(one: PassRecord, other: PassRecord, atol: float = 1e-6) -> None:
    """Equal values, leave-one-out values and null values of every layer."""
    assert one.images == other.images
    assert len(one.layers) == len(other.layers) > 0
    for a, b in zip(one.layers, other.layers, strict=True):
        assert a.value == pytest.approx(b.value, abs=atol)
        np.testing.assert_allclose(
            np.array(a.leave_one_out), np.array(b.leave_one_out), rtol=0, atol=atol
        )
        np.testing.assert_allclose(a.null, b.null, rtol=0, atol=atol)


@pytest.mark.parametrize("name", ["vit", "swin"])
@pytest.mark.parametrize("rpi", [False, True])
@pytest.mark.parametrize(
    ("site", "distance", "average"),
    [
        ("attn_in", "l1", "similarity"),
        ("block_out", "l2", "similarity"),
        ("attn_in", "l2", "image"),
    ],
)
def test_records_equal_the_definition(
    name: str, rpi: bool, site: Any, distance: Any, average: Any
) -> None:
    model, images = ready(name), pictures(6)
    tokens = model.anatomy.patches.grid.tokens
    orders = [permutation(3, 1, index, tokens) for index in range(6)] if rpi else None
    expected = tokens_by_hand(model, images, orders, site)
    settings = Settings(site, distance, average, batch_size=4)
    (record,) = run(model, images, [RPI if rpi else CLEAN], settings)
    grids = [one.grid for one in model.anatomy.sites(site)]
    assert len(record.layers) == len(expected) == len(grids)
    for layer, x, grid in zip(record.layers, expected, grids, strict=True):
        value = ssdc_by_hand(x, grid, average, distance)
        assert (layer.grid, layer.reason) == ((grid.rows, grid.cols), None)
        # Tokens come from batches of 4 here and of 1 there, in float32.
        assert layer.value == pytest.approx(value, abs=2e-4)
        for group in range(6):
            without = ssdc_by_hand(np.delete(x, group, axis=0), grid, average, distance)
            assert layer.leave_one_out[group] == pytest.approx(without, abs=2e-4)
        assert layer.pairs == grid.tokens * (grid.tokens - 1) // 2
        assert layer.null.shape == (999,)
        assert abs(layer.null.mean()) < 0.05


def test_block_outputs_are_timms_own() -> None:
    """timm's forward_intermediates gives the same curve."""
    model, images = ready("vit"), pictures(5)
    stacked = torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2).float()
    with torch.no_grad():
        found = model.module.forward_intermediates(
            (stacked / 255 - 0.5) / 0.5, output_fmt="NLC", intermediates_only=True
        )
    (record,) = run(model, images, [CLEAN], Settings("block_out", batch_size=5))
    for layer, x in zip(record.layers, found, strict=True):
        value = ssdc_by_hand(x.double().numpy(), model.anatomy.patches.grid)
        assert layer.value == pytest.approx(value, abs=1e-6)


def test_clean_rpi_and_alpha_are_different_numbers() -> None:
    conditions = [CLEAN, RPI, Condition(alpha=0.25), replace(RPI, alpha=0.25)]
    records = run(ready(), EIGHT, conditions)
    assert [r.condition for r in records] == [
        "clean", "rpi(mode=image,seed=3,draw=1)", "alpha=0.25",
        "rpi(mode=image,seed=3,draw=1)+alpha=0.25",
    ]  # fmt: skip
    values = [r.layers[1].value for r in records]
    assert all(v is not None for v in values)
    assert len({round(v or 0, 3) for v in values}) == 4


def test_batch_size_and_workers_change_nothing() -> None:
    model, images = ready(), pictures(23)
    base = run(model, images, BOTH, Settings(batch_size=64))
    assert len(base[0].layers[0].leave_one_out) == 20
    for size, workers in [(1, 0), (3, 0), (3, 2)]:
        others = run(model, images, BOTH, Settings(batch_size=size, workers=workers))
        assert others[0].machine == {"batch_size": size, "workers": workers}
        for one, other in zip(base, others, strict=True):
            assert_same(one, other)


def test_batch_size_changes_nothing_per_image() -> None:
    model, images = ready("swin"), pictures(9)
    settings = Settings(average="image", batch_size=64)
    base = run(model, images, BOTH, settings)
    for size in (1, 3):
        others = run(model, images, BOTH, replace(settings, batch_size=size))
        for one, other in zip(base, others, strict=True):
            assert_same(one, other)


def test_groups_go_by_the_place_among_the_taken_images() -> None:
    model, images = ready(), pictures(50)
    source = InMemory(images, limit=30)
    assert source.indices[:4] == [0, 1, 3, 5]
    (record,) = run(model, source, [CLEAN])
    tokens = tokens_by_hand(model, [images[index] for index in source.indices])
    for layer, x in zip(record.layers, tokens, strict=True):
        assert len(layer.leave_one_out) == 20
        for group in (0, 3, 9, 10, 19):
            without = ssdc_by_hand(x[np.arange(30) % 20 != group], Grid(4, 4))
            assert layer.leave_one_out[group] == pytest.approx(without, abs=2e-4)


@pytest.mark.parametrize("draw", [0, 1])
def test_relabellings_of_the_null_are_those_of_the_draw(draw: int) -> None:
    model = ready()
    settings = Settings(seed=5, batch_size=4)
    (record,) = run(model, EIGHT, [Condition(Permutation("image", 5, draw))], settings)
    orders = [permutation(5, draw, index, 16) for index in range(8)]
    places = np.arange(8)
    for layer, x in zip(record.layers, tokens_by_hand(model, EIGHT, orders), strict=True):
        null = []
        for other in (draw, 1 - draw):
            statistic = SSDCStatistic(
                [Grid(4, 4)], distance="l1", average="similarity", groups=8, seed=5, draw=other
            )
            statistic.update(0, torch.from_numpy(x), places, places)
            null.append(finalise_together([statistic])[0][0].null)
        np.testing.assert_allclose(layer.null, null[0], rtol=0, atol=2e-4)
        assert np.abs(layer.null - null[1]).max() > 0.1


def test_rpi_goes_by_the_place_in_the_full_data_set() -> None:
    model = ready()
    source = InMemory(EIGHT, limit=4)
    assert source.indices == [0, 2, 4, 6]
    (record,) = run(model, source, [RPI])
    picked = [EIGHT[index] for index in source.indices]
    grid = model.anatomy.patches.grid

    def by_hand(indices: list[int]) -> list[float]:
        orders = [permutation(3, 1, index, grid.tokens) for index in indices]
        return [ssdc_by_hand(x, grid) for x in tokens_by_hand(model, picked, orders)]

    values = [layer.value for layer in record.layers]
    assert values == pytest.approx(by_hand([0, 2, 4, 6]), abs=2e-4)
    assert values != pytest.approx(by_hand([0, 1, 2, 3]), abs=5e-3)


@pytest.mark.parametrize("mode", ["shared", "batch"])
def test_one_permutation_for_several_images(mode: PermutationMode) -> None:
    model = ready()
    grid = model.anatomy.patches.grid
    rpi = [Condition(Permutation(mode, seed=3))]
    for size in (3, 4):
        (record,) = run(model, EIGHT, rpi, Settings(batch_size=size))
        named = [position // size if mode == "batch" else 0 for position in range(8)]
        orders = [permutation(3, 0, number, grid.tokens) for number in named]
        expected = [ssdc_by_hand(x, grid) for x in tokens_by_hand(model, EIGHT, orders)]
        values = [layer.value for layer in record.layers]
        assert values == pytest.approx(expected, abs=2e-4)


def test_one_reading_serves_every_condition() -> None:
    model, sizes = counting(ready())
    source = Counted(EIGHT)
    conditions = [CLEAN, RPI, Condition(Permutation("shared", 3)), replace(RPI, alpha=0.5)]
    together = run(model, source, conditions, Settings(batch_size=3))
    assert source.reads == 8
    assert sizes == [3] * 8 + [2] * 4
    for condition, record in zip(conditions, together, strict=True):
        (alone,) = run(model, EIGHT, [condition], Settings(batch_size=3))
        assert alone.to_json() == record.to_json()


def test_progress_counts_every_image_of_every_pass() -> None:
    counts: list[int] = []
    run(ready(), EIGHT, BOTH, Settings(batch_size=3), progress=counts.append)
    assert counts == [3, 3, 3, 3, 2, 2]


class Stop:
    """A progress callback that interrupts on its n-th call."""

    def __init__(self, at: int) -> None:
        self.left = at

    def __call__(self, _images: int) -> None:
        self.left -= 1
        if self.left == 0:
            raise KeyboardInterrupt


@pytest.mark.parametrize("at", range(1, 7))
@pytest.mark.parametrize("average", ["similarity", "image"])
def test_an_interrupted_run_goes_on(tmp_path: Path, at: int, average: Any) -> None:
    """Nothing is run twice, and the record is the same to the byte."""
    settings = Settings(average=average, batch_size=3)
    model, sizes = counting(ready())
    whole = run(model, EIGHT, BOTH, settings)
    sizes.clear()
    store = Store(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        run(model, EIGHT, BOTH, settings, store, Stop(at))
    assert len(sizes) == at
    assert list((tmp_path / "partial").glob("*.npz"))
    assert not (tmp_path / "passes").exists()
    rest = run(model, EIGHT, BOTH, settings, store)
    assert sum(sizes) == 16
    assert [r.to_json() for r in rest] == [r.to_json() for r in whole]
    assert list((tmp_path / "partial").iterdir()) == []
    saved = [store.load("tiny", str(p.condition), p.key) for p in passes_of(BOTH, settings)]
    assert [r and r.to_json() for r in saved] == [r.to_json() for r in whole]


@pytest.mark.parametrize("at", [1, 2, 3, 4])
def test_a_batch_that_is_half_in_the_sums_is_not_saved(tmp_path: Path, at: int) -> None:
    """Interrupted between two layers of one forward pass."""
    model = ready()
    whole = run(model, EIGHT, BOTH)
    left = at

    def interrupt(*_: Any) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            raise KeyboardInterrupt

    handle = model.module.blocks[1].norm2.register_forward_hook(interrupt)
    with pytest.raises(KeyboardInterrupt):
        run(model, EIGHT, BOTH, store=Store(tmp_path))
    handle.remove()
    rest = run(model, EIGHT, BOTH, store=Store(tmp_path))
    assert [r.to_json() for r in rest] == [r.to_json() for r in whole]


@pytest.mark.parametrize(("before", "after"), [(2, 3), (4, 3), (1, 5), (3, 64)])
def test_another_batch_size_goes_on_too(tmp_path: Path, before: int, after: int) -> None:
    """Even where one pass is ahead of the other, no image counts twice."""
    model, sizes = counting(ready())
    whole = run(model, EIGHT, BOTH)
    sizes.clear()
    store = Store(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        run(model, EIGHT, BOTH, Settings(batch_size=before), store, Stop(3))
    rest = run(model, EIGHT, BOTH, Settings(batch_size=after), store)
    assert sum(sizes) == 16
    for one, other in zip(rest, whole, strict=True):
        assert_same(one, other)


def test_an_interrupt_while_finishing_keeps_the_sums(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, sizes = counting(ready())
    store = Store(tmp_path)

    def interrupt(_statistic: SSDCStatistic, _grid: Grid) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(SSDCStatistic, "measured_on", interrupt)
        with pytest.raises(KeyboardInterrupt):
            run(model, EIGHT, BOTH, store=store)
    run(model, EIGHT, BOTH, store=store)
    assert sum(sizes) == 16


def test_sums_are_saved_while_running(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = Settings(batch_size=2)
    store, keys = Store(tmp_path), [p.key for p in passes_of(BOTH, settings)]
    seen: list[list[int | None]] = []

    def look(_images: int) -> None:
        states = [store.load_partial(key) for key in keys]
        seen.append([state and int(state["done"]) for state in states])

    run(ready(), EIGHT, BOTH, settings, store, look)
    assert seen == [[None, None]] * 8  # all within one minute
    seen.clear()
    monkeypatch.setattr(engine, "SAVE_EVERY", -1.0)
    begin = Saver.save

    def at_once(saver: Saver, key: str, state: Callable[[], State]) -> None:
        begin(saver, key, state)
        saver.wait()

    monkeypatch.setattr(Saver, "save", at_once)
    run(ready(), EIGHT, BOTH, settings, store, look)
    assert seen == [
        *([None, None], [2, None], [2, 2], [4, 2]),
        *([4, 4], [6, 4], [6, 6], [8, 6]),
    ]
    assert [store.load_partial(key) for key in keys] == [None, None]


# Each run is a child of one process that never computes, so that it can fork safely. A child
# kills itself at its n-th forward pass, flush or rename, or is killed after a while.
CRASH = """
import json, os, random, signal, sys, time
from pathlib import Path
from probe import engine
from probe.plan import Settings
from probe.saver import Saver
from probe.store import State, Store
from probe.types import Condition, Permutation
from tests.small_runs import counting, pictures, ready, run

engine.SAVE_EVERY = -1.0
conditions = [Condition(), Condition(Permutation("image", 3)), Condition(alpha=0.5)]

def work(root, out, fatal=None):
    def deadly(name, function):
        count = 0
        def call(*args, **kwargs):
            nonlocal count
            count += 1
            if fatal == [name, count]:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*args, **kwargs)
        return call
    os.fsync, os.replace = deadly("fsync", os.fsync), deadly("replace", os.replace)
    model, sizes = counting(ready())
    object.__setattr__(model, "forward", deadly("forward", model.forward))
    records = run(model, pictures(12), conditions, Settings(batch_size=2), Store(Path(root)))
    Path(out).write_text(json.dumps([sum(sizes), [r.to_json() for r in records]]))

def child(*args):
    pid = os.fork()
    if pid == 0:
        try:
            work(*args)
        finally:
            os._exit(0)
    return pid

def ended(pid):
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

top = Path(sys.argv[1])
start = time.monotonic()
assert ended(child(top / "whole", top / "whole.json")) == 0
duration = time.monotonic() - start
fates = [["forward", 2], ["forward", 11], ["forward", 18], ["fsync", 1], ["fsync", 4],
         ["fsync", 9], ["replace", 2], ["replace", 5], ["fsync", 19], ["replace", 20]]
rng = random.Random(0)
fates += [["after", rng.uniform(0.2, 0.95) * duration] for _ in range(4)]
codes = []
for number, fate in enumerate(fates):
    root = top / f"run{number}"
    if fate[0] == "after":
        pid = child(root, top / "unused.json")
        time.sleep(fate[1])
        os.kill(pid, signal.SIGKILL)
    else:
        pid = child(root, top / "unused.json", fate)
    codes.append([fate[0], ended(pid)])
    assert ended(child(root, top / f"run{number}.json")) == 0, fate
print(json.dumps(codes))
"""


def test_a_killed_run_goes_on(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", CRASH, str(tmp_path)],
        cwd=Path(__file__).parent.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    codes = json.loads(done.stdout)
    assert [code for fate, code in codes if fate != "after"] == [-9] * 10
    images, whole = json.loads((tmp_path / "whole.json").read_text())
    assert images == 36
    spared = []
    for number in range(len(codes)):
        again, records = json.loads((tmp_path / f"run{number}.json").read_text())
        assert records == whole, codes[number]
        spared.append(images - again)
        kept = sorted(path.name for path in (tmp_path / f"run{number}").rglob("*.json"))
        assert [name.split("-")[0] for name in kept if not name.startswith(".")] == [
            "alpha=0.5", "clean", "rpi",
        ]  # fmt: skip
        assert list((tmp_path / f"run{number}").rglob("*.broken")) == []
        assert list((tmp_path / f"run{number}" / "partial").glob("*.npz")) == []
    # Killed in the first batch, all is run again; later, what was saved is not.
    assert spared[0] == 0
    assert spared[1] >= 12
    assert spared[2] >= 24


def test_alpha_without_a_signal_is_a_record_with_its_reason() -> None:
    model, sizes = counting(ready("vit_no_pe"))
    images = pictures(5, (32, 48))
    na = Condition(alpha=0.5)
    clean, none = run(model, images, [CLEAN, na], Settings(batch_size=2))
    assert none.reason == "the model has no positional signal, so there is nothing to scale"
    assert (none.layers, none.images, none.skipped) == ((), 0, ())
    assert clean.reason is None
    assert len(clean.layers) == 3
    assert sizes == [2, 2, 1]
    (alone,) = run(model, images, [CLEAN], Settings(batch_size=2))
    assert clean.to_json() == alone.to_json()


def test_what_applies_to_nothing_is_not_read_to_the_end(tmp_path: Path) -> None:
    source = Counted(pictures(64, (32, 48)))
    (none,) = run(
        ready("vit_no_pe"), source, [Condition(alpha=0.0)], Settings(batch_size=4), Store(tmp_path)
    )
    assert source.reads <= 16
    stored = Store(tmp_path).load("tiny", none.condition, none.key)
    assert stored is not None
    assert stored.to_json() == none.to_json()


def test_untrained_zero_tables_are_a_reason() -> None:
    model = ready()
    with torch.no_grad():
        model.module.pos_embed.zero_()
    clean, none = run(model, EIGHT, [CLEAN, Condition(alpha=0.5)])
    assert none.reason == (
        "the positional tables are all zero (untrained), so alpha cannot act on them"
    )
    assert clean.layers[0].value is not None


def folder(path: Path, images: list[np.ndarray], bad: dict[int, bytes]) -> Any:
    path.mkdir()
    for index, image in enumerate(images):
        Image.fromarray(image).save(path / f"{index:03d}.png", compress_level=0)
    for index, content in bad.items():
        (path / f"{index:03d}.png").write_bytes(content)
    return open_data(str(path))


@pytest.mark.parametrize("broken", [0, 37, 99])
def test_an_unreadable_image_is_left_out_and_named(tmp_path: Path, broken: int) -> None:
    model, images = ready(), pictures(100)
    source = folder(tmp_path / "images", images, {broken: b"no image"})
    records = run(model, source, BOTH, Settings(batch_size=7))
    left = [index for index in range(100) if index != broken]
    grid = model.anatomy.patches.grid
    orders = [permutation(3, 1, index, grid.tokens) for index in left]
    for record, order in zip(records, (None, orders), strict=True):
        assert record.images == 99
        ((name, reason),) = record.skipped
        assert name == f"{broken:03d}.png"
        assert reason
        by_hand = tokens_by_hand(model, [images[i] for i in left], order)
        group = np.array(left) % 20
        for layer, x in zip(record.layers, by_hand, strict=True):
            assert layer.value == pytest.approx(ssdc_by_hand(x, grid), abs=2e-4)
            without = ssdc_by_hand(x[group != 5], grid)
            assert layer.leave_one_out[5] == pytest.approx(without, abs=2e-4)


def test_an_unreadable_image_is_named_once_after_an_interruption(tmp_path: Path) -> None:
    source = folder(tmp_path / "images", pictures(100), {51: b"no image"})
    whole = run(ready(), source, BOTH, Settings(batch_size=20))
    # At 5, one pass has the image behind it and the other has not.
    for at, size in [(5, 20), (5, 45), (6, 30)]:
        store = Store(tmp_path / f"{at}-{size}")
        with pytest.raises(KeyboardInterrupt):
            run(ready(), source, BOTH, Settings(batch_size=20), store, Stop(at))
        rest = run(ready(), source, BOTH, Settings(batch_size=size), store)
        for one, other in zip(rest, whole, strict=True):
            assert_same(one, other)
            assert one.skipped == other.skipped
            assert len(one.skipped) == 1


def test_more_than_one_percent_unreadable_is_refused(tmp_path: Path) -> None:
    source = folder(tmp_path / "images", pictures(20), {3: b"", 4: b"x"})
    with pytest.raises(DataError, match=r"at least 1 of 20 images cannot be read, above the 1 %"):
        run(ready(), source, BOTH, Settings(batch_size=1))


def test_a_model_without_preprocessing_is_refused() -> None:
    model = replace(ready(), preprocess=None)
    with pytest.raises(CheckpointError) as error:
        run(model, EIGHT, [CLEAN])
    assert str(error.value) == (
        "timm:timm_vit carries no preprocessing; choose --preprocess imagenet, half or a FILE"
    )


def test_half_precision_is_near_and_not_equal() -> None:
    """Tokens of bfloat16, compared in float64: SSDC moves by less than 0.02."""
    images = pictures(16)
    exact = run(ready(), images, BOTH)
    model = ready()
    model.module.to(torch.bfloat16)
    half = run(model, images, BOTH, Settings(dtype="bfloat16", batch_size=4))
    for one, other in zip(exact, half, strict=True):
        difference = [
            abs((a.value or 0) - (b.value or 0))
            for a, b in zip(one.layers, other.layers, strict=True)
        ]
        assert 0 < max(difference) < 0.02


def test_constant_tokens_are_null_with_a_reason() -> None:
    model = ready()
    with torch.no_grad():
        model.module.pos_embed.zero_()
        model.module.patch_embed.proj.weight.zero_()
    (record,) = run(model, EIGHT, [CLEAN])
    assert {(layer.value, layer.reason) for layer in record.layers} == {(None, CONSTANT)}
    text = record.to_json()
    assert "NaN" not in text
    assert PassRecord.from_json(text).to_json() == text


def test_one_image_has_values_and_no_interval() -> None:
    (record,) = run(ready(), pictures(1), [CLEAN])
    layer = record.layers[0]
    assert record.images == 1
    assert layer.value is not None
    assert layer.leave_one_out == (None,)
    assert interval(layer.value, np.array([np.nan])) == (None, None)
