"""What `probe train` does: recipes, data, runs one by one or several at once, the zoo file."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from accelerate import PartialState

from probe.errors import TrainingError, UsageError
from train.jobs import Job, run_jobs
from train.loop import Moment, Options
from train.parts import load_parts
from train.recipe import load_recipe
from train.runs import Run, train
from train.zoo_entry import add_to_zoo, check_names, entry_name

Progress = Callable[[Moment], None]


@dataclass(frozen=True)
class Request:
    """What was asked for; see the options of `probe train`."""

    variants: tuple[str, ...]
    recipe: str
    seeds: tuple[int, ...]
    out: Path
    changes: tuple[str, ...] = ()
    untrained: bool = False
    cache: Path = Path("runs/cache")
    jobs: int = 1
    cpu: bool = False
    workers: int = 0
    tracker: str | None = None
    halve: bool = False
    fresh: bool = False
    add_to: Path | None = None


@dataclass(frozen=True)
class Result:
    """A finished run: its folder's name, its folder, its `training.json`."""

    name: str
    folder: Path
    record: dict[str, Any]


def train_all(
    request: Request,
    report: Callable[[str], None],
    bar: Callable[[str], AbstractContextManager[Progress]],
) -> list[Result]:
    """Train every variant with every seed; on other processes than the main one, in silence.

    Args:
        request: what to train.
        report: gets lines.
        bar: shows the progress of the run of this name, as a context that gives its update.

    Raises:
        ProbeError: whatever makes a run impossible; runs that are finished stay.
    """
    state = PartialState(cpu=request.cpu)
    main = state.is_main_process
    _together(state)
    recipes = {v: load_recipe(request.recipe, v, request.changes) for v in request.variants}
    called = Path(request.recipe).resolve().name
    if request.add_to is not None:
        check_names(
            request.add_to,
            {
                entry_name(called, variant, seed, request.untrained): folder_of(
                    request, variant, seed
                )
                for variant in request.variants
                for seed in request.seeds
            },
        )

    def tell(line: str) -> None:
        if main:
            report(line)

    retold: Callable[[str], None] = tell
    if request.jobs > 1:
        if state.num_processes > 1:
            raise UsageError("--jobs is for one process; under accelerate launch leave it out")
        _at_once(request, report)
        retold = _nothing  # every run is there, as was told already

    results = []
    for variant, recipe in recipes.items():
        parts = load_parts(recipe, request.cache, request.workers, retold)
        for seed in request.seeds:
            folder = folder_of(request, variant, seed)
            with (bar if main else _silent)(folder.name) as progress:
                record = train(
                    Run(recipe, seed, folder, request.untrained),
                    parts,
                    Options(request.workers, request.cpu, request.tracker, retold, progress),
                    fresh=request.fresh and request.jobs == 1,
                    halve=request.halve,
                )
            results.append(Result(folder.name, folder, record))
    if request.add_to is not None and main:
        made = [(result.folder, result.record) for result in results]
        names = add_to_zoo(request.add_to, made, called)
        tell(f"added to {request.add_to}: {', '.join(names)}")
    return results if main else []


def folder_of(request: Request, variant: str, seed: int) -> Path:
    """The folder of a run; its name is the run's."""
    return request.out / (f"{variant}-s{seed}" + ("-untrained" if request.untrained else ""))


def _together(state: PartialState) -> None:
    """Refuse processes that a launcher started and that do not know of each other.

    Raises:
        UsageError: with the options that join them.
    """
    if state.num_processes > 1:
        return
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise UsageError(
            f"{os.environ['WORLD_SIZE']} processes were started, and there is no GPU for them; "
            "--device cpu after train makes them share the CPU"
        )
    # What `accelerate launch --cpu --num_processes N` leaves behind for its one process.
    if "MASTER_PORT" in os.environ and os.environ.get("ACCELERATE_USE_CPU", "").lower() == "true":
        raise UsageError(
            "accelerate launch --cpu starts one process, however many it is asked for; write "
            "accelerate launch --multi_gpu --num_processes N -m train ... --device cpu"
        )


@contextmanager
def _silent(_name: str) -> Iterator[Progress]:
    yield _nothing


def _nothing(_: object) -> None:
    """Tell nobody."""


def _at_once(request: Request, report: Callable[[str], None]) -> None:
    """Train every run in a process of its own.

    Raises:
        TrainingError: naming the runs that failed.
    """
    same = ["--recipe", request.recipe, "--out", str(request.out), "--cache", str(request.cache)]
    same += [part for change in request.changes for part in ("--set", change)]
    same += ["--workers", str(request.workers)]
    for flag, given in (
        ("--untrained", request.untrained),
        ("--halve-on-oom", request.halve),
        ("--fresh", request.fresh),
    ):
        same += [flag] if given else []
    same += ["--device", "cpu"] if request.cpu else []
    same += ["--tracker", request.tracker] if request.tracker else []
    jobs = [
        Job(folder_of(request, variant, seed).name, (variant, "--seeds", str(seed), *same))
        for seed in request.seeds
        for variant in request.variants
    ]
    failed = run_jobs(jobs, request.jobs, report)
    if failed:
        raise TrainingError(f"{len(failed)} of {len(jobs)} runs failed: {', '.join(failed)}")
