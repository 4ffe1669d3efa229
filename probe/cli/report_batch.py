"""The batch of a report: what is stored is taken, what is missing is run, failures are rows."""

from __future__ import annotations

import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from probe.cards import Cards, card_key, judged, make_card
from probe.cli.report_progress import board
from probe.distributed import ALONE, Processes
from probe.errors import ProbeError, StoreError, UsageError
from probe.hardware import measured_here, save_hardware
from probe.manifest import Manifest, ModelRef, PassRef, Refused
from probe.plan import ReportChoices, Settings, make_passes, report_tasks
from probe.records import ModelCard, PassRecord
from probe.remembered import DataSet, Remembered
from probe.session import LoadOptions, Prepared, common_settings, measure
from probe.store import Store, check_writable, slug, write_atomically
from probe.types import ModelSpec, Pass

if TYPE_CHECKING:
    from probe.types import LoadedModel


@dataclass(frozen=True)
class Request:
    """A report that is asked for; `specs` share one data set."""

    specs: tuple[ModelSpec, ...]
    name: str
    title: str
    protocol: str
    against: str | None
    data: str | None
    split: str | None
    limit: int | None
    choices: ReportChoices
    settings: Settings
    options: LoadOptions
    runs: Path
    fresh: bool
    out: Path
    hardware: bool
    shard: tuple[int, int] | None = None
    processes: Processes = ALONE


@dataclass
class Entry:
    """One model of the batch; `card` and `passes` are known before it is loaded, or None."""

    spec: ModelSpec
    key: str
    card: ModelCard | None = None
    passes: list[Pass] = field(default_factory=list)
    records: list[PassRecord] | None = None


@dataclass
class Batch:
    """A report's models with what is known of each, and its data."""

    request: Request
    data: DataSet
    store: Store
    entries: list[Entry]
    failures: list[Refused] = field(default_factory=list)

    def manifest(self) -> Manifest:
        """What the report is made of, as far as it is known."""
        request, choices = self.request, self.request.choices
        known = [
            ModelRef(
                model=entry.spec.name,
                card=entry.card.key,
                passes=tuple(
                    PassRef(resolved=one.model, condition=str(one.condition), key=one.key)
                    for one in entry.passes
                ),
            )
            for entry in self.entries
            if entry.card is not None
        ]
        failed = {one.model for one in self.failures}
        shard = "" if request.shard is None else "-shard-{}-of-{}".format(*request.shard)
        return Manifest(
            name=request.name + shard,
            title=request.title,
            protocol=request.protocol,
            against=request.against,
            data_name=public_name(str(self.data.facts["name"])),
            corruptions=choices.corruptions,
            dosed=choices.dosed,
            alphas=choices.alphas if "alpha" in choices.measures else (),
            models=tuple(one for one in known if one.model not in failed),
            failures=tuple(self.failures),
        )


def planned(request: Request) -> Batch:
    """The batch before anything is run; models whose cards are stored have their passes.

    Raises:
        UsageError: if the models would be measured on different data.
        ProbeError: if the data, the runs folder or the output folder cannot be used.
    """
    wanted = {spec.name: request.data or spec.data or "photos" for spec in request.specs}
    if len(set(wanted.values())) > 1:
        first = next(iter(wanted.values()))
        other = next(name for name, text in wanted.items() if text != first)
        raise UsageError(
            f"one table needs one data set, but {next(iter(wanted))} is measured on {first} and "
            f"{other} on {wanted[other]}; choose one with --data"
        )
    store = Store(request.runs)
    if request.processes.main:
        store.claim()
    local = request.runs / "cards"
    text = next(iter(wanted.values()))
    data = DataSet(text, request.split, request.limit, Remembered(local / "data.json"))
    files, cards, entries = Remembered(local / "files.json"), Cards(request.runs), []
    for spec in request.specs:
        key = card_key(spec, request.options, request.settings, data.facts, files)
        entry = Entry(spec, key, None if request.fresh else cards.load(spec.name, key))
        if entry.card is not None:
            entry.passes = passes_of(entry.card, request)
        entries.append(entry)
    return Batch(request, data, store, entries)


def passes_of(card: ModelCard, request: Request) -> list[Pass]:
    """The passes of a model, from its card alone."""
    tasks = report_tasks(
        request.choices, head=card.head, judged=card.judged, scaled=bool(card.signals)
    )
    return make_passes(tasks, request.settings, card.common)


def measure_missing(batch: Batch) -> None:
    """Run what the store lacks, model after model; then every entry has its records or failed.

    Raises:
        UsageError: if the request fits none of its models.
        StoreError: if nothing can be written any more.
    """
    request, processes = batch.request, batch.request.processes
    if processes.main and request.shard is None:
        check_writable(request.out)
    refused: list[UsageError] = []
    with board([entry.spec.name for entry in batch.entries]) as show:
        for entry in batch.entries:
            try:
                with processes.in_step():
                    if processes.main:
                        _load_stored(batch, entry)
                    if processes.exchange(entry.records is None)[0]:
                        _run(batch, entry, show.model(entry.spec.name))
            except StoreError:
                raise
            except ProbeError as error:
                refused += [error] if isinstance(error, UsageError) else []
                _fail(batch, entry, public_text(" ".join(str(error).split()), batch))
            except Exception as error:  # one broken model never ends a batch
                _fail(batch, entry, _unexpected(batch, entry, error))
            show.done()
    if len(refused) == len(batch.entries):
        raise refused[0]


def _load_stored(batch: Batch, entry: Entry) -> None:
    """The entry's records, if all of them are stored and whole."""
    if entry.card is None:
        return
    found = [batch.store.load(p.model, str(p.condition), p.key) for p in entry.passes]
    whole = [record for record in found if record is not None]
    while batch.store.set_aside:
        path = batch.store.set_aside.pop().relative_to(batch.request.runs)
        print(f"probe: {path} is no whole record; set aside, and run again", file=sys.stderr)
    entry.records = whole if len(whole) == len(found) else None


def _run(
    batch: Batch, entry: Entry, show: tuple[Callable[..., None], Callable[[int], None]]
) -> None:
    request, spec, processes = batch.request, entry.spec, batch.request.processes
    source = batch.data.source()
    started, images, ran = time.monotonic(), 0, 0

    def prepare(model: LoadedModel) -> Prepared:
        found = judged(spec, source, model)
        if found.reason is not None:
            found = found.because(public_text(found.reason, batch))
        common = common_settings(found.model, source, request.settings, found.labels)
        entry.card = make_card(spec, found, common, entry.key)
        entry.passes = passes_of(entry.card, request)
        if processes.main:
            Cards(request.runs).save(entry.card)
            batch.manifest().save(request.runs)
        return Prepared(found.model, tuple(one.task for one in entry.passes), found.labels)

    def on_loaded(model: LoadedModel, passes: int) -> None:
        nonlocal started, ran
        started, ran = time.monotonic(), passes
        show[0](batch.data.facts["taken"], passes)

    def progress(count: int) -> None:
        nonlocal images
        images += count
        show[1](count)

    done = measure(
        spec,
        source,
        prepare,
        request.settings,
        request.options,
        runs=request.runs,
        fresh=request.fresh,
        on_loaded=on_loaded,
        progress=progress,
        processes=processes,
    )
    entry.records = list(done.records)
    if ran and images and processes.main:
        seconds = time.monotonic() - started
        facts = measured_here(done.model, request.settings, images, seconds)
        save_hardware(request.runs, spec.name, facts)


def _fail(batch: Batch, entry: Entry, message: str) -> None:
    batch.failures.append(Refused(model=entry.spec.name, error=message))
    entry.records = None


def _unexpected(batch: Batch, entry: Entry, error: Exception) -> str:
    path = Path("failures") / f"{slug(entry.spec.name)}.txt"
    if batch.request.processes.main:
        write_atomically(batch.request.runs / path, "".join(traceback.format_exception(error)))
    first = (str(error).splitlines() or [""])[0]
    what = public_text(f"{type(error).__name__}: {first}", batch)
    return f"unexpected {what}; the traceback is in {path} of the runs folder"


def public_name(text: str) -> str:
    """The data as it was named; of an absolute path the last part, which names no machine."""
    return Path(text).name if Path(text).expanduser().is_absolute() else text


def public_text(text: str, batch: Batch) -> str:
    """`text` without the folders of this machine, so that it can stand in an output."""
    data = str(batch.data.facts["name"])
    folders = [(data, public_name(data)), (f"{Path.cwd()}/", ""), (str(Path.home()), "~")]
    for folder, short in folders:
        if len(folder) > 1 and Path(folder).is_absolute():
            text = text.replace(folder, short)
    return text
