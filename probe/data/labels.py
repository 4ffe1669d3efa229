"""From a data set's labels to the classes of a model's head; what cannot be told is refused."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from probe.data.label_file import read_label_file
from probe.data.label_head import WORDNET_ID, HeadLabels, listed
from probe.data.source import Label, Source
from probe.errors import DataError

MapKind = Literal["classlabel", "wnid", "folder", "file"]
USE_FILE = "give --labels FILE (name,label)"
# Kinds of source that hold labels only where they have class names.
NAMED_ONLY = ("photos", "folder")


@dataclass(frozen=True)
class LabelMap:
    """Which classes of the head are right for an image.

    Attributes:
        kind: what told: the data set's class names, WordNet ids, the order of sorted folders, or a
            file.
        map: class of the head by label, as the data set or the file writes it.
        note: how labels were mapped, in a line for the user.
        classes: width of the head.
        names: the data set's class names by label index, None where it has none.
        items: acceptable classes by image name; None where the data set's own labels are used.
    """

    kind: MapKind
    map: Mapping[str, int]
    note: str
    classes: int
    names: tuple[str, ...] | None = None
    items: Mapping[str, frozenset[int]] | None = None

    def describe(self) -> dict[str, Any]:
        """What a record keeps: the kind, the map, and a hash of labels given by image name."""
        digest = None
        if self.items is not None:
            pairs = sorted((name, sorted(classes)) for name, classes in self.items.items())
            digest = hashlib.sha256(json.dumps(pairs).encode()).hexdigest()
        return {"kind": self.kind, "map": dict(self.map), "note": self.note, "by_name": digest}

    def accepts(self, item_name: str, raw_label: Label) -> frozenset[int] | None:
        """The classes of which any is a correct prediction; None: leave the image out, count it.

        `raw_label` is the item's label as its source gives it.

        Raises:
            DataError: if the label is none that the map knows, or outside the head.
        """
        if self.items is not None:
            return self.items.get(item_name) or None
        if raw_label is None:
            return None
        name = str(raw_label)
        if self.names is not None and isinstance(raw_label, int):
            if not 0 <= raw_label < len(self.names):
                raise DataError(
                    f"label {raw_label} of '{item_name}' is outside the data set's "
                    f"{len(self.names)} class names; {USE_FILE}"
                )
            name = self.names[raw_label]
        if name not in self.map:
            raise DataError(
                f"label '{raw_label}' of '{item_name}' is none of the labels that map to the "
                f"model's head (classes 0 to {self.classes - 1}); {USE_FILE}"
            )
        return frozenset((self.map[name],))


def map_labels(
    source: Source,
    labels_seen: Iterable[Label] | None,
    classes: int,
    model_names: Sequence[str] | None,
    file: str | None,
) -> LabelMap:
    """Find the class of the head for every label of `source`.

    With class names (folders, ClassLabel columns), the first of these that fits all of them:

    1. the model's own label names, or ImageNet's for a head of its width without names;
    2. WordNet ids, where the head is ImageNet's by its width (1,000, or one of the 21k variants
       that timm's `ImageNetInfo` knows); a subset of the classes will do;
    3. order, when there are as many classes as outputs and no name says otherwise.

    Without class names: text by 1 and 2; whole numbers from Python are classes of the head;
    whole numbers in a file's plain column are, if they are exactly 0 .. classes - 1.

    Args:
        source: the data set.
        labels_seen: its labels, None if they are not known yet; then the whole head is mapped
            where there are no class names, and `LabelMap.accepts` refuses what does not fit.
        classes: width of the head.
        model_names: the model's label names by class, None if it has none.
        file: a label file, which replaces the data set's labels.

    Raises:
        DataError: if the data set has no labels, or they cannot be mapped without a guess.
        UsageError: if the label file does not exist.
    """
    head = HeadLabels(classes, model_names)
    if file is not None:
        found = read_label_file(file, source, head)
        return LabelMap("file", found.map, found.note, classes, items=found.items)
    seen = None if labels_seen is None else {label for label in labels_seen if label is not None}
    unnamed = source.class_names is None
    if seen == set() or (unnamed and source.kind in NAMED_ONLY):
        raise DataError(
            f"'{source.name}' has no labels, which accuracy and FS need; ask for agreement "
            f"fragility (--measure agreement), which needs none, or {USE_FILE}"
        )
    if source.class_names is not None:
        return _by_class_names(source, source.class_names, head)
    if seen is None:
        return _whole_head(source, head)
    return _by_values(source, seen, head)


def check_for_fragility(labels: LabelMap) -> None:
    """Refuse FS on a data set with one class, where a constant answer is never fragile.

    Raises:
        DataError: if all labels map to one class.
    """
    if labels.items is None:
        found = set(labels.map.values())
    else:
        found = {index for accepted in labels.items.values() for index in accepted}
    if len(found) < 2:
        name = next(iter(labels.map), "none")
        raise DataError(
            f"the data set has one class ('{name}'), so FS would say nothing about telling classes "
            "apart; add images of others, or ask for agreement fragility (--measure agreement)"
        )


def _by_class_names(source: Source, names: tuple[str, ...], head: HeadLabels) -> LabelMap:
    kind: MapKind = source.label_kind or "classlabel"
    found = _by_names(names, head)
    if found is not None:
        indices, by_wordnet, note = found
        if by_wordnet:
            kind = "wnid"
    else:
        indices, note = _by_order(source, names, head)
        kind = "folder" if kind == "wnid" else kind
    return LabelMap(kind, dict(zip(names, indices, strict=True)), note, head.classes, names)


def _by_names(names: Sequence[str], head: HeadLabels) -> tuple[list[int], bool, str] | None:
    """Classes by the head's names or by WordNet id; None if one of `names` fits neither."""
    wordnet = all(WORDNET_ID.fullmatch(name) for name in names)
    own = [head.named(name) for name in names]
    note = f"by {head.whose}"
    if len(names) == head.classes and all(index in fits for index, fits in enumerate(own)):
        return list(range(len(names))), wordnet, note
    if all(len(fits) == 1 for fits in own):
        indices = [next(iter(fits)) for fits in own]
        if len(set(indices)) == len(indices):
            return indices, wordnet, note
    if wordnet and all(name in head.wordnet for name in names):
        which = f"of {head.subset}" if head.subset else "in the model's label names"
        return [head.wordnet[name] for name in names], True, f"by the WordNet ids {which}"
    return None


def _by_order(source: Source, names: tuple[str, ...], head: HeadLabels) -> tuple[list[int], str]:
    what = "folders" if source.kind == "folder" else "classes"
    if len(names) != head.classes or (head.wordnet and _wordnet(names)):
        raise DataError(_why_not(source, names, head, what))
    for index, name in enumerate(names):
        fits = head.named(name)
        if fits and index not in fits:
            raise DataError(
                f"class '{name}' is number {index} in '{source.name}', but {head.whose} "
                f"have it at {listed(sorted(fits))}, and other names do not match; {USE_FILE}"
            )
    order = "folders, sorted by name," if what == "folders" else "class numbers"
    note = f"by order: as many {order} as the head has outputs"
    return list(range(len(names))), note


def _why_not(source: Source, names: tuple[str, ...], head: HeadLabels, what: str) -> str:
    """Why neither names nor order map the classes of `source`, and what to do."""
    counts = f"'{source.name}' has {len(names)} {what} and the model {head.classes} outputs"
    ids = _wordnet(names)
    if head.wordnet and ids:
        strange = [name for name in names if name not in head.wordnet]
        kind = "WordNet ids of its classes"
    elif head.names is not None:
        strange = [name for name in names if len(head.named(name)) != 1]
        kind = f"single ones of {head.whose}"
    else:
        return (
            f"{counts}, and the model has no label names to go by; choose a model for this data, "
            f"or {USE_FILE}"
        )
    if not strange:
        return f"{counts}, and several {what} have one label name; {USE_FILE}"
    advice = "choose a model for this data" if len(strange) == len(names) else "leave them out"
    return (
        f"{counts}; {len(strange)} of the {what} are no {kind} ({listed(strange)}): {advice}, or "
        f"{USE_FILE}"
    )


def _wordnet(names: Iterable[str]) -> list[str]:
    return [name for name in names if WORDNET_ID.fullmatch(name)]


def _by_values(source: Source, seen: set[int | str], head: HeadLabels) -> LabelMap:
    """Labels without class names, all of them known."""
    numbers = sorted(label for label in seen if isinstance(label, int))
    texts = sorted(label for label in seen if isinstance(label, str))
    if numbers and texts:
        raise DataError(
            f"'{source.name}' mixes whole numbers and text as labels ({numbers[0]}, "
            f"'{texts[0]}'); {USE_FILE}"
        )
    if texts:
        found = _by_names(texts, head)
        if found is None:
            raise DataError(_why_not(source, tuple(texts), head, "labels"))
        indices, by_wordnet, note = found
        kind: MapKind = "wnid" if by_wordnet else "classlabel"
        return LabelMap(kind, dict(zip(texts, indices, strict=True)), note, head.classes)
    if source.kind != "memory" and numbers != list(range(head.classes)):
        raise DataError(
            f"'{source.name}' labels its images {listed(numbers)} without class names, which may "
            f"count otherwise than the model's {head.classes} outputs; {USE_FILE}"
        )
    numbered = {str(number): head.inside(number) for number in numbers}
    return LabelMap("classlabel", numbered, "labels are classes of the head", head.classes)


def _whole_head(source: Source, head: HeadLabels) -> LabelMap:
    """Labels without class names that are not known yet: everything that the head is called."""
    known = dict(head.wordnet)
    for name in head.names or ():
        fits = head.named(name)
        if len(fits) == 1:
            known[name] = next(iter(fits))
    if source.kind == "memory":
        known.update({str(index): index for index in range(head.classes)})
    if not known:
        raise DataError(
            f"'{source.name}' has no class names, and neither has the model; {USE_FILE}"
        )
    return LabelMap("classlabel", known, "labels are names of the head's classes", head.classes)
