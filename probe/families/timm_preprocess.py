"""The preprocessing that a timm checkpoint names, in this project's terms."""

from __future__ import annotations

import math
from typing import Any, get_args, get_type_hints

from timm.data import resolve_model_data_config
from torch import nn

from probe.types import Preprocess

_INTERPOLATIONS = get_args(get_type_hints(Preprocess)["interpolation"])


def checkpoint_preprocess(
    module: nn.Module, size: tuple[int, int]
) -> tuple[Preprocess | None, str | None]:
    """Timm's evaluation transform of a checkpoint, for images of `size` (height, width) in pixels.

    The image is resized to the floor of size / crop_pct and cropped in the centre: by its shorter
    edge (crop mode `center`; for a rectangular size, to the longer of the two targets, so that the
    crop always fits), or each edge by itself (`squash`).

    Returns:
        The preprocessing, or None and a line that says why it cannot be taken over.
    """
    config = resolve_model_data_config(module)
    mode, interpolation = config["crop_mode"], config["interpolation"]
    mean, std = _channels(config["mean"]), _channels(config["std"])
    if mode not in ("center", "squash") or interpolation not in _INTERPOLATIONS:
        return None, (
            f"the checkpoint asks for crop mode '{mode}' with {interpolation} interpolation, "
            "which is not available here"
        )
    target = tuple(math.floor(edge / config["crop_pct"]) for edge in size)
    squash = mode == "squash"
    preprocess = Preprocess(
        size=size,
        resize=("squash", target) if squash else ("short", max(target)),
        crop=None if squash and target == size else size,
        interpolation=interpolation,
        mean=mean,
        std=std,
        source="checkpoint",
    )
    return preprocess, None


def _channels(values: Any) -> tuple[float, float, float]:
    red, green, blue = (float(v) for v in values)
    return red, green, blue
