"""JPEG compression, as Pillow does it."""

from __future__ import annotations

import io

import numpy as np
from numpy.typing import NDArray
from PIL import Image


def jpeg(image: NDArray[np.uint8], _: np.random.Generator, *, quality: int) -> NDArray[np.uint8]:
    """Encode at `quality` with Pillow's other defaults (chroma subsampling 4:2:0), and decode."""
    file = io.BytesIO()
    Image.fromarray(image).save(file, "JPEG", quality=quality)
    return np.array(Image.open(file))
