"""`probe fragility`: what corruptions of the images cost a model."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from probe.cli import options as opt

if TYPE_CHECKING:
    from probe.data.source import Source
    from probe.session import Measured
    from probe.types import LoadedModel, ModelSpec


FILES = ("fragility.csv", "fragility.svg", "fragility.png")


class Measures(StrEnum):
    """What is compared with the clean prediction."""

    fs = "fs"
    agreement = "agreement"


def fragility(
    models: opt.Models,
    data: opt.Data = None,
    split: opt.Split = None,
    limit: opt.Limit = None,
    labels: opt.Labels = None,
    preprocess: opt.PreprocessName = None,
    image_size: opt.ImageSize = None,
    corruption: Annotated[
        list[str] | None,
        typer.Option(
            help='One corruption, as "jpeg(quality=10)"; repeats. Default: the suite.',
            rich_help_panel=opt.MEASURE,
            show_default=False,
        ),
    ] = None,
    suite: Annotated[
        str | None,
        typer.Option(
            help="default (JPEG 5, the paper's blur, a true blur), paper, or imagenet-c.",
            rich_help_panel=opt.MEASURE,
        ),
    ] = None,
    measure: Annotated[
        Measures,
        typer.Option(
            help="fs needs labels, and gives agreement too; agreement needs none.",
            rich_help_panel=opt.MEASURE,
        ),
    ] = Measures.fs,
    protocol: opt.PaperProtocol = None,
    seed: opt.Seed = 0,
    readout: opt.ReadoutFile = None,
    random_init: opt.RandomInit = False,
    arch: opt.Arch = None,
    zoo: opt.ZooFile = None,
    dtype: opt.ModelDType = opt.Precision.float32,
    device: opt.Device = "auto",
    batch_size: opt.BatchSize = 32,
    workers: opt.Workers = 0,
    runs: opt.Runs = Path("runs"),
    fresh: opt.Fresh = False,
    out: opt.Out = None,
    json_path: opt.JsonPath = None,
) -> None:
    """Accuracy, fragility (FS) and agreement under corruptions of the images.

    FS = 1 - accuracy under the corruption / clean accuracy, over the same images.
    """
    from probe.cli.batch import Output, Request, run, size_of
    from probe.corruptions import parse
    from probe.corruptions import suite as suite_of
    from probe.data.labels import check_for_fragility
    from probe.derive.fragility import fragility_result
    from probe.errors import UsageError
    from probe.judging import distinct, labels_of, with_head
    from probe.plan import Settings
    from probe.session import LoadOptions, Prepared
    from probe.types import Condition, Task

    paper = protocol is opt.Protocol.paper
    if paper and suite not in (None, "paper"):
        raise UsageError("--protocol paper has its own corruptions; leave out --suite")
    if labels is not None and measure is Measures.agreement:
        raise UsageError("--measure agreement needs no labels; leave out --labels or --measure")
    chosen = [parse(text) for text in corruption or []]
    if suite is not None or paper or not chosen:
        chosen += suite_of("paper" if paper else suite or "default")
    chosen = distinct(chosen)
    conditions = [Condition(), *(Condition(corruption=str(one)) for one in chosen)]
    tasks = tuple(Task(condition, ssdc=False, top1=True) for condition in conditions)

    def prepare(spec: ModelSpec, source: Source, model: LoadedModel) -> Prepared:
        headed, names = with_head(spec, model, readout)
        found = None
        if measure is Measures.fs:
            found = labels_of(spec, source, headed, names, labels)
            check_for_fragility(found)
        return Prepared(headed, tasks, found)

    request = Request(
        models=tuple(models),
        data=data,
        split=split,
        limit=limit,
        prepare=prepare,
        settings=Settings(seed=seed, dtype=dtype.value, batch_size=batch_size, workers=workers),
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
    )

    def result(spec: ModelSpec, measured: Measured) -> dict[str, Any]:
        clean, *shifted = measured.records
        pairs = list(zip(chosen, shifted, strict=True))
        return fragility_result(spec.name, clean, pairs, notes=measured.notes)

    raise typer.Exit(run(request, Output("fragility", FILES, result, _files, _screen)))


def _files(envelope: dict[str, Any]) -> dict[str, bytes | str]:
    from probe.report.fragility import fragility_csv, fragility_figure

    return {"fragility.csv": fragility_csv(envelope), **fragility_figure(envelope)}


def _screen(envelope: dict[str, Any]) -> Any:
    from probe.report.fragility import fragility_screen

    return fragility_screen(envelope)
