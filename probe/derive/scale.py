"""The positional dose-response: delta SSDC, anchoring, accuracy and fragility over alpha."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probe.corruptions import Corruption
from probe.derive.curves import anchoring, curve, delta_ssdc
from probe.derive.estimate import Estimate
from probe.derive.fragility import accuracy, fragility, shared_images
from probe.records import PassRecord
from probe.types import Scalar

STABLE, COLLAPSED = 0.8, 0.1
RULE = (
    f"stable: at least {STABLE:g} of the value at alpha 1; collapsed: at most {COLLAPSED:g} of it, "
    "or an interval that holds 0; transition: between; knee: alpha where the curve first falls "
    "below half its value at alpha 1, interpolated"
)
NOT_MEASURED = "not measured"


@dataclass(frozen=True)
class Dose:
    """The passes at one alpha: RPI draws, predictions, predictions under each corruption."""

    alpha: float
    rpi: tuple[PassRecord, ...] = ()
    clean: PassRecord | None = None
    shifted: tuple[tuple[Corruption, PassRecord], ...] = ()

    @property
    def reason(self) -> str | None:
        """Why alpha does not apply to the model, None where it does."""
        records = (*self.rpi, *((self.clean,) if self.clean else ()), *(r for _, r in self.shifted))
        return next((record.reason for record in records if record.reason is not None), None)


def scale_result(
    name: str,
    doses: Sequence[Dose],
    *,
    notes: Sequence[str] = (),
    kinds: Sequence[str] = (),
    anchored: bool = True,
    unjudged: str | None = None,
) -> dict[str, Any]:
    """One model's entry in the output of `probe scale`.

    Args:
        name: the model as the user named it.
        doses: its passes by alpha, in the order asked for.
        notes: remarks of the loader.
        kinds: kinds of positional signal that alpha reaches in this model.
        anchored: whether RPI passes read every layer, so that anchoring follows.
        unjudged: why predictions were not judged, where that was not the user's choice.
    """
    judged = [r for dose in doses for r in _judged(dose) if r.reason is None]
    among = shared_images(judged) if judged else np.zeros(0, dtype=np.bool_)
    rows = [_row(dose, anchored, unjudged or NOT_MEASURED, among) for dose in doses]
    first = next(r for dose in doses for r in (*dose.rpi, *((dose.clean,) if dose.clean else ())))
    extension = "rotary" in kinds
    measured = next((r.images for d in doses for r in _records(d) if r.reason is None), 0)
    return {
        "model": name,
        "resolved": first.settings["resolved"],
        "family": first.settings["family"],
        "images": measured,
        "settings": {
            k: v
            for k, v in first.settings.items()
            if k not in ("condition", "measures", "notes", "labels")
        }
        | {"machine": first.machine, "rpi": sorted({r.condition for d in doses for r in d.rpi})},
        "labels": next(
            (r.settings["labels"] for d in doses for r in _records(d) if r.settings.get("labels")),
            None,
        ),
        "signals": list(kinds),
        "corruptions": [
            {"corruption": str(one), "effective_sigma": one.effective_sigma}
            for one in dict.fromkeys(c for dose in doses for c, _ in dose.shifted)
        ],
        "extension": "rotation angles are scaled, an extension of the paper's definition"
        if extension
        else None,
        "alphas": rows,
        "regimes": {
            "rule": RULE,
            "delta_ssdc_rpi": regimes(rows, "delta_ssdc_rpi"),
            "anchoring": regimes(rows, "anchoring"),
        },
        "skipped": sorted({tuple(e) for d in doses for r in _records(d) for e in r.skipped}),
        "notes": list(notes),
    }


def _records(dose: Dose) -> list[PassRecord]:
    return [*dose.rpi, *_judged(dose)]


def _judged(dose: Dose) -> list[PassRecord]:
    return [*([dose.clean] if dose.clean else []), *(r for _, r in dose.shifted)]


def _row(dose: Dose, anchored: bool, unjudged: str, among: NDArray[np.bool_]) -> dict[str, Any]:
    delta = anchor = Estimate.undefined(dose.reason or NOT_MEASURED)
    if dose.rpi and dose.reason is None:
        shuffled = curve(dose.rpi)
        delta = delta_ssdc(shuffled, str(dose.rpi[0].settings["site"]))
        anchor = anchoring(shuffled) if anchored else Estimate.undefined(NOT_MEASURED)
    value = Scalar(None, reason=dose.reason or unjudged)
    right: int | None = None
    labelled: int | None = None
    fs: dict[str, Any] = {}
    if dose.clean is not None and dose.reason is None:
        value, right, labelled = accuracy(dose.clean, among)
        seed = int(dose.clean.settings["seed"])
        fs = {
            str(corruption): asdict(fragility(dose.clean, record, among, seed))
            for corruption, record in dose.shifted
        }
    elif dose.shifted:
        fs = {str(corruption): asdict(value) for corruption, _ in dose.shifted}
    return {
        "alpha": dose.alpha,
        "delta_ssdc_rpi": asdict(delta.scalar()),
        "anchoring": asdict(anchor.scalar()),
        "accuracy": asdict(value),
        "correct": right,
        "labelled": labelled,
        "fs": fs,
        "reason": dose.reason,
    }


def regimes(rows: Sequence[Mapping[str, Any]], measure: str) -> dict[str, Any]:
    """The regime of every alpha, and the knee, of one curve over alpha, by `RULE`.

    Undefined, with a reason, unless alpha 1 was measured and its interval lies above 0: only a
    positive signal can fall.
    """
    points = [(row["alpha"], row[measure]) for row in rows if row[measure]["value"] is not None]
    whole = dict(points).get(1.0)
    reason = None
    if not points:
        reason = rows[0][measure]["reason"] if rows else NOT_MEASURED
    elif whole is None:
        reason = "alpha 1 was not measured"
    elif whole["low"] is None:
        reason = "the value at alpha 1 has no interval"
    elif whole["low"] <= 0:
        reason = "the value at alpha 1 is not above 0"
    if reason is not None or whole is None:
        return {"by_alpha": {}, "knee": asdict(Scalar(None, reason=reason))}
    found = {}
    for alpha, scalar in points:
        share = scalar["value"] / whole["value"]
        holds_zero = scalar["low"] is not None and scalar["low"] <= 0 <= scalar["high"]
        if holds_zero or share <= COLLAPSED:
            found[f"{alpha:g}"] = "collapsed"
        else:
            found[f"{alpha:g}"] = "stable" if share >= STABLE else "transition"
    return {"by_alpha": found, "knee": asdict(_knee(points, whole["value"]))}


def _knee(points: Sequence[tuple[float, Mapping[str, Any]]], whole: float) -> Scalar:
    falling = sorted((p for p in points if p[0] <= 1), key=lambda p: -p[0])
    for (upper, above), (lower, below) in pairwise(falling):
        high, low = above["value"] / whole, below["value"] / whole
        if high >= 0.5 > low:
            return Scalar(lower + (upper - lower) * (0.5 - low) / (high - low))
    if not math.isfinite(whole) or len(falling) < 2:
        return Scalar(None, reason="fewer than two alphas up to 1 were measured")
    return Scalar(None, reason="the curve does not fall below half its value at alpha 1")
