"""Options that several commands share, each written once."""

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


class Precision(StrEnum):
    """Precision of the model; cosines and ranks are float32 or better."""

    float32 = "float32"
    bfloat16 = "bfloat16"
    float16 = "float16"
    float64 = "float64"


MODEL, DATA, MEASURE, RUN, OUTPUT = "Model", "Data", "Measure", "Run", "Output"

Models = Annotated[
    list[str],
    typer.Argument(
        metavar="MODEL",
        help="A zoo name (deit_small), timm:NAME, hf:ID, or the path of a checkpoint.",
        show_default=False,
    ),
]
Data = Annotated[
    str | None,
    typer.Option(
        "--data",
        help="photos, digits, an image folder, a parquet file or folder, or a hub data set "
        "(owner/name). Default: the zoo entry's, else photos.",
        rich_help_panel=DATA,
        show_default=False,
    ),
]
Split = Annotated[
    str | None, typer.Option("--split", help="Split of the data set.", rich_help_panel=DATA)
]
Limit = Annotated[
    int | None,
    typer.Option("--limit", help="Take this many images, evenly spread.", rich_help_panel=DATA),
]
PreprocessName = Annotated[
    str | None,
    typer.Option(
        "--preprocess",
        help="imagenet, half, or a FILE. Default: the checkpoint's own.",
        rich_help_panel=DATA,
    ),
]
ImageSize = Annotated[
    str | None,
    typer.Option(
        "--image-size",
        help="Pixels, as 224 or 224x448 (height x width).",
        rich_help_panel=DATA,
    ),
]
Labels = Annotated[
    Path | None,
    typer.Option(
        "--labels",
        help="Labels by image name: CSV (name,label) or a real-label JSON. Default: the data's.",
        rich_help_panel=DATA,
        show_default=False,
    ),
]
ReadoutFile = Annotated[
    Path | None,
    typer.Option(
        "--readout",
        help="A linear readout (probe readout) to predict with.",
        rich_help_panel=MODEL,
    ),
]
RpiDraws = Annotated[
    int,
    typer.Option("--rpi-draws", help="Permutation draws to average.", rich_help_panel=MEASURE),
]
PaperProtocol = Annotated[
    Protocol | None,
    typer.Option(
        "--protocol",
        help="paper: the choices of arXiv 2606.00124 (one permutation per batch, squash resize, "
        "its corruptions).",
        rich_help_panel=MEASURE,
    ),
]
Seed = Annotated[
    int,
    typer.Option("--seed", help="Seed of everything that is drawn.", rich_help_panel=MEASURE),
]
RandomInit = Annotated[
    bool,
    typer.Option(
        "--random-init", help="The untrained model: no weights are fetched.", rich_help_panel=MODEL
    ),
]
Arch = Annotated[
    str | None,
    typer.Option("--arch", help="timm architecture of a state-dict file.", rich_help_panel=MODEL),
]
ZooFile = Annotated[
    Path | None, typer.Option("--zoo", help="A zoo file of your own.", rich_help_panel=MODEL)
]
ModelDType = Annotated[
    Precision, typer.Option("--dtype", help="Precision of the model.", rich_help_panel=RUN)
]
Device = Annotated[
    str, typer.Option("--device", help="auto, cpu, cuda, cuda:1, mps.", rich_help_panel=RUN)
]
BatchSize = Annotated[
    int, typer.Option("--batch-size", help="Images per forward pass.", rich_help_panel=RUN)
]
Workers = Annotated[
    int, typer.Option("--workers", help="Processes that decode images.", rich_help_panel=RUN)
]
Runs = Annotated[Path, typer.Option("--runs", help="Folder of stored passes.", rich_help_panel=RUN)]
Fresh = Annotated[
    bool, typer.Option("--fresh", help="Run also what is stored.", rich_help_panel=RUN)
]
Out = Annotated[
    Path | None,
    typer.Option(
        "--out",
        help="Folder for JSON, CSV and figures. Default: one under runs/.",
        rich_help_panel=OUTPUT,
        show_default=False,
    ),
]
JsonPath = Annotated[
    str | None,
    typer.Option(
        "--json",
        metavar="PATH|-",
        help="Also write the JSON here; with -, print it and nothing else.",
        rich_help_panel=OUTPUT,
    ),
]
