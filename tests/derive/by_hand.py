"""Records whose numbers are written by hand."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
from scipy.stats import t

from probe.records import LayerRecord, PassRecord

G = 5
NARROW = np.linspace(-0.02, 0.02, 999)


def layer(
    number: int,
    value: float | None,
    spread: Sequence[float | None] | None = None,
    *,
    grid: tuple[int, int] = (2, 3),
    null: np.ndarray = NARROW,
    reason: str | None = None,
    subset: int | None = None,
) -> LayerRecord:
    """A layer; its replicates are `value` plus each of `spread`."""
    defined = value is not None
    spread = [0.0] * G if spread is None else spread
    return LayerRecord(
        layer=number,
        grid=grid,
        value=value,
        leave_one_out=tuple(None if s is None else value + s for s in spread) if defined else (),
        null=(null if defined else np.empty(0)).astype(np.float32),
        pairs=15,
        subset=subset,
        reason=reason,
    )


def a_pass(layers: Sequence[LayerRecord], condition: str = "clean", **changes: Any) -> PassRecord:
    settings = {"site": "attn_in", "resolved": "timm:vit", "family": "timm_vit"}
    fields: dict[str, Any] = {
        "key": "0" * 64,
        "model": "timm:vit",
        "condition": condition,
        "settings": settings | {"condition": condition},
        "machine": {"batch_size": 32, "workers": 0},
        "images": 10,
        "layers": tuple(layers),
    }
    return PassRecord(**(fields | changes))


def values(*numbers: float | None, **options: Any) -> list[LayerRecord]:
    return [layer(i, number, **options) for i, number in enumerate(numbers)]


def half_width(replicates: Sequence[float]) -> float:
    """The jackknife's half interval, from its formula."""
    x, g = np.array(replicates), len(replicates)
    return float(t.ppf(0.975, g - 1) * math.sqrt((g - 1) / g * ((x - x.mean()) ** 2).sum()))


def predictions(
    correct: Sequence[int],
    corruption: object = "clean",
    *,
    classes: Sequence[int] | None = None,
    dropped: Sequence[int] = (),
    labels: Mapping[str, Any] | None = MappingProxyType({"kind": "folder", "map": {}}),
    settings: Mapping[str, Any] | None = None,
    **changes: Any,
) -> PassRecord:
    """A pass of these verdicts (1, 0; -1 without a label); `dropped` rows were not read."""
    if changes.get("reason") is not None:
        return a_pass([], str(corruption), **({"images": 0} | changes))
    verdict = np.array(correct, dtype=np.int8)
    predicted = np.zeros(len(correct)) if classes is None else np.array(classes)
    predicted, rows = predicted.astype(np.int32), list(dropped)
    predicted[rows], verdict[rows] = -1, -1
    read = len(correct) - len(rows)
    one = a_pass([], str(corruption), predicted=predicted, correct=verdict, images=read, **changes)
    known = {"seed": 0, "labels": None if labels is None else dict(labels), **(settings or {})}
    return one.model_copy(update={"settings": one.settings | known})
