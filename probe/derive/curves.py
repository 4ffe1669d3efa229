"""SSDC curves over layers, and what is read off them: delta SSDC, anchoring, ratios."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from probe.derive.estimate import Estimate, difference, mean, ratio
from probe.errors import NotApplicable
from probe.numerics.intervals import band
from probe.records import PassRecord


@dataclass(frozen=True)
class Curve:
    """SSDC over layers under one kind of condition: means over its draws, and null bands."""

    grids: tuple[tuple[int, int], ...]
    layers: tuple[Estimate, ...]
    null: tuple[NDArray[np.float64], ...]
    draw_sd: tuple[float | None, ...]

    def band(self, layer: int) -> tuple[float | None, float | None]:
        """The null band of a layer, (None, None) where there is none."""
        return band(self.null[layer]) if len(self.null[layer]) else (None, None)


def curve(draws: Sequence[PassRecord]) -> Curve:
    """The curve of one or more draws of the same condition over the same images.

    Raises:
        NotApplicable: if the condition could not be run on this model, with the reason.
    """
    why = next((draw.reason for draw in draws if draw.reason is not None), None)
    if why is not None:
        raise NotApplicable(why)
    layers, null, spread = [], [], []
    for records in zip(*(draw.layers for draw in draws), strict=True):
        estimate = mean([Estimate.of(record) for record in records])
        defined = math.isfinite(estimate.value)
        layers.append(estimate)
        null.append(
            np.mean([record.null.astype(np.float64) for record in records], axis=0)
            if defined
            else np.empty(0)
        )
        values = [record.value for record in records if record.value is not None]
        several = defined and len(values) > 1
        spread.append(float(np.std(values, ddof=1)) if several else None)
    grids = tuple(record.grid for record in draws[0].layers)
    return Curve(grids, tuple(layers), tuple(null), tuple(spread))


def delta_ssdc(rpi: Curve, site: str) -> Estimate:
    """SSDC(layer 1) - SSDC(layer 0) under RPI at `attn_in`: what block 0 adds.

    Source: arXiv 2606.00124.
    """
    if site != "attn_in":
        return Estimate.undefined(f"delta SSDC is defined at attn_in, not at {site}")
    if len(rpi.layers) < 2:
        return Estimate.undefined("the model has one block")
    if rpi.grids[0] != rpi.grids[1]:
        return Estimate.undefined("layers 0 and 1 have different grids")
    return difference(rpi.layers[1], rpi.layers[0])


def anchoring(rpi: Curve, grid: tuple[int, int] | None = None) -> Estimate:
    """Unweighted mean of SSDC under RPI over all layers, or over those on one grid.

    Over several grids the mean mixes scales; `anchoring_by_grid` keeps them apart.
    """
    chosen = [i for i, g in enumerate(rpi.grids) if grid is None or g == grid]
    for layer in chosen:
        if not math.isfinite(rpi.layers[layer].value):
            return Estimate.undefined(
                f"SSDC under RPI is undefined at layer {layer}: {rpi.layers[layer].reason}"
            )
    return mean([rpi.layers[layer] for layer in chosen])


def layer_ratio(clean: Curve, rpi: Curve, layer: int) -> Estimate:
    """SSDC under RPI over SSDC clean; undefined where the latter lies inside its null band."""
    low, high = clean.band(layer)
    value = clean.layers[layer].value
    if low is not None and high is not None and low <= value <= high:
        return Estimate.undefined("clean SSDC lies inside its null band")
    return ratio(rpi.layers[layer], clean.layers[layer])
