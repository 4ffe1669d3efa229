"""Similarity maps around three fixed tokens, from the records that keep them."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

import numpy as np

from probe.numerics.distance import landmarks
from probe.records import ModelCard, PassRecord
from probe.types import Grid


def similarity_maps(
    card: ModelCard, clean: PassRecord | None, draws: Sequence[PassRecord]
) -> list[dict[str, Any]]:
    """Similarity maps of every layer, those under RPI averaged over draws."""
    found: list[dict[str, Any]] = []
    if clean is None or not draws:
        return found
    for layer, grid in enumerate(card.grids[: len(clean.layers)]):
        kept = [record.layers[layer].maps for record in (clean, *draws)]
        if any(one is None for one in kept):
            continue
        plain, *shuffled = [np.asarray(one, dtype=np.float64) for one in kept]
        found.append(
            {
                "layer": layer,
                "grid": list(grid),
                "tokens": [list(token) for token in landmarks(Grid(*grid))],
                "clean": _packed(plain),
                "rpi": _packed(np.mean(shuffled, axis=0)),
            }
        )
    return found


def _packed(maps: np.ndarray) -> list[str]:
    rows = np.rint(maps).astype(np.uint8).reshape(3, -1)
    return [base64.b64encode(row.tobytes()).decode("ascii") for row in rows]
