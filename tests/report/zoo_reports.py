"""Seeded reports with every feature that a rendering must show, up to 60 models."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

import numpy as np

from tests.web.reports import INTERFACE

Json = dict[str, Any]

CORRUPTIONS = {
    "jpeg(quality=5)": ("jpeg_q5", None),
    "gaussian_blur(sigma=2.5,kernel=5)": ("gaussian_blur_s2.5_k5", 1.3345186054091975),
    "true_gaussian_blur(sigma=2.5)": ("true_gaussian_blur_s2.5", 2.499438600980652),
}
ALPHAS = (1.0, 0.75, 0.5, 0.25, 0.0)
POSITIONS = ("absolute", "rotary", "relative_bias", "none", "rotary+absolute", "convolutional")
SWIN = ((56, 56), (28, 28), (14, 14), (7, 7))
CONSTANT = "all token pairs are equally similar, or a token is zero or not finite"
UNLABELLED = "the images have no labels"
NO_SIGNAL = "the model has no positional signal that alpha reaches"
NAMES = (
    *("deit_small", "vit_base_rope", "swin_tiny", "digits_none_s0", "vit_base_rope_mixed_ape"),
    *("dinov2_small_reg4", "hf_vit_base", "vit_betwixt_rope_reg4_gap", "pvt_v2_b2", "beit_base"),
)


def scalar(value: float | None, half: float = 0.02, reason: str | None = None) -> Json:
    if value is None or reason is not None:
        return {"value": value, "low": None, "high": None, "reason": reason}
    value = round(value, 6)
    low, high = round(value - half, 6), round(value + half, 6)
    return {"value": value, "low": low, "high": high, "reason": None}


def model(
    index: int = 0,
    name: str | None = None,
    *,
    depth: int | None = None,
    grids: Sequence[tuple[int, int]] | None = None,
    position: str | None = None,
    undefined: Sequence[int] = (),
    labelled: bool = True,
    images: int = 300,
    alphas: Sequence[float] = ALPHAS,
    corruptions: Sequence[str] = tuple(CORRUPTIONS),
) -> Json:
    """One entry of `models`, drawn from a generator seeded by `index`."""
    rng = np.random.default_rng([5, index])
    name = name or (NAMES[index] if index < len(NAMES) else f"{NAMES[index % 10]}_{index}")
    position = position or POSITIONS[index % len(POSITIONS)]
    grids = grids or (SWIN if position == "relative_bias" else ((14, 14),))
    depth = depth or (12, 24, 12, 4, 12, 6)[index % 6]
    strength = 0.0 if position == "none" else float(rng.uniform(0.15, 0.8))
    shape = np.sin(np.linspace(0.3, 2.6, depth) + rng.uniform(-0.3, 0.3))
    rpi = strength * shape + rng.normal(0, 0.015, depth)
    clean = 0.45 + 0.35 * shape + rng.normal(0, 0.02, depth)
    alone = "no interval from one image" if images == 1 else None
    layers = []
    for layer in range(depth):
        gone = CONSTANT if layer in undefined else None
        points = {}
        for kind, values in (("clean", clean), ("rpi", rpi)):
            reason = (gone if kind == "rpi" else None) or alone
            own = None if gone and kind == "rpi" else float(values[layer])
            band = 0.03 if own is not None else None
            points[kind] = scalar(own, 0.015 + 0.001 * layer, reason) | {
                "null_low": None if band is None else -band,
                "null_high": band,
            }
        grid = list(grids[layer * len(grids) // depth])
        ratio = scalar(None if gone else float(rpi[layer] / clean[layer]), 0.04, gone or alone)
        layers.append({"layer": layer, "grid": grid, **points, "ratio": ratio})
    values = [entry["rpi"]["value"] for entry in layers]
    hole = f"SSDC under RPI is undefined at layer {undefined[0]}" if undefined else None
    anchor = None if hole else float(np.mean(values))
    peak = None if hole else int(np.argmax(values))
    delta = float(rpi[1] - rpi[0]) if depth > 1 and grids[0] == tuple(layers[1]["grid"]) else None
    no_delta = "layers 0 and 1 have different grids" if delta is None else None
    accuracy = float(rng.uniform(0.6, 0.85))
    entries, fragile = [], {}
    for k, text in enumerate(corruptions):
        column, sigma = CORRUPTIONS[text]
        fs = float(np.clip(0.62 - 0.45 * (anchor or 0) + rng.normal(0, 0.05) - 0.08 * k, -0.1, 1))
        fragile[text] = fs
        why = None if labelled else UNLABELLED
        entries.append(
            {
                "corruption": text,
                "column": column,
                "effective_sigma": sigma,
                "accuracy": scalar(accuracy * (1 - fs) if labelled else None, 0.03, why),
                "correct": round(images * accuracy * (1 - fs)) if labelled else None,
                "fs": scalar(fs if labelled else None, 0.035, why or alone),
                "agreement_fs": scalar(fs + 0.05, 0.04, alone),
            }
        )
    rows = []
    for alpha in alphas:
        unscaled = position in ("none", "convolutional") and alpha != 1
        why = NO_SIGNAL if unscaled else None
        held = None if why else alpha**1.5
        rows.append(
            {
                "alpha": alpha,
                "delta_ssdc_rpi": scalar(
                    None if held is None or delta is None else delta * held, 0.02, why or no_delta
                ),
                "anchoring": scalar(
                    None if held is None or anchor is None else anchor * held, 0.015, why or hole
                ),
                "accuracy": scalar(
                    accuracy * (0.6 + 0.4 * held) if labelled and held is not None else None,
                    0.03,
                    why or (None if labelled else UNLABELLED),
                ),
                "fs": {
                    text: scalar(
                        fs + 0.2 * (1 - held) if labelled and held is not None else None,
                        0.03,
                        why or (None if labelled else UNLABELLED),
                    )
                    for text, fs in fragile.items()
                },
                "reason": why,
            }
        )
    return {
        "model": name,
        "resolved": f"timm:{name}_patch16_224.fb_in1k",
        "revision": "0f3a77",
        "weights": f"sha256:{index:064x}",
        "family": "timm_vit",
        "group": ("deit_in1k", "naver_in1k", None)[index % 3],
        "tags": ["small", "supervised"],
        "position": position,
        "grid": list(grids[0]),
        "grids": [list(grid) for grid in grids],
        "depth": depth,
        "image_size": [224, 224],
        "params": 22_050_664 + index,
        "macs": 4_608_338_304 if index % 4 else None,
        "macs_convention": "multiply-adds of one forward pass, attention included",
        "interface": INTERFACE,
        "provenance": {
            "pretraining": "ImageNet-1k, supervised",
            "licence": "apache-2.0",
            "expected": 0.79844,
            "source": "https://github.com/owner/models/results.csv",
        }
        if index % 5
        else {},
        "readout": None,
        "images": images,
        "labelled": images if labelled else None,
        "settings": {
            "site": "attn_in",
            "distance": "l1",
            "average": "similarity",
            "rpi": ["rpi(mode=image,seed=0,draw=0)"],
            "image_size": [224, 224],
            "preprocess": {"source": "checkpoint"},
            "data": {"name": "photos", "fingerprint": "blake2b:9c1b2d3e4f5a6b7c"},
        },
        "labels": "10 classes mapped by WordNet id" if labelled else None,
        "notes": [],
        "skipped": [],
        "anchoring": scalar(anchor, 0.012, hole or alone),
        "anchoring_by_grid": [
            {"grid": list(grid)} | scalar(anchor, 0.02, hole or alone) for grid in grids
        ],
        "final": {key: layers[-1]["rpi"][key] for key in ("value", "low", "high", "reason")},
        "peak": {
            "layer": peak,
            "value": None if peak is None else values[peak],
            "reason": hole and "SSDC under RPI is undefined at a layer",
        },
        "delta_ssdc_rpi": scalar(delta, 0.02, no_delta or alone),
        "accuracy": scalar(accuracy if labelled else None, 0.03, None if labelled else UNLABELLED),
        "correct": round(images * accuracy) if labelled else None,
        "corruptions": entries,
        "layers": layers,
        "alphas": rows,
        "maps": [
            {
                "layer": 0,
                "grid": list(grids[0]),
                "tokens": [[0, 0]],
                "clean": [base64.b64encode(b"\x80").decode()],
                "rpi": [base64.b64encode(b"\x80").decode()],
            }
        ],
        "published": [],
    }


def correlation(x: str, y: str, models: int, group: str | None = None, **other: Any) -> Json:
    found = {
        "x": x, "y": y, "group": group, "models": models, "rho": -0.71, "low": -0.92, "high": -0.31,
        "p": 0.0004, "loo_low": -0.78, "loo_high": -0.62, "reason": None, "notes": [],
    }  # fmt: skip
    return found | other


def report(*models: Json, failures: Sequence[Json] = (), title: str = "overview") -> Json:
    """A whole report of these models."""
    columns = [entry["column"] for entry in models[0]["corruptions"]] if models else []
    return {
        "schema": 1,
        "title": title,
        "protocol": "default",
        "data": {
            "name": "photos",
            "kind": "photos",
            "fingerprint": "blake2b:9c1b2d3e4f5a6b7c",
            "split": None,
            "total": 1200,
            "taken": 300,
        },
        "settings": {
            "site": "attn_in",
            "distance": "l1",
            "average": "similarity",
            "seed": 0,
            "dtype": "float32",
            "device": "cpu",
            "rpi": ["rpi(mode=image,seed=0,draw=0)"],
            "interval": "95 %, delete-a-group jackknife over images, 20 groups",
            "fs_interval": "95 %, paired bootstrap over images, percentile, 10000 resamples",
            "accuracy_interval": "95 %, Wilson",
            "versions": {"probe": "0.1.0", "torch": "2.14.1", "timm": "1.0.31"},
        },
        "models": list(models),
        "failures": list(failures),
        "statistics": {
            "correlations": [
                correlation(x, f"fs_{column}", len(models))
                for x in ("anchoring", "delta_ssdc_rpi")
                for column in columns
            ],
            "notes": [],
        },
        "controlled": {
            "controlled": False,
            "note": "not a controlled comparison: pretraining differs between models",
        },
    }


def zoo(count: int) -> Json:
    """A report over `count` models of all kinds."""
    return report(*(model(i) for i in range(count)))


def rich() -> Json:
    """Every feature at once: holes, mixed grids, one image, no labels, failures, odd names."""
    models = [
        model(0),
        model(2, undefined=()),
        model(1, "no labels", labelled=False, undefined=(3,)),
        model(3, images=1),
        model(6, "<b>a|b</b> `x` *y*", depth=1),
    ]
    models[0]["notes"] = ["position tables are interpolated | see #3"]
    models[0]["skipped"] = [["a/<broken>.jpg", "truncated file"]]
    models[0]["published"] = [
        {
            "what": what,
            "protocol": "published: one permutation per batch; here: one per image, 300 images",
            "source": "https://arxiv.org/abs/2606.00124",
            "ours": scalar(ours, 0.05, reason),
            "published": 0.31,
            "difference": None if ours is None else ours - 0.31,
            "inside": inside,
        }
        for what, ours, reason, inside in (
            ("anchoring", 0.33, None, True),
            ("SSDC clean, layer 0", 0.5, None, False),
            ("accuracy", None, UNLABELLED, None),
        )
    ]
    models[1]["provenance"] |= {"teacher": "RegNetY-16GF", "pretraining": "ImageNet-22k <x>|"}
    found = report(
        *models,
        failures=[{"model": "gone", "error": "404: no such <file> | try\nagain `now`"}],
        title="Odd & <ends>",
    )
    found["statistics"]["correlations"] += [
        correlation("anchoring", "fs_jpeg_q5", 2, "deit_in1k", reason="fewer than three models",
                    **dict.fromkeys(("rho", "low", "high", "p", "loo_low", "loo_high"))),
    ]  # fmt: skip
    found["statistics"]["correlations"][0]["notes"] = ["fewer than five models with a number"]
    found["statistics"]["notes"] = ["one group, deit_in1k, holds 3 of 5 models"]
    return found


HARDWARE: Json = {
    "machine": {"cpu": "Xeon <8> @ 2.7 GHz", "cores": 2, "gpu": None},
    "models": {
        "deit_small": {
            "images_per_second": 41.25, "seconds": 7.27, "peak_memory_bytes": 412_345_678,
            "batch": 32, "dtype": "float32", "device": "cpu",
        },
        "swin_tiny": {
            "images_per_second": 1234.5, "seconds": 0.243, "peak_memory_bytes": None,
            "batch": 16, "dtype": "float32", "device": "cpu",
        },
    },
}  # fmt: skip
