"""One model over one data set: load it, run what the store lacks, give back records."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from probe.distributed import ALONE, Processes
from probe.errors import UsageError
from probe.plan import Settings, make_passes, pass_settings
from probe.types import ModelSpec, Task

if TYPE_CHECKING:
    from probe.data.labels import LabelMap
    from probe.data.source import Source
    from probe.records import PassRecord
    from probe.store import Store
    from probe.types import LoadedModel, Pass


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
    processes: Processes = ALONE,
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
        processes: those that share the images; all call this, inside `in_step`.

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
        processes=processes,
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
    processes: Processes = ALONE,
) -> Measured:
    """Measure a loaded model under every task; other arguments as for `measure`.

    `labels` says which classes are right, where predictions are judged.
    """
    from probe.engine import run_passes
    from probe.memory import affordable
    from probe.store import Store

    passes = make_passes(tasks, settings, common_settings(model, source, settings, labels))
    store = Store(runs) if runs is not None else None
    found = _stored(passes, store, fresh, processes)
    missing = [one for one in passes if one.key not in found]
    on_loaded(model, len(missing))
    for part in affordable(missing, model.anatomy.sites(settings.site)):
        done = run_passes(
            model,
            source,
            part,
            settings,
            labels=labels,
            store=store,
            progress=progress,
            processes=processes,
        )
        found |= {record.key: record for record in done}
    records = tuple(found[one.key] for one in passes)
    return Measured(
        model=model,
        tasks=tuple(tasks),
        records=records,
        reused=len(passes) - len(missing),
        notes=(*model.notes, *_halved(records)),
    )


def _stored(
    passes: Sequence[Pass], store: Store | None, fresh: bool, processes: Processes
) -> dict[str, PassRecord]:
    """The stored records by key, as the main process sees them; `fresh` forgets what there is."""
    found: dict[str, PassRecord] = {}
    for one in passes:
        if store is None:
            break
        if fresh:
            store.drop_partial(one.key)
        elif processes.main:
            record = store.load(one.model, str(one.condition), one.key)
            if record is not None:
                found[one.key] = record
    views = processes.exchange(([one.key for one in passes], found))
    if any(keys != views[0][0] for keys, _ in views):
        raise UsageError(
            "the processes would measure different things; give all of them the same data, "
            "weights and versions"
        )
    return views[0][1]


def _halved(records: Sequence[PassRecord]) -> list[str]:
    """A remark where a batch did not fit into memory."""
    sizes = [
        (r.machine["halved_from"], r.machine["batch_size"])
        for r in records
        if "halved_from" in r.machine
    ]
    return [
        f"out of memory with {asked} images per forward pass: run with {ran}"
        for asked, ran in dict.fromkeys(sizes)
    ]


def data_facts(source: Source) -> dict[str, Any]:
    """What a pass records of its images; the fingerprint may read all of them."""
    from probe.data.source import StreamSource

    return {
        "name": source.name,
        "kind": source.kind,
        "fingerprint": source.fingerprint,
        "total": source.total,
        "split": source.split,
        "revision": getattr(source, "revision", None),
        "taken": source.limit if isinstance(source, StreamSource) else len(source),
    }


def common_settings(
    model: LoadedModel, source: Source, settings: Settings, labels: LabelMap | None
) -> dict[str, Any]:
    """Everything that can change the numbers of this model's passes but their condition."""
    from probe.data.preprocess import describe
    from probe.families.base import packages
    from probe.loading import required_preprocess
    from probe.metrics.added import metric_packages
    from probe.numerics.intervals import group_count

    facts = data_facts(source)
    device = next(model.module.parameters()).device.type
    return pass_settings(
        identity=model.identity,
        family=model.family,
        options=model.spec.options,
        image_size=model.anatomy.image_size,
        preprocess=describe(required_preprocess(model)),
        data=facts,
        device=device,
        settings=settings,
        groups=group_count(facts["taken"]),
        labels=None if labels is None else labels.describe(),
        notes=model.notes,
        packages=packages(model.family, model.module)
        | dict(source.packages)
        | metric_packages(settings.metrics),
    )
