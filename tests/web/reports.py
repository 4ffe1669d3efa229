"""Seeded report dicts of made-up models, as `report.json` holds them."""

from __future__ import annotations

import base64
import random
from functools import cache
from typing import Any

CORRUPTIONS = [
    ("jpeg(quality=5)", "jpeg_q5", None),
    ("gaussian_blur(kernel=5,sigma=2.5)", "gaussian_blur_s2.5_k5", 1.3345),
    ("true_gaussian_blur(sigma=2.5)", "true_gaussian_blur_s2.5", 2.5),
]
ALPHAS = (1.0, 0.75, 0.5, 0.25, 0.0)
KINDS = ("absolute", "rotary", "relative_bias", "sinusoidal", "absolute+rotary", "convolutional")
NAMES = ("deit_small", "vit_base", "swin_tiny", "eva02_base", "beit_large", "dinov2_small_reg4")
NO_LABELS = "the data set has no labels"
DATA = {
    "name": "digits",
    "kind": "builtin",
    "fingerprint": "blake2b:cc27a1b2",
    "split": "test",
    "total": 1797,
    "taken": 275,
}
SETTINGS = {
    "site": "attn_in",
    "distance": "l1",
    "average": "similarity",
    "seed": 0,
    "dtype": "float32",
    "device": "cpu",
    "rpi": ["rpi(mode=image,seed=0,draw=0)"],
    "interval": "95 % delete-a-group jackknife over images, 20 groups",
    "fs_interval": "95 % paired bootstrap over images, percentile, 10,000 resamples",
    "accuracy_interval": "95 % Wilson",
    "versions": {"probe": "0.1.0", "torch": "2.14.1", "timm": "1.0.31"},
}

INTERFACE: dict[str, Any] = {
    "patch": {
        "stem": "patch", "dim": 768, "width": 384, "rank": 384, "nullity": 384,
        "nullity_bound": 384, "tolerance": 9e-5, "condition": 5.6,
    },
    "symmetry": {
        "defect_without_position": 3e-7, "defect_with_position": 0.25, "defect_joint": 2e-7,
        "defect_within_windows": None, "remains": None, "reason": None,
    },
    "tolerance": 4.6e-5,
    "attention": {
        "stages": [{"grid": [14, 14], "blocks": [{"pairs": 38416, "allowed": 38416}]}],
        "blocks_until_all_reached": 1,
    },
    "left_out": [],
}  # fmt: skip


def scalar(value: float | None, half: float | None = 0.02, reason: str | None = None) -> dict:
    if value is None:
        return {"value": None, "low": None, "high": None, "reason": reason}
    if half is None:
        return {"value": value, "low": None, "high": None, "reason": reason}
    return {"value": value, "low": value - half, "high": value + half, "reason": None}


def make_report(
    count: int = 5,
    *,
    seed: int = 0,
    maps: bool = True,
    accuracy: bool = True,
    alphas: bool = True,
    grid: int = 14,
    failures: int = 0,
) -> dict[str, Any]:
    """A report over `count` models; the third has several grids, the fourth undefined numbers."""
    source = random.Random(seed)
    models = [_model(i, source, maps, accuracy, alphas, grid) for i in range(count)]
    columns = [column for _, column, _ in CORRUPTIONS]
    rows = [
        _correlation(x, f"fs_{column}", group, count, source, accuracy)
        for x in ("anchoring", "delta_ssdc_rpi")
        for column in columns
        for group in (None, "fb_in1k")
    ]
    return {
        "schema": 1,
        "title": "digits",
        "protocol": "default",
        "data": DATA if count else {"name": "digits"},
        "settings": SETTINGS if count else {},
        "models": models,
        "failures": [
            {"model": f"broken_{i}", "error": "out of memory at batch 1\n  try --dtype bfloat16"}
            for i in range(failures)
        ],
        "statistics": {
            "correlations": rows,
            "notes": ["group fb_in1k holds most of the models"] if count else [],
        },
        "controlled": {
            "controlled": False,
            "note": "pretraining and teacher differ between the models.",
        },
    }


def hardware_of(report: dict[str, Any]) -> dict[str, Any]:
    return {
        "machine": {"cpu": "8-core test CPU", "memory_bytes": 2**34, "accelerator": None},
        "models": {
            model["model"]: {
                "images_per_second": 120.5,
                "seconds": 31.25,
                "peak_memory_bytes": None if i % 2 else 3 * 2**29,
                "batch": 32,
                "dtype": "float32",
                "device": "cpu",
            }
            for i, model in enumerate(report["models"])
        },
    }


def _model(
    i: int, source: random.Random, maps: bool, accuracy: bool, alphas: bool, side: int
) -> dict[str, Any]:
    several = i % 6 == 2
    undefined = i % 10 == 3
    depth = 12 if i % 5 else 6
    grids = [[56, 56], [28, 28], [14, 14], [7, 7]] if several else [[side, side]]
    level, slope = source.uniform(0.05, 0.75), source.uniform(-0.3, 0.3)
    layers = [
        _layer(k, grids[min(len(grids) - 1, k // 3)], level + slope * k / depth, source, undefined)
        for k in range(depth)
    ]
    reason = "layer 4 is undefined under RPI: all tokens are equal"
    anchoring = scalar(None, reason=reason) if undefined else scalar(level + slope / 2)
    values = [layer["rpi"]["value"] for layer in layers]
    right = source.randint(180, 270)
    return {
        "model": f"{NAMES[i % len(NAMES)]}_{i}" if i else "deit_small",
        "resolved": f"timm:{NAMES[i % len(NAMES)]}_patch16_224.fb_in1k_{i}",
        "revision": None if i % 3 else "4f2a9c0d7e",
        "weights": "sha256:7e2227f24230aa55",
        "family": "timm_vit",
        "group": "fb_in1k" if i % 3 == 0 else (None if i % 3 == 1 else "naver_in1k"),
        "tags": ["vit", KINDS[i % len(KINDS)]],
        "position": KINDS[i % len(KINDS)],
        "grid": grids[0],
        "grids": grids,
        "depth": depth,
        "image_size": [224, 224],
        "params": 22_050_664 + 3_000_000 * i,
        "macs": None if i % 7 == 4 else 4_608_338_304 + 700_000_000 * i,
        "macs_convention": "multiply-adds of matrix products and attention, one image",
        "interface": INTERFACE,
        "provenance": {
            "pretraining": "ImageNet-1k, supervised",
            "licence": "apache-2.0",
            "source": "https://example.org/weights",
        }
        | ({"teacher": "regnety_160"} if i % 4 == 0 else {}),
        "readout": None,
        "images": 275,
        "labelled": 275 if accuracy else None,
        "labels": "by order: as many class numbers as the head has outputs" if accuracy else None,
        "settings": {
            "image_size": [224, 224],
            "preprocess": {"source": "checkpoint", "mean": [0.485, 0.456, 0.406], "crop": 0.9},
            "batch": 32,
        },
        "notes": ["position tables are interpolated to 224 x 224"] if i % 2 else [],
        "skipped": [["img_017.png", "truncated file"]] if i % 4 == 1 else [],
        "anchoring": anchoring,
        "anchoring_by_grid": [
            {"grid": g} | (anchoring if len(grids) == 1 else scalar(level + slope * n / 4))
            for n, g in enumerate(grids)
        ],
        "final": {k: layers[-1]["rpi"][k] for k in ("value", "low", "high", "reason")},
        "peak": {"layer": 7, "value": None, "reason": reason}
        if undefined
        else {"layer": values.index(max(values)), "value": max(values), "reason": None},
        "delta_ssdc_rpi": scalar(None, reason="layers 0 and 1 have different grids")
        if several
        else scalar(source.uniform(-0.1, 0.2)),
        "accuracy": scalar(right / 275) if accuracy else scalar(None, reason=NO_LABELS),
        "correct": right if accuracy else None,
        "corruptions": [_corruption(c, level, source, accuracy) for c in CORRUPTIONS],
        "layers": layers,
        "alphas": [_alpha(a, level, i, source, accuracy) for a in ALPHAS] if alphas else [],
        "maps": [_map(layer, source) for layer in layers] if maps else [],
        "published": [
            {
                "what": "anchoring",
                "protocol": "paper",
                "source": "arXiv 2606.00124, table 2",
                "ours": anchoring,
                "published": 0.41,
                "difference": None if undefined else level + slope / 2 - 0.41,
                "inside": None if undefined else False,
            }
        ]
        if i % 5 == 0
        else [],
    }


def _layer(
    k: int, grid: list[int], level: float, source: random.Random, undefined: bool
) -> dict[str, Any]:
    band = {"null_low": -0.03, "null_high": 0.03}
    clean, rpi = level + source.uniform(0, 0.2), level + source.uniform(-0.05, 0.05)
    shuffled = scalar(rpi)
    if undefined and k == 4:
        shuffled = scalar(None, reason="all tokens are equal")
        band = {"null_low": None, "null_high": None}
    ratio = scalar(None, reason="undefined under RPI") if undefined and k == 4 else scalar(0.8)
    return {
        "layer": k,
        "grid": grid,
        "clean": scalar(clean, 0.03) | {"null_low": -0.025, "null_high": 0.025},
        "rpi": shuffled | band,
        "ratio": ratio,
    }


def _corruption(
    corruption: tuple[str, str, float | None], level: float, source: random.Random, accuracy: bool
) -> dict[str, Any]:
    text, column, sigma = corruption
    lost = max(0.0, 0.6 - level / 2 + source.uniform(-0.1, 0.1))
    unlabelled = scalar(None, reason=NO_LABELS)
    return {
        "corruption": text,
        "column": column,
        "effective_sigma": sigma,
        "accuracy": scalar(0.9 * (1 - lost)) if accuracy else unlabelled,
        "correct": int(275 * 0.9 * (1 - lost)) if accuracy else None,
        "fs": scalar(lost, 0.04) if accuracy else unlabelled,
        "agreement_fs": scalar(lost * 0.9, 0.03),
    }


def _alpha(
    alpha: float, level: float, i: int, source: random.Random, accuracy: bool
) -> dict[str, Any]:
    reason = "position comes from convolutions and is not scaled" if i % 6 == 5 else None
    unlabelled = scalar(None, reason=NO_LABELS)

    def measured(value: float) -> dict:
        return scalar(None, reason=reason) if reason else scalar(value)

    return {
        "alpha": alpha,
        "delta_ssdc_rpi": measured(0.1 * alpha + source.uniform(-0.02, 0.02)),
        "anchoring": measured(level * alpha),
        "accuracy": measured(0.5 + 0.4 * alpha) if accuracy else unlabelled,
        "fs": {
            text: measured(0.7 - 0.3 * alpha) if accuracy else unlabelled
            for text, _, _ in CORRUPTIONS
        },
        "reason": reason,
    }


def _map(layer: dict[str, Any], source: random.Random) -> dict[str, Any]:
    rows, columns = layer["grid"]
    tokens = [[rows // 2, columns // 2], [0, 0], [0, columns // 2]]

    return {
        "layer": layer["layer"],
        "grid": layer["grid"],
        "tokens": tokens,
        "clean": [_falling(rows, columns, *token, 1.0) for token in tokens],
        "rpi": [
            _falling(rows, columns, *token, source.choice((1.2, 2.0, 3.0))) for token in tokens
        ],
    }


@cache
def _falling(rows: int, columns: int, row: int, column: int, spread: float) -> str:
    """The map of a cosine that falls with the distance to one token."""
    cosines = [
        1 - (abs(r - row) + abs(c - column)) / ((rows + columns) * spread)
        for r in range(rows)
        for c in range(columns)
    ]
    return base64.b64encode(bytes(round((v + 1) / 2 * 255) for v in cosines)).decode("ascii")


def _correlation(
    x: str, y: str, group: str | None, count: int, source: random.Random, accuracy: bool
) -> dict[str, Any]:
    models = count if group is None else -(-count // 3)
    known = models > 2 and accuracy
    rho = source.uniform(-0.9, 0.2)
    return {
        "x": x,
        "y": y,
        "group": group,
        "models": models,
        "rho": rho if known else None,
        "low": max(-1.0, rho - 0.3) if known else None,
        "high": rho + 0.3 if known else None,
        "p": 0.0002 if known else None,
        "loo_low": rho - 0.1 if known else None,
        "loo_high": rho + 0.1 if known else None,
        "reason": None if known else "fewer than three models have both numbers",
        "notes": ["fewer than five models"] if models < 5 else [],
    }
