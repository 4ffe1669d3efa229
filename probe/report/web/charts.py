"""What the page's charts read: the report's numbers without what only the text shows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from probe.report.format import plain
from probe.report.web.table import corruption_labels
from probe.report.web.text import relations

DIGITS = 5  # decimals; more than a screen can show, and half the size


def chart_data(report: Mapping[str, Any]) -> dict[str, Any]:
    """Models with their curves, the corruptions, and what the statistics say of each scatter.

    Numbers are rounded to `DIGITS` decimals.
    """
    columns = {e["corruption"]: e["column"] for m in report["models"] for e in m["corruptions"]}
    return {
        "models": [_model(model) for model in report["models"]],
        "corruptions": [
            {"text": text, "sigma": sigma, "column": columns[text]}
            for text, sigma in corruption_labels(report["models"]).items()
        ],
        "relations": relations(report),
    }


def _model(model: Mapping[str, Any]) -> dict[str, Any]:
    judged = {entry["corruption"]: _rounded(entry["fs"]) for entry in model["corruptions"]}
    agreed = {e["corruption"]: _rounded(e["agreement_fs"]) for e in model["corruptions"]}
    return {
        "name": plain(model["model"]),
        "position": model["position"],
        "anchoring": _rounded(model["anchoring"]),
        "delta_ssdc_rpi": _rounded(model["delta_ssdc_rpi"]),
        "fs": judged,
        "agreement_fs": agreed,
        "layers": [
            {
                "layer": layer["layer"],
                "grid": layer["grid"],
                "clean": _rounded(layer["clean"]),
                "rpi": _rounded(layer["rpi"]),
            }
            for layer in model["layers"]
        ],
        "alphas": [
            {
                "alpha": row["alpha"],
                "delta_ssdc_rpi": _rounded(row["delta_ssdc_rpi"]),
                "anchoring": _rounded(row["anchoring"]),
                "fs": {text: _rounded(fs) for text, fs in row["fs"].items()},
                "reason": row["reason"],
            }
            for row in model["alphas"]
        ],
    }


def _rounded(entry: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: round(value, DIGITS) if isinstance(value, float) else value
        for key, value in entry.items()
    }
