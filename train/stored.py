"""The images of a data set, decoded and resized once into a file that is mapped into memory."""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from filelock import FileLock

from probe.data.folder import ImageFolder
from probe.data.loader import batches
from probe.data.preprocess import describe
from probe.data.source import Encoded, Label, Source, StreamSource
from probe.errors import DataError, StoreError
from probe.types import Preprocess

IMAGES, LABELS = "images.u8", "labels.json"


@dataclass(frozen=True)
class Stored:
    """Images (total, height, width, 3) uint8, and the class of each.

    `known` are the data set's own class names, None where labels have none; `fingerprint` is the
    data set's.
    """

    images: np.ndarray
    names: list[str]
    known: tuple[str, ...] | None
    fingerprint: str


def store(
    source: Source,
    part: str,
    preprocess: Preprocess,
    chosen: Collection[str] | None,
    cache: Path,
    workers: int,
    report: Callable[[str], None],
) -> Stored:
    """The images of the `chosen` classes (None: all), from `cache`, decoded if they are not there.

    Images of other classes are not decoded, save those of parquet files, which are not kept. A
    cache that is not whole is made anew; processes wait for one another.

    Raises:
        DataError: if an image is unreadable or has no label, or none is of the chosen classes.
        StoreError: if the cache cannot be written.
    """
    wanted = None if chosen is None else frozenset(chosen)
    if wanted is not None:
        source = _only(source, wanted)
    geometry = {k: v for k, v in describe(preprocess).items() if k not in ("mean", "std", "source")}
    what = [source.fingerprint, part, geometry] + ([sorted(wanted)] if wanted is not None else [])
    key = hashlib.sha256(json.dumps(what).encode()).hexdigest()[:20]
    folder = cache / key
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with FileLock(cache / f"{key}.lock"):
            names = _whole(folder, preprocess.size)
            if names is None:
                # What a process that was killed here left behind.
                for left in cache.glob(f".{key}.*"):
                    shutil.rmtree(left, ignore_errors=True)
                report(f"storing {source.name}, {part}, at {preprocess.size[0]} px")
                names = _decode(source, part, preprocess, wanted, folder, workers)
    except OSError as error:
        raise StoreError(
            f"cannot store images in {cache}: {error.strerror or error}; free space, or choose "
            "another --cache"
        ) from error
    shape = (len(names), *preprocess.size, 3)
    images = np.memmap(folder / IMAGES, dtype=np.uint8, mode="r", shape=shape)
    return Stored(images, names, source.class_names, source.fingerprint)


def _whole(folder: Path, size: tuple[int, int]) -> list[str] | None:
    """The classes of the images in the cache, None if they are not all there."""
    try:
        names: list[str] = json.loads((folder / LABELS).read_text("utf-8"))["names"]
        expected = len(names) * size[0] * size[1] * 3
        return names if (folder / IMAGES).stat().st_size == expected else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _decode(
    source: Source,
    part: str,
    preprocess: Preprocess,
    wanted: Collection[str] | None,
    folder: Path,
    workers: int,
) -> list[str]:
    """Write images and labels, both or none; the class of each image."""
    new = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}."))
    names: list[str] = []
    try:
        with (new / IMAGES).open("wb") as file:
            for batch in batches(source, preprocess, 256, workers):
                if batch.skipped:
                    name, reason = batch.skipped[0]
                    raise DataError(
                        f"cannot train on '{name}': {reason}; repair or remove it, so that every "
                        "run sees the same images"
                    )
                found = [
                    _class(name, label, source.class_names)
                    for name, label in zip(batch.names, batch.labels, strict=True)
                ]
                kept = [row for row, name in enumerate(found) if wanted is None or name in wanted]
                names += [found[row] for row in kept]
                file.write(batch.images.numpy()[kept].tobytes())
        if not names:
            raise DataError(
                f"the part '{part}' has no image of the chosen classes; choose others with "
                "--set data.classes"
            )
        (new / LABELS).write_text(json.dumps({"names": names}), "utf-8")
        shutil.rmtree(folder, ignore_errors=True)
        new.replace(folder)
    except BaseException as error:
        shutil.rmtree(new, ignore_errors=True)
        if isinstance(error, DataError):
            # The loader speaks to those who measure.
            advice = ("choose another --preprocess", "resize with --set image.resize=squash")
            raise DataError(str(error).replace(*advice)) from error
        raise
    return names


def _class(name: str, label: Label, known: tuple[str, ...] | None) -> str:
    """The class of the image called `name`."""
    if label is None:
        raise DataError(f"'{name}' has no label; training needs one per image")
    if known is None or isinstance(label, str):
        return str(label)
    if not 0 <= label < len(known):
        raise DataError(
            f"'{name}' has the label {label}, but the data set names {len(known)} classes; mend it"
        )
    return known[label]


def _only(source: Source, wanted: Collection[str]) -> Source:
    """The source without the images of other classes, where these are known before decoding."""
    if isinstance(source, StreamSource):
        return _Chosen(source, wanted)
    if isinstance(source, ImageFolder) and source.class_names is not None:
        names = enumerate(source.item_names())
        source.indices = [index for index, name in names if name.split("/")[0] in wanted]
    return source


class _Chosen(StreamSource):
    """The images of a stream that are of the wanted classes."""

    def __init__(self, source: StreamSource, wanted: Collection[str]) -> None:
        self._source, self._wanted = source, wanted
        self.kind, self.name, self.split = source.kind, source.name, source.split
        self.limit, self.fingerprint = source.limit, source.fingerprint
        self.class_names, self.label_kind = source.class_names, source.label_kind

    def stream(self, start: int = 0) -> Iterator[Encoded]:
        """The wanted images, in order."""
        for image in self._source.stream(start):
            if _class(image.name, image.label, self.class_names) in self._wanted:
                yield image
