"""Running a task: fit on one part, tune on a second, count on a third; and what is reported."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy.stats import binomtest, t

from probe.errors import AnatomyError, UsageError
from probe.numerics import logistic
from probe.numerics.logistic import Candidate
from probe.readout import GRID
from probe.tasks import alignment, arrangement, relation, run, scale
from probe.tasks.catalogue import TASKS, chosen_tasks
from probe.tasks.design import Scene
from probe.tasks.frame import Frame, frame_of
from probe.tasks.result import Outcome, accuracy, over_seeds
from probe.tasks.run import Plan, groups_of, run_task, scene_count
from probe.types import Grid
from tests.small_runs import ready
from tests.tasks.checks import DIGITS
from tests.tasks.stub import StubReader, nothing, pixels, the_answer

SMALL = Plan(train=80, test=16, seeds=(0, 1))
COARSE = Frame((16, 16), (2, 2), (8, 8))


def ran(task: Any, features: Any, plan: Plan = SMALL, frame: Frame = DIGITS) -> dict[str, Any]:
    return run_task(task, frame, plan, StubReader(features))  # type: ignore[arg-type]


def values(found: dict[str, Any]) -> list[float]:
    return [level["accuracy"]["value"] for level in found["levels"]]


@pytest.mark.parametrize("task", TASKS.values(), ids=list(TASKS))
def test_separable_features_are_right_and_empty_ones_at_chance(task: Any) -> None:
    right, blind = ran(task, the_answer), ran(task, nothing)
    assert set(values(right)) == {1.0}
    assert set(values(blind)) == {task.chance}
    for found in (right, blind):
        assert [level["level"] for level in found["levels"]] == list(task.curve.levels(DIGITS).kept)
        for group in found["subgroups"]:
            own = [level["accuracy"]["value"] for level in group["levels"]]
            assert set(own) <= {1.0 if found is right else task.chance, None}
    assert right["reason"] is None
    assert right["chance"] == task.chance == 1 / len(task.classes)


def test_what_looks_at_one_place_at_a_time_is_at_chance_in_the_last_two_tasks() -> None:
    """Pixels are a sum over places; the class needs two of them at once."""
    plan = Plan(train=240, test=64, seeds=(0, 1))
    for task in (relation.TASK, arrangement.TASK):
        for level in ran(task, pixels, plan, COARSE)["levels"]:
            assert level["accuracy"]["low"] <= 0.5 <= level["accuracy"]["high"]
    # Not for want of an answer: two places together tell.
    assert min(values(ran(arrangement.TASK, _across_and_down, plan, COARSE))) > 0.95
    assert min(values(ran(relation.TASK, _alike, plan))) > 0.9
    # And a leak of the class into one place would be seen.
    leaky = replace(arrangement.TASK, render=_marked)
    assert min(values(ran(leaky, pixels, plan, COARSE))) > 0.9


def _across_and_down(scene: Scene) -> np.ndarray:
    grey = scene.image.mean(axis=2)
    return np.array([grey.mean(axis=0).std(), grey.mean(axis=1).std()])


def _alike(scene: Scene) -> np.ndarray:
    row, col = int(scene.factors["row"]), int(scene.factors["col"])
    step = 2 * int(scene.factors["distance"])
    down, right = (0, step) if scene.factors["axis"] == "side by side" else (step, 0)
    one, two = (
        scene.image[
            row + s * down - 4 : row + s * down + 4, col + s * right - 4 : col + s * right + 4
        ]
        for s in (-1, 1)
    )
    gap = np.abs(one.astype(float) - two).mean()
    return np.array([gap / np.abs(float(scene.factors["ink"]) - float(scene.factors["paper"]))])


def _marked(*arguments: Any) -> tuple[Scene, ...]:
    made = []
    for scene in arrangement.render(*arguments):
        image = scene.image.copy()
        image[:2, :2] = 255 * scene.label
        made.append(replace(scene, image=image))
    return tuple(made)


def test_neither_fit_nor_tuning_sees_a_test_scene(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, str]] = []
    fits: list[tuple[np.ndarray, np.ndarray | None]] = []
    order: list[str] = []
    draw, tune, fit = run.scenes, run.candidates, run.fit_logistic

    def drawn(*arguments: Any, **options: Any) -> Any:
        asked.append((options["seed"], options["part"]))
        order.append(options["part"])
        return draw(*arguments, **options)

    def tuned(features: Any, labels: Any, out: Any, grid: Any) -> tuple[Candidate, ...]:
        assert tuple(grid) == GRID
        fits.append((features, out))
        order.append("tuned")
        return tune(features, labels, out, grid)

    def fitted(features: Any, labels: Any, c: float) -> Any:
        fits.append((features, None))
        order.append("fitted")
        return fit(features, labels, c)

    monkeypatch.setattr(run, "scenes", drawn)
    monkeypatch.setattr(run, "candidates", tuned)
    monkeypatch.setattr(run, "fit_logistic", fitted)
    ticket = iter(range(10**6))
    reader = StubReader(lambda scene: np.array([next(ticket), scene.label]))
    run_task(scale.TASK, DIGITS, SMALL, reader)  # type: ignore[arg-type]

    per_seed = ["fit"] * 4 + ["validation"] * 4 + ["tuned", "fitted"] + ["test"] * 4
    assert order == per_seed * 2
    assert [seed for seed, _ in asked] == [0] * 12 + [1] * 12
    numbers = [seen.features[:, 0] for seen in reader.given]
    for seed in (0, 1):
        fit_rows, validation_rows, *tests = numbers[6 * seed : 6 * seed + 6]
        (tuning, out), (whole, _) = fits[2 * seed : 2 * seed + 2]
        assert out is not None
        assert set(tuning[~out, 0]) == set(fit_rows)
        assert set(tuning[out, 0]) == set(validation_rows)
        assert set(whole[:, 0]) == set(fit_rows) | set(validation_rows)
        assert not set(whole[:, 0]) & set(np.concatenate(tests))


def test_levels_are_fitted_to_different_scenes_and_tested_on_the_same() -> None:
    reader = StubReader(the_answer)
    run_task(scale.TASK, DIGITS, SMALL, reader)  # type: ignore[arg-type]
    fit, validation, *tests = reader.given[:6]
    for seen in (fit, validation):
        angles = [one["angle"] for one in seen.factors]
        assert len(set(angles)) == len(angles) / 4
    assert len({tuple(one["angle"] for one in seen.factors) for seen in tests}) == 1
    assert [{one["size"] for one in seen.factors} for seen in tests] == [{0.5}, {1.0}, {2.0}, {3.0}]


def test_alignment_is_fitted_to_aligned_scenes_alone() -> None:
    reader = StubReader(the_answer)
    found = run_task(alignment.TASK, DIGITS, SMALL, reader)  # type: ignore[arg-type]
    fit, validation, *tests = reader.given[: 2 + 4 + 2]
    assert {one["offset"] for seen in (fit, validation) for one in seen.factors} == {0.0}
    moved = [{tuple(sorted(one.keys() & {"offset", "move"})) for one in s.factors} for s in tests]
    assert moved == [{("offset",)}] * 4 + [{("move",)}] * 2
    *own, whole = found["subgroups"]
    assert (whole["name"], whole["factor"], whole["unit"]) == (
        "move by whole patches", "move", "patches",
    )  # fmt: skip
    assert [level["level"] for level in whole["levels"]] == [0.0, 1.0, 2.0]
    assert whole["levels"][0] == found["levels"][0]
    assert {group["factor"] for group in own} == {"offset"}
    assert found["left_out"] == [
        {
            "factor": "move",
            "unit": "patches",
            "level": 4.0,
            "reason": "it takes a grid of 10x10 patches, the model has 8x8",
        }
    ]


def test_a_strength_is_the_best_on_the_validation_part() -> None:
    rng = np.random.default_rng(0)
    reader = StubReader(lambda scene: np.concatenate([rng.normal(size=60), [scene.label]]))
    found = run_task(scale.TASK, DIGITS, SMALL, reader)  # type: ignore[arg-type]
    for seed, c in enumerate(found["regularisation"]):
        fit, validation = reader.given[6 * seed : 6 * seed + 2]
        counts = {}
        for one in GRID:
            made = logistic.fit_logistic(fit.features, fit.labels, one)
            right = made.logits(validation.features).argmax(axis=1) == validation.labels
            counts[one] = int(right.sum())
        assert c == min(one for one in GRID if counts[one] == max(counts.values()))


def test_counts() -> None:
    for name, task in TASKS.items():
        reader = StubReader(the_answer)
        found = run_task(task, DIGITS, SMALL, reader)  # type: ignore[arg-type]
        shown = sum(len(seen.labels) for seen in reader.given)
        assert shown == scene_count([task], DIGITS, SMALL), name
        groups = groups_of(task, DIGITS, SMALL)
        fitted, validated = (len(reader.given[part].labels) for part in (0, 1))
        assert found["scenes"]["fitted"] == fitted
        assert found["scenes"]["validated"] == validated
        assert 80 <= fitted + validated < 80 + task.members * len(found["levels"])
        assert found["scenes"]["tested"] == 16 == groups.test * task.members
        for level in found["levels"]:
            assert level["images"] == 32
    few = groups_of(scale.TASK, DIGITS, Plan(1, 1, (0,)))
    assert (few.fit, few.validation, few.test) == (1, 1, 1)


def test_a_share_and_its_two_intervals() -> None:
    one = accuracy(45, 60)
    expected = binomtest(45, 60).proportion_ci(0.95, method="wilson")
    assert (one.value, one.reason) == (0.75, None)
    assert (one.low, one.high) == pytest.approx((expected.low, expected.high))
    shares = [0.7, 0.8, 0.75]
    spread = over_seeds(shares)
    bounds = t.interval(0.95, 2, np.mean(shares), np.std(shares, ddof=1) / np.sqrt(3))
    assert (spread.low, spread.high) == pytest.approx(bounds)
    agreed = over_seeds([0.25, 0.25])
    assert (agreed.value, agreed.low) == (0.25, None)
    assert agreed.reason == "the seeds agree, so their spread gives no interval"
    alone = over_seeds([0.7])
    assert (alone.value, alone.low, alone.reason) == (
        0.7,
        None,
        "one seed has no spread over seeds",
    )
    for none in (accuracy(0, 0), over_seeds([])):
        assert none.value is None
        assert none.reason == "no test scene falls into this subgroup; raise --test"


def test_a_subgroup_counts_its_own_scenes() -> None:
    """Right on light objects alone."""
    found = ran(scale.TASK, lambda s: the_answer(s) * (s.factors["tone"] == "light"))
    groups = {group["name"]: group["levels"] for group in found["subgroups"]}
    for light, dark, whole in zip(
        groups["light object"], groups["dark object"], found["levels"], strict=True
    ):
        assert light["accuracy"]["value"] == 1.0
        assert dark["accuracy"]["value"] == 0.25
        assert light["images"] == dark["images"] == 16
        assert light["correct"] + dark["correct"] == whole["correct"]
        assert whole["per_seed"] == [0.625, 0.625]
    outcome = Outcome(np.array([True, False]), ({"tone": "light"}, {"tone": "dark"}))
    assert outcome.where("tone", "dark").right.tolist() == [False]


def test_a_frame_without_room_gives_the_reason() -> None:
    tiny = Frame((8, 8), (4, 4), (2, 2))
    reader = StubReader(the_answer)
    found = run_task(alignment.TASK, tiny, SMALL, reader)  # type: ignore[arg-type]
    assert found["levels"] == found["subgroups"] == []
    assert found["reason"] == (
        "the image has no room for this task: it takes a grid of 7x7 patches, the model has 2x2"
    )
    assert (reader.given, scene_count([alignment.TASK], tiny, SMALL)) == ([], 0)


def test_a_grid_that_does_not_fill_the_image_is_refused() -> None:
    model = ready("vit_wide")
    assert frame_of(model) == Frame((32, 48), (8, 8), (4, 6))
    anatomy = model.anatomy
    for size in ((33, 48), (32, 54)):
        changed = replace(model, anatomy=replace(anatomy, image_size=size))
        with pytest.raises(AnatomyError, match="is no whole number of patches on a grid of 4x6"):
            frame_of(changed)
    site = replace(anatomy.patches, grid=Grid(2, 3))
    with pytest.raises(AnatomyError, match="no whole number of patches on a grid of 2x3"):
        frame_of(replace(model, anatomy=replace(anatomy, patches=site)))


def test_wrong_requests() -> None:
    with pytest.raises(UsageError, match=r"unknown task 'scal'\. Did you mean scale"):
        chosen_tasks(["scal"])
    assert [task.name for task in chosen_tasks(["relation", "scale", "scale"])] == [
        "scale",
        "relation",
    ]
    assert len(chosen_tasks([])) == 4
    for wrong, option in ((Plan, "--train"), (lambda **k: Plan(train=4, **k), "--seeds")):
        with pytest.raises(UsageError, match=f"{option} must be at least 1"):
            wrong(**({"train": 0} if option == "--train" else {"seeds": ()}))
