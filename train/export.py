"""A trained run as a checkpoint: timm's folder format, and `training.json` beside it."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor, nn

from probe.errors import TrainingError
from probe.families.controlled import ARCHITECTURE, model_args
from probe.plan import versions
from probe.store import write_atomically
from train.parts import Parts
from train.recipe import Recipe

RECORD, WEIGHTS, CONFIG = "training.json", "model.safetensors", "config.json"


def rounded(model: nn.Module, recipe: Recipe) -> dict[str, Tensor]:
    """The weights as they are stored, on the CPU.

    Raises:
        TrainingError: if a value is out of the range of that type.
    """
    dtype = {"float32": torch.float32, "float16": torch.float16}[recipe.keep.dtype]
    found = {
        name: value.detach().to("cpu", dtype).contiguous()
        for name, value in model.state_dict().items()
    }
    for name, value in found.items():
        if not torch.isfinite(value).all():
            raise TrainingError(
                f"'{name}' has values that {recipe.keep.dtype} cannot hold; train with --set "
                "keep.dtype=float32 into another --out"
            )
    return found


def config(recipe: Recipe, parts: Parts) -> dict[str, Any]:
    """`config.json` of timm's folder format."""
    image, classes = recipe.image, len(parts.class_names)
    return {
        "architecture": ARCHITECTURE,
        "num_classes": classes,
        "num_features": recipe.model.width,
        "global_pool": "token",
        "model_args": model_args(recipe.network(classes), recipe.variant),
        "label_names": list(parts.class_names),
        "pretrained_cfg": {
            "input_size": [3, image.size, image.size],
            "fixed_input_size": True,
            "interpolation": image.interpolation,
            "crop_pct": 1.0,
            "crop_mode": "squash" if image.resize == "squash" else "center",
            "mean": list(image.mean),
            "std": list(image.std),
            "num_classes": classes,
            "pool_size": None,
            "first_conv": "patch_embed.proj",
            "classifier": "head",
        },
    }


def write_run(
    folder: Path, weights: dict[str, Tensor], recipe: Recipe, parts: Parts, record: dict[str, Any]
) -> dict[str, Any]:
    """Write weights, configuration and record; the record comes last and makes the run finished.

    Raises:
        StoreError: if the folder cannot be written.
    """
    content = save(weights)
    record = record | {
        "weights": f"sha256:{hashlib.sha256(content).hexdigest()}",
        "versions": versions(),
    }
    write_atomically(folder / WEIGHTS, content)
    write_atomically(folder / CONFIG, json.dumps(config(recipe, parts), indent=2) + "\n")
    write_atomically(folder / RECORD, json.dumps(record, indent=2) + "\n")
    return record


def finished(folder: Path) -> dict[str, Any] | None:
    """The record of a finished run whose weights are whole, None for anything else."""
    try:
        record: dict[str, Any] = json.loads((folder / RECORD).read_text("utf-8"))
        json.loads((folder / CONFIG).read_text("utf-8"))
        digest = hashlib.sha256((folder / WEIGHTS).read_bytes()).hexdigest()
    except (OSError, ValueError):
        return None
    return record if record.get("weights") == f"sha256:{digest}" else None
