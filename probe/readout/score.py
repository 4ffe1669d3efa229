"""How often a readout is right on images that it was not fitted to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from probe.data.label_head import HeadLabels, listed
from probe.data.labels import map_labels
from probe.data.source import Source
from probe.errors import DataError
from probe.readout.features import read_features
from probe.readout.file import Readout
from probe.types import LoadedModel, Scalar


@dataclass(frozen=True)
class Score:
    """Top-1 counts over the labelled images; `classes` is how many of the readout's occur."""

    correct: int
    images: int
    classes: int
    unlabelled: int
    unreadable: int

    def accuracy(self) -> Scalar:
        """The share that is right, with its 95 % Wilson interval."""
        from scipy.stats import binomtest

        bounds = binomtest(self.correct, self.images).proportion_ci(0.95, method="wilson")
        return Scalar(self.correct / self.images, float(bounds.low), float(bounds.high))


def score(
    model: LoadedModel,
    readout: Readout,
    source: Source,
    *,
    batch_size: int = 32,
    workers: int = 0,
    progress: Callable[[int], None] = lambda images: None,
) -> Score:
    """Count right answers of `readout` on the features of `model`; labels map to it by name.

    Args:
        model: the model that the readout was fitted for.
        readout: the readout.
        source: labelled images, other than the training images.
        batch_size: images per forward pass.
        workers: processes that decode images.
        progress: called with the number of images that have just been read.

    Raises:
        DataError: if the labels do not map to the readout's classes, or no image has one.
        UsageError: if the readout takes other features than the model gives.
    """
    names = readout.class_names
    head = HeadLabels(len(names), names)
    unknown = [name for name in source.class_names or () if not head.named(name)]
    if unknown:
        raise DataError(
            f"the readout has no class for {listed(unknown)} of '{source.name}'; fit it to images "
            "of all classes (another --limit may reach them)"
        )
    labels = map_labels(source, None, len(names), names, None)
    found = read_features(
        model, source, readout.pool, batch_size=batch_size, workers=workers, progress=progress
    )
    predicted = readout.logits(torch.from_numpy(found.values)).argmax(dim=1).tolist()
    accepted = [labels.accepts(*pair) for pair in zip(found.names, found.labels, strict=True)]
    pairs = [(one, right) for one, right in zip(predicted, accepted, strict=True) if right]
    if not pairs:
        raise DataError(f"'{source.name}' has no labels to count right answers by")
    return Score(
        correct=sum(one in right for one, right in pairs),
        images=len(pairs),
        classes=len({label for _, right in pairs for label in right}),
        unlabelled=len(predicted) - len(pairs),
        unreadable=found.unreadable,
    )
