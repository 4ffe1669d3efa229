"""Top-1 predictions, image by image: an additive statistic from which accuracies are counted."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from probe.errors import DataError


class Top1:
    """The predicted class of every image, and whether it is right.

    Predictions are kept whole (a few bytes an image), so that agreement, tests between models and
    new intervals need no second run.
    """

    def __init__(self) -> None:
        """Start with no image."""
        self._positions: list[NDArray[np.int64]] = []
        self._predicted: list[NDArray[np.int32]] = []
        self._correct: list[NDArray[np.int8]] = []

    def update(
        self,
        logits: Tensor,
        positions: NDArray[np.int64],
        accepted: Sequence[frozenset[int] | None],
    ) -> None:
        """Add a batch.

        Args:
            logits: (B, classes).
            positions: (B,) ranks of the images among those taken.
            accepted: the classes of which any is right, per image; None where there is no label.

        Raises:
            DataError: if an image's logits are not finite: its prediction would mean nothing.
        """
        if not torch.isfinite(logits).all():
            raise DataError("the model gives logits that are not finite; try --dtype float32")
        predicted = logits.argmax(dim=1).cpu().numpy().astype(np.int32)
        right = [
            -1 if classes is None else int(int(one) in classes)
            for one, classes in zip(predicted, accepted, strict=True)
        ]
        self._positions.append(np.asarray(positions, dtype=np.int64))
        self._predicted.append(predicted)
        self._correct.append(np.array(right, dtype=np.int8))

    def finalise(self, images: int) -> tuple[NDArray[np.int32], NDArray[np.int8]]:
        """Predictions and correctness (1, 0; -1 without a label), both (images,), by position.

        Positions that were not read hold -1 in both.
        """
        predicted = np.full(images, -1, dtype=np.int32)
        correct = np.full(images, -1, dtype=np.int8)
        if self._positions:
            places = np.concatenate(self._positions)
            predicted[places] = np.concatenate(self._predicted)
            correct[places] = np.concatenate(self._correct)
        return predicted, correct

    def state(self) -> dict[str, NDArray[np.generic]]:
        """What has been added, as arrays, to be saved and given to `merge`."""
        if not self._positions:
            return {}
        return {
            "positions": np.concatenate(self._positions),
            "predicted": np.concatenate(self._predicted),
            "correct": np.concatenate(self._correct),
        }

    def merge(self, state: dict[str, NDArray[np.generic]]) -> None:
        """Add the predictions of other images."""
        if "positions" in state:
            self._positions.append(state["positions"].astype(np.int64))
            self._predicted.append(state["predicted"].astype(np.int32))
            self._correct.append(state["correct"].astype(np.int8))
