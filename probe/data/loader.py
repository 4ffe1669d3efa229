"""The way from a source to batches of 8-bit images at model size.

The result does not depend on the number of workers: batch k covers the same positions, in order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from probe.data.preprocess import to_model_size
from probe.data.source import Encoded, IndexedSource, Item, Label, Source, StreamSource
from probe.errors import DataError, UnreadableImage, UsageError
from probe.types import Preprocess


@dataclass(frozen=True)
class Batch:
    """Images that could be read, in order; never padded, and empty only where a whole share is.

    Attributes:
        positions: int64 (B,), ranks among the taken images; unreadable neighbours leave gaps.
        indices: int64 (B,), places in the full data set.
        images: uint8 (B, height, width, 3).
        labels: one per image, None where there is none.
        names: one per image.
        skipped: (name, reason) of unreadable images among the positions up to `stop`.
        stop: the position after the last one that is dealt with; resume from here.
    """

    positions: np.ndarray
    indices: np.ndarray
    images: torch.Tensor
    labels: list[Label]
    names: tuple[str, ...]
    skipped: list[tuple[str, str]]
    stop: int


@dataclass(frozen=True)
class Share:
    """The positions that one process runs: every `of`-th block of `block`, from block `rank` on.

    Blocks are whole batches, so that sharing changes neither what is in a batch nor its number.
    """

    rank: int = 0
    of: int = 1
    block: int = 1

    def __contains__(self, position: int) -> bool:
        """Whether `position` is among them."""
        return position // self.block % self.of == self.rank

    def positions(self, start: int, stop: int) -> Sequence[int]:
        """Those from `start` on, below `stop`."""
        if self.of == 1:
            return range(start, stop)
        return [position for position in range(start, stop) if position in self]


WHOLE = Share()


@dataclass(frozen=True)
class _Sample:
    """One image at model size, or the reason why there is none; `fatal` ends the run."""

    position: int
    index: int
    name: str
    label: Label
    pixels: np.ndarray | None
    reason: str = ""
    fatal: str | None = None


class _Prepared(Dataset[_Sample]):
    """Reads, resizes and crops by position; picklable, so that workers can be spawned."""

    def __init__(self, source: IndexedSource, preprocess: Preprocess) -> None:
        self.source, self.preprocess = source, preprocess

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, position: int) -> _Sample:
        index = self.source.indices[position]
        try:
            item = self.source.read(position)
        except UnreadableImage as error:
            return _Sample(position, index, error.name, None, None, error.reason)
        except DataError as error:
            # Raised in a worker it would arrive with the worker's traceback for its text.
            return _Sample(position, index, "", None, None, fatal=str(error))
        return _prepare(position, item, self.preprocess)


def batches(
    source: Source,
    preprocess: Preprocess,
    batch_size: int,
    workers: int = 0,
    *,
    start: int = 0,
    failed: int = 0,
    share: Share = WHOLE,
) -> Iterator[Batch]:
    """Yield the images of `source` from position `start` on, `batch_size` positions at a time.

    Unreadable images are left out and listed in `skipped`; a batch that has none left is merged
    into its neighbour. Streams are read in this process and decoded in `workers` threads, other
    sources in `workers` processes (0: this one). Torch's global random state is not touched.

    Args:
        source: what to read.
        preprocess: how to resize and crop.
        batch_size: at least 1.
        workers: at least 0.
        start: first position, to resume where an earlier `Batch.stop` left off.
        failed: unreadable images before `start`.
        share: the positions that are wanted; of others, a stream is read and nothing is decoded.

    Raises:
        UsageError: if `batch_size` or `workers` is out of range.
        DataError: as soon as more than 1 % of the taken images are certain to be unreadable, or
            when a stream gives none. Of a share only what makes it certain for the whole counts.
    """
    if batch_size < 1:
        raise UsageError(f"--batch-size must be at least 1, got {batch_size}")
    if workers < 0:
        raise UsageError(f"--workers must be at least 0, got {workers}")
    if isinstance(source, StreamSource):
        rounds = _streamed(source, preprocess, batch_size, workers, start, share)
        taken = source.limit
    else:
        rounds = _loaded(source, preprocess, batch_size, workers, start, share)
        taken = len(source)
    return _readable(rounds, taken, start, failed, share, preprocess.size)


def _readable(
    rounds: Iterator[list[_Sample]],
    taken: int | None,
    start: int,
    failed: int,
    share: Share,
    size: tuple[int, int],
) -> Iterator[Batch]:
    """Pack samples into batches; hold one back, to take in a neighbour that has none left."""
    held: Batch | None = None
    listed: list[tuple[str, str]] = []
    waiting: list[tuple[str, str]] = []
    stop = start
    for samples in rounds:
        fatal = next((s.fatal for s in samples if s.fatal is not None), None)
        if fatal is not None:
            raise DataError(fatal)
        new = [(s.name, s.reason) for s in samples if s.pixels is None]
        listed += new
        if taken is not None:
            refuse_above_one_percent(failed + len(listed), taken, listed)
        stop = samples[-1].position + 1
        batch = _pack([s for s in samples if s.pixels is not None], waiting + new, stop)
        if batch is not None:
            if held is not None:
                yield held
            held, waiting = batch, []
        elif held is not None:
            held = replace(held, skipped=held.skipped + new, stop=stop)
        else:
            waiting += new
    if share.of == 1:  # only now is the length of a stream known, and only to who took all of it
        refuse_above_one_percent(failed + len(listed), stop, listed)
    if stop == 0 and share.rank == 0:
        raise DataError("the data set gave no images; choose another split")
    if held is not None:
        yield held
    elif waiting:
        yield _empty(size, waiting, stop)


def refuse_above_one_percent(failures: int, taken: int, listed: Sequence[tuple[str, str]]) -> None:
    """Refuse a data set of which more than 1 % cannot be read.

    Raises:
        DataError: naming the first of the `listed` (name, reason).
    """
    if failures * 100 <= taken:
        return
    first = "; ".join(f"'{name}': {reason}" for name, reason in listed[:3])
    raise DataError(
        f"at least {failures} of {taken} images cannot be read, above the 1 % allowed ({first}); "
        "repair or remove them"
    )


def _pack(samples: Sequence[_Sample], skipped: list[tuple[str, str]], stop: int) -> Batch | None:
    if not samples:
        return None
    return Batch(
        positions=np.array([s.position for s in samples], dtype=np.int64),
        indices=np.array([s.index for s in samples], dtype=np.int64),
        images=torch.from_numpy(np.stack([s.pixels for s in samples if s.pixels is not None])),
        labels=[s.label for s in samples],
        names=tuple(s.name for s in samples),
        skipped=skipped,
        stop=stop,
    )


def _empty(size: tuple[int, int], skipped: list[tuple[str, str]], stop: int) -> Batch:
    none = np.empty(0, dtype=np.int64)
    return Batch(none, none, torch.empty((0, *size, 3), dtype=torch.uint8), [], (), skipped, stop)


def _prepare(position: int, item: Item, preprocess: Preprocess) -> _Sample:
    try:
        pixels = to_model_size(item.image, preprocess)
    except DataError as error:
        return _Sample(position, item.index, item.name, item.label, None, str(error))
    return _Sample(position, item.index, item.name, item.label, pixels)


def _loaded(
    source: IndexedSource,
    preprocess: Preprocess,
    batch_size: int,
    workers: int,
    start: int,
    share: Share,
) -> Iterator[list[_Sample]]:
    loader: DataLoader[_Sample] = DataLoader(
        _Prepared(source, preprocess),
        batch_size=batch_size,
        sampler=share.positions(start, len(source)),
        num_workers=workers,
        collate_fn=list,
        # Its own generator, or starting an iterator would draw from the global one.
        generator=torch.Generator(),
    )
    try:
        yield from loader
    except RuntimeError as error:
        if "DataLoader worker" not in str(error):
            raise
        raise DataError(
            "a data worker process died, perhaps for want of memory; use fewer --workers"
        ) from error


def _streamed(
    source: StreamSource,
    preprocess: Preprocess,
    batch_size: int,
    workers: int,
    start: int,
    share: Share,
) -> Iterator[list[_Sample]]:
    encoded = (one for one in source.stream(start) if one.index in share)
    prepare = partial(_decode, preprocess=preprocess)
    with ThreadPoolExecutor(max(1, workers)) as pool:
        while group := list(islice(encoded, batch_size)):
            yield list(pool.map(prepare, group))


def _decode(encoded: Encoded, preprocess: Preprocess) -> _Sample:
    try:
        item = encoded.decode()
    except UnreadableImage as error:
        return _Sample(encoded.index, encoded.index, error.name, None, None, error.reason)
    return _prepare(encoded.index, item, preprocess)
