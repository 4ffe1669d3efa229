"""One model over one data set: load it, run what the store lacks, give back records."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from probe.plan import Settings, make_passes, pass_settings
from probe.types import ModelSpec, Task

if TYPE_CHECKING:
    from probe.data.labels import LabelMap
    from probe.data.source import Source
    from probe.records import PassRecord
    from probe.types import LoadedModel


@dataclass(frozen=True)
class Prepared:
    """What to run on a loaded model, which may have got a readout, and the labels that judge it."""

    model: LoadedModel
    tasks: tuple[Task, ...]
    labels: LabelMap | None = None


@dataclass(frozen=True)
class LoadOptions:
    """How a model is loaded; see `probe.loading.load_model`."""

    image_size: tuple[int, int] | None = None
    preprocess: str | None = None
    paper: bool = False
    random_init: bool = False
    device: str = "auto"


@dataclass(frozen=True)
class Measured:
    """The records of one model, one per task."""

    model: LoadedModel
    tasks: tuple[Task, ...]
    records: tuple[PassRecord, ...]
    reused: int = 0
    notes: tuple[str, ...] = field(default=())


def measure(
    spec: ModelSpec,
    source: Source,
    prepare: Callable[[LoadedModel], Prepared],
    settings: Settings,
    options: LoadOptions,
    *,
    runs: Path | None = None,
    fresh: bool = False,
    on_loaded: Callable[[LoadedModel, int], None] = lambda model, passes: None,
    progress: Callable[[int], None] = lambda images: None,
) -> Measured:
    """Measure `spec`.

    Args:
        spec: which model.
        source: the images.
        prepare: gives the loaded model its tasks.
        settings: how to measure.
        options: how to load the model.
        runs: folder of stored passes; None keeps nothing.
        fresh: run also what is stored.
        on_loaded: called once with the model and the number of passes that will run.
        progress: called with the number of images that one pass has just finished.

    Raises:
        ProbeError: whatever makes the model or the data unusable.
    """
    from probe.loading import load_model

    model = load_model(
        spec,
        image_size=options.image_size,
        preprocess=options.preprocess,
        paper=options.paper,
        random_init=options.random_init,
        seed=settings.seed,
        dtype=settings.dtype,
        device=options.device,
    )
    prepared = prepare(model)
    return measure_loaded(
        prepared.model,
        source,
        prepared.tasks,
        settings,
        labels=prepared.labels,
        runs=runs,
        fresh=fresh,
        on_loaded=on_loaded,
        progress=progress,
    )


def measure_loaded(
    model: LoadedModel,
    source: Source,
    tasks: Sequence[Task],
    settings: Settings,
    *,
    labels: LabelMap | None = None,
    runs: Path | None = None,
    fresh: bool = False,
    on_loaded: Callable[[LoadedModel, int], None] = lambda model, passes: None,
    progress: Callable[[int], None] = lambda images: None,
) -> Measured:
    """Measure a loaded model under every task; other arguments as for `measure`.

    `labels` says which classes are right, where predictions are judged.
    """
    from probe.engine import affordable, run_passes
    from probe.store import Store

    passes = make_passes(tasks, settings, _common(model, source, settings, labels))
    store = Store(runs) if runs is not None else None
    found: dict[str, PassRecord] = {}
    if store is not None and not fresh:
        for one in passes:
            record = store.load(one.model, str(one.condition), one.key)
            if record is not None:
                found[one.key] = record
    missing = [one for one in passes if one.key not in found]
    if fresh and store is not None:
        for one in missing:
            store.drop_partial(one.key)
    on_loaded(model, len(missing))
    for part in affordable(missing, model.anatomy.sites(settings.site)):
        done = run_passes(
            model, source, part, settings, labels=labels, store=store, progress=progress
        )
        found |= {record.key: record for record in done}
    return Measured(
        model=model,
        tasks=tuple(tasks),
        records=tuple(found[one.key] for one in passes),
        reused=len(passes) - len(missing),
        notes=model.notes,
    )


def _common(
    model: LoadedModel, source: Source, settings: Settings, labels: LabelMap | None
) -> dict[str, Any]:
    from probe.data.preprocess import describe
    from probe.engine import taken
    from probe.loading import required_preprocess
    from probe.numerics.intervals import group_count

    device = next(model.module.parameters()).device.type
    return pass_settings(
        identity=model.identity,
        family=model.family,
        options=model.spec.options,
        image_size=model.anatomy.image_size,
        preprocess=describe(required_preprocess(model)),
        data={
            "name": source.name,
            "kind": source.kind,
            "fingerprint": source.fingerprint,
            "total": source.total,
            "split": source.split,
            "revision": getattr(source, "revision", None),
            "taken": taken(source),
        },
        device=device,
        settings=settings,
        groups=group_count(taken(source)),
        labels=None if labels is None else labels.describe(),
        notes=model.notes,
    )
