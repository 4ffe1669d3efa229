"""Cards of `probe audit` with every feature that its output must show, built by rule."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

Json = dict[str, Any]

LEVELS = (
    "exact algebra",
    "analytic",
    "controlled task",
    "measured on images",
    "measured on this hardware",
    "stated by others",
)
HOSTILE = "[red]x[/red] :smile: $a_b$ <b>&\x1b\udc80"
OVERLAP = "patches overlap, so a token is not the image of one patch; see `overlap`"
FULL = "no collision exists: the map has full rank on its patches"
UNREAD = "family timm_odd does not say which tokens attend to which"
ANEW = "the rotation is made anew in every run, so it cannot be permuted with the tokens"
NO_TABLE = "a bias is added to attention scores, not to tokens"
TURNS = "a rotation keeps the length of what it turns"
EPS = 64 * 1.1920928955078125e-07
EVIDENCE = {
    "patch": ("exact algebra", "the projection is linear in real-valued, normalised pixels"),
    "variance": ("measured on images", "depends on the images; variance of normalised patches"),
    "symmetry": ("exact algebra", "relative L2 distance over patch tokens on a noise image"),
    "attention": ("exact algebra", "windows and masks are those of a run at this image size"),
    "perturbation": ("exact algebra", "a random change of one patch token after the projection"),
    "budget": ("analytic", "counted from the operations that the library runs at this size"),
    "exposure": ("stated by others", "what the zoo file states, with its source"),
    "hardware": ("measured on this hardware", "another machine, batch or dtype gives others"),
}
CONVENTION = "one multiply-add counts once; matrix products and convolutions of one image"


def scalar(value: float | None, half: float = 0.02, reason: str | None = None) -> Json:
    if value is None:
        return {"value": None, "low": None, "high": None, "reason": reason}
    return {"value": value, "low": value - half, "high": value + half, "reason": reason}


def bare(value: float | None, reason: str | None = None) -> Json:
    return {"value": value, "reason": reason}


def patch(side: int, width: int, *, collision: bool = True, patches: int = 3136) -> Json:
    dim = 3 * side * side
    rank = min(dim, width)
    values = [12.5 * 0.986**i for i in range(rank)]
    found: Json = {
        "stem": "patch",
        "kernel": [side, side],
        "stride": [side, side],
        "dim": dim,
        "width": width,
        "rank": rank,
        "nullity": dim - rank,
        "nullity_bound": max(0, dim - width),
        "tolerance": 9.155e-05 * 12.5,
        "singular_values": values,
        "condition": values[0] / values[-1],
        "nearly_lost": sum(value < 0.01 * values[0] for value in values),
        "collision": None,
        "variance": {
            "patches": patches,
            "share_lost": 0.0213 if dim > rank else 0.0,
            "share_nearly": 0.0345,
            "reason": None,
        },
        "reason": FULL,
    }
    if collision:
        columns = np.arange(side)
        base = np.stack([20.0 + 10 * np.add.outer(columns, columns) % 200] * 3)
        other = np.clip(base + 87.25 * np.where(columns % 2, 1, -0.2), 0, 255)
        found["collision"] = {
            "max_pixel_difference": 87.25,
            "token_difference": 3.21e-07,
            "patch": base.round(3).tolist(),
            "other": other.round(3).tolist(),
        }
        found["reason"] = None
    return found


def defects(layers: int, scope: str = "network", joint: float | None = 3e-07) -> list[Json]:
    return [
        {
            "block": layer,
            "scope": scope,
            "defect_without_position": 2e-07 * (layer + 1),
            "defect_with_position": 0.4321 + 0.05 * layer,
            "defect_joint": None if joint is None else joint * (layer + 1),
            "defect_within_windows": None,
            "remains": None,
            "reason": ANEW if joint is None else None,
        }
        for layer in range(layers)
    ]


def block(layer: int, kind: str, pairs: int, allowed: int, **more: Any) -> Json:
    return {
        "layer": layer,
        "kind": kind,
        "window": None,
        "shift": None,
        "pairs": pairs,
        "allowed": allowed,
        "wrapped": 0,
        "prefix": 0,
        "padding": 0,
        "by_formula": [pairs, allowed],
        "as_expected": True,
        **more,
    }


def table_signal(images: int = 16) -> Json:
    tokens = bare(9.8765) | {"images": images, "level": "measured on images"}
    if not images:
        why = "no images were given to measure patch tokens on"
        tokens = bare(None, why) | {"images": 0, "level": "measured on images"}
    ratio = bare(None, tokens["reason"]) if tokens["value"] is None else bare(0.1234)
    return {
        "kind": "absolute",
        "where": "pos_embed",
        "shape": [1, 197, 384],
        "grid": [14, 14],
        "prefix_rows": 1,
        "prefix": True,
        "norm": bare(1.2188),
        "token_norm": tokens,
        "ratio": ratio | {"level": "measured on images"},
        "bias": None,
        "resampling": "bicubic, antialiased (timm resample_abs_pos_embed)",
        "table_ssdc": bare(0.6543),
        "rotary": None,
        "level": "exact algebra",
        "assumes": "read off the stored table on its own grid",
    }


def bias_signal(where: str, ssdc: float) -> Json:
    return table_signal() | {
        "kind": "relative_bias",
        "where": where,
        "shape": [169, 3],
        "grid": [7, 7],
        "prefix_rows": 0,
        "prefix": False,
        "norm": bare(None, NO_TABLE),
        "ratio": bare(None, NO_TABLE) | {"level": "measured on images"},
        "bias": {"heads": 3, "sd": 0.7123, "low": -4.5, "high": 2.25},
        "resampling": "linear between offsets (timm resize_rel_pos_bias_table)",
        "table_ssdc": bare(ssdc) | {"heads": [ssdc, ssdc - 0.1, ssdc + 0.1]},
        "assumes": "read off the bias as attention scores get it",
    }


def rotary_signal() -> Json:
    return table_signal() | {
        "kind": "rotary",
        "where": "rope",
        "shape": [16],
        "grid": None,
        "prefix_rows": 0,
        "prefix": False,
        "norm": bare(None, TURNS),
        "ratio": bare(None, TURNS) | {"level": "measured on images"},
        "resampling": "made anew for every grid",
        "table_ssdc": bare(None, "a rotation turns queries and keys"),
        "rotary": {
            "angles_per_patch": {"min": 0.0178, "max": 1.0},
            "frequencies": [1.0, 0.0178],
            "listed": "all",
            "wraps_at": 6.2832,
            "longest": 353.0,
            "wraps_inside": True,
            "direction": "axial",
            "axes": {"rows": {"min": 0.0178, "max": 1.0}, "cols": {"min": 0.0178, "max": 1.0}},
            "shared": True,
            "pairs": 32,
            "inert": 2,
        },
        "assumes": "angles follow from the stored frequencies and the grid",
    }


def translation(side: int, last: int, head: bool = True) -> Json:
    shifts = []
    for pixels in (*range(side + 1), 2 * side):
        whole = pixels % side == 0
        change = 0.0 if pixels == 0 else 0.31 + 0.02 * pixels
        why = None if head else "the model has no head to predict with"
        shifts.append(
            {
                "pixels": pixels,
                "whole_patches": whole,
                "token_change_patch": scalar(2e-07 if whole and pixels else change, 0.011),
                "token_change_last": scalar(0.6 * change, 0.031),
                "prediction_change": scalar(0.0625 * min(pixels, 4) if head else None, 0.05, why),
                "images": 16,
            }
        )
    return {
        "patch": side,
        "images": 16,
        "strides": {"patch": side, "last": last},
        "shifts": shifts,
        "exact": {
            "holds": True,
            "largest": 2.1e-07,
            "tolerance": 3.8e-06,
            "level": "exact algebra",
        },
        "level": "measured on images",
        "assumes": "the view moves down and right over the larger images",
    }


def resolution() -> Json:
    def side(size: int, grid: int, up: float) -> Json:
        return {
            "image_size": [size, size],
            "grids": [[grid, grid]] * 4,
            "anchoring": scalar(0.2468 + up),
            "clean": [scalar(0.51 + 0.03 * layer + up) for layer in range(4)],
            "rpi": [scalar(0.31 - 0.04 * layer + up) for layer in range(4)],
            "accuracy": scalar(0.75 + up, 0.09),
        }

    difference = side(0, 0, 0.0) | {
        "anchoring": scalar(0.0111),
        "clean": [scalar(0.0222) for _ in range(4)],
        "rpi": [scalar(None, reason="undefined at one size")] + [scalar(-0.0333)] * 3,
        "accuracy": scalar(-0.0625, 0.1),
    }
    del difference["image_size"], difference["grids"]
    return {
        "positions": {
            "own": {"image_size": [224, 224], "grids": [[14, 14]]},
            "other": {"image_size": [160, 272], "grids": [[10, 17]]},
            "signals": [
                {
                    "kind": "rotary",
                    "where": "rope",
                    "mapping": "same angles",
                    "shapes": [[[16]], [[16]]],
                    "angles_per_patch": [1.0, 1.0],
                    "resampling": "made anew for every grid",
                }
            ],
            "level": "exact algebra",
            "assumes": "read off the same checkpoint, loaded at both sizes",
        },
        "measured": {
            "own": side(224, 14, 0.0),
            "other": side(272, 17, 0.02) | {"image_size": [160, 272], "grids": [[10, 17]] * 4},
            "difference": difference,
            "mcnemar_p": 0.6875,
            "images": 16,
            "level": "measured on images",
            "assumes": "the same images, resized and cropped for each size",
        },
    }


def card(model: str, **changes: Any) -> Json:
    """A ViT with one grid, a class token, an absolute table and 12 blocks; `changes` replace."""
    stage = {
        "grid": [14, 14],
        "blocks": [block(i, "global", 38416, 38416, prefix=393) for i in range(12)],
    }
    reach = {"token": [7, 7], "moved": [196] * 12, "reachable": [196] * 12, "beyond": 0}
    return {
        "model": model,
        "resolved": f"timm:{model}_patch16_224.fb_in1k",
        "revision": "0f3a77",
        "weights": "sha256:0123456789abcdef0123456789abcdef",
        "family": "timm_vit",
        "group": "deit_in1k",
        "image_size": [224, 224],
        "grid": [14, 14],
        "seed": 7,
        "data": {
            "name": "photos",
            "kind": "photos",
            "fingerprint": "9c1b2d3e4f5a6b7c",
            "taken": 16,
        },
        "settings": {"dtype": "float32", "device": "cpu", "versions": {"probe": "0.1.0"}},
        "patch": patch(16, 384),
        "symmetry": defects(12),
        "symmetry_tolerance": EPS,
        "attention": {
            "stages": [stage],
            "share_reached": [1.0] * 12,
            "blocks_until_all_reached": 1,
            "perturbation": [reach, reach | {"token": [0, 0]}],
        },
        "positions": [table_signal()],
        "budget": {
            "params": 22_050_664,
            "image_tokens": 196,
            "prefix_tokens": 1,
            "macs": 4_603_183_104,
            "convention": CONVENTION,
            "activation_bytes": 123_456_789,
            "dtype": "float32",
            "reason": None,
        },
        "exposure": {
            "pretraining": "ImageNet-1k, supervised",
            "teacher": "none",
            "licence": "apache-2.0",
            "source": "https://example.org/deit",
        },
        "translation": translation(16, 16),
        "resolution": None,
        "hardware": None,
        "left_out": [],
        "notes": [],
        "evidence": {
            key: {"level": level, "assumes": text} for key, (level, text) in EVIDENCE.items()
        },
        **changes,
    }


HARDWARE = {
    "images_per_second": 45.678,
    "peak_memory_bytes": 1_234_567_890,
    "memory": "resident, of the whole process so far",
    "device": "cpu",
    "accelerator": None,
    "dtype": "float32",
    "batch": 32,
    "threads": 2,
    "rounds": 5,
    "torch": "2.14.1",
}


def swin(model: str = "swin_tiny") -> Json:
    """Windows, shifts, masks, merging; full rank, so no collision; every block by itself."""
    counts = {56: (153664, 135424), 28: (38416, 29584), 14: (9604, 5476), 7: (2401, 2401)}
    depths, layer, stages = (2, 2, 6, 2), 0, []
    for (grid, (plain, masked)), depth in zip(counts.items(), depths, strict=True):
        blocks = []
        for i in range(depth):
            shifted = i % 2 == 1 and grid > 7
            kind, allowed = ("shifted", masked) if shifted else ("window", plain)
            shift = [3, 3] if shifted else [0, 0]
            blocks.append(block(layer, kind, plain, allowed, window=[7, 7], shift=shift))
            layer += 1
        stages.append({"grid": [grid, grid], "blocks": blocks})
    rows = defects(12, "block")
    for row in rows:
        row |= {"defect_within_windows": 1e-07, "remains": "window partition"}
        row["defect_without_position"] = 0.8765 - 0.01 * row["block"]
    for row in rows[10:]:
        row |= {"defect_without_position": 2e-07, "remains": None}
    share = [0.0156, 0.0432, 0.0933, 0.2112, 0.4, 0.6, 0.8, 0.9, 0.95, 0.99, 1.0, 1.0]
    moved = [49, 196, 64, 100, 49, 121, 169, 196, 196, 196, 49, 49]
    check = {"token": [28, 28], "moved": moved, "reachable": moved, "beyond": 0}
    where = [f"layers.{s}.blocks.{b}.attn.relative_position_bias_table"
             for s, depth in enumerate(depths) for b in range(depth)]  # fmt: skip
    return card(
        model,
        resolved="timm:swin_tiny_patch4_window7_224.ms_in1k",
        family="timm_swin",
        grid=[56, 56],
        patch=patch(4, 96, collision=False, patches=50176),
        symmetry=rows,
        attention={
            "stages": stages,
            "share_reached": share,
            "blocks_until_all_reached": 11,
            "perturbation": [check],
        },
        positions=[bias_signal(name, 0.3 + 0.02 * i) for i, name in enumerate(where)],
        budget=card("x")["budget"] | {"prefix_tokens": 0, "image_tokens": 3136},
        translation=translation(4, 32),
    )


def rotary(model: str = "rope_small") -> Json:
    """A rotation that cannot be carried, another image size, hardware, no head, half a card."""
    stage = {"grid": [10, 17], "blocks": [block(i, "global", 28900, 28900) for i in range(4)]}
    reach = {"token": [5, 8], "moved": [170] * 4, "reachable": [170] * 4, "beyond": 0}
    return card(
        model,
        family="timm_eva",
        image_size=[160, 272],
        grid=[10, 17],
        symmetry=defects(4, joint=None),
        attention={
            "stages": [stage],
            "share_reached": [1.0] * 4,
            "blocks_until_all_reached": 1,
            "perturbation": [reach],
        },
        positions=[rotary_signal(), table_signal(images=0)],
        translation=translation(16, 16, head=False),
        resolution=resolution(),
        hardware=HARDWARE,
        budget=card("x")["budget"]
        | {"activation_bytes": None, "reason": "activations not counted: no backward"},
        exposure={"pretraining": "none, random weights", "teacher": "none", "source": "probe"},
        notes=["the head was dropped"],
    )


def odd(model: str = HOSTILE) -> Json:
    """An overlapping stem; attention, symmetry, positions and shifts are left out."""
    stem = patch(7, 64, collision=False) | {
        "stem": "overlapping",
        "stride": [4, 4],
        "variance": None,
        "overlap": {"tokens": [2, 2], "dim": 363, "rank": 256, "rows": 256},
        "reason": OVERLAP,
    }
    left = [
        {"item": "symmetry", "reason": "a block\ntakes no tokens"},
        {"item": "attention", "reason": UNREAD},
        {"item": "positions", "reason": "the table is not where the family says"},
        {"item": "translation", "reason": "patches are not disjoint squares"},
    ]
    return card(
        model,
        resolved="file:/models/[bold]odd[/bold].safetensors",
        family="timm_odd",
        patch=stem,
        symmetry=None,
        attention=None,
        positions=None,
        translation=None,
        budget=card("x")["budget"] | {"macs": None, "reason": "not counted: no kernel"},
        left_out=left,
    )


THREE = {
    "permutations": 6,
    "without_position": 4.1e-16,
    "with_table": 1.2345,
    "with_bias": 0.9876,
    "joint": 3.9e-16,
}
BROKEN = {"model": "broken", "error": "weights do not match:\nhead.bias"}


def wrap(*results: Json, failures: Sequence[Json] = (), three: bool = True) -> Json:
    example = {"three_tokens": THREE} if three else {}
    cards = [result | example for result in results]
    return {"schema": 1, "results": cards, "failures": list(failures)}


ENVELOPES = {
    "vit": wrap(card("deit_small", hardware=HARDWARE)),
    "swin": wrap(swin(), three=False),
    "odd": wrap(odd()),
    "rotary": wrap(rotary()),
    "several": wrap(card("deit_small"), swin(), rotary(), odd(), failures=[BROKEN]),
}
