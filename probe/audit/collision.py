"""Two patches with one token: what a projection cannot tell apart, shown on a photo's patch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from probe.audit.projection import Projection
from probe.hooks import first_tensor, split_tokens, submodule
from probe.types import LoadedModel, Preprocess

CANDIDATES = 256  # patches of the photos that are tried


@dataclass(frozen=True, eq=False)
class Collision:
    """A real patch and another one, float64 (3, rows, cols) in levels 0..255, with one token.

    `max_pixel_difference` is in levels; `token_difference` the relative L2 distance of the tokens
    that the model's own projection gives for them, in its own precision.
    """

    patch: NDArray[np.float64]
    other: NDArray[np.float64]
    max_pixel_difference: float
    token_difference: float


def patches_of(images: Tensor, kernel: tuple[int, int]) -> NDArray[np.float64]:
    """Disjoint patches (n, 3, rows, cols) in levels of uint8 images (B, 3, height, width)."""
    rows, cols = kernel
    height, width = (s // k * k for s, k in zip(images.shape[-2:], kernel, strict=True))
    cut = images[..., :height, :width].unfold(2, rows, rows).unfold(3, cols, cols)
    return cut.permute(0, 2, 3, 1, 4, 5).reshape(-1, 3, rows, cols).double().numpy()


def collide(
    model: LoadedModel, projection: Projection, preprocess: Preprocess, patches: NDArray[np.float64]
) -> Collision | None:
    """The pair that differs most among some patches; None where the map has full rank.

    Every patch is moved inside the null space of the map towards its own negative, as far as pixels
    stay within 0..255, so that both are valid images and the token cannot tell them apart.

    Args:
        model: the loaded model.
        projection: its projection, disjoint.
        preprocess: gives the scale of pixels; the null space is that of normalised pixels.
        patches: (n, 3, rows, cols) in levels 0..255, of real photos.
    """
    null = projection.null
    if len(null) == 0:
        return None
    area = projection.kernel[0] * projection.kernel[1]
    scale = np.repeat(255 * np.asarray(preprocess.std), area)  # levels per normalised unit
    chosen = patches[:: max(1, len(patches) // CANDIDATES)].reshape(-1, 3 * area)
    wanted = (255 - 2 * chosen) / scale
    moves = (wanted @ null.T) @ null * scale
    with np.errstate(divide="ignore", invalid="ignore"):
        room = np.where(moves > 0, (255 - chosen) / moves, np.where(moves < 0, -chosen / moves, 0))
    reach = np.where(np.abs(moves) > 1e-9, room, np.inf).min(axis=1)
    steps = np.where(np.isfinite(reach), reach, 0)[:, None] * moves
    best = int(np.abs(steps).max(axis=1).argmax())
    shape = (3, *projection.kernel)
    patch, other = chosen[best], np.clip(chosen[best] + steps[best], 0, 255)
    return Collision(
        patch=patch.reshape(shape),
        other=other.reshape(shape),
        max_pixel_difference=float(np.abs(other - patch).max()),
        token_difference=_token_difference(model, preprocess, patch, other, shape),
    )


def _token_difference(
    model: LoadedModel,
    preprocess: Preprocess,
    patch: NDArray[np.float64],
    other: NDArray[np.float64],
    shape: tuple[int, int, int],
) -> float:
    """Relative L2 distance of the two tokens, by the model's own module at its own image size."""
    parameter = next(model.module.parameters())
    site, (height, width) = model.anatomy.patches, model.anatomy.image_size
    repeats = (1, 1, -(-height // shape[1]), -(-width // shape[2]))
    mean, std = (torch.tensor(v, dtype=torch.float64)[:, None, None] for v in _scale(preprocess))
    tokens = []
    for pixels in (patch, other):
        unit = (torch.from_numpy(pixels.reshape(shape)) / 255 - mean) / std
        image = unit[None].repeat(repeats)[..., :height, :width]
        image = image.to(parameter.device, parameter.dtype)
        with torch.inference_mode():
            output = submodule(model.module, site.module)(image)
        found = first_tensor(output, site.module)
        tokens.append(split_tokens(found, site.grid, site.prefix, site.layout, site.module)[0, 0])
    first, second = (token.double() for token in tokens)
    return float((first - second).norm() / first.norm())


def _scale(preprocess: Preprocess) -> tuple[Any, Any]:
    return preprocess.mean, preprocess.std


def lost_variance(
    projection: Projection, preprocess: Preprocess, patches: NDArray[np.float64], nearly: float
) -> dict[str, Any]:
    """Share of the variance of patches in lost directions, and in lost or nearly lost ones.

    An empirical number: it depends on the images. With fewer patches than coordinates the
    covariance has empty directions of its own, and the share would come out too small.

    Args:
        projection: the map.
        preprocess: normalises pixels.
        patches: (n, 3, rows, cols) in levels 0..255.
        nearly: directions below this share of the largest singular value are nearly lost.
    """
    count, dim = len(patches), projection.matrix.shape[1]
    facts: dict[str, Any] = {"patches": count, "share_lost": None, "share_nearly": None}
    if count <= dim:
        reason = (
            f"{count} patches are too few for the variance in {dim} directions; give more images"
        )
        return facts | {"reason": reason}
    area = projection.kernel[0] * projection.kernel[1]
    mean, std = (np.repeat(np.asarray(v), area) for v in _scale(preprocess))
    unit = (patches.reshape(count, -1) / 255 - mean) / std
    centred = unit - unit.mean(axis=0)
    values, rows = projection.svd
    energy = np.square(centred @ rows.T).sum(axis=0)
    total = float(energy.sum())
    if total == 0:
        return facts | {"reason": "the patches are all equal, so they have no variance"}
    weak = values < nearly * values[0]
    return facts | {
        "share_lost": float(energy[projection.rank :].sum() / total),
        "share_nearly": float(energy[weak].sum() / total),
        "reason": None,
    }
