"""`probe report`: a whole zoo in one batch, compared."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from probe.cli import options as opt

ZOO = "Models"


class Against(StrEnum):
    """Whose numbers stand beside ours."""

    published = "published"


def report(
    models: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[MODEL]...",
            help="Zoo names, timm:NAME, hf:ID, or paths; with none, what --suite, --tag and "
            "--group choose.",
            show_default=False,
        ),
    ] = None,
    suite: Annotated[
        str | None, typer.Option(help="The models of this suite.", rich_help_panel=ZOO)
    ] = None,
    tag: Annotated[
        list[str] | None,
        typer.Option(
            help="Models with this tag; repeats.", rich_help_panel=ZOO, show_default=False
        ),
    ] = None,
    group: Annotated[
        str | None, typer.Option(help="Models of this training recipe.", rich_help_panel=ZOO)
    ] = None,
    zoo: opt.ZooFile = None,
    data: opt.Data = None,
    split: opt.Split = None,
    limit: opt.Limit = None,
    image_size: opt.ImageSize = None,
    measure: Annotated[
        str | None,
        typer.Option(
            help="Any of ssdc, fragility, agreement, alpha, parted by commas. Default: all.",
            rich_help_panel=opt.MEASURE,
        ),
    ] = None,
    rpi_draws: opt.RpiDraws = 1,
    protocol: opt.PaperProtocol = None,
    seed: opt.Seed = 0,
    against: Annotated[
        Against | None,
        typer.Option(help="Put these numbers beside ours.", rich_help_panel=opt.OUTPUT),
    ] = None,
    random_init: opt.RandomInit = False,
    dtype: opt.ModelDType = opt.Precision.float32,
    device: opt.Device = "auto",
    batch_size: opt.BatchSize = 32,
    workers: opt.Workers = 0,
    runs: opt.Runs = Path("runs"),
    fresh: opt.Fresh = False,
    shard: Annotated[
        str | None,
        typer.Option(
            metavar="I/N",
            help="Run the I-th of N shares of the models, and render nothing.",
            rich_help_panel=opt.RUN,
        ),
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Print what would run, what is stored, time and disk; run nothing.",
            rich_help_panel=opt.RUN,
        ),
    ] = False,
    render_only: Annotated[
        Path | None,
        typer.Option(
            metavar="RUNS",
            help="Render the report in this runs folder again, without any model.",
            rich_help_panel=opt.RUN,
            show_default=False,
        ),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(
            help="Which report --render-only renders; the newest if left out. Otherwise what to "
            "call this one.",
            rich_help_panel=opt.RUN,
        ),
    ] = None,
    hardware: Annotated[
        bool,
        typer.Option(
            "--hardware",
            help="Show speed and memory, as measured here, on the page.",
            rich_help_panel=opt.OUTPUT,
        ),
    ] = False,
    out: opt.Out = None,
    json_path: opt.JsonPath = None,
) -> None:
    """Compare models: curves, anchoring, alpha and fragility, in one page and plain tables.

    Runs what is not stored yet, then renders. A model that fails is a row; the rest go on.
    """
    from contextlib import nullcontext
    from dataclasses import replace

    from probe.cli.batch import sharing, silent, size_of
    from probe.cli.report_batch import Request, measure_missing, planned
    from probe.cli.report_files import rendered_again, unchanged, write_report
    from probe.cli.report_zoo import chosen_models, measures_of, named, shard_of, share_of
    from probe.distributed import keeps_to_cpu
    from probe.errors import UsageError
    from probe.plan import ReportChoices, Settings, ssdc_conditions
    from probe.session import LoadOptions
    from probe.store import check_writable, slug

    json_to = None if json_path in (None, "-") else Path(str(json_path))
    if render_only is not None:
        if models or suite or tag or group or dry_run or fresh:
            raise UsageError(
                "--render-only renders a stored report whole; leave out models, --suite, --tag, "
                "--group, --dry-run and --fresh"
            )
        raise typer.Exit(rendered_again(render_only, name, out, hardware, json_path, json_to))
    from probe.corruptions import suite as suite_of

    paper = protocol is opt.Protocol.paper
    corruptions = tuple(str(one) for one in suite_of("paper" if paper else "default"))
    ssdc_conditions("image", rpi_draws, seed)  # refuses what cannot be run
    specs = chosen_models(models or [], suite, tag or [], group, zoo)
    part = shard_of(shard)
    title = named(models or [], suite, tag or [], group, zoo)
    request = Request(
        specs=share_of(specs, part),
        name=name or (out.name if out is not None and out.name else title),
        title=title,
        protocol="paper" if paper else "default",
        against=against.value if against is not None else None,
        data=data,
        split=split,
        limit=limit,
        choices=ReportChoices(
            measures=measures_of(measure),
            mode="batch" if paper else "image",
            draws=rpi_draws,
            seed=seed,
            corruptions=corruptions,
            dosed=corruptions[:1],
        ),
        settings=Settings(seed=seed, dtype=dtype.value, batch_size=batch_size, workers=workers),
        options=LoadOptions(
            image_size=size_of(image_size) if image_size else None,
            paper=paper,
            random_init=random_init,
            device="cpu" if device == "auto" and keeps_to_cpu() else device,
        ),
        runs=runs,
        fresh=fresh,
        out=out or runs / "reports" / slug(name or title),
        hardware=hardware,
        shard=part,
    )
    processes = sharing()
    request = replace(request, processes=processes)
    with nullcontext() if processes.main else silent():
        with processes.in_step():
            batch = planned(request)
        if dry_run and processes.main:
            from probe.cli.report_plan import print_plan

            print_plan(batch)
        if dry_run:
            raise typer.Exit
        with processes.in_step():
            if json_to is not None:
                check_writable(json_to.absolute().parent)
            code = unchanged(batch, json_path, json_to) if processes.main else None
        code = processes.exchange(code)[0]
        if code is None:
            measure_missing(batch)
            code = write_report(batch, json_path, json_to) if processes.main else 0
    raise typer.Exit(code)
