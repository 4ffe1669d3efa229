"""Tiny runs on the built-in digits: in this process, or in one of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
from accelerate.state import AcceleratorState, GradientState
from safetensors.torch import load_file

from probe.families.controlled import build
from train import loop
from train.loop import Options
from train.parts import Parts, load_parts
from train.recipe import Recipe, load_recipe
from train.runs import Run, train

ROOT = Path(__file__).resolve().parents[2]
TINY = (
    "model.width=16",
    "model.depth=2",
    "train.steps=20",
    "train.batch=16",
    "keep.log_every=2",
    "keep.save_every=3",
    "keep.evaluate_every=10",
)
FILES = [
    ".lock", "config.json", "hardware.json", "metrics.jsonl", "model.safetensors", "training.json"
]  # fmt: skip
_CACHE = TemporaryDirectory(prefix="probe-tests-digits-")
CACHE = Path(_CACHE.name)


def tiny(*changes: str, variant: str = "ape") -> Recipe:
    return load_recipe("digits", variant, (*TINY, *changes))


@cache
def digits() -> Parts:
    return load_parts(tiny(), CACHE)


def reset() -> None:
    """Forget what accelerate keeps for the whole process, such as the precision."""
    GradientState._reset_state()
    AcceleratorState._reset_state(reset_partial_state=True)


def trained(
    folder: Path,
    *changes: str,
    variant: str = "ape",
    seed: int = 0,
    untrained: bool = False,
    tracker: str | None = None,
    workers: int = 0,
    told: list[str] | None = None,
    **how: bool,
) -> dict[str, Any]:
    """The record of a tiny run, trained as if by a process of its own."""
    reset()
    run = Run(tiny(*changes, variant=variant), seed, folder, untrained)
    report = (lambda line: None) if told is None else told.append
    options = Options(workers=workers, cpu=True, tracker=tracker, report=report)
    return train(run, digits(), options, **how)


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


def distance(one: Path, other: Path) -> float:
    """The largest difference of any weight of two runs."""
    a, b = weights(one), weights(other)
    assert a.keys() == b.keys()
    return max(float((a[name].double() - b[name].double()).abs().max()) for name in a)


def logits(folder: Path) -> torch.Tensor:
    """What a run's network says of some images.

    Runs that rounding alone sets apart agree here, and not in each weight: keys' biases, say, have
    no gradient but rounding, and Adam makes whole steps of it.
    """
    record = json.loads((folder / "training.json").read_text())
    recipe = Recipe.model_validate(record["recipe"])
    model = build(recipe.network(10), recipe.variant, 0).eval()
    model.load_state_dict(weights(folder))
    pixels = torch.from_numpy(digits().test.images[:64].copy()).permute(0, 3, 1, 2) / 127.5 - 1
    with torch.inference_mode():
        return model(pixels)


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def losses(folder: Path) -> list[float]:
    return [line["loss"] for line in lines(folder)]


class Stop(Exception):
    """Ends a run from inside."""


def stopped(monkeypatch: pytest.MonkeyPatch, folder: Path, after: int, *changes: str) -> None:
    """A run that ends after the state of step `after`, as if killed."""
    save = loop.save_state

    def once(folder: Path, step: int, *rest: Any) -> None:
        save(folder, step, *rest)
        if step == after:
            raise Stop

    with monkeypatch.context() as patch:
        patch.setattr(loop, "save_state", once)
        with pytest.raises(Stop):
            trained(folder, *changes)


def arguments(*changes: str) -> list[str]:
    """The settings of a tiny run for the command line."""
    same = ["--recipe", "digits", "--device", "cpu", "--cache", str(CACHE)]
    return same + [part for change in (*TINY, *changes) for part in ("--set", change)]


def environment(*paths: Path) -> dict[str, str]:
    """This process's, with the project and `paths` to import from."""
    return os.environ | {"PYTHONPATH": os.pathsep.join(map(str, (*paths, ROOT)))}


def command(
    *words: str, env: dict[str, str] | None = None, module: str = "train"
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", module, *words],
        env=env or environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
