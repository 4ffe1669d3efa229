"""A folder of image files, read whole, whatever the files are called."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Iterator

from probe.data.decode import decode
from probe.data.source import IndexedSource, Item, LabelKind
from probe.errors import DataError, UnreadableImage

IMAGE_SUFFIXES = frozenset(
    f".{kind}"
    for kind in (
        *("jpg", "jpeg", "jpe", "jfif", "png", "apng", "bmp", "dib", "gif", "tif", "tiff"),
        *("webp", "avif", "jp2", "j2k", "ppm", "pgm", "pbm", "pnm", "tga"),
    )
)
WORDNET_ID = re.compile(r"n\d{8}")


def walk(folder: str) -> list[str]:
    """Relative POSIX paths of all files below `folder`, sorted as text.

    Hidden files and folders (a leading dot) are left out; links to folders are followed, unless
    they lead back to a folder above them.

    Raises:
        DataError: if a folder cannot be listed.
    """
    try:
        return sorted(_below(folder, "", frozenset()))
    except OSError as error:
        raise DataError(
            f"cannot list the folder '{error.filename}': {error.strerror}; check its permissions"
        ) from error


def _below(folder: str, prefix: str, above: frozenset[str]) -> Iterator[str]:
    here = os.path.realpath(folder)
    if here in above:
        return
    with os.scandir(folder) as entries:
        listed = [(entry.name, entry.is_dir()) for entry in entries]
    for name, is_folder in listed:
        if name.startswith("."):
            continue
        if is_folder:
            yield from _below(os.path.join(folder, name), f"{prefix}{name}/", above | {here})
        else:
            yield prefix + name


class ImageFolder(IndexedSource):
    """The image files below a folder, sorted by relative POSIX path.

    When every image lies in a subfolder, the top folders are the classes, sorted by name: WordNet
    ids when all of them look like one (`n01440764`), else folder names. Otherwise there are no
    labels. Files are images by their suffix; a file that then cannot be read is unreadable.
    """

    kind = "folder"

    def __init__(
        self, folder: str, files: list[str], name: str | None = None, limit: int | None = None
    ) -> None:
        """Take all, or `limit`, of `files` (relative to `folder`, sorted).

        Raises:
            DataError: if there is none.
        """
        if not files:
            raise DataError(
                f"'{folder}' holds no image file; known suffixes: "
                f"{' '.join(sorted(IMAGE_SUFFIXES))}"
            )
        super().__init__(name or folder, len(files), limit)
        self._folder, self._files = folder, files
        self._class_index: dict[str, int] = {}
        if all("/" in file for file in files):
            classes = sorted({file.split("/", 1)[0] for file in files})
            wordnet = all(WORDNET_ID.fullmatch(name) for name in classes)
            kind: LabelKind = "wnid" if wordnet else "folder"
            self.class_names, self.label_kind = tuple(classes), kind
            self._class_index = {name: i for i, name in enumerate(classes)}

    def read(self, position: int) -> Item:
        """The image at `position`; its name is its relative path.

        Raises:
            UnreadableImage: if the file is gone, is no plain file, or is damaged.
        """
        index = self.indices[position]
        name = self._files[index]
        try:
            data = self._bytes(name)
        except OSError as error:
            raise UnreadableImage(name, error.strerror or str(error)) from error
        label = self._class_index.get(name.split("/", 1)[0])
        return Item(index, name, decode(data, name), label)

    def item_names(self) -> Iterable[str]:
        """Relative POSIX paths."""
        return self._files

    def content(self, position: int) -> bytes | None:
        """The file's bytes; None if it cannot be opened."""
        try:
            return self._bytes(self._files[self.indices[position]])
        except OSError:
            return None

    def _bytes(self, name: str) -> bytes:
        path = os.path.join(self._folder, name)
        if not stat.S_ISREG(os.stat(path).st_mode):
            # Opening a named pipe would wait for ever.
            raise OSError("it is no plain file")
        with open(path, "rb") as file:
            return file.read()


def is_image(name: str) -> bool:
    """Whether the suffix is that of an image file, in either case."""
    return os.path.splitext(name)[1].lower() in IMAGE_SUFFIXES
