"""Envelopes with every feature that a report must show, built by rule, and golden files."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

GOLDEN = Path(__file__).parent / "golden"
CONSTANT = "all token pairs are equally similar, or a token is zero or not finite"
OFF = "RPI is off"

Json = dict[str, Any]
Make = Callable[..., Json]


def scalar(value: float | None, half: float = 0.03, reason: str | None = None) -> Json:
    if value is None:
        return {"value": None, "low": None, "high": None, "reason": reason}
    if reason is not None:
        return {"value": value, "low": None, "high": None, "reason": reason}
    return {"value": value, "low": value - half, "high": value + half, "reason": None}


def point(value: float | None, layer: int, reason: str | None, p_values: bool) -> Json:
    found = scalar(value, 0.02 + 0.001 * layer, reason)
    defined = value is not None
    found["null_low"] = -0.04 - 0.001 * layer if defined else None
    found["null_high"] = 0.041 + 0.001 * layer if defined else None
    if p_values:
        found["p"] = None if value is None else (0.001 if abs(value) > 0.05 else 0.412)
    return found


def result(
    model: str = "deit_small",
    resolved: str | None = None,
    *,
    layers: int = 12,
    grids: Sequence[tuple[int, int]] = ((14, 14),),
    fall: float = 0.05,
    undefined: Sequence[int] = (),
    draws: int = 1,
    p_values: bool = False,
    images: int = 48,
    data: str = "photos",
) -> Json:
    """One entry of `results`: clean rises from .5123, RPI falls by `fall` a layer from .3877.

    `undefined` layers are null under RPI; `draws=0` turns RPI off; one image has no intervals.
    """
    alone = "no interval from one image" if images == 1 else None
    entries, sds = [], []
    per_grid = -(-layers // len(grids))
    for layer in range(layers):
        clean = 0.5123 + 0.3 * layer / layers
        rpi = 0.3877 - fall * layer
        reason = OFF if draws == 0 else CONSTANT if layer in undefined else None
        missing = reason is not None
        entries.append(
            {
                "layer": layer,
                "grid": list(grids[layer // per_grid]),
                "clean": point(clean, layer, alone, p_values),
                "rpi": point(None if missing else rpi, layer, reason or alone, p_values),
                "ratio": scalar(None if missing else rpi / clean, 0.05, reason or alone),
            }
        )
        sds.append(0.0041 + 0.001 * layer if draws > 1 and not missing else None)
    off = OFF if draws == 0 else None
    hole = off or (f"SSDC under RPI is undefined at layer {undefined[0]}" if undefined else None)
    values = [entry["rpi"]["value"] for entry in entries]
    peak = None if hole else max(range(layers), key=lambda i: values[i])
    return {
        "model": model,
        "resolved": resolved or f"timm:{model}_patch16_224.fb_in1k",
        "family": "timm_vit",
        "images": images,
        "settings": {
            "resolved": resolved or f"timm:{model}_patch16_224.fb_in1k",
            "revision": "0f3a77",
            "weights": "sha256:0123456789abcdef0123456789abcdef",
            "family": "timm_vit",
            "site": "attn_in",
            "distance": "l1",
            "average": "similarity",
            "seed": 7,
            "dtype": "float32",
            "device": "cpu",
            "image_size": [224, 224],
            "preprocess": {"source": "checkpoint"},
            "data": {"name": data, "fingerprint": "9c1b2d3e4f5a6b7c", "images": images},
            "versions": {"probe": "0.1.0"},
            "rpi": [f"rpi(mode=image,seed=7,draw={draw})" for draw in range(draws)],
            "machine": {"batch_size": 32, "workers": 0},
        },
        "layers": entries,
        "delta_ssdc_rpi": scalar(None if off else -fall, 0.0457, off or alone),
        "anchoring": scalar(None if hole else 0.2468, 0.0123, hole or alone),
        "anchoring_by_grid": [
            {"grid": list(grid)} | scalar(None if hole else 0.2222 + 0.1 * i, 0.0234, hole or alone)
            for i, grid in enumerate(grids)
        ],
        "final": scalar(values[-1], 0.0345, entries[-1]["rpi"]["reason"]),
        "peak": {
            "layer": peak,
            "value": None if peak is None else values[peak],
            "reason": off or ("SSDC under RPI is undefined at a layer" if hole else None),
        },
        "rpi_draw_sd": sds if draws else [],
        "ranked": [
            {"grid": list(grid), "pairs": n * (n - 1) // 2, "tokens": n}
            for grid in grids
            for n in [min(grid[0] * grid[1], 2048)]
        ],
        "skipped": [],
        "notes": [],
    }


def envelope(*results: Json, failures: Sequence[Json] = ()) -> Json:
    return {"schema": 1, "results": list(results), "failures": list(failures)}


SWIN = ((56, 56), (28, 28), (14, 14), (7, 7))


@pytest.fixture
def make() -> Make:
    return result


@pytest.fixture
def wrap() -> Callable[..., Json]:
    return envelope


@pytest.fixture
def one() -> Json:
    """One model: draws, p-values, an undefined layer, values below 0 and inside the band."""
    entry = result(undefined=(3,), draws=4, p_values=True)
    entry["skipped"] = [["a/broken.jpg", "truncated file"]]
    entry["notes"] = ["the head was dropped"]
    return envelope(entry)


@pytest.fixture
def several() -> Json:
    """Several models: mixed grids, another data set, RPI off, one image, and a failure."""
    return envelope(
        result(),
        result("swin_tiny", grids=SWIN, fall=0.03),
        result("vit_base", layers=24, undefined=(5, 6), fall=0.01),
        result("digits_tiny", "package:digits_tiny", layers=4, data="digits", grids=((8, 8),)),
        result("plain_vit", draws=0),
        result("tiny", layers=1, images=1),
        failures=[{"model": "broken", "error": "weights do not match:\nhead.bias"}],
    )


@pytest.fixture
def golden() -> Callable[[str, str], None]:
    """Compare text with a golden file; RECORD_GOLDEN=1 writes the file, and fails."""

    def check(name: str, text: str) -> None:
        path = GOLDEN / name
        if os.environ.get("RECORD_GOLDEN"):
            path.write_bytes(text.encode())
            pytest.fail(f"recorded {path}; read it, then run again without RECORD_GOLDEN")
        assert text == path.read_bytes().decode()

    return check
