"""What `probe scale`'s screen and figure read from a result: curves over alpha, and regimes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from probe.report.format import one_line, plain
from probe.report.severity import fold

MEASURES = {"delta_ssdc_rpi": "delta SSDC", "anchoring": "anchoring", "accuracy": "accuracy"}
MISSING = {"value": None, "low": None, "high": None, "reason": "not measured"}
REGIMES = ("stable", "transition", "collapsed")


def applicable(result: Mapping[str, Any]) -> bool:
    """Whether alpha reaches the model at some alpha at least."""
    return any(row["reason"] is None for row in result["alphas"])


def why_not(result: Mapping[str, Any]) -> str:
    """Why alpha does not reach the model."""
    return "; ".join(dict.fromkeys(one_line(row["reason"] or "") for row in result["alphas"]))


def scaled_text(result: Mapping[str, Any]) -> str:
    """The kinds of positional signal that alpha scales."""
    return plain(", ".join(result["signals"])) or "nothing"


def alpha_text(row: Mapping[str, Any]) -> str:
    """Alpha as regimes name it: `0.9`, `1`."""
    return f"{row['alpha']:g}"


def shown_curves(result: Mapping[str, Any]) -> dict[str, list[Mapping[str, Any]]]:
    """Title -> a scalar per alpha, in the order of `alphas`; suites as means over severities."""
    rows = result["alphas"]
    curves = {title: [row[measure] for row in rows] for measure, title in MEASURES.items()}
    folded = [fold(row["fs"]) for row in rows]
    for text in dict.fromkeys(text for row in folded for text in row):
        curves[f"FS {plain(text)}"] = [row.get(text, MISSING) for row in folded]
    return curves


def regimes_text(result: Mapping[str, Any], measure: str) -> str:
    """`stable 1 to 0.9, transition 0.8, collapsed 0.7 to 0`; empty where there are no regimes."""
    by_alpha = result["regimes"][measure]["by_alpha"]
    runs: list[tuple[str, list[str]]] = []
    for alpha in sorted(by_alpha, key=float, reverse=True):
        if runs and runs[-1][0] == by_alpha[alpha]:
            runs[-1][1].append(alpha)
        else:
            runs.append((by_alpha[alpha], [alpha]))
    return ", ".join(
        f"{name} {' to '.join(dict.fromkeys([alphas[0], alphas[-1]]))}" for name, alphas in runs
    )
