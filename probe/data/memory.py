"""Images that are already in memory, from Python."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from PIL import Image

from probe.data.decode import to_rgb
from probe.data.source import IndexedSource, Item, Label
from probe.errors import DataError, UnreadableImage, UsageError


class InMemory(IndexedSource):
    """A sequence of Pillow images of any mode, or of uint8 arrays (H, W, 3) or (H, W).

    An array (n, H, W, 3) is such a sequence. EXIF orientation is not applied here, since Pillow's
    own functions keep or drop it as they like. Images that already have the model's size go with
    `as_is(preprocess)`, which neither resizes nor crops them.
    """

    kind = "memory"

    def __init__(
        self,
        images: Sequence[Image.Image | np.ndarray] | np.ndarray,
        labels: Sequence[Label] | None = None,
        name: str = "memory",
        limit: int | None = None,
    ) -> None:
        """Take all images, or `limit` of them.

        Raises:
            DataError: if there are none, or one is neither kind.
            UsageError: if there are not as many labels as images.
        """
        if len(images) == 0:
            raise DataError("no images were given; give at least one")
        if labels is not None and len(labels) != len(images):
            raise UsageError(f"{len(labels)} labels were given for {len(images)} images")
        for index, image in enumerate(images):
            _check(image, index)
        super().__init__(name, len(images), limit)
        self._images = images
        # NumPy's numbers print otherwise than Python's; the fingerprint must not tell them apart.
        self._labels = None if labels is None else [_plain(label) for label in labels]

    def read(self, position: int) -> Item:
        """The image at `position`; its name is `image-INDEX`."""
        index = self.indices[position]
        label = None if self._labels is None else self._labels[index]
        return Item(index, f"image-{index}", self._rgb(index), label)

    def item_names(self) -> Iterable[str]:
        """`image-INDEX`."""
        return (f"image-{index}" for index in range(self.total))

    def content(self, position: int) -> bytes | None:
        """The size, the RGB pixels and the label."""
        index = self.indices[position]
        label = None if self._labels is None else self._labels[index]
        try:
            image = self._rgb(index)
        except UnreadableImage:
            return None
        return f"{image.size} {label!r} ".encode() + image.tobytes()

    def _rgb(self, index: int) -> Image.Image:
        image = self._images[index]
        if isinstance(image, Image.Image):
            name = f"image-{index}"
            try:
                image.load()
            except OSError as error:
                raise UnreadableImage(name, str(error)) from error
            return to_rgb(image, name)
        return Image.fromarray(np.ascontiguousarray(image)).convert("RGB")


def _plain(label: object) -> Label:
    value = label.item() if isinstance(label, np.generic) else label
    if value is None or isinstance(value, int | str):
        return value
    raise UsageError(f"a label must be a whole number, text or None, got {label!r}")


def _check(image: object, index: int) -> None:
    if isinstance(image, Image.Image):
        return
    if not isinstance(image, np.ndarray):
        raise DataError(
            f"image {index} is a {type(image).__name__}; give Pillow images or uint8 arrays"
        )
    right_shape = image.ndim == 2 or (image.ndim == 3 and image.shape[2] == 3)
    if image.dtype != np.uint8 or not right_shape or image.size == 0:
        raise DataError(
            f"image {index} is {image.dtype} of shape {image.shape}; give uint8 (height, width, 3) "
            "in 0..255, not normalised"
        )
