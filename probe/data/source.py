"""What a data source is: named, counted, fingerprinted images, by position or as a stream.

`index` is an image's place in the full sorted data set, before `--limit`; `position` is its rank
among the images that are taken. RPI seeds on the first, jackknife groups on the second.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal

from probe.errors import UsageError

if TYPE_CHECKING:
    from PIL import Image

Label = int | str | None
LabelKind = Literal["classlabel", "wnid", "folder"]
OURS: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True)
class Item:
    """One decoded image.

    `image` is 8-bit RGB, upright (EXIF applied). `label` indexes the source's `class_names` where
    it has them, else it is the value the data set stores; None without a label.
    """

    index: int
    name: str
    image: Image.Image
    label: Label


@dataclass(frozen=True)
class Encoded:
    """One image of a stream, still in its file format, so that threads can decode it."""

    index: int
    name: str
    data: bytes
    label: Label

    def decode(self) -> Item:
        """The decoded image.

        Raises:
            UnreadableImage: if the bytes are no whole image.
        """
        from probe.data.decode import decode

        return Item(self.index, self.name, decode(self.data, self.name), self.label)


def check_limit(limit: int | None) -> None:
    """Refuse a limit that takes no image.

    Raises:
        UsageError: if `limit` is below 1.
    """
    if limit is not None and limit < 1:
        raise UsageError(f"--limit must be at least 1, got {limit}")


def subset(n: int, limit: int | None) -> list[int]:
    """The indices that `limit` takes from n sorted images: floor(i * n / limit), evenly spread.

    All n are taken when `limit` is None or at least n.

    Raises:
        UsageError: if `limit` is below 1.
    """
    check_limit(limit)
    if limit is None or limit >= n:
        return list(range(n))
    return [i * n // limit for i in range(limit)]


class Fingerprint:
    """BLAKE2b over a sequence of byte strings, each framed by its length."""

    def __init__(self) -> None:
        """Start empty."""
        self._hash = hashlib.blake2b(digest_size=16)

    def add(self, part: bytes | str | None) -> None:
        """Append one part; None (unreadable content) differs from every byte string."""
        if isinstance(part, str):
            # File names that are not UTF-8 arrive with surrogates.
            part = part.encode("utf-8", "surrogateescape")
        self._hash.update(b"-" if part is None else b"%d:" % len(part))
        self._hash.update(part or b"")

    def __str__(self) -> str:
        """`blake2b:` and 32 hexadecimal digits."""
        return f"blake2b:{self._hash.hexdigest()}"


class IndexedSource(ABC):
    """Images that can be read in any order.

    Attributes:
        name: as the user typed it.
        kind: photos, digits, folder, parquet or memory.
        split: the part of the data set that was asked for, None where there are no parts.
        total: number of images n before `--limit`.
        indices: index of each taken image, by position.
        class_names: names by label index, None where labels have none.
        label_kind: what `class_names` holds: a data set's own class names, WordNet ids, or folder
            names that are no WordNet ids.
        packages: the package that adds the source, with version and code; nothing for our own.
    """

    kind: str
    split: str | None = None
    class_names: tuple[str, ...] | None = None
    label_kind: LabelKind | None = None
    packages: Mapping[str, str] = OURS

    def __init__(self, name: str, total: int, limit: int | None) -> None:
        """Take `limit` of `total` images (see `subset`)."""
        self.name = name
        self.total = total
        self.indices = subset(total, limit)

    def __len__(self) -> int:
        """Number of taken images."""
        return len(self.indices)

    @abstractmethod
    def read(self, position: int) -> Item:
        """The image at `position` (0..len-1).

        Raises:
            UnreadableImage: if its file is missing, damaged or no image.
        """

    @abstractmethod
    def item_names(self) -> Iterable[str]:
        """The names of all n images, in order of their index."""

    @abstractmethod
    def content(self, position: int) -> bytes | None:
        """What identifies the image at `position` beside its name; None if it cannot be read."""

    @cached_property
    def fingerprint(self) -> str:
        """Hash of all n names and of the content of the taken images, never of paths or times."""
        digest = Fingerprint()
        digest.add(str(self.total))
        for name in self.item_names():
            digest.add(name)
        for position, index in enumerate(self.indices):
            digest.add(str(index))
            digest.add(self.content(position))
        return str(digest)


class StreamSource(ABC):
    """Images that arrive one after the other; the first `limit` are taken, or all.

    The attributes are those of `IndexedSource`; `total` and `indices` are None, since neither is
    known before the stream has ended. An image's index is its place in the stream.
    """

    kind: str
    name: str
    split: str | None
    limit: int | None
    fingerprint: str
    total: None = None
    indices: None = None
    class_names: tuple[str, ...] | None = None
    label_kind: LabelKind | None = None
    packages: Mapping[str, str] = OURS

    @abstractmethod
    def stream(self, start: int = 0) -> Iterator[Encoded]:
        """The taken images from position `start` on, in order.

        Raises:
            DataError: if the stream breaks off.
        """


Source = IndexedSource | StreamSource
