"""Killed and resumed equals uninterrupted, byte for byte, wherever the kill falls."""

from __future__ import annotations

import signal
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from filelock import FileLock

from probe.errors import CheckpointError, StoreError, UsageError
from probe.families.controlled import build
from tests.train import tiny_runs
from tests.train.tiny_runs import (
    FILES,
    arguments,
    command,
    digits,
    environment,
    lines,
    stopped,
    tiny,
    trained,
    weights,
)
from train.loop import Options, Trainer, accelerator_for
from train.optimisation import optimiser
from train.runs import Run
from train.state import restore, saved_meta

EVERYTHING = (
    "train.ema=0.8",
    "train.accumulate=2",
    "model.dropout.embedding=0.1",
    "model.dropout.attention=0.1",
    "model.dropout.mlp=0.1",
    "model.drop_path=0.2",
)
COMPARED = ("model.safetensors", "metrics.jsonl", "training.json", "config.json")
# A process with this module on its path kills itself at one event. Python raises `os.rename` before
# a file takes its place and `open` before it is opened, so that what comes after never happens.
KILLER = """
import os, signal, sys

event, ending, number, half = os.environ["KILL"].split(",")
seen = 0


def watch(name, args):
    global seen
    if name != event or not any(str(arg).endswith(ending) for arg in args[:2]):
        return
    if event == "open" and args[1] != "a":
        return
    seen += 1
    if seen == int(number):
        if half:
            os.truncate(args[0], os.path.getsize(args[0]) // 2)
        os.kill(os.getpid(), signal.SIGKILL)


sys.addaudithook(watch)
"""
# (what is killed at, the step of the state that is there then, the last line of the metrics).
# Lines are written at 2 3 4 6 8 9 10 12 14 15 16 18 20, states at 3 6 9 12 15 18 20.
KILLS = {
    "before the first state": ("open,metrics.jsonl,2,", None, 2),
    "half-way through writing a state": ("os.rename,/state.safetensors,2,half", 3, 6),
    "between two states": ("open,metrics.jsonl,4,", 6, 8),
    "right after a state": ("open,metrics.jsonl,3,", 9, 9),
    "after the last step": ("os.rename,/training.json,1,", 20, 20),
}


@pytest.mark.slow
def test_killed_and_resumed_is_uninterrupted(tmp_path: Path) -> None:
    (tmp_path / "killer").mkdir()
    (tmp_path / "killer" / "sitecustomize.py").write_text(KILLER)
    words = ["rpt", "--seeds", "3", *arguments(*EVERYTHING)]
    trained(tmp_path / "whole", *EVERYTHING, variant="rpt", seed=3)
    folder, after = tmp_path / "killed" / "rpt-s3", None
    for name, (where, step, line) in KILLS.items():
        env = environment(tmp_path / "killer") | {"KILL": where}
        done = command(*words, "--out", str(folder.parent), env=env)
        assert done.returncode == -signal.SIGKILL, (name, done.stderr)
        if after is not None:
            assert f"goes on after step {after} of 20" in done.stdout, name
        found = saved_meta(folder)
        after = None if found is None else found["step"]
        assert (after, lines(folder)[-1]["step"]) == (step, line), name
        assert bool(list(folder.glob(".*.new"))) == name.startswith(("half", "after the last"))
    done = command(*words, "--out", str(folder.parent))
    assert done.returncode == 0, done.stderr
    assert "goes on after step 20 of 20" in done.stdout
    assert sorted(path.name for path in folder.iterdir()) == FILES
    for name in COMPARED:
        assert (folder / name).read_bytes() == (tmp_path / "whole" / name).read_bytes(), name


def test_a_state_holds_weights_averages_and_the_optimiser(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped(monkeypatch, tmp_path, 6, "train.ema=0.5")
    meta = saved_meta(tmp_path)
    assert meta is not None
    run = Run(tiny("train.ema=0.5"), 0, tmp_path)
    assert meta["fingerprint"] == run.fingerprint(digits())
    assert meta["recipe"] == run.recipe.describe()
    assert meta["loss"] == lines(tmp_path)[-1]["loss"]
    options = Options(cpu=True)
    accelerator = accelerator_for(run.recipe, tmp_path, 1, options)
    one, two = (Trainer(run.recipe, 0, digits(), accelerator, options, 1) for _ in range(2))
    one.resume(tmp_path, meta)
    assert one.ema is not None
    assert int(one.ema.n_averaged) == 6
    steps = {float(state["step"]) for state in one.inner.state.values()}
    assert steps == {6.0}
    start = dict(two.raw.named_parameters())
    assert all(not torch.equal(v, start[n]) for n, v in one.raw.named_parameters() if v.ndim > 1)
    averaged = one.ema.module.state_dict()
    assert any(not torch.equal(v, averaged[n]) for n, v in one.raw.state_dict().items())


def test_a_damaged_state_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stopped(monkeypatch, tmp_path, 3)
    path = tmp_path / "state.safetensors"
    content = path.read_bytes()
    for broken in (b"", b"no state", content[:-10], content[:200]):
        path.write_bytes(broken)
        with pytest.raises(CheckpointError) as caught:
            trained(tmp_path)
        assert str(caught.value) == f"{path} is damaged; remove it to start again"
    assert content.count(b"seconds") == 1
    path.write_bytes(content.replace(b"seconds", b"minutes"))
    with pytest.raises(CheckpointError, match="does not say its seconds, so another version wrote"):
        trained(tmp_path)
    path.unlink()
    assert trained(tmp_path)["steps"] == 20


def test_a_state_of_another_network_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped(monkeypatch, tmp_path, 3)
    recipe = tiny("model.width=24", "model.heads=1")
    wider = build(recipe.network(10), "ape", 0)
    with pytest.raises(CheckpointError, match="is of another network; remove it to start again"):
        restore(tmp_path, wider, optimiser(wider, recipe.train), None)


@pytest.mark.parametrize(
    ("changes", "more", "named"),
    [
        (("train.lr=1e-3",), {}, "train.lr"),
        (("train.lr=1e-3", "train.ema=0.9"), {}, "train.lr, train.ema"),
        ((), {"seed": 1}, "seed"),
        ((), {"variant": "rpt"}, "variant"),
        (
            ("train.lr=1", "train.ema=0.9", "train.clip=2", "train.warmup=0", "image.size=64"),
            {},
            "image.size, train.lr, train.warmup, train.clip and 1 more",
        ),
    ],
)
def test_another_run_in_the_folder_is_refused_with_what_differs(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    changes: tuple[str, ...],
    more: dict[str, object],
    named: str,
) -> None:
    unfinished, finished = tmp_path / "unfinished", tmp_path / "finished"
    stopped(monkeypatch, unfinished, 3)
    trained(finished, untrained=True)
    record = (finished / "training.json").read_bytes()
    for folder, how in ((unfinished, {}), (finished, {"untrained": True})):
        with pytest.raises(UsageError) as caught:
            trained(folder, *changes, **more, **how)  # type: ignore[arg-type]
        assert str(caught.value) == (
            f"{folder} holds another run, which differs in {named}; choose another --out, or "
            "--fresh to replace it"
        )
    assert (finished / "training.json").read_bytes() == record
    meta = saved_meta(unfinished)
    assert meta is not None
    assert meta["step"] == 3


def test_other_images_are_another_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trained(tmp_path, untrained=True)
    other = replace(digits(), data=digits().data | {"fingerprint": "sha256:0", "train": "else"})
    monkeypatch.setattr(tiny_runs, "digits", lambda: other)
    with pytest.raises(UsageError, match=r"differs in the images \(train, fingerprint\); choose"):
        trained(tmp_path, untrained=True)


def test_fresh_trains_again_what_is_there(tmp_path: Path) -> None:
    told: list[str] = []
    first = trained(tmp_path, "train.steps=2")
    weight = weights(tmp_path)
    assert trained(tmp_path, "train.steps=2", told=told) == first
    assert told == [f"{tmp_path} holds this run already; --fresh trains it again"]
    again = trained(tmp_path, "train.steps=2", fresh=True)
    assert again == first
    other = trained(tmp_path, "train.steps=3", fresh=True)
    assert (other["steps"], len(lines(tmp_path))) == (3, 2)
    assert any(not torch.equal(value, weight[name]) for name, value in weights(tmp_path).items())


def test_a_finished_run_with_damaged_weights_is_not_taken_for_one(tmp_path: Path) -> None:
    trained(tmp_path, untrained=True)
    path = tmp_path / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"\x07")
    with pytest.raises(CheckpointError) as caught:
        trained(tmp_path, untrained=True)
    assert str(caught.value) == (
        f"{tmp_path} holds a finished run with damaged files; --fresh trains it again"
    )
    trained(tmp_path, untrained=True, fresh=True)
    assert trained(tmp_path, untrained=True)["steps"] == 0


def test_two_runs_into_one_folder(tmp_path: Path) -> None:
    with FileLock(tmp_path / ".lock"), pytest.raises(StoreError) as caught:
        trained(tmp_path)
    assert str(caught.value) == (
        f"another process trains into {tmp_path}; wait for it, or choose another --out"
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == [".lock"]


def test_workers_change_nothing(tmp_path: Path) -> None:
    for workers in (0, 1):
        trained(tmp_path / str(workers), "train.steps=4", variant="rpt", workers=workers)
    for name in COMPARED:
        assert (tmp_path / "0" / name).read_bytes() == (tmp_path / "1" / name).read_bytes()


def test_what_a_kill_left_half_written_is_removed(tmp_path: Path) -> None:
    left = tmp_path / ".state.safetensors.abc.new"
    left.write_bytes(b"half")
    other = tmp_path / "notes.new"
    other.write_text("mine")
    trained(tmp_path, untrained=True)
    assert not left.exists()
    assert other.exists()
