"""Two processes on the CPU do what one does, and one of them speaks."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from probe.errors import StoreError, UsageError
from tests.train.tiny_runs import FILES, ROOT, arguments, environment, lines, logits, trained
from train import command
from train.command import Request, train_all
from train.runs import _agree

SECTION = re.search(
    r"^## Several processes$(.*?)(?=^## |\Z)",
    (ROOT / "docs/training.md").read_text("utf-8"),
    re.MULTILINE | re.DOTALL,
)
STEPS = "train.steps=12"


def documented() -> list[str]:
    """The words of the one command that the section shows."""
    assert SECTION is not None
    (block,) = re.findall(r"^```\n(.*?)^```$", SECTION[1], re.MULTILINE | re.DOTALL)
    words = shlex.split(block.replace("\\\n", " "))
    assert words[:2] == ["accelerate", "launch"]
    return words[2:]


def launch(words: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "accelerate.commands.launch", *words],
        env=environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.slow
def test_two_processes_learn_what_one_does(tmp_path: Path) -> None:
    words = documented()
    assert words[words.index("--num_processes") + 1] == "2"
    changes = (STEPS, "train.accumulate=2", "keep.dtype=float32")
    done = launch([*words, *arguments(*changes), "--out", str(tmp_path / "two")])
    assert done.returncode == 0, done.stderr
    told: list[str] = []
    one = trained(tmp_path / "one", *changes, told=told)
    two, run = tmp_path / "two" / "ape-s0", tmp_path / "one"
    assert sorted(path.name for path in two.iterdir()) == FILES
    steps = re.findall(r"^step (\d+) of 12: loss", done.stdout, re.MULTILINE)
    assert list(map(int, steps)) == [line["step"] for line in lines(run)]
    assert done.stdout.count("test 0.") == 1
    for a, b in zip(lines(two), lines(run), strict=True):
        assert (a["step"], a["images"], a["lr"]) == (b["step"], b["images"], b["lr"])
        assert a["loss"] == pytest.approx(b["loss"], abs=2e-6)
        assert a["grad_norm"] == pytest.approx(b["grad_norm"], rel=1e-4)
    assert torch.allclose(logits(two), logits(run), atol=1e-3)
    again = trained(two, *changes, told=told)
    assert told[-1] == f"{two} holds this run already; --fresh trains it again"
    assert (one["processes"], again["processes"]) == (1, 2)
    assert (one["fingerprint"], one["steps"]) == (again["fingerprint"], again["steps"])


def alone(monkeypatch: pytest.MonkeyPatch, count: int = 1) -> Request:
    """A request in a process that knows of `count`."""
    state = SimpleNamespace(num_processes=count, is_main_process=True)
    monkeypatch.setattr(command, "PartialState", lambda **options: state)
    return Request(("ape",), "digits", (0,), Path("never"))


def test_processes_that_do_not_know_of_each_other_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    request = alone(monkeypatch)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(UsageError) as caught:
        train_all(request, print, command._silent)
    assert str(caught.value) == (
        "2 processes were started, and there is no GPU for them; --device cpu after train makes "
        "them share the CPU"
    )
    monkeypatch.delenv("WORLD_SIZE")
    monkeypatch.setenv("MASTER_PORT", "29500")
    monkeypatch.setenv("ACCELERATE_USE_CPU", "True")
    with pytest.raises(UsageError) as caught:
        train_all(request, print, command._silent)
    assert "accelerate launch --cpu starts one process" in str(caught.value)
    shown = str(caught.value).partition("write accelerate launch ")[2]
    assert shown.replace("N", "2").split(" ...")[0] == " ".join(documented()[:5])


def test_jobs_are_for_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    from dataclasses import replace

    request = replace(alone(monkeypatch, 2), jobs=2)
    with pytest.raises(UsageError, match=r"^--jobs is for one process; under accelerate launch le"):
        train_all(request, print, command._silent)


class Two:
    """An accelerator of two processes, as far as a run asks before it trains."""

    num_processes, is_main_process, process_index = 2, True, 0
    device = torch.device("cpu")

    def __init__(self, steps: tuple[int, ...] = (0, 0)) -> None:
        self.steps = steps

    def gather(self, value: torch.Tensor) -> torch.Tensor:
        return torch.tensor(self.steps)

    def __getattr__(self, name: str) -> Any:
        return lambda *args: args


def test_a_batch_that_two_processes_cannot_share(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("train.runs.accelerator_for", lambda *given: Two())
    with pytest.raises(Exception, match="a batch of 15 cannot be shared by 2 processes; change"):
        trained(tmp_path, "train.batch=15")
    with pytest.raises(UsageError, match="8 images per process cannot be cut into 16 equal parts"):
        trained(tmp_path, "train.accumulate=16")
    with pytest.raises(UsageError, match="--halve-on-oom is for one process, since the others"):
        trained(tmp_path, halve=True)


def test_machines_without_a_shared_folder_are_seen(tmp_path: Path) -> None:
    _agree(Two((6, 6)), tmp_path, 6)  # type: ignore[arg-type]
    with pytest.raises(StoreError) as caught:
        _agree(Two((6, 0)), tmp_path, 6)  # type: ignore[arg-type]
    assert str(caught.value) == (
        f"the processes see different files in {tmp_path}; several machines need a shared folder"
    )
