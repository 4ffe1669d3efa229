"""`probe audit`: where a model keeps its inductive bias, item by item."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from probe.cli import options as opt

if TYPE_CHECKING:
    from probe.data.source import Source
    from probe.session import Measured
    from probe.types import LoadedModel, ModelSpec

IMAGES = 16
FILES = (
    *("audit.csv", "blocks.csv", "audit.svg", "audit.png", "collisions.svg", "collisions.png"),
    *("pairs.svg", "pairs.png", "nullity.svg", "nullity.png"),
)


def audit(
    models: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[MODEL]...",
            help="Zoo names (deit_small), timm:NAME, hf:ID, or paths of checkpoints.",
            show_default=False,
        ),
    ] = None,
    data: opt.Data = None,
    split: opt.Split = None,
    limit: Annotated[
        int, typer.Option("--limit", help="Take this many images.", rich_help_panel=opt.DATA)
    ] = IMAGES,
    preprocess: opt.PreprocessName = None,
    image_size: opt.ImageSize = None,
    hardware: Annotated[
        bool,
        typer.Option(
            "--hardware", help="Also time the model on this machine.", rich_help_panel=opt.MEASURE
        ),
    ] = False,
    figures: Annotated[
        bool,
        typer.Option(
            "--figures",
            help="Draw pairs against patch side, and nullity against width; needs no model.",
            rich_help_panel=opt.OUTPUT,
        ),
    ] = False,
    seed: opt.Seed = 0,
    random_init: opt.RandomInit = False,
    arch: opt.Arch = None,
    zoo: opt.ZooFile = None,
    dtype: opt.ModelDType = opt.Precision.float32,
    device: opt.Device = "auto",
    batch_size: opt.BatchSize = 32,
    runs: opt.Runs = Path("runs"),
    out: opt.Out = None,
    json_path: opt.JsonPath = None,
) -> None:
    """What a model's interface keeps, loses and can communicate, before images are averaged.

    Exact algebra, counts, and what was measured stand apart; every line says which it is.

    With --image-size other than the model's own, also what changes with the size.
    """
    from probe.cli.audit_files import analytic_figures, audit_files, audit_screen
    from probe.cli.batch import Output, Request, run, size_of
    from probe.errors import UsageError
    from probe.plan import Settings
    from probe.session import LoadOptions, Prepared

    if not models:
        if not figures:
            raise UsageError("name a model, as in `probe audit deit_small`, or ask for --figures")
        raise typer.Exit(analytic_figures(out or runs / "audit" / "figures"))
    if limit < 1:
        raise UsageError(f"--limit must be 1 or more, got {limit}")
    sources: dict[str, Source] = {}

    def prepare(spec: ModelSpec, source: Source, model: LoadedModel) -> Prepared:
        sources[spec.name] = source
        return Prepared(model, ())  # no passes: the audit looks at the loaded model itself

    request = Request(
        models=tuple(models),
        data=data,
        split=split,
        limit=limit,
        prepare=prepare,
        settings=Settings(seed=seed, dtype=dtype.value, batch_size=batch_size),
        options=LoadOptions(
            image_size=size_of(image_size) if image_size else None,
            preprocess=preprocess,
            random_init=random_init,
            device=device,
        ),
        arch=arch,
        zoo=zoo,
        runs=runs,
        fresh=False,
        out=out,
        json_path=json_path,
    )

    def result(spec: ModelSpec, measured: Measured) -> dict[str, Any]:
        from probe.cli.audit_run import audited

        source, batch = sources[spec.name], batch_size if hardware else None
        return audited(measured.model, source, request.settings, request.options, batch=batch)

    output = Output(
        name="audit",
        names=FILES,
        result=result,
        files=lambda envelope: audit_files(envelope, figures),
        screen=audit_screen,
    )
    raise typer.Exit(run(request, output))
