"""The only loop over batches: each image is decoded once and goes through every condition."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import torch
from torch import Tensor

from probe.conditions import applied, corrupted
from probe.data.labels import LabelMap
from probe.data.loader import Batch, Share, batches, refuse_above_one_percent
from probe.data.preprocess import normalise
from probe.data.source import Source, StreamSource
from probe.distributed import ALONE, Processes
from probe.errors import NotApplicable, StoreError, UsageError
from probe.hooks import StopForward, observe
from probe.loading import required_preprocess
from probe.memory import free_memory, smaller_batch
from probe.metrics.finish import finalise_together
from probe.metrics.grids import GridRanks
from probe.metrics.ssdc import LayerSSDC
from probe.numerics.intervals import group_count
from probe.plan import Settings
from probe.records import PassRecord
from probe.running import RunningPass
from probe.saver import Clock, Saver
from probe.store import Store
from probe.types import Grid, LoadedModel, Pass, TokenSite

SAVE_EVERY = 60.0  # seconds


def run_passes(
    model: LoadedModel,
    source: Source,
    passes: Sequence[Pass],
    settings: Settings,
    *,
    labels: LabelMap | None = None,
    store: Store | None = None,
    progress: Callable[[int], None] = lambda images: None,
    processes: Processes = ALONE,
) -> list[PassRecord]:
    """Run `passes` of one model over one data set, in one reading of it.

    Memory does not grow with the number of images, but for a few bytes of predictions. With a
    store, records are saved when all are finished and the running sums at least once a minute, and
    a pass that was interrupted goes on from its saved sums. A batch that does not fit into memory
    is halved, and so are those after it; records say so in `machine`.

    Args:
        model: the loaded model; it must carry a preprocessing.
        source: the images.
        passes: what to run.
        settings: how to measure.
        labels: which classes are right; None keeps predictions without judging them.
        store: where to save; None keeps everything in memory.
        progress: called with the number of images that one pass has just finished.
        processes: those that share the images, each every P-th batch, and all get the records.

    Returns:
        One record per pass, in their order. A condition that does not apply to the model gives a
        record with that reason, no images and no layers.

    Raises:
        DataError: if no image, or too few of them, could be read.
        CheckpointError: if the model carries no preprocessing.
        UsageError: if predictions are wanted of a model without a head.
        OutOfMemory: if a batch does not fit into memory and cannot be halved.
    """
    if model.predict is None and any(one.task.top1 for one in passes):
        raise UsageError(
            f"{model.identity.resolved} has no head to predict with; fit one with "
            "`probe readout` and give it as --readout FILE"
        )
    reading = _Reading(model, source, passes, settings, labels, store, progress, processes)
    try:
        reading.to_the_end()
        return reading.records()
    except KeyboardInterrupt:
        reading.save()
        raise
    finally:
        reading.saver.close()


class _Reading:
    """One reading of the images, or of this process's share, that serves several passes."""

    def __init__(
        self,
        model: LoadedModel,
        source: Source,
        passes: Sequence[Pass],
        settings: Settings,
        labels: LabelMap | None,
        store: Store | None,
        progress: Callable[[int], None],
        processes: Processes,
    ) -> None:
        """Start every pass, or go on from its saved sums."""
        self.model, self.source, self.settings, self.labels = model, source, settings, labels
        self.store, self.progress, self.processes = store, progress, processes
        self.preprocess = required_preprocess(model)
        self.share = Share(processes.rank, processes.count, settings.batch_size)
        self.batch_size = settings.batch_size
        self.ranked: dict[Grid, GridRanks] = {}
        self.mine = True  # the sums are this share's alone
        self.saver = Saver(store, self._part)
        self.running = [self._start(one) for one in passes]
        self.clocks = [Clock() for _ in passes]
        self.told = [one.done for one in self.running]

    def _start(self, work: Pass) -> RunningPass:
        sites, groups = (
            self.model.anatomy.sites(self.settings.site),
            group_count(taken(self.source)),
        )
        one = RunningPass.start(work, sites, self.settings, groups, self.ranked)
        state = self.store.load_partial(work.key, self._part) if self.store is not None else None
        if state is not None:
            one.merge(state, self._weight.device)
        return one

    @property
    def _weight(self) -> Tensor:
        return next(self.model.module.parameters())

    @property
    def _part(self) -> str:
        """What this process's saved sums are called; other shares of the images cannot use them."""
        share = self.share
        return "" if share.of == 1 else f"{share.rank + 1}of{share.of}x{share.block}"

    def to_the_end(self) -> None:
        """Run all batches; one that does not fit into memory makes the rest half as large."""
        while True:
            try:
                self._read()
                return
            except (RuntimeError, MemoryError) as error:
                works = [one.work for one in self.running]
                self.batch_size = smaller_batch(error, self.batch_size, works)
            # Only here, where nothing holds the failed batch any more, is its memory free. A pass
            # whose sums are torn starts again from the saved ones.
            free_memory()
            self.saver.wait()
            self.running = [one if one.whole else self._start(one.work) for one in self.running]

    def _read(self) -> None:
        for whole in batches(
            self.source,
            self.preprocess,
            self.batch_size,
            self.settings.workers,
            start=min((one.done for one in self.running), default=0),
            failed=min((one.unreadable for one in self.running), default=0),
            share=self.share,
        ):
            self.processes.heed()
            if all(one.reason is not None for one in self.running):
                break
            conditions = [one.work.condition for one in self.running]
            found = corrupted(whole, conditions, self.settings.seed)
            weight, ready = self._weight, dict[str | None, tuple[Batch, Tensor]]()
            for name, part in found.items():
                images = normalise(part.images, self.preprocess, weight.dtype, weight.device)
                ready[name] = (part, images)
            for number, one in enumerate(self.running):
                if whole.stop <= one.done:
                    continue
                if one.reason is None:
                    batch, images = ready[one.work.condition.corruption]
                    self._run(one, batch, images)
                    one.whole = False
                    new = [entry for entry in batch.skipped if entry not in one.skipped]
                    one.unreadable += sum(entry in whole.skipped for entry in new)
                    one.skipped += new
                one.done, one.whole = whole.stop, True
                self._tell(number)
                self._save_in_time(number)

    def _tell(self, number: int) -> None:
        """Report images once, also where a pass had to go back."""
        done = self.running[number].done
        if done > self.told[number]:
            new, self.told[number] = done - self.told[number], done
            self.progress(new)

    def _run(self, one: RunningPass, batch: Batch, images: Tensor) -> None:
        # A pass that goes on from saved sums may already hold the first images of this batch.
        new = np.flatnonzero(batch.positions >= one.done)
        if len(new) == 0:
            return
        if len(new) < len(images):
            images = images[torch.from_numpy(new).to(images.device)]
        positions, indices = batch.positions[new], batch.indices[new]

        def read(site: TokenSite, tokens: Tensor) -> None:
            one.whole = False
            one.read(site, tokens, positions, indices)

        model, number = self.model, positions // self.settings.batch_size
        try:
            with (
                torch.inference_mode(),
                applied(model, one.work.condition, indices, number),
                observe(model.module, one.sites, read),
            ):
                output = model.forward(images)
        except NotApplicable as error:
            one.reason = str(error)
            return
        except StopForward:
            return
        if one.top1 is not None and model.predict is not None:
            accepted = [
                None
                if self.labels is None
                else self.labels.accepts(batch.names[row], batch.labels[row])
                for row in new
            ]
            logits = model.predict(output)
            one.whole = False
            one.top1.update(logits, positions, accepted)

    def _save_in_time(self, number: int) -> None:
        if self.clocks[number].due(SAVE_EVERY):
            self._save(number)

    def _save(self, number: int) -> None:
        """Keep the sums of this share of a pass, unless it is in the middle of a batch."""
        one = self.running[number]
        if self.mine and one.done and one.whole and one.reason is None:
            self.saver.save(one.work.key, one.state)

    def save(self) -> None:
        """Keep the sums of every pass, each as far as it can be kept: the run ends here."""
        for number in (None, *range(len(self.running))):
            with suppress(StoreError):
                if number is not None:
                    self._save(number)
                self.saver.wait()

    def records(self) -> list[PassRecord]:
        """The records of all passes, saved."""
        self.saver.wait()
        if self.processes.count > 1:
            self._gather()
        found = self._records() if self.processes.main else []
        if self.store is not None:
            for record in found:
                self.store.save(record)
        found = self.processes.exchange(found)[0]
        if self.store is not None and not self.processes.main:
            for record in found:
                self.store.drop_partial(record.key)  # where it has a folder of its own
        return found

    def _gather(self) -> None:
        """Bring the sums of all shares to the main process."""
        for number in range(len(self.running)):
            self._save_in_time(number)
        self.saver.wait()
        self.mine = False
        main = self.processes.main
        self.batch_size = min(self.processes.exchange(self.batch_size))
        for number, one in enumerate(self.running):
            parts = self.processes.collect(None if main else (one.reason, one.state()))
            for reason, state in filter(None, parts or ()):
                one.merge(state, self._weight.device)
                one.reason = one.reason or reason
            if main:
                self._tell(number)
                images = taken(self.source) or one.done
                refuse_above_one_percent(one.unreadable, images, one.skipped)

    def _records(self) -> list[PassRecord]:
        """Passes are finalised together, so that relabelled grids are made once for all."""
        sums = {i: s for i, one in enumerate(self.running) if (s := one.finished) is not None}
        layers = dict(zip(sums, finalise_together(list(sums.values())), strict=True))
        return [self._record(one, layers.get(i, [])) for i, one in enumerate(self.running)]

    def _record(self, one: RunningPass, layers: Sequence[LayerSSDC]) -> PassRecord:
        record = one.finish(self.settings, layers)
        ran: dict[str, Any] = {"batch_size": self.batch_size}
        if self.batch_size != self.settings.batch_size:
            ran["halved_from"] = self.settings.batch_size
        if self.processes.count > 1:
            ran["processes"] = self.processes.count
        return record.model_copy(update={"machine": record.machine | ran})


def taken(source: Source) -> int | None:
    """How many images are taken; None for a stream without a limit, whose length is unknown."""
    return source.limit if isinstance(source, StreamSource) else len(source)
