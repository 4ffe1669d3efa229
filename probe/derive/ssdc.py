"""One model's entry in the output of `probe ssdc`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from probe.derive.curves import Curve, anchoring, curve, delta_ssdc, layer_ratio
from probe.derive.estimate import Estimate, mean
from probe.numerics.intervals import mantel_p
from probe.records import PassRecord

RPI_OFF = "RPI is off"


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
    why = next((draw.reason for draw in draws if draw.reason is not None), None)
    if why is not None:  # the model has nothing that RPI could permute
        draws = ()
    shuffled = curve(draws) if draws else None
    off = Estimate.undefined(why or RPI_OFF)
    layers = []
    for layer, grid in enumerate(plain.grids):
        layers.append(
            {
                "layer": layer,
                "grid": list(grid),
                "clean": _point(plain, layer, p_values) | _metrics([clean], clean, layer, off),
                "rpi": _point(shuffled or off, layer, p_values)
                | _metrics(draws, clean, layer, off),
                "ratio": asdict(
                    (layer_ratio(plain, shuffled, layer) if shuffled else off).scalar()
                ),
            }
        )
    grids = tuple(dict.fromkeys(plain.grids))
    settings = {
        k: v for k, v in clean.settings.items() if k not in ("condition", "measures", "notes")
    }
    if draws and "batch_size" in draws[0].settings:
        settings["batch_size"] = draws[0].settings["batch_size"]  # it shared out permutations
    return {
        "model": name,
        "resolved": clean.settings["resolved"],
        "family": clean.settings["family"],
        "images": clean.images,
        "settings": settings
        | {
            "rpi": [draw.condition for draw in draws],
            "alpha": 1.0,
            "corruption": None,
            "groups": max((len(r.leave_one_out) for r in clean.layers), default=0),
            "machine": clean.machine,
        },
        "layers": layers,
        "delta_ssdc_rpi": asdict((delta_ssdc(shuffled, site) if shuffled else off).scalar()),
        "anchoring": asdict((anchoring(shuffled) if shuffled else off).scalar()),
        "anchoring_by_grid": [
            {"grid": list(grid)} | asdict((anchoring(shuffled, grid) if shuffled else off).scalar())
            for grid in grids
        ],
        "final": asdict((shuffled.layers[-1] if shuffled else off).scalar()),
        "peak": _peak(shuffled or off),
        "rpi_draw_sd": list(shuffled.draw_sd) if shuffled else [],
        "ranked": [
            {"grid": list(grid), "pairs": pairs, "tokens": tokens, "relabellings": relabellings}
            for grid, pairs, tokens, relabellings in _ranked(clean)
        ],
        "skipped": [list(entry) for entry in clean.skipped],
        "notes": list(notes),
    }


def _ranked(record: PassRecord) -> list[tuple[tuple[int, int], int, int, int]]:
    """Per grid: the pairs that were ranked, among how many tokens, and relabelled how often."""
    found: dict[tuple[int, int], tuple[int, int, int]] = {}
    for layer in record.layers:
        relabellings = max(len(layer.null), found.get(layer.grid, (0, 0, 0))[2])
        found[layer.grid] = (layer.pairs, layer.subset or layer.shape.tokens, relabellings)
    return [(grid, *rest) for grid, rest in found.items()]


def _point(source: Curve | Estimate, layer: int, p_values: bool) -> dict[str, Any]:
    low = high = None
    if isinstance(source, Estimate):
        scalar = source.scalar()
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
            if isinstance(source, Curve) and scalar.value is not None
            else None
        )
    return point


def _metrics(
    passes: Sequence[PassRecord], clean: PassRecord, layer: int, off: Estimate
) -> dict[str, Any]:
    """Metrics of other packages at a layer, over draws the mean; nothing where there are none."""
    named = clean.layers[layer].metrics
    if named is None:
        return {}
    found: dict[str, Any] = {}
    for name in named:
        parts = [
            Estimate.of(metrics[name])
            for one in passes
            if (metrics := one.layers[layer].metrics) is not None
        ]
        found[name] = asdict((mean(parts) if parts else off).scalar())
    return {"metrics": found}


def _peak(rpi: Curve | Estimate) -> dict[str, Any]:
    """The largest SSDC under RPI and its layer; no interval, since a maximum is biased."""
    values = [] if isinstance(rpi, Estimate) else [estimate.value for estimate in rpi.layers]
    if not values or not all(math.isfinite(value) for value in values):
        return {
            "layer": None,
            "value": None,
            "reason": rpi.reason
            if isinstance(rpi, Estimate)
            else "SSDC under RPI is undefined at a layer",
        }
    layer = int(np.argmax(values))
    return {"layer": layer, "value": values[layer], "reason": None}
