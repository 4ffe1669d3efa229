"""Run as a script: a report that is killed (SIGKILL) again and again, then left to finish.

`killed.py SECONDS KILLS SEED ARGUMENT...` forks `probe ARGUMENT...` from a process that has
imported everything and kills it after at most SECONDS of processor time, until it was KILLS times
not yet done; then it runs whole. What was done before its kill is kept in `out-1`, `runs-1` and so
on, and all begins anew. With no KILLS it runs whole and prints its processor time.
"""

from __future__ import annotations

import os
import random
import resource
import signal
import sys
import time
from collections.abc import Sequence


def child(arguments: Sequence[str]) -> int:
    """Start `probe ARGUMENT...` in a forked process; its id."""
    process = os.fork()
    if process:
        return process
    from probe import engine
    from probe.cli.app import main

    engine.SAVE_EVERY = 0.0  # after every batch, so that kills fall on unfinished sums
    sys.argv = ["probe", *arguments]
    code = 1
    try:
        main()
    except SystemExit as end:
        code = int(end.code or 0)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def kill_after(process: int, seconds: float) -> None:
    """Kill a process once it has used so much processor time, so that other work changes little."""
    ticks = os.sysconf("SC_CLK_TCK")
    while True:
        with open(f"/proc/{process}/stat", encoding="ascii") as file:
            fields = file.read().rpartition(")")[2].split()
        if fields[0] == "Z":
            return
        if (int(fields[11]) + int(fields[12])) / ticks >= seconds:
            os.kill(process, signal.SIGKILL)
            return
        time.sleep(0.002)


def main() -> None:
    """See the module."""
    import timm  # noqa: F401
    import torch

    from probe.cli import report_batch, report_files  # noqa: F401

    torch.set_num_threads(1)
    seconds, kills, seed = float(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    arguments, chance, hit = sys.argv[4:], random.Random(seed), 0
    if kills == 0:
        _, status = os.waitpid(child(arguments), 0)
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        print(f"TOOK {used.ru_utime + used.ru_stime}", file=sys.stderr)
        sys.exit(os.waitstatus_to_exitcode(status))
    ends = 0
    while hit < kills:
        process = child(arguments)
        kill_after(process, chance.uniform(0, seconds))
        _, status = os.waitpid(process, 0)
        code = os.waitstatus_to_exitcode(status)
        hit += code == -signal.SIGKILL
        if code == 0:  # it was done before it was killed: keep what it made, and begin anew
            ends += 1
            for folder in ("out", "runs"):
                os.rename(folder, f"{folder}-{ends}")
    _, status = os.waitpid(child(arguments), 0)
    print(f"KILLED {hit}", file=sys.stderr)
    sys.exit(os.waitstatus_to_exitcode(status))


if __name__ == "__main__":
    main()
