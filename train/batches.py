"""Step to batch: which images a training step sees, augmented; a function of (seed, step) alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from probe.errors import DataError
from train.augment import Augmentation
from train.draws import generator
from train.parts import Part
from train.recipe import Recipe


@dataclass(frozen=True)
class Batch:
    """One process's share of a step.

    `pixels` uint8 (B, height, width, 3), `labels` int64 (B,), `order` int64 (B, N), the permutation
    of each image's patch tokens, None where they stay in order.
    """

    pixels: Tensor
    labels: Tensor
    order: Tensor | None

    def split(self, parts: int) -> Iterator[Batch]:
        """Equal parts, in order."""
        size = len(self.labels) // parts
        for first in range(0, len(self.labels), size):
            rows = slice(first, first + size)
            order = None if self.order is None else self.order[rows]
            yield Batch(self.pixels[rows], self.labels[rows], order)


class Steps(Dataset[Batch]):
    """Batches by step. Every epoch is a fresh permutation of the images, its rest left out."""

    def __init__(
        self, part: Part, recipe: Recipe, seed: int, *, processes: int = 1, rank: int = 0
    ) -> None:
        """Cut every batch into `processes` equal shares and take the one of `rank`.

        Raises:
            DataError: if the batch cannot be cut so.
        """
        self.part, self.seed = part, seed
        self.size = recipe.train.batch
        if self.size % processes:
            raise DataError(
                f"a batch of {self.size} cannot be shared by {processes} processes; "
                "change --set train.batch, or their number"
            )
        share = self.size // processes
        self.rows = slice(rank * share, (rank + 1) * share)
        self.augment = Augmentation(recipe, seed)
        side = recipe.image.size // recipe.model.patch_size
        self.tokens = side * side if recipe.variant == "rpt" else None
        self.per_epoch = len(part) // self.size
        self._epoch: tuple[int, np.ndarray] = (-1, np.empty(0))

    def __getitem__(self, step: int) -> Batch:
        """The share of one step, counted from 0."""
        epoch, place = divmod(step, self.per_epoch)
        if self._epoch[0] != epoch:
            self._epoch = (
                epoch, generator(self.seed, "order", epoch).permutation(len(self.part))
            )  # fmt: skip
        chosen = self._epoch[1][place * self.size : (place + 1) * self.size][self.rows]
        pixels = self.augment(self.part.images[self.part.rows[chosen]], step, self.rows)
        order = None
        if self.tokens is not None:
            draw = generator(self.seed, "shuffle", step)
            rows = np.tile(np.arange(self.tokens), (self.size, 1))
            order = torch.from_numpy(draw.permuted(rows, axis=1)[self.rows])
        labels = torch.from_numpy(self.part.labels[chosen])
        return Batch(torch.from_numpy(pixels), labels, order)


def stream(steps: Steps, start: int, stop: int, workers: int) -> Iterator[Batch]:
    """The batches of the steps `start` to `stop`, prepared ahead by `workers` processes."""
    loader: DataLoader[Batch] = DataLoader(
        steps,
        batch_size=None,
        sampler=range(start, stop),
        num_workers=workers,
        generator=torch.Generator(),
        prefetch_factor=4 if workers else None,
        persistent_workers=workers > 0,
    )
    return iter(loader)
