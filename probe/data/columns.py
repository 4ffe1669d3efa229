"""Which columns of a table are the image and its label; shared by parquet files and the hub."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from probe.data.source import Label
from probe.errors import DataError


@dataclass(frozen=True)
class Columns:
    """The chosen columns. `class_names` is None where the label column is no ClassLabel."""

    image: str
    label: str | None
    class_names: tuple[str, ...] | None


def choose_columns(
    where: str,
    names: Sequence[str],
    images: Sequence[str],
    classes: Mapping[str, tuple[str, ...]],
) -> Columns:
    """The image column is the only one, else the one called `image`; labels likewise.

    The label column is the only ClassLabel, else the one called `label` among several; without any,
    a plain column called `label`, whose values are kept as they are. With several and none called
    `label` there are no labels.

    Args:
        where: what to call the table in errors.
        names: all columns.
        images: those that hold images.
        classes: class names of those that hold class labels.

    Raises:
        DataError: if no column, or no single one, holds images.
    """
    if len(images) == 1:
        image = images[0]
    elif "image" in images:
        image = "image"
    elif images:
        raise DataError(
            f"'{where}' has several image columns ({', '.join(images)}); keep one, or "
            "call one image"
        )
    else:
        raise DataError(
            f"'{where}' has no image column (its columns: {', '.join(names)}); one needs the Image "
            "feature of the datasets library, or the fields bytes and path"
        )
    if len(classes) == 1:
        label = next(iter(classes))
    elif "label" in classes or (not classes and "label" in names):
        label = "label"
    else:
        return Columns(image, None, None)
    return Columns(image, label, classes.get(label))


def row_label(row: Mapping[str, Any], columns: Columns) -> Label:
    """The label of a row: an index into the class names, or the stored whole number or text.

    None where the data set has no label (-1 by the datasets library's convention), or where what
    it stores is neither.
    """
    value = None if columns.label is None else row[columns.label]
    if columns.class_names is not None and value == -1:
        return None
    return value if isinstance(value, int | str) and not isinstance(value, bool) else None
