"""`probe compare`: two models over the same images, and the difference of every number."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from probe.cli import options as opt

if TYPE_CHECKING:
    from probe.corruptions import Corruption
    from probe.data.source import Source
    from probe.derive.sides import Side
    from probe.session import Measured, Prepared
    from probe.types import LoadedModel, ModelSpec


FILES = ("compare.csv",)


def compare(
    models: Annotated[
        list[str],
        typer.Argument(
            metavar="A B",
            help="Two models: zoo names (deit_small), timm:NAME, hf:ID, or paths of checkpoints.",
            show_default=False,
        ),
    ],
    data: opt.Data = None,
    split: opt.Split = None,
    limit: opt.Limit = None,
    labels: opt.Labels = None,
    preprocess: opt.PreprocessName = None,
    image_size: opt.ImageSize = None,
    rpi_draws: opt.RpiDraws = 1,
    corruption: Annotated[
        list[str] | None,
        typer.Option(
            help='One corruption, as "jpeg(quality=10)"; repeats. Default: JPEG 5, the paper\'s '
            "blur, a true blur.",
            rich_help_panel=opt.MEASURE,
            show_default=False,
        ),
    ] = None,
    protocol: opt.PaperProtocol = None,
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
    """The difference A - B of two models, with intervals paired over the same images.

    Anchoring, delta SSDC and SSDC of every layer under RPI; accuracy, FS and agreement.

    Without labels agreement alone is left of the last three, without a head nothing.

    Pretraining, teacher and recipe are compared too: the numbers alone show no cause.
    """
    from dataclasses import replace

    from probe.cards import judged
    from probe.cli.batch import Output, Request, run, size_of
    from probe.corruptions import parse
    from probe.corruptions import suite as suite_of
    from probe.derive.compare import compare_result
    from probe.errors import UsageError
    from probe.judging import distinct
    from probe.plan import ReportChoices, Settings, report_tasks, ssdc_conditions
    from probe.session import LoadOptions, Prepared

    if len(models) != 2:
        raise UsageError(f"a comparison is of two models, A and B; got {len(models)}")
    paper = protocol is opt.Protocol.paper
    named = [parse(text) for text in corruption or []]
    if paper or not named:
        named += suite_of("paper" if paper else "default")
    chosen = distinct(named)
    choices = ReportChoices(
        measures=frozenset({"ssdc", "fragility"}),
        mode="batch" if paper else "image",
        draws=rpi_draws,
        seed=seed,
        corruptions=tuple(str(one) for one in chosen),
    )
    ssdc_conditions(choices.mode, rpi_draws, seed)  # refuses what cannot be run
    _one_data_set(models, data, zoo, arch)
    unjudged: dict[str, str] = {}

    def prepare(spec: ModelSpec, source: Source, model: LoadedModel) -> Prepared:
        asked = spec if labels is None else replace(spec, labels=str(labels))
        found = judged(asked, source, model)
        if found.reason is not None:
            if labels is not None:
                raise UsageError(found.reason)
            unjudged[spec.name] = found.reason.split(";")[0]  # the rest is another command's advice
        head, with_labels = found.model.predict is not None, found.labels is not None
        tasks = report_tasks(choices, head=head, judged=with_labels, scaled=False)
        return Prepared(found.model, tasks, found.labels)

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

    def side(spec: ModelSpec, measured: Measured) -> Side:
        return _side(spec, measured, chosen, unjudged.get(spec.name))

    def combine(sides: list[Side]) -> list[dict[str, Any]]:
        return [compare_result(*sides)] if len(sides) == 2 else []

    raise typer.Exit(run(request, Output("compare", FILES, side, _files, _screen, combine)))


def _one_data_set(models: list[str], data: str | None, zoo: Path | None, arch: str | None) -> None:
    """Refuse two models that would be measured on the images of their own zoo entries."""
    from probe.errors import UsageError
    from probe.zoo import load_zoo

    known = load_zoo(zoo)
    first, second = (data or known.resolve(m, arch=arch).data or "photos" for m in models)
    if first != second:
        raise UsageError(
            f"{models[0]} is measured on {first} and {models[1]} on {second} by default, and a "
            "comparison needs the same images; name them with --data"
        )


def _side(
    spec: ModelSpec, measured: Measured, corruptions: list[Corruption], unjudged: str | None
) -> Side:
    from probe.derive.sides import Side

    pairs = zip(measured.tasks, measured.records, strict=True)
    found = {task.condition: record for task, record in pairs}
    clean = next(r for condition, r in found.items() if str(condition) == "clean")
    under = {condition.corruption: record for condition, record in found.items()}
    return Side(
        name=spec.name,
        clean=clean,
        rpi=tuple(r for condition, r in found.items() if condition.permutation is not None),
        predicted=clean if clean.predicted is not None else None,
        shifted=tuple((one, under[str(one)]) for one in corruptions if str(one) in under),
        unjudged=unjudged,
        group=spec.group,
        provenance=spec.provenance,
        notes=measured.notes,
    )


def _files(envelope: dict[str, Any]) -> dict[str, bytes | str]:
    from probe.report.compare import compare_csv

    return {"compare.csv": compare_csv(envelope)}


def _screen(envelope: dict[str, Any]) -> Any:
    from probe.report.compare import compare_screen

    return compare_screen(envelope)
