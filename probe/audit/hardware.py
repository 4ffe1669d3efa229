"""What a model costs on this machine: images per second and peak memory, measured."""

from __future__ import annotations

import resource
import statistics
import sys
import time
from typing import Any

import torch

from probe.audit.graph import noise
from probe.hardware import machine_facts
from probe.types import LoadedModel

LEVEL = "measured on this hardware"
ASSUMES = "another machine, batch, dtype or library version gives other numbers"
ROUNDS = 5


def measure(model: LoadedModel, batch: int, rounds: int = ROUNDS) -> dict[str, Any]:
    """Time forward passes of ready batches of noise.

    Args:
        model: the loaded model.
        batch: images per pass.
        rounds: passes that are timed, after one that is not; their median counts.

    Returns:
        `images_per_second`, `peak_memory_bytes` with `memory` saying of what, `device`, `dtype`,
        `batch`, `threads`, `rounds`, and the machine as in
        `probe.hardware.machine_facts`.
    """
    images = noise(model, 0, batch)
    device = images.device
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    times = []
    with torch.inference_mode():
        for _ in range(rounds + 1):
            start = time.perf_counter()
            model.forward(images)
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            times.append(time.perf_counter() - start)
    if device.type == "cuda":
        peak, memory = torch.cuda.max_memory_allocated(device), "allocated on the accelerator"
    else:
        unit = 1 if sys.platform == "darwin" else 1024
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
        memory = "resident, of the whole process so far"
    return {
        "images_per_second": batch / statistics.median(times[1:]),
        "peak_memory_bytes": peak,
        "memory": memory,
        "device": device.type,
        "dtype": str(images.dtype).removeprefix("torch."),
        "batch": batch,
        "threads": torch.get_num_threads(),
        "rounds": rounds,
        **machine_facts(device),
    }
