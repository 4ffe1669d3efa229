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

from probe import __version__, plugins
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
    PositionKind,
    Task,
)

DIGESTED = (
    "plugins.py",
    "families",
    "loading.py",
    "numerics",
    "metrics",
    "data",
    "corruptions",
    "readout",
    "hooks.py",
    "interventions.py",
    "conditions.py",
    "running.py",
    "distributed.py",
    "engine.py",
)
PREDICTED = {"accuracy", "fs"}
REPORTED = ("ssdc", "fragility", "agreement", "alpha")
ALPHAS = (1.0, 0.75, 0.5, 0.25, 0.0)
LIBRARIES = ("torch", "torchvision", "timm", "transformers", "numpy", "scipy", "pillow")


@dataclass(frozen=True)
class Settings:
    """How a pass is measured. All but `batch_size` and `workers` can change its numbers.

    `metrics` are those of other packages that are measured beside SSDC.
    """

    site: Point = "attn_in"
    distance: Metric = "l1"
    average: Average = "similarity"
    seed: int = 0
    dtype: DType = "float32"
    batch_size: int = 32
    workers: int = 0
    metrics: tuple[str, ...] = ()

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


def dose_tasks(
    alpha: float,
    wanted: set[str],
    corruptions: Sequence[str],
    mode: PermutationMode,
    draws: int,
    seed: int,
    kind: PositionKind | None,
) -> list[Task]:
    """The tasks at one alpha: RPI draws, then predictions, clean and under each corruption.

    Delta SSDC alone needs no layer beyond the second, so its passes stop there.
    """
    signal = kind if alpha != 1 else None  # at 1 nothing is scaled, whatever is chosen
    tasks = []
    if wanted & {"delta", "anchoring"}:
        last = None if "anchoring" in wanted else 1
        for condition in ssdc_conditions(mode, draws, seed)[1:]:
            own = Condition(condition.permutation, alpha, None, signal)
            tasks.append(Task(own, last_layer=last))
    if wanted & PREDICTED:
        tasks += [
            Task(Condition(None, alpha, name, signal), ssdc=False, top1=True)
            for name in (None, *corruptions)
        ]
    return tasks


@dataclass(frozen=True)
class ReportChoices:
    """What `probe report` measures: some of `REPORTED`, under these conditions.

    `dosed` are the corruptions under which accuracy is also measured at every alpha.
    """

    measures: frozenset[str] = frozenset(REPORTED)
    mode: PermutationMode = "image"
    draws: int = 1
    seed: int = 0
    corruptions: tuple[str, ...] = ()
    dosed: tuple[str, ...] = ()
    alphas: tuple[float, ...] = ALPHAS


def report_tasks(
    choices: ReportChoices, *, head: bool, judged: bool, scaled: bool
) -> tuple[Task, ...]:
    """The tasks of one model in a report, each once.

    Args:
        choices: what is measured.
        head: whether the model predicts.
        judged: whether its predictions can be compared with labels.
        scaled: whether alpha reaches a positional signal of it.
    """
    doses = "alpha" in choices.measures
    curves = doses or "ssdc" in choices.measures
    shifts = list(choices.corruptions) if choices.measures & {"fragility", "agreement"} else []
    if doses and judged:
        shifts += [name for name in choices.dosed if name not in shifts]
    predicted = head and bool(shifts)
    clean, *draws = ssdc_conditions(choices.mode, choices.draws, choices.seed)
    tasks = [Task(clean, ssdc=curves, top1=predicted)] if curves or predicted else []
    tasks += [Task(condition) for condition in draws if curves]
    if predicted:
        tasks += [Task(Condition(corruption=one), ssdc=False, top1=True) for one in shifts]
    if doses and scaled:
        wanted = {"delta", "anchoring"} | (PREDICTED if judged else set())
        for alpha in choices.alphas:
            if alpha != 1:
                tasks += dose_tasks(
                    alpha, wanted, choices.dosed, choices.mode, choices.draws, choices.seed, None
                )
    return tuple(tasks)


@cache
def versions() -> dict[str, str]:
    """Versions of `probe` and of every library whose code a number passes through."""
    found = {"probe": __version__, "code": _code_digest()}
    return found | {name: version(name) for name in LIBRARIES}


def current(recorded: object) -> bool:
    """Whether `recorded` are the versions of this installation, of plugins only those it names."""
    if not isinstance(recorded, dict):
        return False
    plugged = {name: value for name, value in plugins.installed().items() if name in recorded}
    return recorded == versions() | plugged


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
    packages: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Everything that can change a pass's numbers but its condition, ready for JSON.

    `packages` are the plugins that the model, the data and the metrics use, with their versions.
    """
    metrics = {"metrics": list(settings.metrics)} if settings.metrics else {}
    return metrics | {
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
        "versions": versions() | dict(packages or {}),
        "labels": None if labels is None else dict(labels),
        "notes": list(notes),
    }


def make_passes(tasks: Sequence[Task], settings: Settings, common: Mapping[str, Any]) -> list[Pass]:
    """One pass per task, each with its key.

    Raises:
        UsageError: if a task asks for nothing, or for predictions of a pass that stops early.
    """
    from probe.corruptions import parse

    passes = []
    for task in tasks:
        if not (task.ssdc or task.top1) or (task.top1 and task.last_layer is not None):
            raise UsageError(f"a pass under '{task.condition}' measures nothing that it can reach")
        permutation, corruption = task.condition.permutation, task.condition.corruption
        own: dict[str, Any] = {**common, "condition": str(task.condition)}
        own["measures"] = {"ssdc": task.ssdc, "top1": task.top1, "last_layer": task.last_layer}
        if corruption is not None and (added := parse(corruption).packages):
            own["versions"] = common.get("versions", {}) | added
        if not task.top1:
            own.pop("labels", None)  # they cannot change these numbers
        if permutation is not None and permutation.mode == "batch":
            own["batch_size"] = settings.batch_size  # it decides which images share a permutation
        passes.append(Pass(key=_key(own), model=common["resolved"], task=task, settings=own))
    return passes


def _key(settings: dict[str, Any]) -> str:
    """Hash of all settings but the name of the data, which is only how its place was typed."""
    data = {name: value for name, value in settings.get("data", {}).items() if name != "name"}
    text = json.dumps(settings | {"data": data}, sort_keys=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()
