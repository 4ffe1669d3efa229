"""Scenes in, pooled features out: in batches, without gradients, at the model's own size."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import islice

import numpy as np
import torch

from probe.data.preprocess import normalise
from probe.errors import DataError
from probe.loading import required_preprocess
from probe.numerics.logistic import Floats, Ints
from probe.readout import Pool, pooled_features
from probe.tasks.design import Scene
from probe.types import LoadedModel


@dataclass(frozen=True, eq=False)
class Seen:
    """Features (n, F) of scenes, their labels (n,), and what was set or drawn in each."""

    features: Floats
    labels: Ints
    factors: tuple[Mapping[str, str | float], ...]


class Reader:
    """Runs one model over scenes; the scenes have its size, so that nothing is resized.

    `digest` is the hash of every pixel that was shown so far, in order.
    """

    def __init__(
        self,
        model: LoadedModel,
        pool: Pool,
        batch_size: int,
        progress: Callable[[int], None] = lambda scenes: None,
    ) -> None:
        """Read `model` with `pool`; `progress` is called with the number of scenes just read.

        Raises:
            CheckpointError: if the model carries no preprocessing, hence no mean and no std.
        """
        self._model, self._pool, self._batch_size = model, pool, batch_size
        self._preprocess = required_preprocess(model)
        self._progress = progress
        self._hash = hashlib.sha256()
        self.count = 0

    @property
    def digest(self) -> str:
        """`sha256:...` of the scenes so far."""
        return f"sha256:{self._hash.hexdigest()}"

    def read(self, scenes: Iterable[Scene]) -> Seen:
        """The features of `scenes`, of which a batch at a time is held in memory.

        Raises:
            DataError: if a feature is not finite.
        """
        weight = next(self._model.module.parameters())
        values, labels, factors = [], [], []
        waiting = iter(scenes)
        while batch := list(islice(waiting, self._batch_size)):
            pixels = np.stack([scene.image for scene in batch])
            self._hash.update(pixels.tobytes())
            images = normalise(
                torch.from_numpy(pixels), self._preprocess, weight.dtype, weight.device
            )
            with torch.inference_mode():
                found = pooled_features(self._model, images, self._pool).cpu().numpy()
            if not np.isfinite(found).all():
                raise DataError("the features are not finite; choose --dtype float32")
            values.append(found)
            labels += [scene.label for scene in batch]
            factors += [scene.factors for scene in batch]
            self.count += len(batch)
            self._progress(len(batch))
        return Seen(
            np.concatenate(values).astype(np.float64),
            np.array(labels, dtype=np.int64),
            tuple(factors),
        )
