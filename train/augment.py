"""What training does to images: vectorised over the batch where it can be, seeded throughout."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from PIL import Image
from timm.data import rand_augment_transform

from probe.data.preprocess import FILTERS
from probe.errors import UsageError
from train.draws import generator, number, seeded_globals
from train.recipe import Recipe
from train.sections import Augment


class Augmentation:
    """Images of a batch, changed as a recipe's `augment` says.

    All numbers are drawn for the whole batch and cut to the rows that are wanted, so that the
    number of processes changes nothing.
    """

    def __init__(self, recipe: Recipe, seed: int) -> None:
        """Prepare.

        Raises:
            UsageError: if timm does not know the text of `rand_augment`.
        """
        self.how: Augment = recipe.augment
        self.image = recipe.image
        self.seed = seed
        self.batch = recipe.train.batch
        self._randomly: Any = None
        if self.how.rand_augment is not None:
            mean = tuple(round(255 * value) for value in self.image.mean)
            try:
                # As far as timm's own pipeline moves images.
                far = int(0.45 * self.image.size)
                self._randomly = rand_augment_transform(
                    self.how.rand_augment, {"img_mean": mean, "translate_const": far}
                )
            except (AssertionError, KeyError, ValueError) as error:
                raise UsageError(
                    f"timm knows no rand_augment '{self.how.rand_augment}'; write it like "
                    "rand-m9-mstd0.5-inc1"
                ) from error

    def __call__(self, images: np.ndarray, step: int, rows: slice) -> np.ndarray:
        """The batch's images `rows` at one step, uint8 (B, height, width, 3) in and out.

        In comes the stored size, out the recipe's.
        """
        draw = generator(self.seed, "augment", step)
        crops = draw.random((self.batch, 4))[rows]
        flips = draw.random(self.batch)[rows] < 0.5
        span = self.how.shift
        by = draw.integers(-span, span + 1, (2, self.batch))[:, rows]
        if self.how.resized_crop is not None or images.shape[1] != self.image.size:
            images = np.stack(
                [self._crop(image, draws) for image, draws in zip(images, crops, strict=True)]
            )
        if self.how.flip:
            images = np.where(flips[:, None, None, None], images[:, :, ::-1], images)
        if span:
            images = shift(images, by)
        if self._randomly is not None:
            first = rows.start or 0
            images = np.stack(
                [self._random(image, step, first + row) for row, image in enumerate(images)]
            )
        return np.ascontiguousarray(images)

    def _crop(self, pixels: np.ndarray, draws: np.ndarray) -> np.ndarray:
        """A random part of the image, of random area and a ratio of 3/4 to 4/3, resized."""
        height, width = pixels.shape[:2]
        box = (0.0, 0.0, float(width), float(height))
        if self.how.resized_crop is not None:
            low, high = self.how.resized_crop
            area = height * width * (low + (high - low) * draws[0])
            ratio = math.exp(math.log(3 / 4) + math.log(16 / 9) * draws[1])
            wide = min(math.sqrt(area * ratio), width)
            tall = min(math.sqrt(area / ratio), height)
            left, top = draws[2] * (width - wide), draws[3] * (height - tall)
            box = (left, top, left + wide, top + tall)
        side, filter_ = self.image.size, FILTERS[self.image.interpolation]
        return np.asarray(Image.fromarray(pixels).resize((side, side), filter_, box=box))

    def _random(self, pixels: np.ndarray, step: int, row: int) -> np.ndarray:
        with seeded_globals(number(self.seed, "image", step, row)):
            return np.asarray(self._randomly(Image.fromarray(pixels)))


def shift(pixels: np.ndarray, by: np.ndarray) -> np.ndarray:
    """Images (B, side, side, 3) moved down by `by[0]` and right by `by[1]` pixels, zeros behind."""
    margin = int(np.abs(by).max(initial=0))
    side = pixels.shape[1]
    padded = np.pad(pixels, ((0, 0), (margin, margin), (margin, margin), (0, 0)))
    rows = margin - by[0][:, None] + np.arange(side)
    cols = margin - by[1][:, None] + np.arange(side)
    image = np.arange(len(pixels))[:, None, None]
    return padded[image, rows[:, :, None], cols[:, None, :]]
