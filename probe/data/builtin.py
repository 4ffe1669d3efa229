"""The two data sets that need no download: photographs and digits.

`photos` are tiles of eight photographs that scikit-image and scikit-learn ship in their packages:

| photo | from | tiles | licence |
|---|---|---|---|
| astronaut | scikit-image | 3 x 3 | NASA, public domain |
| camera | scikit-image | 2 x 2 | CC0, Lav Varshney |
| chelsea (a cat) | scikit-image | 2 x 3 | CC0, Stefan van der Walt |
| china (a temple) | scikit-learn | 2 x 3 | CC BY 2.0, danielbuechele |
| coffee | scikit-image | 2 x 3 | CC0, Rachel Michetti |
| flower | scikit-learn | 2 x 3 | CC BY 2.0, vultilion |
| motorcycle | scikit-image | 3 x 4 | Middlebury 2014 stereo benchmark, left view |
| rocket | scikit-image | 2 x 3 | SpaceX, public domain |

The 55 tiles do not overlap, but tiles of one photograph resemble each other, so intervals over
them are narrower than over 55 unrelated images.

`digits` are scikit-learn's 1,797 handwritten digits of 8 x 8 pixels, after E. Alpaydin and
C. Kaynak, Optical Recognition of Handwritten Digits, UCI (CC BY 4.0).
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path

import numpy as np
from PIL import Image

from probe.data.decode import decode
from probe.data.source import IndexedSource, Item
from probe.errors import DataError, UsageError, did_you_mean

# name, package, path inside it, rows and columns of tiles; sorted by name.
PHOTOS = (
    ("astronaut", "skimage", "data/astronaut.png", 3, 3),
    ("camera", "skimage", "data/camera.png", 2, 2),
    ("chelsea", "skimage", "data/chelsea.png", 2, 3),
    ("china", "sklearn", "datasets/images/china.jpg", 2, 3),
    ("coffee", "skimage", "data/coffee.png", 2, 3),
    ("flower", "sklearn", "datasets/images/flower.jpg", 2, 3),
    ("motorcycle", "skimage", "data/motorcycle_left.png", 3, 4),
    ("rocket", "skimage", "data/rocket.jpg", 2, 3),
)
TILES = tuple(
    (photo, row, col, rows, cols)
    for photo, _, _, rows, cols in PHOTOS
    for row in range(rows)
    for col in range(cols)
)
DIGIT_SPLITS = ("train", "validation", "test")
DIGIT_NAMES = tuple("0123456789")


class Photos(IndexedSource):
    """Tiles of photographs, in order of (photo, row, column); no labels."""

    kind = "photos"

    def __init__(self, name: str = "photos", limit: int | None = None) -> None:
        """Take all 55 tiles, or `limit` of them."""
        super().__init__(name, len(TILES), limit)

    def read(self, position: int) -> Item:
        """The tile at `position`, about 150 to 256 pixels a side."""
        index = self.indices[position]
        photo, row, col, rows, cols = TILES[index]
        image = _photo(photo)
        width, height = image.size
        box = (
            col * width // cols,
            row * height // rows,
            (col + 1) * width // cols,
            (row + 1) * height // rows,
        )
        return Item(index, _tile_name(index), image.crop(box), None)

    def item_names(self) -> Iterable[str]:
        """`PHOTO/rROWcCOLUMN`."""
        return map(_tile_name, range(self.total))

    def content(self, position: int) -> bytes:
        """The photograph's file and the tile's place, so that no decoder version matters."""
        photo, *place = TILES[self.indices[position]]
        return _photo_file(photo) + repr(place).encode()


def _tile_name(index: int) -> str:
    photo, row, col, _, _ = TILES[index]
    return f"{photo}/r{row}c{col}"


@lru_cache(maxsize=1)
def _photo_file(photo: str) -> bytes:
    """The bytes of a bundled photograph, found without importing its package."""
    package, path = next((p, f) for name, p, f, _, _ in PHOTOS if name == photo)
    spec = importlib.util.find_spec(package)
    folders = list(spec.submodule_search_locations or ()) if spec is not None else []
    files = [Path(folder, path) for folder in folders]
    for file in files:
        if file.is_file():
            return file.read_bytes()
    library = {"skimage": "scikit-image", "sklearn": "scikit-learn"}[package]
    raise DataError(
        f"the built-in photo '{photo}' is missing: install {library} as constraints.txt pins it, "
        "or give --data a folder of images"
    )


@lru_cache(maxsize=1)
def _photo(photo: str) -> Image.Image:
    return decode(_photo_file(photo), photo)


class Digits(IndexedSource):
    """scikit-learn's digits, one of three fixed parts, in the order of the original data.

    Within each class a seeded permutation gives the first 70 % to `train`, the next 15 % to
    `validation`, the rest to `test`. Values 0..16 become round(value * 255 / 16); images stay
    8 x 8, grey in three channels, and preprocessing enlarges them.
    """

    kind = "digits"
    class_names = DIGIT_NAMES
    label_kind = "classlabel"

    def __init__(
        self, name: str = "digits", split: str | None = None, limit: int | None = None
    ) -> None:
        """Take all images of `split` (None: test), or `limit` of them.

        Raises:
            UsageError: if there is no such split.
        """
        self.split = split or "test"
        if self.split not in DIGIT_SPLITS:
            raise UsageError(
                f"digits has no split '{split}' (it has: {', '.join(DIGIT_SPLITS)})."
                f"{did_you_mean(self.split, DIGIT_SPLITS)}"
            )
        pixels, labels = _digits()
        self._rows = _digit_rows(labels, self.split)
        self._pixels, self._labels = pixels[self._rows], labels[self._rows]
        super().__init__(name, len(self._rows), limit)

    def read(self, position: int) -> Item:
        """The digit at `position`, RGB 8 x 8."""
        index = self.indices[position]
        image = Image.fromarray(self._pixels[index]).convert("RGB")
        return Item(index, f"digit-{self._rows[index]:04d}", image, int(self._labels[index]))

    def item_names(self) -> Iterable[str]:
        """`digit-ROW`, with the row in the original data."""
        return (f"digit-{row:04d}" for row in self._rows)

    def content(self, position: int) -> bytes:
        """The pixels and the label."""
        index = self.indices[position]
        return self._pixels[index].tobytes() + bytes([int(self._labels[index])])


@lru_cache(maxsize=1)
def _digits() -> tuple[np.ndarray, np.ndarray]:
    """uint8 (1797, 8, 8) in 0..255 and int64 (1797,)."""
    from sklearn.datasets import load_digits

    bunch = load_digits()
    return np.rint(bunch.images * 255 / 16).astype(np.uint8), bunch.target.astype(np.int64)


def _digit_rows(labels: np.ndarray, split: str) -> np.ndarray:
    rows = []
    for digit in range(10):
        members = np.flatnonzero(labels == digit)
        generator = np.random.Generator(np.random.PCG64(np.random.SeedSequence([0, digit])))
        shuffled = members[generator.permutation(len(members))]
        first, second = len(members) * 70 // 100, len(members) * 85 // 100
        parts = (shuffled[:first], shuffled[first:second], shuffled[second:])
        rows.append(parts[DIGIT_SPLITS.index(split)])
    return np.sort(np.concatenate(rows))
