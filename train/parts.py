"""The three parts of a training data set, over the same classes."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from probe.data.open import BUILT_IN, open_data
from probe.data.source import Source
from probe.errors import DataError, UsageError, did_you_mean
from probe.types import Preprocess
from train.recipe import Recipe
from train.sections import Data
from train.stored import Stored, store


@dataclass(frozen=True)
class Part:
    """Images (total, height, width, 3) uint8, the `rows` that belong to the part, their classes."""

    images: np.ndarray
    rows: np.ndarray
    labels: np.ndarray

    def __len__(self) -> int:
        """Number of images of the part."""
        return len(self.rows)

    def __getstate__(self) -> dict[str, Any]:
        """Processes that are spawned map the file anew; a pickled map would be a copy of it."""
        images = self.images
        if not isinstance(images, np.memmap) or images.filename is None:
            return self.__dict__
        return self.__dict__ | {"images": (str(images.filename), images.shape)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Put the fields back."""
        if isinstance(state["images"], tuple):
            path, shape = state["images"]
            state = state | {"images": np.memmap(path, dtype=np.uint8, mode="r", shape=shape)}
        self.__dict__.update(state)


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

    def stored(part: str, preprocess: Preprocess) -> Stored:
        source = open_part(wanted.source, part)
        if chosen is not None and source.class_names is not None:
            _require(chosen, source.class_names, part, wanted.classes)
        return store(source, part, preprocess, chosen, cache, workers, report)

    train, test = stored(wanted.train, fitting), stored(wanted.test, seen)
    classes = _classes(train, chosen, wanted)
    whole = _part(train, classes, wanted.train)
    data: dict[str, Any] = {"source": wanted.source, "train": train.fingerprint}
    if isinstance(held_out, str):
        other = stored(held_out, seen)
        validation, data["validation"] = _part(other, classes, held_out), other.fingerprint
    else:
        whole, validation = _hold_out(whole, held_out, classes)
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
    if source == "photos":
        raise DataError("photos have no labels to learn from; give --data digits, or a folder")
    folder = Path(os.path.expanduser(source))
    if source not in BUILT_IN and not source.startswith("hf:") and folder.is_dir():
        inside = folder / part
        if inside.is_dir():
            return open_data(str(inside))
        if not any(folder.rglob("*.parquet")):
            found = sorted(entry.name for entry in folder.iterdir() if entry.is_dir())
            raise DataError(
                f"'{source}' has no folder '{part}' (it has: {', '.join(found[:8]) or 'none'})."
                f"{did_you_mean(part, found)} Name its parts with --set data.{{train,validation,"
                "test}=NAME"
            )
    return open_data(source, split=part)


def class_list(name: str) -> tuple[str, ...]:
    """The classes of a shipped list, or of a file with one per line.

    Raises:
        UsageError: if there is neither, or it names no class.
    """
    folder = Path(str(resources.files("train"))) / "classes"
    shipped = {path.stem: path for path in folder.glob("*.txt")}
    path = shipped.get(name, Path(name))
    if not path.is_file():
        raise UsageError(
            f"there is no class list '{name}'.{did_you_mean(name, shipped)} Lists: "
            f"{', '.join(sorted(shipped))}, or a file with one class per line"
        )
    try:
        lines = [line.strip() for line in path.read_text("utf-8").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"the class list '{name}' cannot be read ({error})") from error
    found = tuple(dict.fromkeys(line for line in lines if line and not line.startswith("#")))
    if not found:
        raise UsageError(f"the class list '{name}' names no class; write one per line")
    return found


def _require(chosen: Sequence[str], there: Collection[str], part: str, called: str | None) -> None:
    """Refuse chosen classes that a part does not have."""
    known = frozenset(there)
    missing = [name for name in chosen if name not in known]
    if missing:
        raise DataError(
            f"{len(missing)} of the {len(chosen)} classes of '{called}' are not in the part "
            f"'{part}', the first '{missing[0]}'; choose another --set data.classes"
        )


def _classes(train: Stored, chosen: Sequence[str] | None, wanted: Data) -> tuple[str, ...]:
    there = train.known or tuple(sorted(set(train.names)))
    if chosen is not None:
        _require(chosen, there, wanted.train, wanted.classes)
        there = tuple(name for name in there if name in frozenset(chosen))
    if len(there) < 2:
        raise DataError(f"the training part has {len(there)} class; a classifier needs two or more")
    return there


def _part(stored: Stored, classes: Sequence[str], part: str) -> Part:
    """The images of a part with their labels; what is stored is of chosen classes alone."""
    index = {name: number for number, name in enumerate(classes)}
    other = next((name for name in stored.names if name not in index), None)
    if other is not None:
        raise DataError(
            f"the part '{part}' has the class '{other}', which the training part lacks; give parts "
            "of the same classes, or choose them with --set data.classes"
        )
    labels = np.array([index[name] for name in stored.names], dtype=np.int64)
    there = frozenset(stored.names)
    empty = [name for name in classes if name not in there]
    if empty:
        raise DataError(
            f"the part '{part}' has no image of class '{empty[0]}'"
            + (f" and {len(empty) - 1} more" if len(empty) > 1 else "")
            + "; every part needs all classes"
        )
    return Part(stored.images, np.arange(len(labels)), labels)


def _hold_out(whole: Part, share: float, classes: Sequence[str]) -> tuple[Part, Part]:
    """A seeded share of each class, one image at least, goes to the second part."""
    held = np.zeros(len(whole), dtype=bool)
    for label, name in enumerate(classes):
        members = np.flatnonzero(whole.labels == label)
        generator = np.random.Generator(np.random.PCG64(np.random.SeedSequence([0, label])))
        count = max(1, round(share * len(members)))
        if count == len(members):
            raise DataError(
                f"holding {share:g} of class '{name}' out leaves none of its {count} images to "
                "train on; give more, or a smaller --set data.validation"
            )
        held[generator.permutation(members)[:count]] = True
    return (
        Part(whole.images, whole.rows[~held], whole.labels[~held]),
        Part(whole.images, whole.rows[held], whole.labels[held]),
    )
