"""The three parts of a training data set, decoded and resized once into a memory map."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock

from probe.data.folder import ImageFolder
from probe.data.loader import batches
from probe.data.open import open_data
from probe.data.preprocess import describe
from probe.data.source import Source
from probe.errors import DataError, StoreError, UsageError, did_you_mean
from probe.types import Preprocess
from train.recipe import Recipe


@dataclass(frozen=True)
class Part:
    """Images (total, height, width, 3) uint8, the `rows` that belong to the part, their classes."""

    images: np.ndarray
    rows: np.ndarray
    labels: np.ndarray

    def __len__(self) -> int:
        """Number of images of the part."""
        return len(self.rows)


@dataclass(frozen=True)
class Parts:
    """Training, validation and test part, over the same classes.

    `data` says which they are: source, fingerprint and number of images of each, and the hash of
    all that, ready for JSON.
    """

    train: Part
    validation: Part
    test: Part
    class_names: tuple[str, ...]
    data: dict[str, Any]


@dataclass(frozen=True)
class _Stored:
    images: np.ndarray
    names: list[str]  # the class of each image
    known: tuple[str, ...] | None  # the data set's own class names
    fingerprint: str


def load_parts(
    recipe: Recipe, cache: Path, workers: int = 0, report: Callable[[str], None] = lambda line: None
) -> Parts:
    """Decode what is not in `cache` yet, and cut it into parts.

    The training part is stored at `augment.stored` pixels, where that is given.

    Raises:
        DataError: if a part is missing or unreadable, has an image without a label, or a class
            without images; if there are fewer than two classes, or fewer images than a batch.
        UsageError: if the class list is unknown.
    """
    wanted = recipe.data
    size, held_out = recipe.augment.stored, wanted.validation
    seen = recipe.image.preprocess()
    fitting = recipe.image.preprocess(size)
    if size is not None and fitting.resize is None:
        raise UsageError("augment.stored resizes images, but image.resize is none; choose one")
    chosen = None if wanted.classes is None else class_list(wanted.classes)

    def stored(part: str, preprocess: Preprocess) -> _Stored:
        return _store(
            open_part(wanted.source, part), part, preprocess, chosen, cache, workers, report
        )

    train, test = stored(wanted.train, fitting), stored(wanted.test, seen)
    classes = _classes(train, chosen, wanted.classes)
    whole = _part(train, classes, wanted.train)
    data: dict[str, Any] = {"source": wanted.source, "train": train.fingerprint}
    if isinstance(held_out, str):
        other = stored(held_out, seen)
        validation, data["validation"] = _part(other, classes, held_out), other.fingerprint
    else:
        whole, validation = _hold_out(whole, held_out)
        data["validation"] = f"{held_out:g} of each class of the training part"
        if size is not None:
            validation = replace(validation, images=stored(wanted.train, seen).images)
    tested = _part(test, classes, wanted.test)
    data["test"] = test.fingerprint
    data["images"] = {
        "train": len(whole), "validation": len(validation), "test": len(tested)
    }  # fmt: skip
    data["classes"] = len(classes)
    text = json.dumps([data | {"source": None}, classes])
    data["fingerprint"] = f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"
    if len(whole) < recipe.train.batch:
        raise DataError(
            f"the training part has {len(whole)} images, fewer than a batch of "
            f"{recipe.train.batch}; give more, or --set train.batch"
        )
    return Parts(whole, validation, tested, classes, data)


def open_part(source: str, part: str) -> Source:
    """A split of a data set, or the folder of that name inside a folder.

    Raises:
        ProbeError: if there is no such part.
    """
    folder = Path(os.path.expanduser(source))
    if not source.startswith("hf:") and folder.is_dir():
        inside = folder / part
        if inside.is_dir():
            return open_data(str(inside))
        if not any(folder.glob("*.parquet")):
            found = sorted(entry.name for entry in folder.iterdir() if entry.is_dir())
            raise DataError(
                f"'{source}' has no folder '{part}' (it has: {', '.join(found[:8]) or 'none'})."
                f"{did_you_mean(part, found)} Name its parts with --set data.{{train,validation,"
                "test}=NAME"
            )
    return open_data(source, split=part)


def _store(
    source: Source,
    part: str,
    preprocess: Preprocess,
    chosen: Sequence[str] | None,
    cache: Path,
    workers: int,
    report: Callable[[str], None],
) -> _Stored:
    if chosen is not None and isinstance(source, ImageFolder):
        # Only these are decoded: a tenth of ImageNet, say.
        names = enumerate(source.item_names())
        source.indices = [index for index, name in names if name.split("/")[0] in set(chosen)]
    geometry = {k: v for k, v in describe(preprocess).items() if k not in ("mean", "std", "source")}
    key = hashlib.sha256(json.dumps([source.fingerprint, part, geometry]).encode()).hexdigest()[:20]
    folder = cache / key
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with FileLock(cache / f"{key}.lock"):
            if not (folder / "labels.json").is_file():
                report(f"storing {source.name}, {part}, at {preprocess.size[0]} px")
                _decode(source, preprocess, folder, workers)
    except OSError as error:
        raise StoreError(
            f"cannot store images in {cache}: {error.strerror or error}; free space, or choose "
            "another --cache"
        ) from error
    found = json.loads((folder / "labels.json").read_text("utf-8"))
    shape = (len(found["names"]), *preprocess.size, 3)
    images = np.memmap(folder / "images.u8", dtype=np.uint8, mode="r", shape=shape)
    return _Stored(images, found["names"], source.class_names, source.fingerprint)


def _decode(source: Source, preprocess: Preprocess, folder: Path, workers: int) -> None:
    """Write `images.u8` and `labels.json`, both or none."""
    new = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}."))
    names: list[str] = []
    try:
        with (new / "images.u8").open("wb") as file:
            for batch in batches(source, preprocess, 256, workers):
                if batch.skipped:
                    name, reason = batch.skipped[0]
                    raise DataError(
                        f"cannot train on '{name}': {reason}; repair or remove it, so that every "
                        "run sees the same images"
                    )
                for name, label in zip(batch.names, batch.labels, strict=True):
                    if label is None:
                        raise DataError(f"'{name}' has no label; training needs one per image")
                    known = source.class_names
                    names.append(known[label] if known and isinstance(label, int) else str(label))
                file.write(batch.images.numpy().tobytes())
        (new / "labels.json").write_text(json.dumps({"names": names}), "utf-8")
        shutil.rmtree(folder, ignore_errors=True)
        new.replace(folder)
    except BaseException:
        shutil.rmtree(new, ignore_errors=True)
        raise


def class_list(name: str) -> tuple[str, ...]:
    """The classes of a shipped list, or of a file with one per line.

    Raises:
        UsageError: if there is neither.
    """
    folder = Path(str(resources.files("train"))) / "classes"
    shipped = {path.stem: path for path in folder.glob("*.txt")}
    path = shipped.get(name, Path(name))
    if not path.is_file():
        raise UsageError(
            f"there is no class list '{name}'.{did_you_mean(name, shipped)} Lists: "
            f"{', '.join(sorted(shipped))}, or a file with one class per line"
        )
    lines = [line.strip() for line in path.read_text("utf-8").splitlines()]
    return tuple(dict.fromkeys(line for line in lines if line and not line.startswith("#")))


def _classes(train: _Stored, chosen: Sequence[str] | None, called: str | None) -> tuple[str, ...]:
    there = train.known or tuple(sorted(set(train.names)))
    if chosen is not None:
        missing = [name for name in chosen if name not in there]
        if missing:
            raise DataError(
                f"{len(missing)} of the {len(chosen)} classes of '{called}' are not in the "
                f"training part, the first '{missing[0]}'; choose another --set data.classes"
            )
        there = tuple(name for name in there if name in set(chosen))
    if len(there) < 2:
        raise DataError(f"the training part has {len(there)} class; a classifier needs two or more")
    return there


def _part(stored: _Stored, classes: Sequence[str], part: str) -> Part:
    index = {name: number for number, name in enumerate(classes)}
    labels = np.array([index.get(name, -1) for name in stored.names], dtype=np.int64)
    rows = np.flatnonzero(labels >= 0)
    empty = [name for name in classes if index[name] not in set(labels[rows].tolist())]
    if empty:
        raise DataError(
            f"the part '{part}' has no image of class '{empty[0]}'"
            + (f" and {len(empty) - 1} more" if len(empty) > 1 else "")
            + "; every part needs all classes"
        )
    return Part(stored.images, rows, labels[rows])


def _hold_out(whole: Part, share: float) -> tuple[Part, Part]:
    """A seeded share of each class, one image at least, goes to the second part."""
    held = np.zeros(len(whole), dtype=bool)
    for label in np.unique(whole.labels):
        members = np.flatnonzero(whole.labels == label)
        generator = np.random.Generator(np.random.PCG64(np.random.SeedSequence([0, int(label)])))
        count = max(1, round(share * len(members)))
        held[generator.permutation(members)[:count]] = True
    return (
        Part(whole.images, whole.rows[~held], whole.labels[~held]),
        Part(whole.images, whole.rows[held], whole.labels[held]),
    )
