"""Images in parquet files as the datasets library and the hub write them."""

from __future__ import annotations

import json
import os
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from itertools import accumulate
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from probe.data.columns import Columns, choose_columns, row_label
from probe.data.decode import decode
from probe.data.source import IndexedSource, Item
from probe.errors import DataError, UnreadableImage, UsageError, did_you_mean

# Rows that are decompressed together; all that is ever held of a file.
ROWS = 32


class Parquet(IndexedSource):
    """The rows of one or more parquet files, in order of (relative path of the file, row).

    The image column has the Image feature of the datasets library, or is a struct of `bytes` and
    `path`; the label column has the ClassLabel feature (`probe.data.columns` says which is taken
    when there are several). Rows are read as they are asked for, a few at a time: going forward is
    fast, going back starts a row group again.
    """

    kind = "parquet"

    def __init__(
        self,
        folder: str,
        files: list[str],
        name: str | None = None,
        split: str | None = None,
        limit: int | None = None,
    ) -> None:
        """Take all rows, or `limit` of them, of `files` (relative to `folder`, sorted).

        `split` keeps the files called `SPLIT.parquet` or `SPLIT-....parquet`.

        Raises:
            DataError: if the files hold no rows or no image column, or differ in their columns.
            UsageError: if `split` fits no file.
        """
        self.split = split
        self._folder = folder
        self._files = _of_split(files, split)
        opened = [self._open(file) for file in self._files]
        features = [
            _columns(file, parquet) for file, parquet in zip(self._files, opened, strict=True)
        ]
        for file, found in zip(self._files, features, strict=True):
            if found != features[0]:
                raise DataError(
                    f"'{file}' and '{self._files[0]}' differ in their image or label columns; "
                    "give them one by one"
                )
        self._columns = features[0]
        self.class_names = self._columns.class_names
        self.label_kind = "classlabel" if self.class_names is not None else None
        # First index of every row group, and where that group is.
        self._groups = [
            (number, group) for number, p in enumerate(opened) for group in range(p.num_row_groups)
        ]
        counts = [opened[n].metadata.row_group(g).num_rows for n, g in self._groups]
        self._starts = [0, *accumulate(counts)]
        first_groups = [sum(p.num_row_groups for p in opened[:n]) for n in range(len(opened))]
        self._file_starts = [self._starts[group] for group in first_groups]
        self._cursor: _Cursor | None = None
        for parquet in opened:
            parquet.close()
        if self._starts[-1] == 0:
            raise DataError(f"'{name or folder}' holds no rows; give parquet files with images")
        super().__init__(name or folder, self._starts[-1], limit)

    def __getstate__(self) -> dict[str, Any]:
        """Everything but the open file, for worker processes."""
        return {**self.__dict__, "_cursor": None}

    def read(self, position: int) -> Item:
        """The image at `position`; its name is `FILE#ROW`.

        Raises:
            UnreadableImage: if the row holds no whole image.
        """
        index = self.indices[position]
        name = self._name(index)
        row = self._row(index)
        data, path = _image_bytes(row[self._columns.image])
        if data is None:
            found = f"only the path '{path}'" if path else "nothing"
            raise UnreadableImage(name, f"the row holds no image bytes, {found}")
        return Item(index, name, decode(data, name), row_label(row, self._columns))

    def item_names(self) -> Iterable[str]:
        """`FILE#ROW` with the relative path of the file."""
        return map(self._name, range(self.total))

    def content(self, position: int) -> bytes | None:
        """The image's bytes and the label."""
        row = self._row(self.indices[position])
        data, _ = _image_bytes(row[self._columns.image])
        return None if data is None else data + repr(row_label(row, self._columns)).encode()

    def _name(self, index: int) -> str:
        number = bisect_right(self._file_starts, index) - 1
        return f"{self._files[number]}#{index - self._file_starts[number]}"

    def _row(self, index: int) -> dict[str, Any]:
        group = bisect_right(self._starts, index) - 1
        row = index - self._starts[group]
        try:
            if self._cursor is None or not self._cursor.reaches(group, row):
                if self._cursor is not None:
                    self._cursor.file.close()
                number, inside = self._groups[group]
                file = self._open(self._files[number])
                self._cursor = _Cursor(file, group, inside, self._columns)
            return self._cursor.row(row)
        except (pa.ArrowException, OSError) as error:
            reason = str(error).splitlines()[0]
            raise DataError(f"cannot read {self._name(index)}: {reason}; fetch it anew") from error

    def _open(self, file: str) -> pq.ParquetFile:
        path = os.path.join(self._folder, file)
        try:
            return pq.ParquetFile(path, memory_map=True, pre_buffer=False)
        except (pa.ArrowException, OSError) as error:
            reason = str(error).splitlines()[0]
            raise DataError(
                f"'{path}' is no whole parquet file: {reason}; fetch it anew"
            ) from error


class _Cursor:
    """A place in one row group, which moves forward `ROWS` rows at a time."""

    def __init__(self, file: pq.ParquetFile, group: int, inside: int, columns: Columns) -> None:
        names = [columns.image, *([] if columns.label is None else [columns.label])]
        self.file = file
        self._group = group
        self._batches: Iterator[pa.RecordBatch] = file.iter_batches(
            ROWS, row_groups=[inside], columns=names
        )
        self._first = 0
        self._rows: pa.RecordBatch | None = None

    def reaches(self, group: int, row: int) -> bool:
        return group == self._group and row >= self._first

    def row(self, row: int) -> dict[str, Any]:
        while self._rows is None or row >= self._first + self._rows.num_rows:
            self._first += 0 if self._rows is None else self._rows.num_rows
            self._rows = next(self._batches)
        return self._rows.slice(row - self._first, 1).to_pylist()[0]


def _of_split(files: list[str], split: str | None) -> list[str]:
    if split is None:
        return files
    stems = [os.path.splitext(file.rsplit("/", 1)[-1])[0] for file in files]
    kept = [
        file
        for file, stem in zip(files, stems, strict=True)
        if stem == split or stem.startswith(f"{split}-")
    ]
    if not kept:
        known = sorted({stem.split("-", 1)[0] for stem in stems})
        raise UsageError(
            f"no parquet file is called '{split}.parquet' or '{split}-...' (there are: "
            f"{', '.join(known[:8])}).{did_you_mean(split, known)}"
        )
    return kept


def _columns(file: str, parquet: pq.ParquetFile) -> Columns:
    schema = parquet.schema_arrow
    stored = (schema.metadata or {}).get(b"huggingface")
    try:
        features = dict(json.loads(stored)["info"]["features"]) if stored else {}
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"'{file}' carries 'huggingface' metadata that cannot be read; write it anew"
        ) from error
    # Sequences stand there as lists.
    plain = {name: kind for name, kind in features.items() if isinstance(kind, dict)}
    images = [
        field.name
        for field in schema
        if plain.get(field.name, {}).get("_type") == "Image" or _is_image_struct(field.type)
    ]
    classes = {
        name: tuple(kind["names"])
        for name, kind in plain.items()
        if kind.get("_type") == "ClassLabel" and kind.get("names")
    }
    return choose_columns(file, schema.names, images, classes)


def _is_image_struct(kind: pa.DataType) -> bool:
    return pa.types.is_struct(kind) and {f.name for f in kind} == {"bytes", "path"}


def _image_bytes(cell: Any) -> tuple[bytes | None, str | None]:
    """Bytes and path of an image cell, which may be a struct, bare bytes, or a path."""
    if isinstance(cell, dict):
        return cell.get("bytes"), cell.get("path")
    if isinstance(cell, bytes):
        return cell, None
    return None, cell
