"""What arXiv 2606.00124 says of the five variants, judged on trained runs, over seeds.

A claim holds when the 95 % interval over seeds of its difference lies above 0 (t with n - 1
degrees of freedom), or, for a collapse, when the mean over seeds lies inside the null band at every
layer. What holds in every seed and not beyond their spread is said to be just that.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from scipy.stats import t as student

WITH_POSITION, WITHOUT = ("ape", "spe", "rope"), ("none", "rpt")
FAR, HALF = 0.25, 0.5  # the alphas that are compared with 1
Run = Mapping[str, Any]


def over_seeds(values: Sequence[float | None]) -> dict[str, Any]:
    """Mean, sd and 95 % interval over seeds; null where a seed has no value."""
    numbers = [value for value in values if value is not None]
    empty = {"mean": None, "sd": None, "low": None, "high": None, "values": list(values)}
    if not values or len(numbers) < len(values):
        return empty
    mean = statistics.fmean(numbers)
    if len(numbers) == 1:
        return empty | {"mean": mean}
    sd = statistics.stdev(numbers)
    half = float(student.ppf(0.975, len(numbers) - 1)) * sd / math.sqrt(len(numbers))
    return empty | {"mean": mean, "sd": sd, "low": mean - half, "high": mean + half}


def judged(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """One entry per claim: `claim`, `difference` over seeds (null for a collapse), `verdict`.

    Args:
        runs: what `train.experiment.measure_run` gives; of each variant the same seeds.
    """
    by = {v: [run for run in runs if run["variant"] == v] for v in (*WITH_POSITION, *WITHOUT)}
    if not all(by.values()):
        return []
    found = [_collapse(variant, by[variant]) for variant in WITHOUT]
    for variant in WITH_POSITION:
        above = [_anchoring(run) - _null_high(run) for run in by[variant]]
        found.append(_difference(f"{variant}: anchoring lies above the null band", above))
    for place, one in enumerate(by["ape"][0]["fragility"]["corruptions"]):
        with_, without = (
            [_mean([_fs(by[v][i], place) for v in kinds]) for i in range(len(by["ape"]))]
            for kinds in (WITH_POSITION, WITHOUT)
        )
        found.append(
            _difference(
                f"ape, spe and rope are less fragile than none and rpt under {one['corruption']}",
                [_minus(b, a) for a, b in zip(with_, without, strict=True)],
            )
        )
    ordered = [
        _mean([_minus(y["clean"]["value"], y["rpi"]["value"]) for y in run["ssdc"]["layers"]])
        for run in by["rpt"]
    ]
    found.append(_difference("rpt: SSDC is higher with tokens in order than under RPI", ordered))
    for text, key, alpha, sign in (
        ("ape: anchoring falls from alpha 1 to 0.25", _scaled("anchoring"), FAR, -1),
        ("ape: delta SSDC falls from alpha 1 to 0.25", _scaled("delta_ssdc_rpi"), FAR, -1),
        ("ape: FS under JPEG rises from alpha 1 to 0.5", _scaled_fs, HALF, 1),
    ):
        moved = [_minus(key(run, alpha), key(run, 1.0)) for run in by["ape"]]
        found.append(_difference(text, [None if m is None else sign * m for m in moved]))
    return found


def _collapse(variant: str, runs: Sequence[Run]) -> dict[str, Any]:
    outside = []
    for layer, first in enumerate(runs[0]["ssdc"]["layers"]):
        points = [run["ssdc"]["layers"][layer]["rpi"] for run in runs]
        mean = statistics.fmean(point["value"] for point in points)
        low = statistics.fmean(point["null_low"] for point in points)
        high = statistics.fmean(point["null_high"] for point in points)
        if not low <= mean <= high:
            outside.append(first["layer"])
    verdict = "holds" if not outside else f"does not hold at layers {outside}"
    claim = f"{variant}: SSDC under RPI lies inside the null band at every layer"
    return {"claim": claim, "difference": None, "verdict": verdict}


def _difference(claim: str, values: Sequence[float | None]) -> dict[str, Any]:
    found = over_seeds(values)
    if found["mean"] is None:
        verdict = "undefined for a seed"
    elif found["low"] is not None and found["low"] > 0:
        verdict = "holds"
    elif all(value > 0 for value in found["values"]):
        verdict = "in every seed, but the interval over seeds holds 0"
    else:
        verdict = "does not hold"
    return {"claim": claim, "difference": found, "verdict": verdict}


def _anchoring(run: Run) -> float:
    return float(run["ssdc"]["anchoring"]["value"])


def _null_high(run: Run) -> float:
    return max(layer["rpi"]["null_high"] for layer in run["ssdc"]["layers"])


def _fs(run: Run, place: int) -> float | None:
    value: float | None = run["fragility"]["corruptions"][place]["fs"]["value"]
    return value


def _scaled(name: str) -> Callable[[Run, float], float | None]:
    def value(run: Run, alpha: float) -> float | None:
        found: float | None = _row(run, alpha)[name]["value"]
        return found

    return value


def _scaled_fs(run: Run, alpha: float) -> float | None:
    found: float | None = next(iter(_row(run, alpha)["fs"].values()))["value"]
    return found


def _row(run: Run, alpha: float) -> Mapping[str, Any]:
    rows: Sequence[Mapping[str, Any]] = run["scale"]["alphas"]
    return next(row for row in rows if row["alpha"] == alpha)


def _minus(a: float | None, b: float | None) -> float | None:
    return None if a is None or b is None else a - b


def _mean(values: Sequence[float | None]) -> float | None:
    numbers = [value for value in values if value is not None]
    return statistics.fmean(numbers) if len(numbers) == len(values) else None
