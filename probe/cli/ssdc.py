"""`probe ssdc`: the curves of one model or several, clean and under RPI."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from probe.cli import options as opt

if TYPE_CHECKING:
    from probe.session import Measured
    from probe.types import ModelSpec


FILES = ("layers.csv", "summary.csv", "ssdc.svg", "ssdc.png")


def ssdc(
    models: opt.Models,
    data: opt.Data = None,
    split: opt.Split = None,
    limit: opt.Limit = None,
    preprocess: opt.PreprocessName = None,
    image_size: opt.ImageSize = None,
    rpi: Annotated[
        opt.Rpi,
        typer.Option(
            help="One permutation per image, one for all, or none.", rich_help_panel=opt.MEASURE
        ),
    ] = opt.Rpi.image,
    rpi_draws: opt.RpiDraws = 1,
    site: Annotated[
        opt.Site, typer.Option(help="Where tokens are read.", rich_help_panel=opt.MEASURE)
    ] = opt.Site.attn_in,
    distance: Annotated[
        opt.Distance, typer.Option(help="Distance on the grid.", rich_help_panel=opt.MEASURE)
    ] = opt.Distance.l1,
    average: Annotated[
        opt.Average,
        typer.Option(
            help="Rank the cosines averaged over images, or each image's own.",
            rich_help_panel=opt.MEASURE,
        ),
    ] = opt.Average.similarity,
    protocol: opt.PaperProtocol = None,
    p_values: Annotated[
        bool,
        typer.Option(
            "--p-values", help="Add permutation p-values (Mantel).", rich_help_panel=opt.MEASURE
        ),
    ] = False,
    metric: Annotated[
        list[str] | None,
        typer.Option(
            help="Also measure what another package adds; repeatable.", rich_help_panel=opt.MEASURE
        ),
    ] = None,
    seed: opt.Seed = 0,
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
    """SSDC of every layer, clean and with patch tokens shuffled under their positions (RPI).

    SSDC: rank correlation between the similarity of two tokens and their closeness on the grid.

    What stays of it under RPI follows position; what goes followed content.
    """
    from probe.cli.batch import Output, Request, run, size_of
    from probe.derive.ssdc import ssdc_result
    from probe.errors import UsageError
    from probe.plan import Settings, ssdc_conditions
    from probe.session import LoadOptions, Prepared
    from probe.types import Task

    paper = protocol is opt.Protocol.paper
    if paper and rpi is not opt.Rpi.image:
        raise UsageError("--protocol paper shuffles once per batch; leave out --rpi")
    metrics = tuple(metric or ())
    if metrics:
        from probe.metrics.added import find_metrics

        find_metrics(metrics)  # what is wrong with one is told before any model is loaded
    conditions = ssdc_conditions("batch" if paper else rpi.value, rpi_draws, seed)
    tasks = tuple(Task(condition) for condition in conditions)
    request = Request(
        models=tuple(models),
        data=data,
        split=split,
        limit=limit,
        prepare=lambda spec, source, model: Prepared(model, tasks),
        settings=Settings(
            site=site.value,
            distance=distance.value,
            average=average.value,
            seed=seed,
            dtype=dtype.value,
            batch_size=batch_size,
            workers=workers,
            metrics=metrics,
        ),
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
        clean, *draws = measured.records
        return ssdc_result(spec.name, clean, draws, notes=measured.notes, p_values=p_values)

    raise typer.Exit(run(request, Output("ssdc", FILES, result, _files, _screen)))


def _files(envelope: dict[str, Any]) -> dict[str, bytes | str]:
    from probe.report.figures import ssdc_figure
    from probe.report.tables import layers_csv, summary_csv

    tables = {"layers.csv": layers_csv(envelope), "summary.csv": summary_csv(envelope)}
    return {**tables, **ssdc_figure(envelope)}


def _screen(envelope: dict[str, Any]) -> Any:
    from probe.report.terminal import ssdc_screen

    return ssdc_screen(envelope)
