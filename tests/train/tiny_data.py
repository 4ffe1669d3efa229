"""Tiny data sets for training tests: images whose pixels say which they are."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from train.parts import Part
from train.recipe import Recipe, load_recipe

CLASSES = ("apple", "bee", "cat")


def picture(number: int, side: int = 8) -> np.ndarray:
    """uint8 (side, side, 3): noise that only this number has."""
    return np.random.default_rng(number).integers(0, 256, (side, side, 3), dtype=np.uint8)


def png(pixels: np.ndarray) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def write_folder(
    folder: Path,
    parts: Mapping[str, int],
    classes: Sequence[str] = CLASSES,
    side: int = 8,
) -> dict[str, np.ndarray]:
    """`folder/PART/CLASS/N.png`, so many images of each class; the pixels by relative path."""
    made = {}
    for part, count in parts.items():
        for name in classes:
            (folder / part / name).mkdir(parents=True)
            for number in range(count):
                path = f"{part}/{name}/{number}.png"
                made[path] = picture(len(made), side)
                (folder / path).write_bytes(png(made[path]))
    return made


def write_parquet(
    path: Path, labels: Sequence[int | None], classes: Sequence[str], side: int = 8, first: int = 0
) -> list[np.ndarray]:
    """A file as the hub has them; row n holds `picture(first + n)`."""
    made = [picture(first + row, side) for row in range(len(labels))]
    features = {
        "img": {"_type": "Image"},
        "label": {"_type": "ClassLabel", "names": list(classes)},
    }
    table = pa.table(
        {
            "img": [{"bytes": png(pixels), "path": None} for pixels in made],
            "label": pa.array(labels, pa.int64()),
        }
    )
    about = {"huggingface": json.dumps({"info": {"features": features}})}
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table.replace_schema_metadata(about), path)
    return made


def small_recipe(source: Path | str, *changes: str, variant: str = "ape") -> Recipe:
    """The cifar10 recipe for images of 8 px in the folders or files train, val and test."""
    fitted = [f"data.source={source}", "data.validation=val", "image.size=8", "train.batch=4"]
    return load_recipe("cifar10", variant, [*fitted, "augment.shift=1", *changes])


def in_memory(count: int, side: int = 8, classes: int = 3) -> Part:
    """A part of `count` images: row n is `picture(n)`, its label n modulo `classes`."""
    images = np.stack([picture(number, side) for number in range(count)])
    return Part(images, np.arange(count), np.arange(count) % classes)
