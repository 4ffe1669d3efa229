"""The only loop over batches: each image is decoded once and goes through every condition."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from probe.data.loader import Batch, batches
from probe.data.preprocess import normalise
from probe.data.source import Source, StreamSource
from probe.errors import DataError, NotApplicable
from probe.hooks import observe
from probe.interventions import permute_patches, rpi_permutations, scale_positions
from probe.loading import required_preprocess
from probe.metrics.ssdc import GridRanks, LayerSSDC, SSDCStatistic
from probe.numerics.intervals import group_count
from probe.plan import Settings
from probe.records import LayerRecord, PassRecord
from probe.store import State, Store
from probe.types import Condition, Grid, LoadedModel, Pass, TokenSite

SAVE_EVERY = 60.0  # seconds


@dataclass
class _Running:
    """A pass under way: its sums, how far it is, what it had to leave out."""

    task: Pass
    statistic: SSDCStatistic
    done: int = 0
    whole: bool = True  # False while a batch is only half in the sums, which must not be saved then
    skipped: list[tuple[str, str]] = field(default_factory=list)
    reason: str | None = None

    def state(self) -> State:
        extra = {"done": np.array(self.done), "skipped": np.array(json.dumps(self.skipped))}
        return self.statistic.state() | extra

    def restore(self, state: State, device: torch.device) -> None:
        self.done = int(state["done"])
        self.skipped = [(name, reason) for name, reason in json.loads(str(state["skipped"]))]
        self.statistic.merge(state, device)


def run_passes(
    model: LoadedModel,
    source: Source,
    passes: Sequence[Pass],
    settings: Settings,
    *,
    store: Store | None = None,
    progress: Callable[[int], None] = lambda images: None,
) -> list[PassRecord]:
    """Run `passes` of one model over one data set, in one reading of it.

    Memory does not grow with the number of images. With a store, records are saved when all are
    finished and the running sums at least once a minute, and a pass that was interrupted goes on
    from its saved sums.

    Args:
        model: the loaded model; it must carry a preprocessing.
        source: the images.
        passes: what to run.
        settings: how to measure.
        store: where to save; None keeps everything in memory.
        progress: called with the number of images that one pass has just finished.

    Returns:
        One record per pass, in their order. A condition that does not apply to the model gives a
        record with that reason, no images and no layers.

    Raises:
        DataError: if no image, or too few of them, could be read.
        CheckpointError: if the model carries no preprocessing.
    """
    preprocess = required_preprocess(model)
    parameter = next(model.module.parameters())
    sites = model.anatomy.sites(settings.site)
    groups = group_count(taken(source))
    running = _start(passes, sites, settings, groups, store, parameter.device)
    saved = time.monotonic()
    start = min((r.done for r in running), default=0)
    try:
        for batch in batches(
            source,
            preprocess,
            settings.batch_size,
            settings.workers,
            start=start,
            failed=min((len(r.skipped) for r in running), default=0),
        ):
            if all(one.reason is not None for one in running):
                break
            images = normalise(batch.images, preprocess, parameter.dtype, parameter.device)
            for one in running:
                new = batch.stop - one.done
                if new <= 0:
                    continue
                one.whole = False
                if one.reason is None:
                    _run_batch(model, sites, one, batch, images, groups, settings.batch_size)
                one.done, one.whole = batch.stop, True
                progress(new)
            if store is not None and time.monotonic() - saved > SAVE_EVERY:
                _save(store, running)
                saved = time.monotonic()
        records = [_finish(one, settings) for one in running]
    except KeyboardInterrupt:
        if store is not None:
            _save(store, running)
        raise
    if store is not None:
        for record in records:
            store.save(record)
    return records


def taken(source: Source) -> int | None:
    """How many images are taken; None for a stream without a limit, whose length is unknown."""
    return source.limit if isinstance(source, StreamSource) else len(source)


def _start(
    passes: Sequence[Pass],
    sites: Sequence[TokenSite],
    settings: Settings,
    groups: int,
    store: Store | None,
    device: torch.device,
) -> list[_Running]:
    shared: dict[Grid, GridRanks] = {}
    running = []
    for task in passes:
        permutation = task.condition.permutation
        statistic = SSDCStatistic(
            [site.grid for site in sites],
            distance=settings.distance,
            average=settings.average,
            groups=groups,
            seed=settings.seed,
            draw=permutation.draw if permutation else 0,
            shared=shared,
        )
        one = _Running(task, statistic)
        state = store.load_partial(task.key) if store is not None else None
        if state is not None:
            one.restore(state, device)
        running.append(one)
    return running


def _run_batch(
    model: LoadedModel,
    sites: Sequence[TokenSite],
    one: _Running,
    batch: Batch,
    images: Tensor,
    groups: int,
    batch_size: int,
) -> None:
    # A pass that goes on from saved sums may already hold the first images of this batch.
    one.skipped.extend(entry for entry in batch.skipped if entry not in one.skipped)
    new = batch.positions >= one.done
    if not new.all():
        images = images[torch.from_numpy(new).to(images.device)]
    positions, indices = batch.positions[new], batch.indices[new]
    if len(positions) == 0:
        return
    group = positions % groups

    def read(site: TokenSite, tokens: Tensor) -> None:
        one.statistic.update(site.layer, tokens, group, indices)

    try:
        with (
            torch.inference_mode(),
            applied(model, one.task.condition, indices, positions // batch_size),
            observe(model.module, sites, read),
        ):
            model.forward(images)
    except NotApplicable as error:
        one.reason = str(error)


@contextmanager
def applied(
    model: LoadedModel,
    condition: Condition,
    indices: NDArray[np.int64],
    batch_numbers: NDArray[np.int64],
) -> Iterator[None]:
    """The interventions of `condition`, for a batch of images with these indices."""
    with ExitStack() as stack:
        permutation = condition.permutation
        if permutation is not None:
            named = batch_numbers if permutation.mode == "batch" else indices
            grid = model.anatomy.patches.grid
            drawn = rpi_permutations(grid, [int(index) for index in named], permutation)
            stack.enter_context(permute_patches(model, drawn))
        if condition.alpha != 1:
            stack.enter_context(scale_positions(model, condition.alpha, condition.signal))
        yield


def _save(store: Store, running: Sequence[_Running]) -> None:
    for one in running:
        if one.done and one.whole and one.reason is None:
            store.save_partial(one.task.key, one.state())


def _finish(one: _Running, settings: Settings) -> PassRecord:
    applies = one.reason is None
    images = one.done - len(one.skipped) if applies else 0
    if applies and images < 1:
        raise DataError("no image could be read; check --data")
    measured = one.statistic.finalise() if applies else []
    return PassRecord(
        key=one.task.key,
        model=one.task.model,
        condition=str(one.task.condition),
        settings=dict(one.task.settings),
        machine={"batch_size": settings.batch_size, "workers": settings.workers},
        images=images,
        skipped=tuple(one.skipped) if applies else (),
        layers=tuple(_layer_record(layer, m) for layer, m in enumerate(measured)),
        reason=one.reason,
    )


def _layer_record(layer: int, measured: LayerSSDC) -> LayerRecord:
    def finite(value: float) -> float | None:
        return value if math.isfinite(value) else None

    return LayerRecord(
        layer=layer,
        grid=(measured.grid.rows, measured.grid.cols),
        value=finite(measured.value),
        leave_one_out=tuple(finite(float(v)) for v in measured.leave_one_out),
        null=measured.null.astype(np.float32),
        pairs=measured.pairs,
        subset=measured.subset,
        reason=measured.reason,
    )
