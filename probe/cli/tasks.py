"""`probe tasks`: what a linear readout can tell of rendered scenes in which one factor varies."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from probe.cli import options as opt
from probe.cli.readout import Pool

if TYPE_CHECKING:
    from probe.cli.each import Steps
    from probe.readout import Pool as PoolName
    from probe.tasks.design import ControlledTask
    from probe.tasks.run import Plan
    from probe.types import LoadedModel, ModelSpec

FILES = ("tasks.csv", "tasks.svg", "tasks.png")


def tasks(
    models: opt.Models,
    task: Annotated[
        list[str] | None,
        typer.Option(
            help="scale, alignment, relation or arrangement; repeats. Default: all four.",
            rich_help_panel=opt.MEASURE,
            show_default=False,
        ),
    ] = None,
    seeds: Annotated[
        int,
        typer.Option(
            help="How many seeds, each with scenes and a readout of its own, from --seed upwards.",
            rich_help_panel=opt.MEASURE,
        ),
    ] = 3,
    pool: Annotated[
        Pool | None,
        typer.Option(
            help="The class token, the mean over patch tokens, or both. Default: the class token "
            "where there is one.",
            rich_help_panel=opt.MEASURE,
            show_default=False,
        ),
    ] = None,
    train: Annotated[
        int,
        typer.Option(
            help="Scenes per seed that a readout is made with, spread over the levels; a fifth of "
            "them chooses C.",
            rich_help_panel=opt.MEASURE,
        ),
    ] = 320,
    test: Annotated[
        int,
        typer.Option(help="Scenes per seed and level to test on.", rich_help_panel=opt.MEASURE),
    ] = 64,
    preprocess: Annotated[
        str | None,
        typer.Option(
            help="imagenet, half, or a FILE, for mean and std alone. Default: the checkpoint's.",
            rich_help_panel=opt.MODEL,
        ),
    ] = None,
    image_size: opt.ImageSize = None,
    seed: opt.Seed = 0,
    random_init: opt.RandomInit = False,
    arch: opt.Arch = None,
    zoo: opt.ZooFile = None,
    dtype: opt.ModelDType = opt.Precision.float32,
    device: opt.Device = "auto",
    batch_size: opt.BatchSize = 32,
    examples: Annotated[
        bool,
        typer.Option(
            "--examples",
            help="Also write a PNG per task with scenes of every level.",
            rich_help_panel=opt.OUTPUT,
        ),
    ] = False,
    runs: opt.Runs = Path("runs"),
    out: opt.Out = None,
    json_path: opt.JsonPath = None,
) -> None:
    """Accuracy of a linear readout on rendered scenes, as a curve over the one factor that varies.

    Object scale, alignment with the patch grid, a relation at a distance, arrangement of patches.

    Scenes are drawn at the model's own size and on its patch grid, so that nothing is resized.

    A model without positions must be at chance in the last task.
    """
    from probe.cli.batch import Output, size_of
    from probe.cli.each import EachRequest, folder_of, run_each
    from probe.distributed import keeps_to_cpu
    from probe.loading import load_model
    from probe.plan import Settings
    from probe.readout import choose_pool
    from probe.tasks.catalogue import chosen_tasks
    from probe.tasks.frame import Frame, frame_of
    from probe.tasks.run import Plan, scene_count

    chosen = chosen_tasks(task or [])
    settings = Settings(seed=seed, dtype=dtype.value, batch_size=batch_size)
    plan = Plan(train, test, tuple(range(seed, seed + seeds)))
    place = "cpu" if device == "auto" and keeps_to_cpu() else device
    size = size_of(image_size) if image_size else None
    request = EachRequest(tuple(models), arch, zoo, runs, out, json_path)
    frames: list[Frame] = []

    def result(spec: ModelSpec, steps: Steps) -> dict[str, Any]:
        model = load_model(
            spec,
            image_size=size,
            preprocess=preprocess,
            random_init=random_init,
            seed=settings.seed,
            dtype=settings.dtype,
            device=place,
        )
        frame, pooled = frame_of(model), choose_pool(model, pool.value if pool else None)
        steps.loaded(model, scene_count(chosen, frame, plan))
        found = _result(model, chosen, plan, pooled, settings.batch_size, settings.seed, steps)
        frames.append(frame)
        return found

    def files(envelope: dict[str, Any]) -> dict[str, bytes | str]:
        for old in folder_of(request, "tasks").glob("examples-*.png"):  # another run's
            old.unlink()
        return _files(envelope) | (_sheets(chosen, frames, settings.seed) if examples else {})

    raise typer.Exit(run_each(request, Output("tasks", FILES, result, files, _screen)))


def _result(
    model: LoadedModel,
    chosen: Sequence[ControlledTask],
    plan: Plan,
    pool: PoolName,
    batch_size: int,
    seed: int,
    steps: Steps,
) -> dict[str, Any]:
    from importlib.metadata import version

    from probe.data.preprocess import as_is, describe
    from probe.families.base import packages
    from probe.loading import required_preprocess
    from probe.plan import versions
    from probe.tasks.frame import frame_of
    from probe.tasks.result import INTERVAL, OVER_SEEDS
    from probe.tasks.run import run_tasks, settings_of

    entries, digest, count = run_tasks(
        model, chosen, plan, pool, batch_size=batch_size, progress=steps.done
    )
    parameter, frame = next(model.module.parameters()), frame_of(model)
    identity = model.identity
    return {
        "model": model.spec.name,
        "resolved": identity.resolved,
        "revision": identity.revision,
        "weights": identity.weights,
        "family": model.family,
        "pool": pool,
        "image_size": list(frame.size),
        "patch": list(frame.patch),
        "grid": list(frame.grid),
        "seeds": list(plan.seeds),
        "images": count,
        "skipped": [],
        "tasks": entries,
        "settings": {
            **settings_of(plan, chosen),
            "revision": identity.revision,
            "weights": identity.weights,
            "configuration": identity.configuration,
            "options": dict(model.spec.options),
            "image_size": list(frame.size),
            "preprocess": describe(as_is(required_preprocess(model))),
            "resized": "nothing: scenes are rendered at the model's own image size",
            "data": {"name": "rendered scenes", "fingerprint": digest.removeprefix("sha256:")},
            "readout": "logistic regression (multinomial, L2, lbfgs) on standardised features; C "
            "is the best on the validation part, then both parts are fitted",
            "seed": seed,
            "dtype": str(parameter.dtype).removeprefix("torch."),
            "device": parameter.device.type,
            "interval": INTERVAL,
            "over_seeds": OVER_SEEDS,
        },
        "versions": versions()
        | packages(model.family, model.module)
        | {"scikit-learn": version("scikit-learn")},
        "notes": list(model.notes),
    }


def _sheets(
    chosen: Sequence[ControlledTask], frames: Sequence[Any], seed: int
) -> dict[str, bytes | str]:
    from probe.tasks.sheet import contact_sheet, sheet_name

    found: dict[str, bytes | str] = {}
    for frame in dict.fromkeys(frames):
        for task in chosen:
            sheet = contact_sheet(task, frame, seed)
            if sheet is not None:
                found[sheet_name(task, frame)] = sheet
    return found


def _files(envelope: dict[str, Any]) -> dict[str, bytes | str]:
    from probe.report.tasks import tasks_csv, tasks_figure

    return {"tasks.csv": tasks_csv(envelope), **tasks_figure(envelope)}


def _screen(envelope: dict[str, Any]) -> Any:
    from probe.report.tasks import tasks_screen

    return tasks_screen(envelope)
