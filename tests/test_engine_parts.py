"""Passes whose running sums do not fit into memory together are run in several readings."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from probe import memory
from probe.memory import affordable
from probe.metrics.grids import sum_bytes
from probe.plan import Settings
from probe.session import Measured, measure_loaded
from probe.types import Condition, Grid, Pass, Permutation, Task, TokenSite
from tests.small_runs import Counted, passes_of, pictures, ready, top1

SETTINGS = Settings(batch_size=3)
DRAWS = [Condition(Permutation("image", 3, draw)) for draw in range(4)]
TASKS = [Task(Condition()), *(Task(one) for one in DRAWS)]


def sites(layers: int = 3, grid: Grid = Grid(4, 4)) -> list[TokenSite]:  # noqa: B008
    (_, *found) = ready().anatomy.sites("attn_in")
    return [replace(found[0], layer=layer, grid=grid) for layer in range(layers)]


def sizes(parts: list[list[Pass]]) -> list[int]:
    return [len(part) for part in parts]


def test_what_fits_is_one_part() -> None:
    passes = passes_of(TASKS, SETTINGS)
    assert affordable(passes, sites()) == [passes]
    exactly = 5 * 3 * sum_bytes(Grid(4, 4))
    assert affordable(passes, sites(), exactly) == [passes]
    assert affordable([], sites()) == []


def test_a_small_budget_gives_more_parts_in_order() -> None:
    passes, need = passes_of(TASKS, SETTINGS), 3 * sum_bytes(Grid(4, 4))
    for budget, expected in [
        (5 * need - 1, [4, 1]),
        (3 * need, [3, 2]),
        (2 * need, [2, 2, 1]),
        (need, [1] * 5),
        (need - 1, [1] * 5),  # one at least, whatever it takes
        (0, [1] * 5),
    ]:
        parts = affordable(passes, sites(), budget)
        assert sizes(parts) == expected
        assert [one for part in parts for one in part] == passes


def test_only_what_is_summed_counts() -> None:
    """Predictions take no sums, and a pass that stops early has those of the layers it reads."""
    one_layer = sum_bytes(Grid(4, 4))
    predicted = passes_of(top1(Condition(), *DRAWS), SETTINGS)
    assert affordable(predicted, sites(), 0) == [predicted]
    early = passes_of([Task(one, last_layer=1) for one in DRAWS], SETTINGS)
    assert sizes(affordable(early, sites(), 4 * one_layer)) == [2, 2]
    assert sizes(affordable(early, sites(12), 4 * one_layer)) == [2, 2]


def test_sums_are_no_larger_than_they_are_said_to_be() -> None:
    """What a pass holds after 20 images, a group each, is what was counted for it."""
    from probe.running import RunningPass

    model, images = ready(), pictures(20)
    held: list[int] = []
    original = RunningPass.finish

    def finish(self: RunningPass, settings: Settings, measured: Any) -> Any:
        state = self.state()
        held.append(sum(v.nbytes for name, v in state.items() if name.startswith("similarity")))
        return original(self, settings, measured)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RunningPass, "finish", finish)
        measure_loaded(model, Counted(images), TASKS[:1], SETTINGS)
    assert held == [3 * sum_bytes(Grid(4, 4))]


def test_the_default_budget_holds_the_papers_battery() -> None:
    """Ten draws of 12 layers at 16 x 16 in one reading, of 56 x 56 in more."""
    passes = passes_of([Task(Condition(Permutation("image", 0, d))) for d in range(10)], SETTINGS)
    assert sizes(affordable(passes, sites(12, Grid(16, 16)))) == [10]
    assert len(affordable(passes, sites(12, Grid(56, 56)))) > 1


def measured(runs: Path | None = None, **options: Any) -> tuple[Measured, int]:
    source = Counted(pictures(8))
    found = measure_loaded(ready(), source, TASKS, SETTINGS, runs=runs, **options)
    return found, source.reads


@pytest.mark.parametrize(("passes", "readings"), [(5, 1), (2, 3), (0, 5)])
def test_parts_give_the_records_of_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, passes: int, readings: int
) -> None:
    whole, reads = measured()
    assert reads == 8
    budget = passes * 3 * sum_bytes(Grid(4, 4))
    monkeypatch.setattr(memory, "affordable", partial(affordable, most=budget))
    counts: list[int] = []
    parts, reads = measured(tmp_path, progress=counts.append)
    assert reads == 8 * readings
    assert sum(counts) == 8 * len(TASKS)
    assert [r.to_json() for r in parts.records] == [r.to_json() for r in whole.records]
    again, reads = measured(tmp_path)
    assert (again.reused, reads) == (5, 0)
    assert [r.to_json() for r in again.records] == [r.to_json() for r in whole.records]


def test_an_interrupt_keeps_the_parts_that_are_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, _ = measured()
    monkeypatch.setattr(memory, "affordable", partial(affordable, most=0))
    calls: list[int] = []

    def interrupt(_images: int) -> None:
        calls.append(1)
        if len(calls) == 8:  # three batches a part: the second one of the third part
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        measured(tmp_path, progress=interrupt)
    rest, reads = measured(tmp_path)
    assert rest.reused == 2
    assert reads == 2 + 8 + 8
    assert [r.to_json() for r in rest.records] == [r.to_json() for r in whole.records]
