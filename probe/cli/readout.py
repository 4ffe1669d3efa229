"""`probe readout`: fit a linear readout for a model without a head, and save it."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from probe.cli import options as opt

if TYPE_CHECKING:
    from probe.data.source import Source
    from probe.readout import Readout, Score
    from probe.types import LoadedModel

FIT = "Readout"


class Pool(StrEnum):
    """Which features the readout sees."""

    class_token = "class"
    mean = "mean"
    both = "both"


def readout(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="A zoo name (dinov2_small), timm:NAME, hf:ID, or the path of a checkpoint.",
            show_default=False,
        ),
    ],
    data: Annotated[
        str | None,
        typer.Option(
            help="Labelled images: digits, a folder with one folder per class, a parquet file or "
            "folder, or a hub data set (owner/name). Default: the zoo entry's.",
            rich_help_panel=opt.DATA,
            show_default=False,
        ),
    ] = None,
    train_split: Annotated[
        str | None,
        typer.Option(help="Split that the readout is fitted to.", rich_help_panel=opt.DATA),
    ] = None,
    eval_split: Annotated[
        str | None,
        typer.Option(help="Also measure accuracy on this split.", rich_help_panel=opt.DATA),
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option(help="Fit to this many images, evenly spread.", rich_help_panel=opt.DATA),
    ] = None,
    eval_limit: Annotated[
        int | None,
        typer.Option(help="Measure on this many images, evenly spread.", rich_help_panel=opt.DATA),
    ] = None,
    preprocess: opt.PreprocessName = None,
    image_size: opt.ImageSize = None,
    pool: Annotated[
        Pool | None,
        typer.Option(
            help="The class token, the mean over patch tokens, or both. Default: the class token "
            "where there is one.",
            rich_help_panel=FIT,
            show_default=False,
        ),
    ] = None,
    seed: Annotated[
        int,
        typer.Option(
            help="Seed of the part of the training images that is held out to choose C.",
            rich_help_panel=FIT,
        ),
    ] = 0,
    random_init: opt.RandomInit = False,
    arch: opt.Arch = None,
    zoo: opt.ZooFile = None,
    dtype: opt.ModelDType = opt.Precision.float32,
    device: opt.Device = "auto",
    batch_size: opt.BatchSize = 32,
    workers: opt.Workers = 0,
    out: Annotated[
        Path | None,
        typer.Option(
            help="The readout's file. Default: runs/readouts/MODEL-DATA.safetensors.",
            rich_help_panel=opt.OUTPUT,
            show_default=False,
        ),
    ] = None,
    json_path: opt.JsonPath = None,
) -> None:
    """Fit a linear readout to a frozen model's last tokens, for --readout.

    A model without a head then has classes. Logistic regression, C chosen on held-out images.
    """
    from probe.cli.batch import progress_bar, size_of
    from probe.engine import taken
    from probe.errors import UsageError
    from probe.loading import load_model
    from probe.plan import Settings
    from probe.readout import choose_pool, fit_readout, save, score
    from probe.store import check_writable, slug
    from probe.zoo import load_zoo

    settings = Settings(seed=seed, dtype=dtype.value, batch_size=batch_size, workers=workers)
    spec = load_zoo(zoo).resolve(model, arch=arch)
    wanted = data or spec.data
    if wanted is None:
        raise UsageError(f"name the labelled images to fit a readout of {spec.name} to with --data")
    train = _open(wanted, "--train-split", train_split, limit)
    held = None
    if eval_split is not None:
        held = _open(wanted, "--eval-split", eval_split, eval_limit)
        if train.split is None:
            raise UsageError(
                "--eval-split needs --train-split, or the readout would be fitted to the images "
                "that it is measured on"
            )
        if held.split == train.split:
            raise UsageError(
                f"--eval-split '{eval_split}' is the training split, whose accuracy says nothing "
                "about other images; name another"
            )
    elif eval_limit is not None:
        raise UsageError("--eval-limit is for --eval-split; give both, or neither")
    file = out or Path("runs/readouts") / f"{slug(spec.name)}-{slug(wanted)}.safetensors"
    if file.is_dir():
        raise UsageError(f"--out '{file}' is a folder; give a file")
    check_writable(file.parent)
    counts = [taken(source) for source in (train, held) if source is not None]
    total = None if None in counts else sum(count or 0 for count in counts)
    with progress_bar(spec.name, total) as (on_loaded, advance):
        loaded = load_model(
            spec,
            image_size=size_of(image_size) if image_size else None,
            preprocess=preprocess,
            random_init=random_init,
            seed=settings.seed,
            dtype=settings.dtype,
            device=device,
        )
        chosen = choose_pool(loaded, pool.value if pool else None)
        on_loaded(loaded, 1)
        fitted = fit_readout(
            loaded,
            train,
            pool=chosen,
            batch_size=batch_size,
            workers=workers,
            seed=settings.seed,
            progress=advance,
        )
        save(fitted, file)
        scored = None
        if held is not None:
            scored = score(
                loaded, fitted, held, batch_size=batch_size, workers=workers, progress=advance
            )
    _report(loaded, fitted, held, scored, file, json_path)


def _open(text: str, option: str, split: str | None, limit: int | None) -> Source:
    """Open one split; errors name the option that is meant, and no split is taken unasked."""
    from probe.data.open import open_data
    from probe.errors import UsageError

    try:
        source = open_data(text, split=split, limit=limit)
    except UsageError as error:
        raise UsageError(str(error).replace("--split", option)) from error
    if split is None and source.split is not None:
        raise UsageError(f"'{text}' has splits; name the one to fit to with {option}")
    return source


def _report(
    model: LoadedModel,
    fitted: Readout,
    held: Source | None,
    scored: Score | None,
    file: Path,
    json_path: str | None,
) -> None:
    import json
    import sys

    from probe.cli.batch import SCHEMA
    from probe.store import write_atomically

    result = _result(model, fitted, held, scored, file)
    text = json.dumps({"schema": SCHEMA, "results": [result], "failures": []}, indent=2) + "\n"
    if json_path == "-":
        sys.stdout.write(text)
        return
    if json_path is not None:
        write_atomically(Path(json_path), text)
    from rich.console import Console

    from probe.report.readout import readout_lines

    console = Console()
    for line in readout_lines(result):
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def _result(
    model: LoadedModel, fitted: Readout, held: Source | None, scored: Score | None, file: Path
) -> dict[str, Any]:
    from dataclasses import asdict

    from probe.types import Scalar

    accuracy = Scalar(None, reason="no --eval-split was given")
    evaluation = None
    if held is not None and scored is not None:
        accuracy = scored.accuracy()
        evaluation = asdict(scored) | {
            "name": held.name,
            "split": held.split,
            "fingerprint": held.fingerprint,
            "interval": "95 %, Wilson",
        }
    return {
        "model": model.spec.name,
        "resolved": model.identity.resolved,
        "family": model.family,
        "file": str(file),
        "sha256": fitted.sha256,
        "pool": fitted.pool,
        "features": len(fitted.mean),
        "class_names": list(fitted.class_names),
        "accuracy": asdict(accuracy),
        "correct": scored.correct if scored else None,
        "images": scored.images if scored else None,
        "evaluation": evaluation,
        "settings": dict(fitted.meta),
        "notes": list(model.notes),
    }
