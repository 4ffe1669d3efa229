"""Runs that several processes share in `test_distributed.py`, and that one does alone there."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import redirect_stderr, redirect_stdout, suppress
from dataclasses import replace
from io import BytesIO, StringIO
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from probe import engine
from probe.data.memory import InMemory
from probe.data.source import Encoded, Item, StreamSource
from probe.distributed import ALONE, Processes, processes_of_launch
from probe.engine import run_passes
from probe.errors import DataError, UnreadableImage, UsageError
from probe.plan import Settings
from probe.records import PassRecord
from probe.session import measure_loaded
from probe.store import Store
from probe.types import Condition, LoadedModel, Permutation, Task
from tests.small_runs import passes_of, pictures, ready, undecided

RPI = Permutation("image", seed=3, draw=1)
WORK = [
    Task(Condition(), top1=True),
    Task(Condition(RPI)),
    Task(Condition(Permutation("batch", seed=3))),
    Task(Condition(alpha=0.5), last_layer=1),
    Task(Condition(corruption="jpeg(quality=5)"), ssdc=False, top1=True),
]
BY_FOUR = Settings(batch_size=4)


class Holed(InMemory):
    """Pictures of which some cannot be read."""

    def __init__(self, count: int, holes: tuple[int, ...]) -> None:
        super().__init__(pictures(count))
        self.holes = holes

    def read(self, position: int) -> Item:
        if position in self.holes:
            raise UnreadableImage(f"image {position}", "it is damaged")
        return super().read(position)


class Stream(StreamSource):
    """Pictures as a stream."""

    kind, name, split, fingerprint = "memory", "stream", None, "blake2b:0"

    def __init__(self, count: int, limit: int | None = None) -> None:
        self.count, self.limit = count, limit

    def stream(self, start: int = 0) -> Iterator[Encoded]:
        for index, picture in enumerate(pictures(self.count)):
            if index < start or index >= (self.limit or self.count):
                continue
            buffer = BytesIO()
            Image.fromarray(picture).save(buffer, "PNG")
            yield Encoded(index, f"{index}", buffer.getvalue(), None)


def tiny() -> LoadedModel:
    return undecided(ready(), pictures(23))


def plain(source: Any, settings: Settings = BY_FOUR, **options: Any) -> list[PassRecord]:
    return run_passes(tiny(), source, passes_of(WORK, settings), settings, **options)


CASES: dict[str, Callable[..., list[PassRecord]]] = {
    "one image": lambda **o: plain(InMemory(pictures(1)), **o),
    "less than a batch each": lambda **o: plain(InMemory(pictures(6)), **o),
    "a short last batch": lambda **o: plain(InMemory(pictures(23)), **o),
    "whole batches": lambda **o: plain(InMemory(pictures(24)), **o),
    "workers": lambda **o: plain(InMemory(pictures(13)), replace(BY_FOUR, workers=1), **o),
    "per image": lambda **o: plain(InMemory(pictures(13)), replace(BY_FOUR, average="image"), **o),
    "limited": lambda **o: plain(InMemory(pictures(50), limit=30), **o),
    "stream": lambda **o: plain(Stream(21), **o),
    "short stream": lambda **o: plain(Stream(3), **o),
    "limited stream": lambda **o: plain(Stream(21, 10), **o),
    "holes": lambda **o: plain(Holed(210, (5, 100)), replace(BY_FOUR, batch_size=30), **o),
    "a share of holes": lambda **o: plain(Holed(101, (100,)), Settings(batch_size=100), **o),
    "no signal": lambda **o: run_passes(
        ready("vit_no_pe"),
        InMemory(pictures(3, (32, 48))),
        passes_of([Condition(), Condition(alpha=0.5)], BY_FOUR),
        BY_FOUR,
        **o,
    ),
}


def ended(work: Callable[[], Any]) -> list[str]:
    """Type and first line of the error that `work` ends with."""
    try:
        work()
    except Exception as error:
        return [type(error).__name__, str(error).splitlines()[0]]
    return []


def interrupted(group: Processes, folder: Path) -> dict[str, Any]:
    """Every process is interrupted at its own place; what is run again starts from its sums."""

    class Read(InMemory):
        reads = 0

        def read(self, position: int) -> Item:
            self.reads += 1
            return super().read(position)

    left = 7 + group.rank

    def stop(_images: int) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            raise KeyboardInterrupt

    source, store = Read(pictures(23)), Store(folder)
    with suppress(KeyboardInterrupt):
        plain(source, store=store, progress=stop, processes=group)
    group.exchange(None)
    before = sorted(path.name.partition(".")[2] for path in (folder / "partial").iterdir())
    source.reads = 0
    group.exchange(None)
    records = plain(source, store=store, processes=group)
    group.exchange(None)
    return {
        "saved": before,
        "reads": group.exchange(source.reads),
        "records": [one.to_json() for one in records],
        "left": [path.name for path in (folder / "partial").iterdir()],
    }


def failing(group: Processes, kind: type[Exception]) -> dict[str, Any]:
    """The second process fails in its first batch; the first has far more to do than it does."""
    reads, first = 0, group.main

    class Long(InMemory):
        def read(self, position: int) -> Item:
            nonlocal reads
            reads += 1
            if not first:
                raise kind("the disk is gone")
            time.sleep(0.005)
            return super().read(position)

    def work() -> None:
        with group.in_step():
            plain(Long(pictures(400)), processes=group)

    found = ended(work)
    return {"error": group.exchange(found), "reads": group.exchange(reads)}


def short_of_memory(group: Processes) -> list[PassRecord]:
    """The second process has room for two images at once."""
    model = tiny()

    def full(_module: Any, args: Any) -> None:
        if not group.main and len(args[0]) > 2:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    model.module.blocks[1].register_forward_pre_hook(full)
    work = [one for one in WORK if "batch" not in str(one.condition)]
    source = InMemory(pictures(23))
    return run_passes(model, source, passes_of(work, BY_FOUR), BY_FOUR, processes=group)


def differing(group: Processes) -> list[str]:
    """The second process has other images."""
    source = InMemory(pictures(8, seed=group.rank))

    def work() -> None:
        with group.in_step():
            measure_loaded(tiny(), source, WORK[:1], BY_FOUR, processes=group)

    return ended(work)


def shared(names: Sequence[str]) -> dict[str, Any]:
    """The records of these cases, in a process of a launch."""
    group = processes_of_launch()
    found: dict[str, Any] = {}
    for name in names:
        counts: list[int] = []
        records = CASES[name](processes=group, progress=counts.append)
        found[name] = {"records": [one.to_json() for one in records], "progress": sum(counts)}
    return found


def everything(path: str) -> dict[str, Any]:
    """All cases, and what may go wrong."""
    group, folder = processes_of_launch(), Path(path)
    engine.SAVE_EVERY = -1.0
    found = shared(list(CASES))
    store = folder / "store"
    source = InMemory(pictures(23))
    for again in (False, True):
        done = measure_loaded(tiny(), source, WORK, BY_FOUR, runs=store, processes=group)
        found[f"stored {again}"] = done.reused
    found["interrupted"] = interrupted(group, folder / "interrupted")
    found["our error"] = failing(group, DataError)
    found["a fault"] = failing(group, ZeroDivisionError)
    found["short of memory"] = [one.to_json() for one in short_of_memory(group)]
    found["differing"] = differing(group)

    def too_many() -> None:
        with group.in_step():
            plain(Holed(120, (7, 119)), replace(BY_FOUR, batch_size=30), processes=group)

    found["too many holes"] = ended(too_many)

    def refused() -> None:
        with group.in_step():
            raise UsageError(f"process {group.rank} says no")

    found["both"] = ended(refused)
    found["alone"] = group is ALONE
    return found


def commands(path: str, asked: Sequence[list[str]]) -> list[list[Any]]:
    """(code, standard output, standard error) of every command, in a folder of this process."""
    from probe.cli.app import app

    rank = int(os.environ["RANK"])
    os.chdir(Path(path) / str(rank))
    found = []
    for arguments in asked:
        normalise, wrong = engine.normalise, arguments[0] == "fault" and rank == 1

        def fault(*_: Any, **__: Any) -> None:
            raise ZeroDivisionError("deep inside")

        engine.normalise = fault if wrong else normalise
        out, err, code = StringIO(), StringIO(), None
        with redirect_stdout(out), redirect_stderr(err):
            try:
                app(arguments[arguments[0] == "fault" :])
            except SystemExit as end:
                code = end.code
        engine.normalise = normalise
        found.append([code, out.getvalue(), err.getvalue()])
    return found
