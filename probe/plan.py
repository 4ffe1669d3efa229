"""Which passes a command needs, and the key that names everything that can change their numbers."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from importlib.resources import files
from typing import Any, Literal, get_args

from probe import __version__
from probe.errors import UsageError, did_you_mean
from probe.types import (
    Average,
    Condition,
    DType,
    Identity,
    Metric,
    Pass,
    Permutation,
    PermutationMode,
    Point,
    Task,
)

DIGESTED = (
    "families",
    "loading.py",
    "numerics",
    "metrics",
    "data",
    "corruptions",
    "readout",
    "hooks.py",
    "interventions.py",
    "running.py",
    "engine.py",
)
LIBRARIES = ("torch", "torchvision", "timm", "transformers", "numpy", "scipy", "pillow")


@dataclass(frozen=True)
class Settings:
    """How a pass is measured. All but `batch_size` and `workers` can change its numbers."""

    site: Point = "attn_in"
    distance: Metric = "l1"
    average: Average = "similarity"
    seed: int = 0
    dtype: DType = "float32"
    batch_size: int = 32
    workers: int = 0

    def __post_init__(self) -> None:
        """Refuse values that no pass can be run with."""
        for name, choices in (
            ("site", get_args(Point)),
            ("distance", get_args(Metric)),
            ("average", get_args(Average)),
            ("dtype", get_args(DType)),
        ):
            value = getattr(self, name)
            if value not in choices:
                near, known = did_you_mean(str(value), choices), ", ".join(choices)
                raise UsageError(f"{name} must be one of {known}; got '{value}'.{near}")
        if self.batch_size < 1:
            raise UsageError(f"--batch-size must be at least 1, got {self.batch_size}")
        if self.workers < 0:
            raise UsageError(f"--workers must be 0 or more, got {self.workers}")
        if not 0 <= self.seed < 2**63:
            raise UsageError(f"--seed must lie between 0 and 2**63 - 1, got {self.seed}")


def ssdc_conditions(
    rpi: PermutationMode | Literal["off"], draws: int, seed: int
) -> tuple[Condition, ...]:
    """The clean condition and, unless RPI is off, one condition per permutation draw.

    Raises:
        UsageError: if `draws` is below 1.
    """
    if rpi not in (*get_args(PermutationMode), "off"):
        near = did_you_mean(str(rpi), (*get_args(PermutationMode), "off"))
        raise UsageError(f"rpi must be image, shared, batch or off; got '{rpi}'.{near}")
    if draws < 1:
        raise UsageError(f"--rpi-draws must be at least 1, got {draws}")
    clean = (Condition(),)
    if rpi == "off":
        return clean
    return clean + tuple(Condition(Permutation(rpi, seed, draw)) for draw in range(draws))


@cache
def versions() -> dict[str, str]:
    """Versions of `probe` and of every library whose code a number passes through."""
    found = {"probe": __version__, "code": _code_digest()}
    return found | {name: version(name) for name in LIBRARIES}


@cache
def _code_digest() -> str:
    """Hash of the modules that a number passes through, so that changed code means a new key."""
    digest = hashlib.sha256()
    root = files("probe")
    for name in DIGESTED:
        entry = root / name
        found = [entry] if entry.is_file() else sorted(entry.iterdir(), key=lambda e: e.name)
        for file in found:
            if file.name.endswith(".py"):
                digest.update(f"{name}/{file.name}\0".encode())
                digest.update(file.read_bytes())
    return digest.hexdigest()[:12]


def pass_settings(
    *,
    identity: Identity,
    family: str,
    options: Mapping[str, Any],
    image_size: tuple[int, int],
    preprocess: Mapping[str, Any],
    data: Mapping[str, Any],
    device: str,
    settings: Settings,
    groups: int,
    labels: Mapping[str, Any] | None = None,
    notes: Sequence[str] = (),
) -> dict[str, Any]:
    """Everything that can change a pass's numbers but its condition, ready for JSON."""
    return {
        "resolved": identity.resolved,
        "revision": identity.revision,
        "weights": identity.weights,
        "configuration": identity.configuration,
        "family": family,
        "options": dict(options),
        "image_size": list(image_size),
        "preprocess": dict(preprocess),
        "data": dict(data),
        "site": settings.site,
        "distance": settings.distance,
        "average": settings.average,
        "seed": settings.seed,
        "dtype": settings.dtype,
        "device": device,
        "interval": f"95 %, delete-a-group jackknife over images, group = position mod {groups}",
        "versions": versions(),
        "labels": None if labels is None else dict(labels),
        "notes": list(notes),
    }


def make_passes(tasks: Sequence[Task], settings: Settings, common: Mapping[str, Any]) -> list[Pass]:
    """One pass per task, each with its key.

    Raises:
        UsageError: if a task asks for nothing, or for predictions of a pass that stops early.
    """
    passes = []
    for task in tasks:
        if not (task.ssdc or task.top1) or (task.top1 and task.last_layer is not None):
            raise UsageError(f"a pass under '{task.condition}' measures nothing that it can reach")
        permutation = task.condition.permutation
        own: dict[str, Any] = {**common, "condition": str(task.condition)}
        own["measures"] = {"ssdc": task.ssdc, "top1": task.top1, "last_layer": task.last_layer}
        if not task.top1:
            own.pop("labels", None)  # they cannot change these numbers
        if permutation is not None and permutation.mode == "batch":
            own["batch_size"] = settings.batch_size  # it decides which images share a permutation
        text = json.dumps(own, sort_keys=True, ensure_ascii=True, allow_nan=False)
        key = hashlib.sha256(text.encode()).hexdigest()
        passes.append(Pass(key=key, model=common["resolved"], task=task, settings=own))
    return passes
