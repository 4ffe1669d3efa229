"""Translation: moving the view by whole patches against moving it by part of one.

A patch projection commutes with shifts by whole patches and no others: after one, every token that
is still seen must be found again, moved. What blocks, positions and borders make of it is measured.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from probe.audit.projection import read_projection
from probe.data.preprocess import normalise
from probe.errors import DataError, NotApplicable
from probe.hooks import observe
from probe.loading import required_preprocess
from probe.numerics.intervals import group_count, interval
from probe.numerics.proportions import wilson
from probe.types import Grid, LoadedModel, Preprocess, Scalar, TokenSite

LEVEL = "measured on images"
ASSUMES = (
    "the view moves down and right over the larger images by as many pixels; tokens are compared "
    "where both views show them whole, and predictions also change by what enters and leaves"
)
MARGIN = 2  # patches around the crop, both sides together
EXACT = 32  # units of rounding, float32 or better, that summing a patch in another order may cost


def with_margin(preprocess: Preprocess, patch: int) -> Preprocess:
    """The model's preprocessing with a crop larger by two patches in both directions.

    The resize stays where it leaves room for that, so that objects keep their size: the usual 256
    for 224 leaves two patches of 16 px. Otherwise it becomes just large enough, each edge by itself
    where images are squashed, and `source` says by how much. Padding instead would bring pixels
    into view that no photograph has.

    Args:
        preprocess: the model's.
        patch: side of a patch in pixels.
    """
    height, width = (side + MARGIN * patch for side in preprocess.size)
    size, resize, factor = (height, width), preprocess.resize, 1.0
    if resize is not None and resize[0] == "short":
        short = max(resize[1], min(size))
        factor, resize = short / resize[1], ("short", short)
    elif resize is not None:
        target = (max(resize[1][0], height), max(resize[1][1], width))
        factor = max(new / old for new, old in zip(target, resize[1], strict=True))
        resize = ("squash", target)
    larger = f", resized {factor:.3f} times as large for the margin" if factor > 1 else ""
    return replace(
        preprocess, size=size, resize=resize, crop=size, source=preprocess.source + larger
    )


def patch_side(model: LoadedModel) -> int:
    """Side of a square patch in pixels.

    Raises:
        NotApplicable: if the model has no projection of disjoint, square patches.
    """
    projection = read_projection(model)
    rows, cols = projection.stride
    if projection.kernel != projection.stride or rows != cols:
        raise NotApplicable(
            f"patches of {projection.kernel[0]} x {projection.kernel[1]} px every {rows} x {cols} "
            "px are not disjoint squares, so whole-patch shifts are not defined"
        )
    return int(rows)


def translation(
    model: LoadedModel, images: Tensor, pixels: Sequence[int] | None = None, batch_size: int = 16
) -> dict[str, Any]:
    """What shifts of the view do to tokens and predictions.

    Args:
        model: the loaded model; it must carry a preprocessing.
        images: uint8 (B, height, width, 3), larger than the model's input by a patch or more in
            both directions, as `with_margin` prepares them.
        pixels: the shifts; None takes `default_shifts`. Each costs a forward pass of all images.
        batch_size: images per forward pass.

    Returns:
        Ready for JSON: `patch`, its side in pixels; `images`, how many; `strides`, pixels per token
        at the patch projection and at the last layer; `shifts`, one per shift: `pixels`;
        `whole_patches`; `token_change_patch` and `token_change_last`: relative L2 between tokens
        after the shift and before, those moved by the whole tokens in it, mean over images, at the
        patch projection and at the last `attn_in`; `prediction_change`: share of images whose top-1
        changes. These three are {value, low, high, reason}, with a 95 % interval over images
        (jackknife; Wilson for the share). `exact`: whether whole-patch shifts leave tokens of the
        patch projection equal up to rounding (null without such shifts), the `largest` change of an
        image, and the `tolerance`, which follows from the dtype. `level`, `assumes`.

    Raises:
        DataError: if there are no images, or they are too small for the shifts.
        NotApplicable: if the model has no projection of disjoint, square patches.
        CheckpointError: if the model carries no preprocessing.
    """
    patch = patch_side(model)
    room = _room(model, images, patch)
    pixels = default_shifts(patch, room) if pixels is None else pixels
    wrong = [shift for shift in pixels if not 0 <= shift <= room]
    if wrong or not pixels:
        raise DataError(
            f"the images leave room for shifts of 0 to {room} px, not {wrong or 'none at all'}; "
            "prepare them with a larger margin"
        )
    places = _places(model, patch)
    measured = {shift: _Changes() for shift in pixels}
    for start in range(0, len(images), batch_size):
        part = images[start : start + batch_size]
        still = _run(model, part, 0, places)
        for shift, changes in measured.items():
            view = still if shift == 0 else _run(model, part, shift, places)
            changes.add(still, view, [shift // place.stride for place in places])
    return _result(model, measured, places, len(images))


def default_shifts(patch: int, room: int) -> list[int]:
    """0, 1 px, steps of an eighth of a patch or so up to one, and two patches if there is room."""
    more = range(2, min(room // patch, MARGIN) + 1)
    steps = range(0, patch, max(1, round(patch / 8)))
    return sorted({1, *steps, patch, *(count * patch for count in more)})


@dataclass(frozen=True)
class _Place:
    """Where tokens are compared: site, pixels per token, and the part of its grid off padding."""

    site: TokenSite
    stride: int
    whole: Grid


@dataclass(frozen=True)
class _View:
    """Tokens (B, rows, cols, C) by place, and the top-1 of every image, None without a head."""

    tokens: list[Tensor]
    top1: NDArray[np.int64] | None


@dataclass
class _Changes:
    """What one shift changed in every image."""

    tokens: list[list[float]] = field(default_factory=lambda: [[], []])
    predictions: list[bool] = field(default_factory=list)

    def add(self, before: _View, after: _View, moved: Sequence[int]) -> None:
        for i, count in enumerate(moved):
            change = moved_change(before.tokens[i], after.tokens[i], count)
            self.tokens[i] += change.tolist()
        if before.top1 is not None and after.top1 is not None:
            self.predictions += (before.top1 != after.top1).tolist()


def moved_change(before: Tensor, after: Tensor, tokens: int) -> Tensor:
    """Relative L2 (B,) between `after` and `before` moved by `tokens`, both (B, rows, cols, C).

    Token (r, c) after the shift is token (r + tokens, c + tokens) before it; those that have left
    the view are not compared. NaN where none is left, or where they have no length.
    """
    rows, cols = before.shape[1] - tokens, before.shape[2] - tokens
    if min(rows, cols) < 1:
        return torch.full((len(before),), math.nan, dtype=torch.float64)
    old = before[:, tokens:, tokens:].flatten(1).double()
    new = after[:, :rows, :cols].flatten(1).double()
    return (new - old).norm(dim=1) / old.norm(dim=1)


def crop_at(images: Tensor, offset: int, size: tuple[int, int]) -> Tensor:
    """The view of `size` (height, width) whose corner lies `offset` pixels down and right."""
    height, width = size
    return images[:, offset : offset + height, offset : offset + width]


def _run(model: LoadedModel, images: Tensor, shift: int, places: Sequence[_Place]) -> _View:
    weight = next(model.module.parameters())
    view = crop_at(images, shift, model.anatomy.image_size)
    ready = normalise(view, required_preprocess(model), weight.dtype, weight.device)
    found: dict[TokenSite, Tensor] = {}

    def read(site: TokenSite, tokens: Tensor) -> None:
        found[site] = tokens.detach().cpu()

    with torch.inference_mode(), observe(model.module, [place.site for place in places], read):
        output = model.forward(ready)
        logits = None if model.predict is None else model.predict(output).float().cpu()
    if logits is not None and not torch.isfinite(logits).all():
        raise DataError("the model gives logits that are not finite; try --dtype float32")
    tokens = []
    for place in places:
        grid, whole = place.site.grid, place.whole
        square = found[place.site].unflatten(1, (grid.rows, grid.cols))
        tokens.append(square[:, : whole.rows, : whole.cols])
    top1 = None if logits is None else logits.argmax(dim=1).numpy()
    return _View(tokens, top1)


def _places(model: LoadedModel, patch: int) -> list[_Place]:
    """The patch projection and the last layer, without tokens that show padding."""
    anatomy = model.anatomy
    first = anatomy.patches
    projected = TokenSite(-1, "attn_in", first.module, first.grid, first.prefix, first.layout)
    merged = patch * math.prod(merge.rows for merge in anatomy.merges)
    height, width = anatomy.image_size
    found = []
    for site, stride in ((projected, patch), (anatomy.attn_in[-1], merged)):
        whole = Grid(min(site.grid.rows, height // stride), min(site.grid.cols, width // stride))
        found.append(_Place(site, stride, whole))
    return found


def _room(model: LoadedModel, images: Tensor, patch: int) -> int:
    """By how many pixels the view can move."""
    height, width = model.anatomy.image_size
    if images.ndim != 4 or images.dtype != torch.uint8 or len(images) == 0:
        raise DataError(
            "shifts need at least one image, uint8 (B, height, width, 3); got "
            f"{images.dtype} {tuple(images.shape)}"
        )
    room = min(images.shape[1] - height, images.shape[2] - width)
    if room < patch:
        raise DataError(
            f"shifts need images of at least {height + patch} x {width + patch} px, and these have "
            f"{images.shape[1]} x {images.shape[2]}; prepare them with a margin around the crop"
        )
    return int(room)


def _result(
    model: LoadedModel, measured: dict[int, _Changes], places: Sequence[_Place], images: int
) -> dict[str, Any]:
    patch = places[0].stride
    shifts = []
    for shift, changes in measured.items():
        first, last = (_mean(values) for values in changes.tokens)
        shifts.append(
            {
                "pixels": shift,
                "whole_patches": shift % patch == 0,
                "token_change_patch": asdict(first),
                "token_change_last": asdict(last),
                "prediction_change": asdict(_share(model, changes.predictions)),
                "images": images,
            }
        )
    whole = [v for s, c in measured.items() if s % patch == 0 and s > 0 for v in c.tokens[0]]
    limit = _tolerance(model)
    return {
        "patch": patch,
        "images": images,
        "strides": {"patch": patch, "last": places[1].stride},
        "shifts": shifts,
        "exact": {
            "holds": all(value <= limit for value in whole) if whole else None,
            "largest": max(whole) if whole and np.isfinite(whole).all() else None,
            "tolerance": limit,
            "level": "exact algebra",
        },
        "level": LEVEL,
        "assumes": ASSUMES,
    }


def _mean(values: Sequence[float]) -> Scalar:
    """Mean over images, with a jackknife interval."""
    found = np.array(values)
    if not np.isfinite(found).all():
        return Scalar(None, reason="no token is whole in both views, or one is zero or not finite")
    groups = group_count(len(found))
    if groups < 2:
        return Scalar(float(found.mean()), reason="no interval from one image")
    member = np.arange(len(found)) % groups
    without = np.array([found[member != group].mean() for group in range(groups)])
    return Scalar(float(found.mean()), *interval(float(found.mean()), without))


def _share(model: LoadedModel, changed: Sequence[bool]) -> Scalar:
    if model.predict is None:
        return Scalar(None, reason="the model has no head to predict with")
    count = sum(changed)
    return Scalar(count / len(changed), *wilson(count, len(changed)))


def _tolerance(model: LoadedModel) -> float:
    """Sums in another order differ by float32 roundings, half precision by its own at the end."""
    dtype = next(model.module.parameters()).dtype
    summed = torch.promote_types(dtype, torch.float32)
    return max(EXACT * torch.finfo(summed).eps, 2 * torch.finfo(dtype).eps)
