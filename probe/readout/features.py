"""The features that a readout sees: a model's last tokens, pooled."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor

from probe.data.loader import batches
from probe.data.preprocess import normalise
from probe.data.source import Label, Source
from probe.errors import AnatomyError, DataError, UsageError, did_you_mean
from probe.hooks import first_tensor, split_tokens, submodule
from probe.loading import required_preprocess
from probe.types import FeatureSite, LoadedModel

Pool = Literal["class", "mean", "both"]
POOLS: tuple[Pool, ...] = get_args(Pool)


@dataclass(frozen=True, eq=False)
class Features:
    """Pooled features float32 (n, F) of the readable images, with their names and labels."""

    values: np.ndarray
    names: tuple[str, ...]
    labels: tuple[Label, ...]
    unreadable: int


def feature_site(model: LoadedModel) -> FeatureSite:
    """Where the family says that the last tokens are.

    Raises:
        AnatomyError: if it does not say so.
    """
    site = model.anatomy.features
    if site is None:
        raise AnatomyError(
            f"family {model.family} declares no last tokens for {model.identity.resolved}, so it "
            "has no features for a readout; load it as a classifier or as the bare model"
        )
    return site


def choose_pool(model: LoadedModel, pool: str | None = None) -> Pool:
    """`pool`, if the model has it; None takes the class token where there is one, else the mean.

    Raises:
        AnatomyError: if the family declares no last tokens for this model.
        UsageError: if there is no such pool, or the model has no class token.
    """
    site = feature_site(model)
    if pool is None:
        return "mean" if site.class_index is None else "class"
    chosen = next((known for known in POOLS if known == pool), None)
    if chosen is None:
        near = did_you_mean(pool, POOLS)
        raise UsageError(f"--pool takes {', '.join(POOLS)}; got '{pool}'.{near}")
    if site.class_index is None and chosen != "mean":
        raise UsageError(
            f"{model.identity.resolved} has no class token among its last tokens, so there is no "
            f"--pool {chosen}; choose --pool mean"
        )
    return chosen


def pooled_features(model: LoadedModel, images: Tensor, pool: str | None = None) -> Tensor:
    """The features float32 (B, F) of float images (B, 3, height, width); F is C, or 2 C for `both`.

    `class` is the class token, `mean` the mean over patch tokens, prefix tokens left out, and
    `both` the first followed by the second. Tokens are read where the family's `FeatureSite` says:
    after the final norm, or, where the model norms only what it has pooled (timm's `fc_norm`; CLIP
    and mean-pooling BEiT of transformers), as the last block leaves them.

    The whole module runs, so interventions and hooks act as in any forward pass.

    Raises:
        AnatomyError: if the tokens are not where the family says.
        UsageError: if the model does not have that pool.
    """
    chosen, site = choose_pool(model, pool), feature_site(model)
    found: list[Tensor] = []

    def keep(_module: Any, _args: Any, output: Any) -> None:
        found[:] = [first_tensor(output, site.module)]  # of several calls the last

    handle = submodule(model.module, site.module).register_forward_hook(keep)
    try:
        model.forward(images)
    finally:
        handle.remove()
    if not found:
        raise AnatomyError(
            f"module '{site.module}' never ran, so there are no last tokens; check the anatomy"
        )
    (tokens,) = found
    patches = split_tokens(tokens, site.grid, site.prefix, site.layout, site.module)
    parts = [] if chosen == "mean" else [tokens[:, site.class_index].float()]
    parts += [] if chosen == "class" else [patches.float().mean(dim=1)]
    return torch.cat(parts, dim=1)


def read_features(
    model: LoadedModel,
    source: Source,
    pool: str | None = None,
    *,
    batch_size: int = 32,
    workers: int = 0,
    progress: Callable[[int], None] = lambda images: None,
) -> Features:
    """Pooled features of every image of `source`, all held in memory.

    Args:
        model: the loaded model; it must carry a preprocessing.
        source: the images.
        pool: see `choose_pool`.
        batch_size: images per forward pass.
        workers: processes that decode images.
        progress: called with the number of images that have just been finished.

    Raises:
        CheckpointError: if the model carries no preprocessing.
        DataError: if too many images cannot be read, or a feature is not finite.
    """
    preprocess, parameter = required_preprocess(model), next(model.module.parameters())
    values: list[np.ndarray] = []
    names: list[str] = []
    labels: list[Label] = []
    unreadable = done = 0
    for batch in batches(source, preprocess, batch_size, workers):
        images = normalise(batch.images, preprocess, parameter.dtype, parameter.device)
        with torch.inference_mode():
            part = pooled_features(model, images, pool).cpu().numpy()
        broken = ~np.isfinite(part).all(axis=1)
        if broken.any():
            raise DataError(
                f"the features of '{batch.names[broken.argmax()]}' are not finite; choose --dtype "
                "float32, or leave that image out"
            )
        values.append(part)
        names += batch.names
        labels += batch.labels
        unreadable += len(batch.skipped)
        progress(batch.stop - done)
        done = batch.stop
    return Features(np.concatenate(values), tuple(names), tuple(labels), unreadable)
