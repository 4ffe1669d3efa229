"""What `probe train` does: recipes, data, runs one by one or several at once, the zoo file."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from accelerate import PartialState

from probe.errors import TrainingError, UsageError
from train.jobs import Job, run_jobs
from train.loop import Options
from train.parts import load_parts
from train.recipe import load_recipe
from train.runs import Run, train
from train.zoo_entry import add_to_zoo

Progress = Callable[[int, int], None]


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
        bar: a progress bar with this title, as a context that gives its update.

    Raises:
        ProbeError: whatever makes a run impossible; runs that are finished stay.
    """
    state = PartialState(cpu=request.cpu)
    main = state.is_main_process
    recipes = {v: load_recipe(request.recipe, v, request.changes) for v in request.variants}
    if request.jobs > 1:
        if state.num_processes > 1:
            raise UsageError("--jobs is for one process; under accelerate launch leave it out")
        _at_once(request, report)

    def tell(line: str) -> None:
        if main:
            report(line)

    results = []
    for variant, recipe in recipes.items():
        parts = load_parts(recipe, request.cache, request.workers, tell)
        for seed in request.seeds:
            name = run_name(variant, seed, request.untrained)
            folder = request.out / name
            with bar(name) if main else nullcontext(lambda done, whole: None) as progress:
                record = train(
                    Run(recipe, seed, folder, request.untrained),
                    parts,
                    Options(request.workers, request.cpu, request.tracker, tell, progress),
                    fresh=request.fresh and request.jobs == 1,
                    halve=request.halve,
                )
            results.append(Result(name, folder, record))
    if request.add_to is not None and main:
        made = [(result.folder, result.record) for result in results]
        names = add_to_zoo(request.add_to, made, Path(request.recipe).name)
        tell(f"added to {request.add_to}: {', '.join(names)}")
    return results if main else []


def run_name(variant: str, seed: int, untrained: bool) -> str:
    """The folder of a run."""
    return f"{variant}-s{seed}" + ("-untrained" if untrained else "")


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
        Job(run_name(variant, seed, request.untrained), (variant, "--seeds", str(seed), *same))
        for seed in request.seeds
        for variant in request.variants
    ]
    failed = run_jobs(jobs, request.jobs, report)
    if failed:
        raise TrainingError(f"{len(failed)} of {len(jobs)} runs failed: {', '.join(failed)}")
