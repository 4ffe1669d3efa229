"""`probe train`: the controlled variants from scratch, seed by seed."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any

import typer

from probe.cli import options as opt

TRAIN = "Train"


def train(
    variants: Annotated[
        list[str],
        typer.Argument(
            metavar="VARIANT",
            help="ape, spe, rope, none, rpt, several of them, or all.",
            show_default=False,
        ),
    ],
    recipe: Annotated[
        str,
        typer.Option(
            help="digits, cifar10, imagenet100, imagenet100-deit, or a folder of your own.",
            rich_help_panel=TRAIN,
        ),
    ] = "digits",
    seeds: Annotated[str, typer.Option(help="Seeds, as 0,1,2,3.", rich_help_panel=TRAIN)] = "0",
    changes: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Change a key of the recipe, such as train.lr=1e-3; repeats.",
            rich_help_panel=TRAIN,
            show_default=False,
        ),
    ] = None,
    untrained: Annotated[
        bool,
        typer.Option(
            "--untrained", help="Write the networks as they start.", rich_help_panel=TRAIN
        ),
    ] = False,
    data: Annotated[
        str | None,
        typer.Option(
            help="Images, where the recipe's are not to be had: a folder with a folder per part, "
            "a parquet folder, or a hub data set (owner/name).",
            rich_help_panel=opt.DATA,
            show_default=False,
        ),
    ] = None,
    cache: Annotated[
        Path,
        typer.Option(help="Folder for decoded and resized images.", rich_help_panel=opt.DATA),
    ] = Path("runs/cache"),
    jobs: Annotated[
        int,
        typer.Option(help="Runs at once, each in its own process.", rich_help_panel=opt.RUN),
    ] = 1,
    device: Annotated[str, typer.Option(help="auto or cpu.", rich_help_panel=opt.RUN)] = "auto",
    workers: Annotated[
        int, typer.Option(help="Processes that prepare batches.", rich_help_panel=opt.RUN)
    ] = 0,
    tracker: Annotated[
        str | None,
        typer.Option(
            help="A tracker of accelerate's: tensorboard.",
            rich_help_panel=opt.RUN,
            show_default=False,
        ),
    ] = None,
    halve: Annotated[
        bool,
        typer.Option(
            "--halve-on-oom",
            help="Out of memory: cut a batch into smaller forward passes and go on.",
            rich_help_panel=opt.RUN,
        ),
    ] = False,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Train also what is there.", rich_help_panel=opt.RUN)
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder of the runs, one per variant and seed. Default: runs/RECIPE.",
            rich_help_panel=opt.OUTPUT,
            show_default=False,
        ),
    ] = None,
    add_to: Annotated[
        Path | None,
        typer.Option(
            metavar="ZOO.yaml", help="Append the runs to a zoo file.", rich_help_panel=opt.OUTPUT
        ),
    ] = None,
) -> None:
    """Train ViTs that differ in their positional signal and in nothing else.

    ape adds a learned table, spe a fixed sin-cos table, rope rotates queries and keys, none has no
    positional signal, rpt is ape with patch tokens that training shuffles. A run that was stopped
    goes on where it was; for several GPUs: accelerate launch -m train VARIANT ...
    """
    from probe.errors import UsageError
    from probe.families.controlled import VARIANTS
    from train.command import Request, train_all

    chosen = list(VARIANTS) if variants == ["all"] else variants
    if len(set(chosen)) < len(chosen):
        raise UsageError(f"a variant is named twice: {', '.join(chosen)}")
    if device not in ("auto", "cpu"):
        raise UsageError(
            f"--device must be auto or cpu, got '{device}'; accelerate chooses among GPUs"
        )
    if jobs < 1 or workers < 0:
        raise UsageError("--jobs must be at least 1 and --workers at least 0")
    request = Request(
        variants=tuple(chosen),
        recipe=recipe,
        seeds=seeds_of(seeds),
        out=out or Path("runs") / Path(recipe).resolve().name,
        changes=(*(changes or ()), *([f"data.source={data}"] if data else ())),
        untrained=untrained,
        cache=cache,
        jobs=jobs,
        cpu=device == "cpu",
        workers=workers,
        tracker=tracker,
        halve=halve,
        fresh=fresh,
        add_to=add_to,
    )
    results = train_all(request, typer.echo, shown)
    if results:
        typer.echo(summary([(result.folder, result.record) for result in results]))


def seeds_of(text: str) -> tuple[int, ...]:
    """The seeds in a text such as `0,1,2`.

    Raises:
        UsageError: if one is no whole number from 0, or is there twice.
    """
    from probe.errors import UsageError

    try:
        found = tuple(int(part) for part in text.split(","))
    except ValueError as error:
        raise UsageError(f"--seeds '{text}' must be whole numbers, such as 0,1,2") from error
    if min(found) < 0 or len(set(found)) < len(found):
        raise UsageError(f"--seeds '{text}' must be different whole numbers from 0")
    return found


def summary(runs: Sequence[tuple[Path, dict[str, Any]]]) -> str:
    """One line per run with its accuracies, and the mean and sd of each variant with several."""
    lines = []
    for folder, record in runs:
        scores = []
        for part in ("validation", "test"):
            right, images = record[part]["correct"], record[part]["images"]
            scores.append(f"{part} {right / images:.3f} ({right} of {images})")
        lines.append(f"{folder}: {' · '.join(scores)}")
    by_variant: dict[str, list[float]] = {}
    for _, record in runs:
        test = record["test"]
        by_variant.setdefault(record["variant"], []).append(test["correct"] / test["images"])
    for variant, found in by_variant.items():
        if len(found) > 1:
            mean, sd = statistics.mean(found), statistics.stdev(found)
            lines.append(
                f"{variant}: test accuracy {mean:.3f}, sd {sd:.3f} over {len(found)} seeds"
            )
    return "\n".join(lines)


@contextmanager
def shown(name: str) -> Iterator[Callable[[Any], None]]:
    """Shows the moments of a run: as a bar on a terminal, else as a line each that has a loss."""
    if not sys.stderr.isatty():
        yield lambda moment: typer.echo(line_of(moment)) if moment.loss is not None else None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=20),
        TextColumn("{task.percentage:>3.0f}%"),
        TextColumn("{task.fields[text]}"),
    )
    loss: float | None = None
    with Progress(
        *columns,
        console=Console(stderr=True),
        transient=True,
        redirect_stdout=sys.stdout.isatty(),
    ) as bar:
        task = bar.add_task(name, total=None, text="")

        def update(moment: Any) -> None:
            nonlocal loss
            loss = loss if moment.loss is None else moment.loss
            bar.update(task, completed=moment.images, total=moment.whole)
            speed, left = bar.tasks[0].speed, bar.tasks[0].time_remaining
            known = [] if speed is None else [f"{speed:.0f} images/s"]
            known += [] if left is None else [f"{timedelta(seconds=round(left))} left"]
            known += [] if loss is None else [f"loss {loss:.3f}"]
            bar.update(task, text=" · ".join(known))

        yield update


def line_of(moment: Any) -> str:
    """A logged moment as a line."""
    line = f"step {moment.step} of {moment.steps}: loss {moment.loss:.3f}"
    if moment.accuracy is not None:
        line += f" · validation accuracy {moment.accuracy:.3f}"
    return line
