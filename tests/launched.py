"""Groups of processes that were told how to meet, as a launcher would do it.

They are children of one process that imports everything and never computes, so that importing is
paid for once and forking is safe.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Job:
    """`function(*arguments)` of a module, in `count` processes; its answer must be JSON."""

    module: str
    function: str
    arguments: tuple[Any, ...]
    count: int = 2


@dataclass(frozen=True)
class Ended:
    """How one process has ended, what it answered, and what it printed meanwhile."""

    code: int
    answer: Any
    printed: str


def launch(folder: Path, *jobs: Job) -> list[list[Ended]]:
    """Run all jobs, one after the other: the processes of each, by rank."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.launched", json.dumps([asdict(job) for job in jobs])],
        cwd=ROOT,
        env=os.environ | {"PROBE_LAUNCHED": str(folder)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return [[Ended(**one) for one in group] for group in json.loads(done.stdout)]


def _child(job: Job, rank: int, port: int, to: Path) -> int:
    """Fork a process of a job, which leaves what became of it in the file `to`."""
    pid = os.fork()
    if pid:
        return pid
    signal.alarm(800)  # a process that waits in vain ends
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(job.count)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    answer, printed, code = None, io.StringIO(), 0
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        try:
            answer = getattr(import_module(job.module), job.function)(*job.arguments)
        except BaseException:
            code = 1
            traceback.print_exc()
    to.write_text(json.dumps(asdict(Ended(code, answer, printed.getvalue()))))
    os._exit(code)


def _run(job: Job, folder: Path) -> list[Any]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    files = [folder / f"{rank}-of-{port}.json" for rank in range(job.count)]
    started = [_child(job, rank, port, file) for rank, file in enumerate(files)]
    for pid in started:
        os.waitpid(pid, 0)
    return [json.loads(file.read_text()) for file in files]


def _main(jobs: Sequence[Job]) -> None:
    for module in {job.module for job in jobs}:
        import_module(module)
    folder = Path(os.environ["PROBE_LAUNCHED"])
    print(json.dumps([_run(job, folder) for job in jobs]))


if __name__ == "__main__":
    _main([Job(**job) for job in json.loads(sys.argv[1])])
