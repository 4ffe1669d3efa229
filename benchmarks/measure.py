"""Shared by the benchmarks: paired timing, a table, a JSON file."""

from __future__ import annotations

import json
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch


def seconds(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def paired_ratio(
    ours: Callable[[], object], baseline: Callable[[], object], rounds: int
) -> dict[str, Any]:
    """Median over rounds of ours / baseline, run in turn, so that drift of the machine cancels."""
    pairs = []
    for number in range(rounds):
        order = (ours, baseline) if number % 2 else (baseline, ours)
        times = {run: seconds(run) for run in order}
        pairs.append((times[ours], times[baseline]))
    ratios = [a / b for a, b in pairs]
    return {
        "ratio": statistics.median(ratios),
        "ratios": ratios,
        "seconds": statistics.median(a for a, _ in pairs),
        "baseline_seconds": statistics.median(b for _, b in pairs),
    }


def machine() -> dict[str, Any]:
    cpu = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        names = [line for line in info.read_text().splitlines() if line.startswith("model name")]
        cpu = names[0].partition(":")[2].strip() if names else cpu
    return {
        "cpu": cpu,
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
    }


def report(name: str, rows: list[dict[str, Any]], out: Path) -> None:
    """Print rows as a table and write them, with the machine, to OUT/NAME.json."""
    from rich.console import Console
    from rich.table import Table

    table = Table("measured", "figure", "limit", "holds", title=name)
    for row in rows:
        sign = "<=" if row["at_most"] else ">="
        holds = row["value"] <= row["limit"] if row["at_most"] else row["value"] >= row["limit"]
        row["holds"] = bool(holds)
        table.add_row(
            row["what"], f"{row['value']:.4g}", f"{sign} {row['limit']:g}", "yes" if holds else "NO"
        )
    Console().print(table)
    out.mkdir(parents=True, exist_ok=True)
    content = {"benchmark": name, "machine": machine(), "rows": rows}
    (out / f"{name}.json").write_text(json.dumps(content, indent=2) + "\n")
