"""Several runs at once, each in a process of its own with its share of the cores.

Small networks train faster so than one after the other with all cores.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from threading import Event, Lock


@dataclass(frozen=True)
class Job:
    """One run: its name, and the arguments of `python -m train` that train it."""

    name: str
    arguments: tuple[str, ...]


def run_jobs(jobs: Sequence[Job], at_once: int, report: Callable[[str], None]) -> list[str]:
    """Run all jobs, `at_once` at a time; the names of those that failed.

    Their lines are reported with the job's name in front. On an interrupt the processes end, and
    what they have saved stays.
    """
    threads = max(1, (os.cpu_count() or 1) // at_once)
    environment = os.environ | {"OMP_NUM_THREADS": str(threads)}
    started: list[subprocess.Popen[str]] = []
    starting, ended = Lock(), Event()

    def work(job: Job) -> bool:
        command = [sys.executable, "-m", "train", *job.arguments]
        with starting:
            if ended.is_set():
                return False
            process = subprocess.Popen(
                command,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            started.append(process)
        with process:
            for line in process.stdout or ():
                report(f"{job.name}: {line.rstrip()}")
        return process.returncode == 0

    with ThreadPoolExecutor(at_once) as pool:
        futures = [pool.submit(work, job) for job in jobs]
        try:
            done = [future.result() for future in futures]
        except BaseException:
            with starting:
                ended.set()
                for process in started:
                    process.terminate()  # does nothing to one that has ended
            raise
    return [job.name for job, fine in zip(jobs, done, strict=True) if not fine]
