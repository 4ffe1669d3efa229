"""What was measured of this machine while passes ran: kept apart from every other number."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from probe.store import slug, write_atomically

if TYPE_CHECKING:
    import torch

    from probe.plan import Settings
    from probe.types import LoadedModel


def measured_here(
    model: LoadedModel, settings: Settings, images: int, seconds: float
) -> dict[str, Any]:
    """Speed and memory of a batch of passes.

    Args:
        model: the model that ran.
        settings: how.
        images: images times passes.
        seconds: wall-clock time of reading, running and finishing them.
    """
    import torch

    device = next(model.module.parameters()).device
    peak = torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None
    return {
        "images_per_second": images / seconds,
        "seconds": seconds,
        "peak_memory_bytes": peak,
        "batch": settings.batch_size,
        "dtype": settings.dtype,
        "device": device.type,
        "machine": machine_facts(device),
    }


def machine_facts(device: torch.device) -> dict[str, Any]:
    """Which machine it is, as far as speed and memory depend on it."""
    import torch

    return {
        "system": platform.system(),
        "processor": platform.machine(),
        "cores": os.cpu_count(),
        "accelerator": torch.cuda.get_device_name(device) if device.type == "cuda" else None,
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


def save_hardware(runs: Path, model: str, facts: Mapping[str, Any]) -> None:
    """Keep them, a file per model, so that batches side by side overwrite nothing."""
    path = runs / "hardware" / f"{slug(model)}.json"
    write_atomically(path, json.dumps({"model": model, **facts}, indent=1) + "\n")


def load_hardware(runs: Path, models: Sequence[str]) -> dict[str, Any]:
    """The content of `hardware.json`: the machine, and what is known of `models`."""
    found, machines = {}, []
    for model in models:
        try:
            facts = json.loads((runs / "hardware" / f"{slug(model)}.json").read_bytes())
        except (OSError, ValueError):
            continue
        if isinstance(facts, dict) and facts.pop("model", None) == model:
            machines.append(facts.pop("machine", {}))
            found[model] = facts
    if len({json.dumps(one, sort_keys=True) for one in machines}) > 1:
        for facts, machine in zip(found.values(), machines, strict=True):
            facts["machine"] = machine
    return {"machine": machines[0] if machines else {}, "models": found}
