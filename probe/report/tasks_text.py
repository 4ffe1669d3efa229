"""Text that the screen and the figure of `probe tasks` share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from probe.report.format import one_line, plain


def left_out_lines(results: Sequence[Mapping[str, Any]]) -> list[str]:
    """What images have no room for, a line for all models that lack the same; parts end in `; `."""
    found: dict[str, list[str]] = {}
    for result in results:
        parts = []
        for task in result["tasks"]:
            if task["reason"] is not None:
                parts.append(f"{task['task']}: {one_line(task['reason'])}")
                continue
            for left in task["left_out"]:
                at = f"{left['factor']} {left['level']:g}"
                parts.append(f"{at} ({one_line(left['reason'])})")
        if parts:
            found.setdefault("; ".join(parts), []).append(plain(result["model"]))
    alone = len(results) == 1
    return [
        f"left out: {text}" if alone else f"left out on {', '.join(names)}: {text}"
        for text, names in found.items()
    ]
