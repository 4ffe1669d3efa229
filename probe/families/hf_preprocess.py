"""Preprocessing of a transformers checkpoint, read from its image processor."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Literal

from probe.errors import CheckpointError
from probe.families.hf_quiet import quiet
from probe.types import Preprocess

Interpolation = Literal["nearest", "bilinear", "bicubic", "lanczos"]
Resize = tuple[Literal["short"], int] | tuple[Literal["squash"], tuple[int, int]] | None

# Pillow's resampling codes; box (4) and Hamming (5) have no name here.
INTERPOLATIONS: dict[int, Interpolation] = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic"}
STEPS = ("resize", "center_crop", "rescale", "normalize")
HARMLESS = {"do_convert_rgb", "do_reduce_labels", *(f"do_{step}" for step in STEPS)}
# These override the shared pipeline for segmentation maps alone.
SAME_PIXELS = {"BeitImageProcessor", "BeitImageProcessorPil"}


class _Unsupported(Exception):
    """What the processor does, in words that follow "the image processor"."""


def checkpoint_preprocess(folder: Path, resolved: str) -> Preprocess:
    """What the image processor saved in `folder` does to an image.

    Values that the file leaves out are the defaults of the processor's class, as transformers
    fills them in. Where an odd number of rows or columns is cropped away, transformers and
    torchvision round its half differently, so the crop may lie one pixel off the processor's.

    Args:
        folder: holds preprocessor_config.json or processor_config.json.
        resolved: the model's id, for messages.

    Raises:
        CheckpointError: if it does anything that `Preprocess` cannot say; nothing is guessed.
    """
    processor = _processor(folder, resolved)
    try:
        _check_steps(processor)
        resize, crop = _resize(processor), _crop(processor)
        mean, std = _statistics(processor)
        return Preprocess(
            size=_size(resize, crop),
            resize=resize,
            crop=crop,
            interpolation=_interpolation(processor) if resize else "bilinear",
            mean=mean,
            std=std,
            source="checkpoint",
        )
    except _Unsupported as error:
        raise CheckpointError(
            f"{resolved}: the image processor {error}, which is not supported here; choose "
            "--preprocess imagenet, half or a FILE"
        ) from error


def _processor(folder: Path, resolved: str) -> Any:
    from transformers import AutoImageProcessor

    try:
        with quiet():
            return AutoImageProcessor.from_pretrained(
                folder, backend="pil", trust_remote_code=False, local_files_only=True
            )
    except (OSError, ValueError, KeyError, TypeError, AttributeError, ImportError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise CheckpointError(
            f"{resolved}: its image processor cannot be read ({reason}); choose --preprocess "
            "imagenet, half or a FILE"
        ) from error


def _check_steps(processor: Any) -> None:
    """Refuse steps other than resize, centre crop, rescale to 0..1 and normalise."""
    kind = type(processor)
    for step in ("_preprocess", *STEPS):
        owner = getattr(getattr(kind, step, None), "__module__", "")
        if owner != "transformers.image_processing_backends" and kind.__name__ not in SAME_PIXELS:
            words = step.strip("_").replace("_", " ")
            raise _Unsupported(f"({kind.__name__}) has its own way to {words}")
    extra = sorted(
        name
        for name, value in processor.to_dict().items()
        if name.startswith("do_") and value and name not in HARMLESS
    )
    if extra:
        raise _Unsupported(f"also sets {', '.join(extra)}")
    if not processor.do_rescale or not math.isclose(processor.rescale_factor, 1 / 255):
        raise _Unsupported("does not bring pixels to 0..1 (rescale_factor 1/255)")


def _resize(processor: Any) -> Resize:
    if not processor.do_resize:
        return None
    given = _given(processor.size)
    if set(given) == {"shortest_edge"}:
        return "short", given["shortest_edge"]
    if set(given) == {"height", "width"}:
        return "squash", (given["height"], given["width"])
    raise _Unsupported(f"resizes to {given}")


def _crop(processor: Any) -> tuple[int, int] | None:
    if not getattr(processor, "do_center_crop", None):
        return None
    given = _given(processor.crop_size)
    if set(given) != {"height", "width"}:
        raise _Unsupported(f"crops to {given}")
    return given["height"], given["width"]


def _size(resize: Resize, crop: tuple[int, int] | None) -> tuple[int, int]:
    """(height, width) of what comes out, where every image comes out the same and unpadded."""
    if resize is None:
        if crop is None:
            raise _Unsupported("does not bring images to one size")
        return crop
    if resize[0] == "squash":
        least, exact = resize[1], True
    else:
        least, exact = (resize[1], resize[1]), False
    if crop is None:
        if not exact:
            raise _Unsupported("does not bring images to one size")
        return least
    if not exact and crop[0] != crop[1]:
        raise _Unsupported(f"crops {crop[0]} x {crop[1]} from an image resized by its short side")
    if least[0] < crop[0] or least[1] < crop[1]:
        raise _Unsupported(
            f"pads images of {least[0]} x {least[1]} to a crop of {crop[0]} x {crop[1]}"
        )
    return crop


def _interpolation(processor: Any) -> Interpolation:
    code = int(processor.resample)
    if code not in INTERPOLATIONS:
        raise _Unsupported(f"resamples with Pillow's filter {code}")
    return INTERPOLATIONS[code]


def _statistics(
    processor: Any,
) -> tuple[tuple[float, float, float], tuple[float, float, float]]:
    if not processor.do_normalize:
        return (0.0, 0.0, 0.0), (1.0, 1.0, 1.0)
    return _three(processor.image_mean), _three(processor.image_std)


def _three(values: Any) -> tuple[float, float, float]:
    if not isinstance(values, list | tuple) or len(values) != 3:
        raise _Unsupported("does not normalise three channels")
    first, second, third = (float(value) for value in values)
    return first, second, third


def _given(size: Any) -> dict[str, int]:
    return {} if size is None else {k: int(v) for k, v in dict(size).items() if v is not None}
