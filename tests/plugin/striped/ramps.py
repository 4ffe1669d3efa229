"""A data source: `ramps:N` are N grey ramps in ten classes."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from PIL import Image

from probe.data.source import IndexedSource, Item


class Ramps(IndexedSource):
    kind = "ramps"
    class_names = tuple("0123456789")
    label_kind = "classlabel"

    def read(self, position: int) -> Item:
        index = self.indices[position]
        rows = np.linspace(20 * (index % 10), 255, 32)[:, None, None]
        pixels = np.broadcast_to(rows, (32, 32, 3)).astype(np.uint8)
        return Item(index, f"ramp-{index}", Image.fromarray(pixels), index % 10)

    def item_names(self) -> Iterable[str]:
        return (f"ramp-{index}" for index in range(self.total))

    def content(self, position: int) -> bytes:
        return str(self.indices[position]).encode()


def open_ramps(address: str, *, split: str | None, limit: int | None) -> Ramps:
    return Ramps("ramps", int(address), limit)
