"""Numbers that follow from records: curves, delta SSDC, anchoring, ratios. Pure functions.

All of them use the records' own leave-one-out values, so that intervals of means, differences and
ratios are paired over images.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probe.numerics.intervals import band, interval, mantel_p
from probe.records import LayerRecord, PassRecord
from probe.types import Scalar

RPI_OFF = "RPI is off"


@dataclass(frozen=True)
class Estimate:
    """A statistic with its jackknife replicates (G,); NaN and a reason where it is undefined."""

    value: float
    replicates: NDArray[np.float64]
    reason: str | None = None

    @classmethod
    def undefined(cls, reason: str) -> Estimate:
        """No number, and why."""
        return cls(float("nan"), np.empty(0), reason)

    @classmethod
    def of(cls, layer: LayerRecord) -> Estimate:
        """SSDC of one layer of one pass."""
        if layer.value is None:
            return cls.undefined(layer.reason or "undefined")
        replicates = [float("nan") if v is None else v for v in layer.leave_one_out]
        return cls(layer.value, np.array(replicates))

    def scalar(self) -> Scalar:
        """The number with its interval, as it is reported."""
        if not math.isfinite(self.value):
            return Scalar(None, reason=self.reason or "undefined")
        low, high = interval(self.value, self.replicates)
        if low is not None:
            return Scalar(self.value, low, high)
        if len(self.replicates) < 2:
            return Scalar(self.value, reason="no interval from one image")
        return Scalar(self.value, reason="no interval: undefined without one of the image groups")


def combine(
    parts: Sequence[Estimate], rule: Callable[[NDArray[np.float64]], NDArray[np.float64]]
) -> Estimate:
    """Apply `rule`, from (parts, replicates) to (replicates,), to values and replicates alike.

    Undefined if a part is, with the first part's reason; without replicates unless all parts have
    the same number of them.
    """
    for part in parts:
        if not math.isfinite(part.value):
            return part
    value = float(rule(np.array([[part.value] for part in parts]))[0])
    sizes = {len(part.replicates) for part in parts}
    replicates = (
        rule(np.stack([part.replicates for part in parts])) if len(sizes) == 1 else np.empty(0)
    )
    return Estimate(value, replicates)


def mean(parts: Sequence[Estimate]) -> Estimate:
    """Unweighted mean."""
    return combine(parts, lambda rows: rows.mean(axis=0))


def difference(first: Estimate, second: Estimate) -> Estimate:
    """The first minus the second, paired by image group."""
    return combine([first, second], lambda rows: rows[0] - rows[1])


def ratio(first: Estimate, second: Estimate) -> Estimate:
    """The first over the second, paired by image group."""

    def divide(rows: NDArray[np.float64]) -> NDArray[np.float64]:
        with np.errstate(divide="ignore", invalid="ignore"):
            return rows[0] / rows[1]

    return combine([first, second], divide)


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
    """The curve of one or more draws of the same condition over the same images."""
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


def ssdc_result(
    name: str,
    clean: PassRecord,
    draws: Sequence[PassRecord],
    *,
    notes: Sequence[str] = (),
    p_values: bool = False,
) -> dict[str, Any]:
    """One model's entry of the JSON output; see the README for its fields.

    Args:
        name: the model as the user named it.
        clean: its clean pass.
        draws: its RPI passes, one per draw; empty when RPI is off.
        notes: remarks of the loader.
        p_values: add each layer's permutation p-value.
    """
    site = str(clean.settings["site"])
    plain = curve([clean])
    shuffled = curve(draws) if draws else None
    off = Estimate.undefined(RPI_OFF)
    layers = []
    for layer, grid in enumerate(plain.grids):
        layers.append(
            {
                "layer": layer,
                "grid": list(grid),
                "clean": _point(plain, layer, p_values),
                "rpi": _point(shuffled, layer, p_values),
                "ratio": asdict(
                    (layer_ratio(plain, shuffled, layer) if shuffled else off).scalar()
                ),
            }
        )
    grids = tuple(dict.fromkeys(plain.grids))
    settings = {k: v for k, v in clean.settings.items() if k != "condition"}
    return {
        "model": name,
        "resolved": clean.settings["resolved"],
        "family": clean.settings["family"],
        "images": clean.images,
        "settings": settings
        | {"rpi": [draw.condition for draw in draws], "machine": clean.machine},
        "layers": layers,
        "delta_ssdc_rpi": asdict((delta_ssdc(shuffled, site) if shuffled else off).scalar()),
        "anchoring": asdict((anchoring(shuffled) if shuffled else off).scalar()),
        "anchoring_by_grid": [
            {"grid": list(grid)} | asdict((anchoring(shuffled, grid) if shuffled else off).scalar())
            for grid in grids
        ],
        "final": asdict((shuffled.layers[-1] if shuffled else off).scalar()),
        "peak": _peak(shuffled),
        "rpi_draw_sd": list(shuffled.draw_sd) if shuffled else [],
        "ranked": [
            {"grid": list(grid), "pairs": pairs, "tokens": tokens}
            for grid, pairs, tokens in dict.fromkeys(
                (r.grid, r.pairs, r.subset or r.shape.tokens) for r in clean.layers
            )
        ],
        "skipped": [list(entry) for entry in clean.skipped],
        "notes": list(notes),
    }


def _point(source: Curve | None, layer: int, p_values: bool) -> dict[str, Any]:
    if source is None:
        scalar, low, high = Scalar(None, reason=RPI_OFF), None, None
    else:
        scalar = source.layers[layer].scalar()
        low, high = source.band(layer)
    point: dict[str, Any] = {
        "value": scalar.value,
        "low": scalar.low,
        "high": scalar.high,
        "null_low": low,
        "null_high": high,
        "reason": scalar.reason,
    }
    if p_values:
        point["p"] = (
            mantel_p(scalar.value, source.null[layer])
            if source is not None and scalar.value is not None
            else None
        )
    return point


def _peak(rpi: Curve | None) -> dict[str, Any]:
    """The largest SSDC under RPI and its layer; no interval, since a maximum is biased."""
    values = [] if rpi is None else [estimate.value for estimate in rpi.layers]
    if not values or not all(math.isfinite(value) for value in values):
        return {
            "layer": None,
            "value": None,
            "reason": RPI_OFF if rpi is None else "SSDC under RPI is undefined at a layer",
        }
    layer = int(np.argmax(values))
    return {"layer": layer, "value": values[layer], "reason": None}
