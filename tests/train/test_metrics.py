"""`metrics.jsonl`: what its lines say, and which are kept when a run goes on."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from probe.errors import StoreError, UsageError
from tests.train.tiny_runs import digits, lines, stopped, tiny, trained
from train.metrics import Metrics
from train.optimisation import rate_factor

KEYS = ["step", "epoch", "images", "loss", "lr", "grad_norm"]


def test_the_lines_of_a_run(tmp_path: Path) -> None:
    trained(tmp_path, "train.steps=7", "keep.evaluate_every=5")
    found = lines(tmp_path)
    assert [line["step"] for line in found] == [2, 3, 4, 5, 6, 7]
    for line in found:
        judged = line["step"] in (5, 7)
        assert list(line) == [*KEYS, *(["validation_accuracy"] if judged else [])]
        assert line["images"] == 16 * line["step"]
        assert line["epoch"] == round(line["step"] / (1253 // 16), 4)
        how = tiny("train.steps=7").train
        assert line["lr"] == how.lr * rate_factor(how, line["step"] - 1, 7)
        assert 1 < line["loss"] < 4
        assert 0.1 < line["grad_norm"] < 100
        if judged:
            right = line["validation_accuracy"] * len(digits().validation)
            assert math.isclose(right, round(right), abs_tol=1e-9)


def test_a_line_is_the_mean_since_the_one_before(tmp_path: Path) -> None:
    for every in (1, 4):
        trained(
            tmp_path / str(every), "train.steps=8", f"keep.log_every={every}", "keep.save_every=8"
        )
    single, means = lines(tmp_path / "1"), lines(tmp_path / "4")
    for number, line in enumerate(means):
        four = single[4 * number : 4 * number + 4]
        for key in ("loss", "grad_norm"):
            assert line[key] == pytest.approx(sum(one[key] for one in four) / 4, rel=1e-6)
        assert line["lr"] == four[-1]["lr"]


def test_lines_after_the_state_are_dropped(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    text = "".join(json.dumps({"step": step}) + "\n" for step in (2, 4, 6))
    for step, kept in ((0, []), (3, [2]), (4, [2, 4]), (9, [2, 4, 6])):
        path.write_text(text)
        Metrics(tmp_path, step).add({"step": step + 1})
        assert [line["step"] for line in lines(tmp_path)] == [*kept, step + 1]
    path.write_text(text + '{"step": 8, "lo')
    Metrics(tmp_path, 9)
    assert path.read_text() == text


def test_no_line_holds_what_json_has_no_word_for(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        Metrics(tmp_path, 0).add({"step": 1, "loss": math.nan})


def test_a_full_disk(tmp_path: Path) -> None:
    metrics = Metrics(tmp_path, 0)
    (tmp_path / "metrics.jsonl").unlink()
    (tmp_path / "metrics.jsonl").symlink_to("/dev/full")
    with pytest.raises(StoreError) as caught:
        metrics.add({"step": 1})
    assert str(caught.value) == (
        f"cannot write {tmp_path / 'metrics.jsonl'}: No space left on device; free space and run "
        "the same command again"
    )


def scalars(folder: Path) -> dict[str, dict[int, float]]:
    """What TensorBoard shows: tag -> step -> value."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder / "probe"))
    events.Reload()
    tags = events.Tags()["scalars"]
    return {tag: {one.step: one.value for one in events.Scalars(tag)} for tag in tags}


def test_tensorboard_shows_the_same_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes = ("train.steps=8", "keep.evaluate_every=4")
    trained(tmp_path, *changes, tracker="tensorboard")
    found = scalars(tmp_path)
    for key in (*KEYS[1:], "validation_accuracy"):
        wanted = {line["step"]: line[key] for line in lines(tmp_path) if key in line}
        assert found[key] == pytest.approx(wanted)
    before = sorted(path.name for path in tmp_path.rglob("*"))
    trained(tmp_path, *changes, tracker="tensorboard")  # finished: nothing is opened
    assert sorted(path.name for path in tmp_path.rglob("*")) == before


@pytest.mark.filterwarnings("ignore:`log_with=tensorboard` was passed:UserWarning")
def test_a_tracker_that_is_not_installed_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("accelerate.tracking.get_available_trackers", list)
    with pytest.raises(UsageError) as caught:
        trained(tmp_path, tracker="tensorboard")
    assert str(caught.value) == (
        "the tracker tensorboard is not installed; pip install tensorboard"
    )
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_tracker_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"cannot run with .*tracker tensorbord: Unsupp"):
        trained(tmp_path, tracker="tensorbord")


def test_a_run_that_goes_on_is_shown_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.train import tiny_runs

    changes = ("train.steps=9", "keep.save_every=4", "keep.log_every=1")
    first = tiny_runs.trained

    def tracked(folder: Path, *given: str) -> None:
        first(folder, *given, tracker="tensorboard")

    with monkeypatch.context() as patch:
        patch.setattr(tiny_runs, "trained", tracked)
        stopped(monkeypatch, tmp_path, 4, *changes)
    first(tmp_path, *changes, tracker="tensorboard")
    wanted = {line["step"]: line["loss"] for line in lines(tmp_path)}
    assert list(wanted) == list(range(1, 10))
    assert scalars(tmp_path)["loss"] == pytest.approx(wanted)
