"""`probe scale`: what happens when the positional signal is turned down at inference."""

from __future__ import annotations

import math
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from probe.cli import options as opt

if TYPE_CHECKING:
    from probe.corruptions import Corruption
    from probe.data.source import Source
    from probe.derive.scale import Dose
    from probe.session import Measured
    from probe.types import LoadedModel, ModelSpec, PermutationMode, PositionKind

FILES = ("scale.csv", "scale.svg", "scale.png")
MEASURES = ("delta", "anchoring", "accuracy", "fs")


class Signal(StrEnum):
    """Kinds of positional signal that alpha reaches."""

    absolute = "absolute"
    sinusoidal = "sinusoidal"
    rotary = "rotary"
    relative_bias = "relative_bias"


def scale(
    models: opt.Models,
    alphas: Annotated[
        str,
        typer.Option(help="Factors, 0 to 2, parted by commas.", rich_help_panel=opt.MEASURE),
    ] = "1.0,0.9,0.8,0.7,0.6,0.5,0.4,0.3,0.2,0.1,0",
    measure: Annotated[
        str | None,
        typer.Option(
            help="Any of delta, anchoring, accuracy, fs. Default: all that labels and head allow.",
            rich_help_panel=opt.MEASURE,
            show_default=False,
        ),
    ] = None,
    signal: Annotated[
        Signal | None,
        typer.Option(
            help="Scale only this kind of signal. Default: all.", rich_help_panel=opt.MEASURE
        ),
    ] = None,
    corruption: Annotated[
        list[str] | None,
        typer.Option(
            help='For fs, as "jpeg(quality=10)"; repeats. Default: jpeg(quality=5).',
            rich_help_panel=opt.MEASURE,
            show_default=False,
        ),
    ] = None,
    data: opt.Data = None,
    split: opt.Split = None,
    limit: opt.Limit = None,
    labels: opt.Labels = None,
    preprocess: opt.PreprocessName = None,
    image_size: opt.ImageSize = None,
    rpi_draws: opt.RpiDraws = 1,
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
    """Scale the positional signal by alpha at inference: the dose-response of SSDC and accuracy.

    Tables and biases are multiplied; for rotary positions the angles are (our extension).
    """
    from probe.cli.batch import Output, Request, run, size_of
    from probe.corruptions import parse
    from probe.data.labels import check_for_fragility
    from probe.derive.scale import scale_result
    from probe.errors import DataError, UsageError
    from probe.judging import distinct, labels_of, with_head
    from probe.plan import PREDICTED, Settings, dose_tasks, ssdc_conditions
    from probe.session import LoadOptions, Prepared

    doses = alphas_of(alphas)
    asked = set(MEASURES) if measure is None else measures_of(measure)
    judging = {"--labels": labels, "--readout": readout, "--corruption": corruption}
    _check_used(asked, judging)
    insists = measure is not None or any(judging.values())
    wanted = corruption or (["jpeg(quality=5)"] if "fs" in asked else [])
    chosen = distinct([parse(text) for text in wanted])
    shifts = [str(one) for one in chosen]
    kind: PositionKind | None = signal.value if signal else None
    mode: PermutationMode = "batch" if protocol is opt.Protocol.paper else "image"
    missing: dict[str, str] = {}

    ssdc_conditions(mode, rpi_draws, seed)  # refuses what cannot be run, before a model is loaded

    def prepare(spec: ModelSpec, source: Source, model: LoadedModel) -> Prepared:
        wanted, found = asked, None
        if wanted & PREDICTED:
            try:
                model, names = with_head(spec, model, readout)
                found = labels_of(spec, source, model, names, labels)
                if "fs" in wanted:
                    check_for_fragility(found)
            except (UsageError, DataError) as error:
                if insists:
                    raise
                missing[spec.name] = f"not measured: {error}"
                wanted, found = wanted - PREDICTED, None
        tasks = tuple(
            task
            for alpha in doses
            for task in dose_tasks(alpha, wanted, shifts, mode, rpi_draws, seed, kind)
        )
        return Prepared(model, tasks, found)

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
            paper=protocol is opt.Protocol.paper,
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
        reached = [p.kind for p in measured.model.anatomy.positions if p.rescale is not None]
        return scale_result(
            spec.name,
            [_dose(alpha, measured, chosen) for alpha in doses],
            notes=measured.notes,
            kinds=sorted({k for k in reached if kind in (None, k)}),
            anchored="anchoring" in asked,
            unjudged=missing.get(spec.name),
        )

    raise typer.Exit(run(request, Output("scale", FILES, result, _files, _screen)))


def alphas_of(text: str) -> list[float]:
    """The alphas of `--alphas`.

    Raises:
        UsageError: for anything but distinct numbers from 0 to 2.
    """
    from probe.errors import UsageError

    found = []
    for part in text.split(","):
        try:
            alpha = float(part)
        except ValueError:
            raise UsageError(f"--alphas takes numbers parted by commas; got '{part}'") from None
        if not (math.isfinite(alpha) and 0 <= alpha <= 2):
            raise UsageError(f"every alpha must lie in [0, 2]; got '{part.strip()}'")
        alpha = abs(alpha)  # -0.0 is 0 by another name
        if alpha in found:
            raise UsageError(f"alpha {alpha:g} is given more than once")
        found.append(alpha)
    return found


def measures_of(text: str) -> set[str]:
    """The measures of `--measure`.

    Raises:
        UsageError: if one is unknown.
    """
    from probe.errors import UsageError, did_you_mean

    found = {part.strip() for part in text.split(",")}
    for name in sorted(found - set(MEASURES)):
        near = did_you_mean(name, MEASURES)
        raise UsageError(f"--measure takes {', '.join(MEASURES)}; got '{name}'.{near}")
    return found


def _check_used(measures: set[str], given: Mapping[str, object]) -> None:
    """Refuse options that the chosen measures do not use."""
    from probe.errors import UsageError
    from probe.plan import PREDICTED

    for option, value in given.items():
        users = {"fs"} if option == "--corruption" else PREDICTED
        if value and not measures & users:
            names = " or ".join(sorted(users))
            raise UsageError(f"{option} is of use with --measure {names} only; leave it out")


def _dose(alpha: float, measured: Measured, corruptions: list[Corruption]) -> Dose:
    from probe.derive.scale import Dose

    pairs = zip(measured.tasks, measured.records, strict=True)
    found = [(task, record) for task, record in pairs if task.condition.alpha == alpha]
    predicted = {task.condition.corruption: record for task, record in found if task.top1}
    shifted = [(one, predicted[str(one)]) for one in corruptions if str(one) in predicted]
    rpi = tuple(record for task, record in found if task.ssdc)
    return Dose(alpha, rpi, predicted.get(None), tuple(shifted))


def _files(envelope: dict[str, Any]) -> dict[str, bytes | str]:
    from probe.report.scale import scale_csv, scale_figure

    return {"scale.csv": scale_csv(envelope), **scale_figure(envelope)}


def _screen(envelope: dict[str, Any]) -> Any:
    from probe.report.scale import scale_screen

    return scale_screen(envelope)
