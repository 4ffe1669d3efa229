"""Two models over the same images: the first minus the second, paired by image."""

from __future__ import annotations

from typing import Any

from probe.derive.curves import Curve, anchoring, curve, delta_ssdc
from probe.derive.estimate import Estimate, difference
from probe.derive.judged import Judged
from probe.derive.sides import Side, Sides, check_comparable, missing, three
from probe.derive.zoo import controlled
from probe.numerics.proportions import RESAMPLES
from probe.types import Scalar


def compare_result(first: Side, second: Side) -> dict[str, Any]:
    """The entry in the output of `probe compare`: every number of both, and first - second.

    SSDC differences carry a jackknife interval over replicates that share their image groups, so
    that what both models owe to the choice of images cancels. They say nothing about training
    seeds, and nothing about causes unless `controlled` says that the training is the same.

    Raises:
        DataError: see `check_comparable`.
        NotApplicable: if RPI does not apply to one of them, with the reason.
    """
    sides = first, second
    curves = curve(first.rpi), curve(second.rpi)
    check_comparable(sides)
    site = str(first.clean.settings["site"])
    unfit = _unfit(*curves)
    layers = [
        {"layer": number, "grid": list(curves[0].grids[number])}
        | _estimates(sides, *(one.layers[number] for one in curves))
        for number in range(0 if unfit else len(curves[0].layers))
    ]
    judged = Judged(sides)
    return {
        "first": _side(first, curves[0]),
        "second": _side(second, curves[1]),
        "images": first.clean.images,
        "labelled": judged.labelled,
        "intervals": {
            "ssdc": first.clean.settings["interval"] + ", paired by group",
            "accuracy": "95 %, Newcombe's paired score interval; p: McNemar, exact",
            "fs": f"95 %, paired bootstrap over images, percentile, {RESAMPLES} resamples",
            "agreement_fs": "95 %, Newcombe's paired score interval",
        },
        "controlled": controlled([_card(side) for side in sides]),
        "anchoring": _estimates(sides, *(anchoring(one) for one in curves)),
        "delta_ssdc_rpi": _estimates(sides, *(delta_ssdc(one, site) for one in curves)),
        "final": _estimates(sides, *(one.layers[-1] for one in curves)),
        "layers": layers,
        "layers_reason": unfit,
        "accuracy": judged.accuracy(),
        "corruptions": judged.corruptions(),
        "notes": _notes(sides, curves),
    }


def _card(side: Side) -> dict[str, Any]:
    return {
        "model": side.name,
        "provenance": dict(side.provenance),
        "group": side.group,
        "weights": side.clean.settings["weights"],
    }


def _side(side: Side, rpi: Curve) -> dict[str, Any]:
    own = ("condition", "measures", "notes", "labels")
    return _card(side) | {
        "resolved": side.clean.settings["resolved"],
        "family": side.clean.settings["family"],
        "images": side.clean.images,
        "grids": [list(grid) for grid in dict.fromkeys(rpi.grids)],
        "depth": len(rpi.grids),
        "settings": {k: v for k, v in side.clean.settings.items() if k not in own}
        | {"rpi": [record.condition for record in side.rpi], "machine": side.clean.machine},
        "labels": None if side.predicted is None else side.predicted.settings.get("labels"),
        "unjudged": side.unjudged,
        "skipped": sorted({tuple(entry) for r in side.records for entry in r.skipped}),
        "notes": list(side.notes),
    }


def _unfit(first: Curve, second: Curve) -> str | None:
    """Why layers have no counterpart; None where they do."""
    if len(first.grids) != len(second.grids):
        return f"depths differ ({len(first.grids)} and {len(second.grids)})"
    for layer, (one, other) in enumerate(zip(first.grids, second.grids, strict=True)):
        if one != other:
            sizes = f"{one[0]}x{one[1]} and {other[0]}x{other[1]}"
            return f"grids differ at layer {layer} ({sizes})"
    return None


def _notes(sides: Sides, curves: tuple[Curve, Curve]) -> list[str]:
    """What makes the SSDC numbers of the two less alike than they look."""
    found = []
    grids = [dict.fromkeys(f"{rows}x{cols}" for rows, cols in one.grids) for one in curves]
    if list(grids[0]) != list(grids[1]):
        each = (f"{s.name} {', '.join(g)}" for s, g in zip(sides, grids, strict=True))
        found.append(f"SSDC depends on the grid, and the grids differ: {'; '.join(each)}")
    depths = [len(one.grids) for one in curves]
    if depths[0] != depths[1]:
        found.append(
            f"anchoring averages over {depths[0]} layers of {sides[0].name} and {depths[1]} of "
            f"{sides[1].name}"
        )
    return found


def _estimates(sides: Sides, *pair: Estimate) -> dict[str, Any]:
    first, second = pair
    scalars = first.scalar(), second.scalar()
    why = missing(sides, scalars)
    apart = Scalar(None, reason=why) if why else difference(first, second).scalar()
    return three(scalars, apart)
