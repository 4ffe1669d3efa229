"""Speed of `probe ssdc` as ratios in one run.

    python -m benchmarks.ssdc [--images 256] [--rounds 3] [--out benchmarks/results]

Cost: about ten minutes on two cores. Expected: every row holds.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.stats import spearmanr

from benchmarks.measure import paired_ratio, report, seconds
from probe.data.loader import batches
from probe.data.memory import InMemory
from probe.data.preprocess import as_is, normalise
from probe.derive.ssdc import ssdc_result
from probe.loading import load_model, required_preprocess
from probe.numerics.distance import grid_distances
from probe.numerics.ranks import PairRanker
from probe.plan import Settings, ssdc_conditions
from probe.session import measure_loaded
from probe.types import Average, DType, Grid, LoadedModel, ModelSpec, Task

BATCH = 32


def random_model(dtype: DType = "float32") -> LoadedModel:
    spec = ModelSpec("deit_small", "timm:deit_small_patch16_224.fb_in1k")
    model = load_model(spec, random_init=True, dtype=dtype)
    return replace(model, preprocess=as_is(required_preprocess(model)))


def images(count: int) -> InMemory:
    generator = np.random.default_rng(0)
    return InMemory(generator.integers(0, 256, (count, 224, 224, 3), dtype=np.uint8))


def run_ssdc(model: LoadedModel, source: InMemory, average: Average) -> dict[str, Any]:
    half = next(model.module.parameters()).dtype == torch.bfloat16
    dtype: DType = "bfloat16" if half else "float32"
    settings = Settings(average=average, batch_size=BATCH, dtype=dtype)
    tasks = [Task(condition) for condition in ssdc_conditions("image", 1, 0)]
    clean, *draws = measure_loaded(model, source, tasks, settings).records
    return ssdc_result("deit_small", clean, draws)


def bare_passes(model: LoadedModel, ready: list[torch.Tensor], passes: int) -> None:
    with torch.inference_mode():
        for _ in range(passes):
            for batch in ready:
                model.module(batch)


def prepared(model: LoadedModel, source: InMemory) -> list[torch.Tensor]:
    preprocess = required_preprocess(model)
    parameter = next(model.module.parameters())
    return [
        normalise(batch.images, preprocess, parameter.dtype, parameter.device)
        for batch in batches(source, preprocess, BATCH)
    ]


def rank_speed() -> tuple[float, float]:
    """(times faster than SciPy per matrix on one thread, largest difference)."""
    distances = grid_distances(Grid(14, 14), "l1")
    ranker = PairRanker(distances)
    generator = np.random.default_rng(0)
    matrices = generator.standard_normal((50, ranker.pairs)).astype(np.float32)
    closeness = -distances[ranker.upper]
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    ours = seconds(lambda: [ranker.correlation(m) for m in matrices])
    theirs = seconds(lambda: [spearmanr(m, closeness).statistic for m in matrices])
    torch.set_num_threads(threads)
    differences = [abs(ranker.correlation(m) - spearmanr(m, closeness).statistic) for m in matrices]
    return theirs / ours, max(differences)


def largest_difference(a: dict[str, Any], b: dict[str, Any]) -> float:
    return max(
        abs(one[kind]["value"] - two[kind]["value"])
        for one, two in zip(a["layers"], b["layers"], strict=True)
        for kind in ("clean", "rpi")
    )


def help_seconds() -> float:
    command = [sys.executable, "-m", "probe", "--help"]
    return min(seconds(lambda: subprocess.run(command, capture_output=True)) for _ in range(5))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    options = parser.parse_args()
    source = images(options.images)
    model = random_model()
    ready = prepared(model, source)
    bare_passes(model, ready[:1], 2)  # warm up
    rows: list[dict[str, Any]] = []

    def row(what: str, value: float, limit: float, at_most: bool, **more: Any) -> None:
        figure = {"what": what, "value": float(value), "limit": limit, "at_most": at_most}
        rows.append(figure | more)
        print(f"{what}: {value:.4g}", flush=True)

    limits: dict[Average, float] = {"similarity": 1.10, "image": 1.20}
    for average, limit in limits.items():
        timing = paired_ratio(
            partial(run_ssdc, model, source, average),
            lambda: bare_passes(model, ready, 2),
            options.rounds,
        )
        what = f"SSDC clean + RPI over two bare passes, average={average}"
        row(what, timing.pop("ratio"), limit, True, **timing)
    faster, difference = rank_speed()
    row("rank correlation, times faster than scipy.stats.spearmanr", faster, 4, False)
    row("its largest difference from SciPy", difference, 1e-9, True)
    half = random_model("bfloat16")
    timing = paired_ratio(
        lambda: run_ssdc(model, source, "similarity"),
        lambda: run_ssdc(half, source, "similarity"),
        options.rounds,
    )
    error = largest_difference(
        run_ssdc(model, source, "similarity"), run_ssdc(half, source, "similarity")
    )
    row("bfloat16, times faster than float32", timing.pop("ratio"), 1.5, False, **timing)
    row("bfloat16, largest SSDC difference from float32", error, 0.02, True)
    row("probe --help, seconds", help_seconds(), 0.4, True)
    report("ssdc", rows, options.out)


if __name__ == "__main__":
    main()
