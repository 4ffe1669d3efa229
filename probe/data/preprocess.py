"""From a decoded image to the model's input: resize, centre crop, normalise.

Geometry runs on 8-bit pixels in Pillow, with its anti-aliasing, so that corruptions can act on
8-bit images at model resolution; normalisation follows in float32.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from probe.errors import DataError
from probe.types import Preprocess

if TYPE_CHECKING:
    import torch

FILTERS = {
    "nearest": Image.Resampling.NEAREST,
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
    "lanczos": Image.Resampling.LANCZOS,
}
STATISTICS = {
    "imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "half": ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5)),
}
# Resizing a sliver by its short side can ask for gigabytes.
MAX_PIXELS = 2**28


def to_model_size(image: Image.Image, preprocess: Preprocess) -> np.ndarray:
    """Resize and crop one RGB image: uint8 (height, width, 3) of `preprocess.size`.

    ("short", p) keeps the aspect ratio: the image is resized until it just covers the crop
    enlarged so that its short side is p. For a square crop that is "short side p, long side
    floor(p * long / short)", as torchvision and timm do. ("squash", (h, w)) does not keep the
    ratio. The crop is centred, its offset round((side - crop) / 2).

    Raises:
        DataError: if the crop, or the model's size, does not fit the image; nothing is padded.
    """
    if preprocess.resize is not None:
        _, target = preprocess.resize
        if isinstance(target, int):
            height, width = _covering(image.height, image.width, target, preprocess.crop or (1, 1))
        else:
            height, width = target
        if height * width > MAX_PIXELS:
            raise DataError(
                f"an image of {image.height}x{image.width} would be resized to {height}x{width}; "
                "leave such slivers out"
            )
        if (height, width) != (image.height, image.width):
            image = image.resize((width, height), FILTERS[preprocess.interpolation])
    if preprocess.crop is not None:
        height, width = preprocess.crop
        if height > image.height or width > image.width:
            raise DataError(
                f"the image is {image.height}x{image.width} after resizing, smaller than the crop "
                f"{height}x{width}; choose another --preprocess"
            )
        top = round((image.height - height) / 2)
        left = round((image.width - width) / 2)
        image = image.crop((left, top, left + width, top + height))
    if (image.height, image.width) != preprocess.size:
        height, width = preprocess.size
        raise DataError(
            f"preprocessing gives {image.height}x{image.width}, but the model takes "
            f"{height}x{width}; choose another --preprocess"
        )
    return np.asarray(image)


def _covering(height: int, width: int, short: int, crop: tuple[int, int]) -> tuple[int, int]:
    """The size that covers `crop` enlarged to a short side of `short`, in the image's own ratio."""
    box_height = scaled(crop[0], short, min(crop))
    box_width = scaled(crop[1], short, min(crop))
    if height * crop[1] <= width * crop[0]:
        return box_height, max(box_width, box_height * width // height)
    return max(box_height, box_width * height // width), box_width


def scaled(pixels: int, new: int, old: int) -> int:
    """`pixels * new / old`, rounded to the nearest integer, halves up."""
    return (2 * pixels * new + old) // (2 * old)


def normalise(
    batch: torch.Tensor, preprocess: Preprocess, dtype: torch.dtype, device: torch.device | str
) -> torch.Tensor:
    """uint8 (B, height, width, 3) -> contiguous `dtype` (B, 3, height, width) on `device`.

    Computes (value / 255 - mean) / std per channel in float32, then casts.
    """
    import torch

    pixels = batch.to(device).permute(0, 3, 1, 2).contiguous().to(torch.float32)
    mean = torch.tensor(preprocess.mean, device=device).view(3, 1, 1)
    std = torch.tensor(preprocess.std, device=device).view(3, 1, 1)
    return pixels.div_(255).sub_(mean).div_(std).to(dtype)


def named_preprocess(name_or_path: str, image_size: tuple[int, int]) -> Preprocess:
    """`imagenet`, `half`, or a YAML or JSON file, for images of (height, width).

    Both names resize by the short side, bicubic, and crop the centre; the short side is
    round(min(height, width) * 256 / 224), so 256 for 224, 439 for 384 and 592 for 518. A
    rectangular size resizes until the image covers that size times 256 / 224 (`to_model_size`).
    `imagenet` has ImageNet's mean and std, `half` has 0.5 and 0.5. A file whose `size` differs is
    rescaled with `at_size`.

    Raises:
        UsageError: if it is neither a known name nor a readable file of the right form.
    """
    if name_or_path not in STATISTICS:
        from probe.data.preprocess_file import read_preprocess

        return read_preprocess(name_or_path, image_size)
    mean, std = STATISTICS[name_or_path]
    return Preprocess(
        size=image_size,
        resize=("short", scaled(min(image_size), 256, 224)),
        crop=image_size,
        interpolation="bicubic",
        mean=mean,
        std=std,
        source=name_or_path,
    )


def paper_preprocess(preprocess: Preprocess, image_size: tuple[int, int]) -> Preprocess:
    """What `--protocol paper` uses: squash to (height, width), bilinear, the given mean and std."""
    return replace(
        preprocess,
        size=image_size,
        resize=("squash", image_size),
        crop=None,
        interpolation="bilinear",
        source="protocol paper",
    )


def at_size(preprocess: Preprocess, image_size: tuple[int, int]) -> Preprocess:
    """The same preprocessing for another (height, width); resize / crop keeps its ratio, rounded.

    Unchanged when the size is the same.
    """
    if image_size == preprocess.size:
        return preprocess
    resize = preprocess.resize
    if resize is not None and resize[0] == "short":
        old = min(preprocess.crop or preprocess.size)
        resize = ("short", scaled(resize[1], min(image_size), old))
    elif resize is not None:
        (height, width), (old_height, old_width) = resize[1], preprocess.size
        resize = (
            "squash",
            (scaled(height, image_size[0], old_height), scaled(width, image_size[1], old_width)),
        )
    crop = None if preprocess.crop is None else image_size
    return replace(preprocess, size=image_size, resize=resize, crop=crop)


def as_is(preprocess: Preprocess) -> Preprocess:
    """The same normalisation for images that already have the model's size: no resize, no crop."""
    return replace(preprocess, resize=None, crop=None)


def describe(preprocess: Preprocess) -> dict[str, Any]:
    """The settings as JSON values, for records; without `source` they are a preprocessing file."""
    resize: list[Any] | None = None
    if preprocess.resize is not None:
        kind, target = preprocess.resize
        resize = [kind, list(target) if isinstance(target, tuple) else target]
    return {
        "size": list(preprocess.size),
        "resize": resize,
        "crop": None if preprocess.crop is None else list(preprocess.crop),
        "interpolation": preprocess.interpolation,
        "mean": list(preprocess.mean),
        "std": list(preprocess.std),
        "source": preprocess.source,
    }
