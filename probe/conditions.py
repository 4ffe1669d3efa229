"""A batch of images under a condition: corruptions on its pixels, interventions in the model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from probe.corruptions import parse
from probe.data.loader import Batch
from probe.interventions import permute_patches, rpi_permutations, scale_positions
from probe.types import Condition, LoadedModel


def corrupted(batch: Batch, conditions: Sequence[Condition], seed: int) -> dict[str | None, Batch]:
    """The batch under the corruption of every condition; None is the clean one.

    An image that a corruption fails on is left out under that corruption alone, so that a pass's
    numbers do not depend on which others share its reading; what compares passes takes the images
    that all of them have.
    """
    found: dict[str | None, Batch] = {None: batch}
    for name in dict.fromkeys(one.corruption for one in conditions):
        if name is not None:
            images, wrong = parse(name).apply_batch(
                batch.images.numpy(), seed, batch.indices, threads=torch.get_num_threads()
            )
            found[name] = _without(replace(batch, images=torch.from_numpy(images)), wrong)
    return found


def _without(batch: Batch, failed: Mapping[int, str]) -> Batch:
    if not failed:
        return batch
    keep = np.array([row for row in range(len(batch.names)) if row not in failed], dtype=np.int64)
    return replace(
        batch,
        positions=batch.positions[keep],
        indices=batch.indices[keep],
        images=batch.images[keep],
        labels=[batch.labels[row] for row in keep],
        names=tuple(batch.names[row] for row in keep),
        skipped=batch.skipped + [(batch.names[row], why) for row, why in sorted(failed.items())],
    )


@contextmanager
def applied(
    model: LoadedModel,
    condition: Condition,
    indices: NDArray[np.int64],
    batch_numbers: NDArray[np.int64],
) -> Iterator[None]:
    """The interventions of `condition`, for a batch of images with these indices."""
    with ExitStack() as stack:
        permutation = condition.permutation
        if permutation is not None:
            named = batch_numbers if permutation.mode == "batch" else indices
            grid = model.anatomy.patches.grid
            drawn = rpi_permutations(grid, [int(index) for index in named], permutation)
            stack.enter_context(permute_patches(model, drawn))
        if condition.alpha != 1:
            stack.enter_context(scale_positions(model, condition.alpha, condition.signal))
        yield
