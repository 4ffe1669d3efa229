"""`--labels FILE`: the acceptable classes of each image, from a CSV or a JSON list."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from probe.data.label_head import HeadLabels, listed
from probe.data.source import Source, StreamSource
from probe.errors import DataError, UsageError, did_you_mean

VALIDATION = re.compile(r"ILSVRC2012_val_([0-9]{8})\b")
FORMS = "a CSV with the columns name,label, or a JSON list with one list of labels per image"


@dataclass(frozen=True)
class FileLabels:
    """The acceptable classes by image name (perhaps none), and the class of each label text."""

    items: dict[str, frozenset[int]]
    map: dict[str, int]
    note: str


def read_label_file(path: str, source: Source, head: HeadLabels) -> FileLabels:
    """Read a label file for the images of `source`.

    A CSV has a header with `name` and `label`; other columns are ignored. A name is an image's name
    in the data set (its relative path) or its base name. A label is a class number, a WordNet id or
    one of the model's label names; several acceptable ones are joined by `|`; an empty field says
    that none is acceptable. Rows for images that are not there are ignored, and counted in `note`.

    A JSON list, such as the ReaL labels of ImageNet (Beyer et al., 2020, arXiv:2006.07159), holds
    a list of labels per image: entry k belongs to `ILSVRC2012_val_{k + 1:08d}` where all images are
    called so, else to image k of the sorted data set, and then the counts must agree.

    Raises:
        UsageError: if there is no such file.
        DataError: if it cannot be read, fits no image, or is ambiguous; the line says where.
    """
    file = Path(path).expanduser()
    if not file.is_file():
        near = sorted(entry.name for entry in file.parent.glob("*")) if file.parent.is_dir() else []
        raise UsageError(f"--labels '{path}' is no file.{did_you_mean(file.name, near)}")
    try:
        text = file.read_text("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"--labels '{path}' cannot be read ({error}); give {FORMS}") from error
    known = None if isinstance(source, StreamSource) else list(source.item_names())
    is_list = text.lstrip().startswith("[")
    rows = _json_rows(path, text, known) if is_list else _csv_rows(path, text)
    return _collect(path, rows, known, head)


def _collect(
    path: str,
    rows: Iterator[tuple[str, str, list[str]]],
    known: list[str] | None,
    head: HeadLabels,
) -> FileLabels:
    bases = _by_base_name(known or [])
    here = set(known or ())
    items: dict[str, frozenset[int]] = {}
    numbers: dict[str, int] = {}
    absent: list[str] = []
    for where, name, labels in rows:
        try:
            item = _item(name, known, here, bases)
            if item is not None:
                numbers.update((text, head.label(text)) for text in labels if text not in numbers)
        except DataError as error:
            raise DataError(f"--labels '{path}', {where}: {error}") from error
        if item is None:
            absent.append(name)
            continue
        if item in items:
            raise DataError(
                f"--labels '{path}', {where}: '{item}' stands there twice; keep one, with "
                "several labels joined by |"
            )
        items[item] = frozenset(numbers[label] for label in labels)
    if not items:
        example = f", such as '{known[0]}'" if known else ""
        seen = f" (its names: {listed(absent)})" if absent else ""
        raise DataError(
            f"--labels '{path}' names no image of the data set{seen}; write their relative "
            f"paths{example}"
        )
    total = "" if known is None else f" of {len(known)}"
    note = f"{len(items)}{total} images labelled by {Path(path).name}"
    empty = sum(not accepted for accepted in items.values())
    note += f", {empty} of them with no acceptable label" if empty else ""
    note += f"; {len(absent)} names in it fit no image" if absent else ""
    return FileLabels(items, numbers, note)


def _by_base_name(names: Sequence[str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name in names:
        found.setdefault(name.rsplit("/", 1)[-1], []).append(name)
    return found


def _item(
    name: str, known: list[str] | None, here: set[str], bases: dict[str, list[str]]
) -> str | None:
    """The image that `name` means, None if there is none; of a stream, whose names come later."""
    if known is None or name in here:
        return name
    fits = bases.get(name, [])
    if len(fits) > 1:
        raise DataError(
            f"'{name}' fits {len(fits)} images ({listed(fits)}); write the relative path"
        )
    return fits[0] if fits else None


def _csv_rows(path: str, text: str) -> Iterator[tuple[str, str, list[str]]]:
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        header = [column.strip() for column in next(reader, [])]
        if any(header.count(column) != 1 for column in ("name", "label")):
            raise DataError(
                f"--labels '{path}' has the columns {', '.join(header) or '(none)'}; give {FORMS}"
            )
        at_name, at_label = header.index("name"), header.index("label")
        for row in filter(None, reader):
            where = f"line {reader.line_num}"
            if len(row) != len(header):
                raise DataError(
                    f"--labels '{path}', {where} has {len(row)} fields and the header "
                    f"{len(header)}; put names with commas in double quotes"
                )
            labels = [label.strip() for label in row[at_label].split("|")]
            yield where, row[at_name].strip(), [label for label in labels if label]
    except csv.Error as error:
        raise DataError(
            f"--labels '{path}', line {reader.line_num}: {error}; give {FORMS}"
        ) from error


def _json_rows(
    path: str, text: str, known: list[str] | None
) -> Iterator[tuple[str, str, list[str]]]:
    try:
        entries = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DataError(f"--labels '{path}' is no valid JSON ({error}); give {FORMS}") from error
    if known is None:
        raise DataError(
            f"--labels '{path}' is a list, and a streamed data set has no order that it could "
            "follow; write a CSV with the columns name,label"
        )
    found = [VALIDATION.match(name.rsplit("/", 1)[-1]) for name in known]
    numbers = [int(match[1]) - 1 for match in found if match is not None]
    if len(numbers) < len(known):
        if len(entries) != len(known):
            raise DataError(
                f"--labels '{path}' has {len(entries)} entries for {len(known)} images, which are "
                "not called ILSVRC2012_val_...; write a CSV with the columns name,label"
            )
        numbers = list(range(len(known)))
    for name, number in zip(known, numbers, strict=True):
        if not 0 <= number < len(entries):
            raise DataError(
                f"--labels '{path}' has {len(entries)} entries, none for '{name}'; give the list "
                "for all validation images"
            )
        yield f"entry {number}", name, _texts(path, number, entries[number])


def _texts(path: str, number: int, entry: Any) -> list[str]:
    labels = entry if isinstance(entry, list) else [entry]
    if any(isinstance(label, bool) or not isinstance(label, int | str) for label in labels):
        raise DataError(
            f"--labels '{path}', entry {number} is {json.dumps(entry)[:40]}; write a list of class "
            "numbers or names"
        )
    return [str(label) for label in labels]
