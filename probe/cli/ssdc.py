"""`probe ssdc`: the curves of one model or several, clean and under RPI."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class Rpi(StrEnum):
    """How patch tokens are shuffled."""

    image = "image"
    shared = "shared"
    off = "off"


class Protocol(StrEnum):
    """Sets of choices made at once."""

    paper = "paper"


class Site(StrEnum):
    """Where tokens are read."""

    attn_in = "attn_in"
    block_out = "block_out"


class Distance(StrEnum):
    """Distance on the grid."""

    l1 = "l1"
    l2 = "l2"


class Average(StrEnum):
    """What is averaged over images."""

    similarity = "similarity"
    image = "image"


class DType(StrEnum):
    """Precision of the model; cosines and ranks are float32 or better."""

    float32 = "float32"
    bfloat16 = "bfloat16"
    float16 = "float16"
    float64 = "float64"


MODEL, DATA, MEASURE, RUN, OUTPUT = "Model", "Data", "Measure", "Run", "Output"


def ssdc(
    models: Annotated[
        list[str],
        typer.Argument(
            metavar="MODEL",
            help="A zoo name (deit_small), timm:NAME, hf:ID, or the path of a checkpoint.",
            show_default=False,
        ),
    ],
    data: Annotated[
        str | None,
        typer.Option(
            help="photos, digits, an image folder, a parquet file or folder, or a hub data set "
            "(owner/name). Default: the zoo entry's, else photos.",
            rich_help_panel=DATA,
            show_default=False,
        ),
    ] = None,
    split: Annotated[
        str | None, typer.Option(help="Split of the data set.", rich_help_panel=DATA)
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option(help="Take this many images, evenly spread.", rich_help_panel=DATA),
    ] = None,
    preprocess: Annotated[
        str | None,
        typer.Option(
            help="imagenet, half, or a FILE. Default: the checkpoint's own.", rich_help_panel=DATA
        ),
    ] = None,
    image_size: Annotated[
        str | None,
        typer.Option(help="Pixels, as 224 or 224x448 (height x width).", rich_help_panel=DATA),
    ] = None,
    rpi: Annotated[
        Rpi,
        typer.Option(
            help="One permutation per image, one for all, or none.", rich_help_panel=MEASURE
        ),
    ] = Rpi.image,
    rpi_draws: Annotated[
        int, typer.Option(help="Permutation draws to average.", rich_help_panel=MEASURE)
    ] = 1,
    site: Annotated[
        Site, typer.Option(help="Where tokens are read.", rich_help_panel=MEASURE)
    ] = Site.attn_in,
    distance: Annotated[
        Distance, typer.Option(help="Distance on the grid.", rich_help_panel=MEASURE)
    ] = Distance.l1,
    average: Annotated[
        Average,
        typer.Option(
            help="Rank the cosines averaged over images, or each image's own.",
            rich_help_panel=MEASURE,
        ),
    ] = Average.similarity,
    protocol: Annotated[
        Protocol | None,
        typer.Option(
            help="paper: the choices of arXiv 2606.00124 (one permutation per batch, squash "
            "resize).",
            rich_help_panel=MEASURE,
        ),
    ] = None,
    p_values: Annotated[
        bool,
        typer.Option(
            "--p-values", help="Add permutation p-values (Mantel).", rich_help_panel=MEASURE
        ),
    ] = False,
    seed: Annotated[
        int, typer.Option(help="Seed of permutations and relabellings.", rich_help_panel=MEASURE)
    ] = 0,
    random_init: Annotated[
        bool,
        typer.Option(
            "--random-init", help="The untrained model, nothing downloaded.", rich_help_panel=MODEL
        ),
    ] = False,
    arch: Annotated[
        str | None,
        typer.Option(help="timm architecture of a state-dict file.", rich_help_panel=MODEL),
    ] = None,
    zoo: Annotated[
        Path | None, typer.Option(help="A zoo file of your own.", rich_help_panel=MODEL)
    ] = None,
    dtype: Annotated[
        DType, typer.Option(help="Precision of the model.", rich_help_panel=RUN)
    ] = DType.float32,
    device: Annotated[
        str, typer.Option(help="auto, cpu, cuda, cuda:1, mps.", rich_help_panel=RUN)
    ] = "auto",
    batch_size: Annotated[
        int, typer.Option(help="Images per forward pass.", rich_help_panel=RUN)
    ] = 32,
    workers: Annotated[
        int, typer.Option(help="Processes that decode images.", rich_help_panel=RUN)
    ] = 0,
    runs: Annotated[
        Path, typer.Option(help="Folder of stored passes.", rich_help_panel=RUN)
    ] = Path("runs"),
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Run also what is stored.", rich_help_panel=RUN)
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder for JSON, CSV and figures. Default: one under runs/.",
            rich_help_panel=OUTPUT,
            show_default=False,
        ),
    ] = None,
    json_path: Annotated[
        str | None,
        typer.Option(
            "--json",
            metavar="PATH|-",
            help="Also write the JSON here; with -, print it and nothing else.",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
) -> None:
    """SSDC of every layer, clean and with patch tokens shuffled under their positions (RPI).

    SSDC: rank correlation between the similarity of two tokens and their closeness on the grid.

    What stays of it under RPI follows position; what goes followed content.
    """
    from probe.cli.batch import Request, run_ssdc, size_of
    from probe.errors import UsageError
    from probe.plan import Settings, ssdc_conditions
    from probe.session import LoadOptions
    from probe.types import Task

    paper = protocol is Protocol.paper
    if paper and rpi is not Rpi.image:
        raise UsageError("--protocol paper shuffles once per batch; leave out --rpi")
    settings = Settings(
        site=site.value,
        distance=distance.value,
        average=average.value,
        seed=seed,
        dtype=dtype.value,
        batch_size=batch_size,
        workers=workers,
    )
    request = Request(
        models=tuple(models),
        data=data,
        split=split,
        limit=limit,
        tasks=tuple(
            Task(c) for c in ssdc_conditions("batch" if paper else rpi.value, rpi_draws, seed)
        ),
        settings=settings,
        options=LoadOptions(
            image_size=size_of(image_size) if image_size else None,
            preprocess=preprocess,
            paper=paper,
            random_init=random_init,
            device=device,
        ),
        arch=arch,
        zoo=zoo,
        runs=runs,
        fresh=fresh,
        out=out,
        json_path=json_path,
        p_values=p_values,
    )
    raise typer.Exit(run_ssdc(request))
