"""What a report shows on a terminal: a row per model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from probe.report.format import number

DASH = "\N{EM DASH}"


def report_screen(report: Mapping[str, Any]) -> Table:
    """The models with anchoring, delta SSDC, accuracy and FS; a dash where undefined."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("model", no_wrap=True)
    for head in ("anchoring", "delta\nSSDC", "accuracy"):
        table.add_column(head, justify="right", no_wrap=True)
    shifts = {c["corruption"]: c["column"] for m in report["models"] for c in m["corruptions"]}
    for column in shifts.values():
        table.add_column("FS\n" + column.replace("_", "\n"), justify="right", no_wrap=True)
    for model in report["models"]:
        fs = {entry["corruption"]: entry["fs"] for entry in model["corruptions"]}
        scalars = [model["anchoring"], model["delta_ssdc_rpi"], model["accuracy"]]
        scalars += [fs.get(shift, {"value": None}) for shift in shifts]
        table.add_row(Text(model["model"]), *(_number(scalar["value"]) for scalar in scalars))
    for failure in report["failures"]:
        table.add_row(Text(failure["model"]), Text("failed", style="red"))
    return table


def _number(value: float | None) -> str:
    return DASH if value is None else number(value)
