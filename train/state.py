"""The resumable state of a run: one safetensors file, whole or not at all."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from probe.errors import CheckpointError
from probe.store import write_atomically

NAME = "state.safetensors"
NEEDED = ("step", "fingerprint", "versions", "loss", "seconds")


def save_state(
    folder: Path,
    step: int,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    ema: AveragedModel | None,
    meta: dict[str, Any],
) -> None:
    """Write everything that the steps after `step` depend on.

    `meta` says of which run it is; it has the keys `NEEDED` but `step`. Random numbers, the order
    of images and the schedule are functions of the step.

    Raises:
        StoreError: if it cannot be written; the state before stays.
    """
    tensors = {f"model.{name}": value for name, value in model.state_dict().items()}
    if ema is not None:
        tensors |= {f"ema.{name}": value for name, value in ema.state_dict().items()}
    for number, values in optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer.{number}.{key}": value for key, value in values.items()}
    whole = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
    text = json.dumps(meta | {"step": step})
    write_atomically(folder / NAME, save(whole, {"run": text}))


def saved_meta(folder: Path) -> dict[str, Any] | None:
    """What the saved state is of, with its `step`; None where there is none.

    Raises:
        CheckpointError: if the file is damaged.
    """
    path = folder / NAME
    if not path.is_file():
        return None
    try:
        with safe_open(path, "pt") as file:
            meta: dict[str, Any] = json.loads(file.metadata()["run"])
        missing = [key for key in NEEDED if key not in meta]
    except (SafetensorError, KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{path} is damaged; remove it to start again") from error
    if missing:
        raise CheckpointError(
            f"{path} does not say its {missing[0]}, so another version wrote it; remove it to "
            "start again"
        )
    return meta


def restore(
    folder: Path,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    ema: AveragedModel | None,
) -> None:
    """Put the saved tensors back.

    Raises:
        CheckpointError: if the file does not fit.
    """
    tensors: dict[str, dict[str, Tensor]] = {"model": {}, "ema": {}, "optimizer": {}}
    with safe_open(folder / NAME, "pt") as file:
        for name in file.keys():  # noqa: SIM118 (it is no mapping)
            kind, _, rest = name.partition(".")
            tensors[kind][rest] = file.get_tensor(name)
    try:
        model.load_state_dict(tensors["model"])
        if ema is not None:
            ema.load_state_dict(tensors["ema"])
    except RuntimeError as error:
        raise CheckpointError(
            f"{folder / NAME} is of another network; remove it to start again"
        ) from error
    found: dict[int, dict[str, Tensor]] = {}
    for name, value in tensors["optimizer"].items():
        number, _, key = name.partition(".")
        found.setdefault(int(number), {})[key] = value
    groups = optimizer.state_dict()["param_groups"]
    optimizer.load_state_dict({"state": found, "param_groups": groups})
