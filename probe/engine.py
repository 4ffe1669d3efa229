"""The only loop over batches: each image is decoded once and goes through every condition."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from probe.corruptions import parse
from probe.data.labels import LabelMap
from probe.data.loader import Batch, batches
from probe.data.preprocess import normalise
from probe.data.source import Source, StreamSource
from probe.errors import NotApplicable, UsageError
from probe.hooks import StopForward, observe
from probe.interventions import permute_patches, rpi_permutations, scale_positions
from probe.loading import required_preprocess
from probe.metrics.grids import GridRanks, sum_bytes
from probe.numerics.intervals import group_count
from probe.plan import Settings
from probe.records import PassRecord
from probe.running import RunningPass
from probe.store import Store
from probe.types import Condition, Grid, LoadedModel, Pass, TokenSite

SAVE_EVERY = 60.0  # seconds
MEMORY = 4 * 2**30  # bytes of running sums that one reading of the data may hold


def run_passes(
    model: LoadedModel,
    source: Source,
    passes: Sequence[Pass],
    settings: Settings,
    *,
    labels: LabelMap | None = None,
    store: Store | None = None,
    progress: Callable[[int], None] = lambda images: None,
) -> list[PassRecord]:
    """Run `passes` of one model over one data set, in one reading of it.

    Memory does not grow with the number of images, but for a few bytes of predictions. With a
    store, records are saved when all are finished and the running sums at least once a minute, and
    a pass that was interrupted goes on from its saved sums.

    Args:
        model: the loaded model; it must carry a preprocessing.
        source: the images.
        passes: what to run.
        settings: how to measure.
        labels: which classes are right; None keeps predictions without judging them.
        store: where to save; None keeps everything in memory.
        progress: called with the number of images that one pass has just finished.

    Returns:
        One record per pass, in their order. A condition that does not apply to the model gives a
        record with that reason, no images and no layers.

    Raises:
        DataError: if no image, or too few of them, could be read.
        CheckpointError: if the model carries no preprocessing.
        UsageError: if predictions are wanted of a model without a head.
    """
    if model.predict is None and any(one.task.top1 for one in passes):
        raise UsageError(
            f"{model.identity.resolved} has no head to predict with; fit one with "
            "`probe readout` and give it as --readout FILE"
        )
    preprocess = required_preprocess(model)
    parameter = next(model.module.parameters())
    groups = group_count(taken(source))
    sites, shared = model.anatomy.sites(settings.site), dict[Grid, GridRanks]()
    running = [RunningPass.start(one, sites, settings, groups, shared) for one in passes]
    for one in running:
        state = store.load_partial(one.work.key) if store is not None else None
        if state is not None:
            one.restore(state, parameter.device)
    saved = time.monotonic()
    try:
        for whole in batches(
            source,
            preprocess,
            settings.batch_size,
            settings.workers,
            start=min((one.done for one in running), default=0),
            failed=min((one.unreadable for one in running), default=0),
        ):
            if all(one.reason is not None for one in running):
                break
            ready = {
                name: (part, normalise(part.images, preprocess, parameter.dtype, parameter.device))
                for name, part in corrupted(whole, running, settings.seed).items()
            }
            for one in running:
                new = whole.stop - one.done
                if new <= 0:
                    continue
                one.whole = False
                if one.reason is None:
                    one.unreadable += sum(entry not in one.skipped for entry in whole.skipped)
                    batch, images = ready[one.work.condition.corruption]
                    _run_batch(model, one, batch, images, labels, settings.batch_size)
                one.done, one.whole = whole.stop, True
                progress(new)
            if store is not None and time.monotonic() - saved > SAVE_EVERY:
                _save(store, running)
                saved = time.monotonic()
        records = [one.finish(settings) for one in running]
    except KeyboardInterrupt:
        if store is not None:
            _save(store, running)
        raise
    if store is not None:
        for record in records:
            store.save(record)
    return records


def affordable(
    passes: Sequence[Pass], sites: Sequence[TokenSite], budget: int = MEMORY
) -> list[list[Pass]]:
    """Parts of `passes` whose running sums fit into `budget` bytes; a part has one at least.

    One reading serves as many passes as fit. Only large grids under many draws need a second.
    """
    parts: list[list[Pass]] = []
    room = 0
    for one in passes:
        last = one.task.last_layer
        read = [s for s in sites if last is None or s.layer <= last] if one.task.ssdc else []
        need = sum(sum_bytes(site.grid) for site in read)
        if not parts or need > room:
            parts.append([])
            room = budget
        parts[-1].append(one)
        room -= need
    return parts


def taken(source: Source) -> int | None:
    """How many images are taken; None for a stream without a limit, whose length is unknown."""
    return source.limit if isinstance(source, StreamSource) else len(source)


def corrupted(batch: Batch, running: Sequence[RunningPass], seed: int) -> dict[str | None, Batch]:
    """The batch under every corruption that a pass asks for; None is the clean one.

    An image that a corruption fails on is left out under that corruption alone, so that a pass's
    numbers do not depend on which others share its reading; what compares passes takes the images
    that all of them have.
    """
    found: dict[str | None, Batch] = {None: batch}
    for name in dict.fromkeys(one.work.condition.corruption for one in running):
        if name is not None:
            images, wrong = parse(name).apply_batch(
                batch.images.numpy(), seed, batch.indices, threads=torch.get_num_threads()
            )
            found[name] = _without(replace(batch, images=torch.from_numpy(images)), wrong)
    return found


def _without(batch: Batch, failed: Mapping[int, str]) -> Batch:
    if not failed:
        return batch
    keep = np.array([row for row in range(len(batch.names)) if row not in failed], dtype=np.int64)
    return replace(
        batch,
        positions=batch.positions[keep],
        indices=batch.indices[keep],
        images=batch.images[keep],
        labels=[batch.labels[row] for row in keep],
        names=tuple(batch.names[row] for row in keep),
        skipped=batch.skipped + [(batch.names[row], why) for row, why in sorted(failed.items())],
    )


def _run_batch(
    model: LoadedModel,
    one: RunningPass,
    batch: Batch,
    images: Tensor,
    labels: LabelMap | None,
    batch_size: int,
) -> None:
    # A pass that goes on from saved sums may already hold the first images of this batch.
    one.skipped.extend(entry for entry in batch.skipped if entry not in one.skipped)
    new = np.flatnonzero(batch.positions >= one.done)
    if len(new) == 0:
        return
    if len(new) < len(images):
        images = images[torch.from_numpy(new).to(images.device)]
    positions, indices = batch.positions[new], batch.indices[new]
    try:
        with (
            torch.inference_mode(),
            applied(model, one.work.condition, indices, positions // batch_size),
            observe(
                model.module,
                one.sites,
                lambda site, tokens: one.read(site, tokens, positions, indices),
            ),
        ):
            output = model.forward(images)
    except NotApplicable as error:
        one.reason = str(error)
        return
    except StopForward:
        return
    if one.top1 is not None and model.predict is not None:
        accepted = [
            None if labels is None else labels.accepts(batch.names[row], batch.labels[row])
            for row in new
        ]
        one.top1.update(model.predict(output), positions, accepted)


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


def _save(store: Store, running: Sequence[RunningPass]) -> None:
    for one in running:
        if one.done and one.whole and one.reason is None:
            store.save_partial(one.work.key, one.state())
