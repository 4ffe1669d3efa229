"""Runs at once: the same bytes as one after another, failures by name, no process left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from threading import Timer, main_thread

import pytest

from tests.cli.command import invoke
from tests.train.tiny_runs import FILES, arguments, command, environment, reset, trained
from train.jobs import Job, run_jobs

STAND_IN = """
import os, pathlib, signal, sys, time

name = sys.argv[1]
print("begins", os.environ["OMP_NUM_THREADS"], flush=True)
if name == "fails":
    print("probe: cannot", file=sys.stderr)
    sys.exit(3)
if name == "hangs":
    pathlib.Path(sys.argv[2]).write_text(str(os.getpid()))
    time.sleep(60)
print("ends", flush=True)
"""


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A `train` that does what its argument says, found first."""
    (tmp_path / "train.py").write_text(STAND_IN)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def interruptible() -> Iterator[None]:
    """SIGINT interrupts this process and its children, also where it was started to ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_lines_carry_names_and_failures_are_returned(stand_in: Path) -> None:
    told: list[str] = []
    jobs = [Job(name, (name,)) for name in ("one", "fails", "two")]
    assert run_jobs(jobs, 2, told.append) == ["fails"]
    threads = max(1, (os.cpu_count() or 1) // 2)
    for name in ("one", "two"):
        mine = [line for line in told if line.startswith(f"{name}: ")]
        assert mine == [f"{name}: begins {threads}", f"{name}: ends"]
    assert "fails: probe: cannot" in told
    assert len(told) == 6


def alive(number: int) -> bool:
    try:
        os.kill(number, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.usefixtures("interruptible")
def test_an_interrupt_ends_the_processes_and_starts_no_other(stand_in: Path) -> None:
    told: list[str] = []
    jobs = [Job("hangs", ("hangs", "pid")), Job("later", ("later",))]

    def interrupt() -> None:
        while not (stand_in / "pid").exists() or not (stand_in / "pid").read_text():
            time.sleep(0.02)
        signal.pthread_kill(main, signal.SIGINT)

    main = main_thread().ident
    assert main is not None
    timer = Timer(0.0, interrupt)
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        run_jobs(jobs, 1, told.append)
    timer.join()
    assert [line for line in told if line.startswith("later")] == []
    assert not alive(int((stand_in / "pid").read_text()))


def test_a_reader_that_left_ends_the_processes(stand_in: Path) -> None:
    def gone(line: str) -> None:
        raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        run_jobs([Job("one", ("one",)), Job("hangs", ("hangs", "pid"))], 2, gone)
    pid = stand_in / "pid"
    assert not pid.exists() or not alive(int(pid.read_text()))


@pytest.mark.slow
def test_jobs_give_the_bytes_of_one_after_another(tmp_path: Path) -> None:
    words = ["ape", "none", *arguments("train.steps=4")]
    done = command(*words, "--out", str(tmp_path / "jobs"), "--jobs", "2")
    assert done.returncode == 0, done.stderr
    told = done.stdout.splitlines()
    for number, variant in enumerate(("ape", "none")):
        run, alone = tmp_path / f"jobs/{variant}-s0", tmp_path / variant
        trained(alone, "train.steps=4", variant=variant)
        assert sorted(path.name for path in run.iterdir()) == FILES
        for name in ("model.safetensors", "metrics.jsonl", "training.json", "config.json"):
            assert (run / name).read_bytes() == (alone / name).read_bytes(), name
        steps = [line for line in told if line.startswith(f"{variant}-s0: step ")]
        assert [line.partition(": loss")[0][-6:] for line in steps] == [
            "2 of 4",
            "3 of 4",
            "4 of 4",
        ]
        assert told[number - 2].startswith(f"{run}: validation 0.")
    assert "holds this run already" not in done.stdout


@pytest.mark.slow
def test_a_job_that_fails_is_named_and_the_others_finish(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", environment()["PYTHONPATH"])
    (tmp_path / "ape-s0").write_text("in the way")
    words = ["ape", "none", *arguments("train.steps=2")]
    reset()
    done = invoke("train", *words, "--out", str(tmp_path), "--jobs", "2")
    assert done.exit_code == 1
    assert done.stderr == "probe: 1 of 2 runs failed: ape-s0\n"
    assert f"ape-s0: probe: cannot write into {tmp_path / 'ape-s0'}: " in done.stdout
    assert sorted(path.name for path in (tmp_path / "none-s0").iterdir()) == FILES


@pytest.mark.slow
@pytest.mark.usefixtures("interruptible")
def test_ctrl_c_ends_all_and_says_so(tmp_path: Path) -> None:
    words = ["ape", *arguments("train.steps=100000", "keep.log_every=1")]
    with subprocess.Popen(
        [sys.executable, "-m", "train", *words, "--jobs", "2", "--out", str(tmp_path)],
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            next(line for line in process.stdout if ": step 9 of" in line)
            os.kill(process.pid, signal.SIGINT)
            rest, error = process.communicate(timeout=120)
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            raise
        assert process.returncode == 130, rest
    assert error == (
        "probe: interrupted; the same command without --fresh goes on from what is stored\n"
    )
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)  # nobody of the session is left
