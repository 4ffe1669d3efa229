"""The two models of a comparison, and whether their passes pair."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from probe.corruptions import Corruption
from probe.errors import DataError
from probe.records import PassRecord
from probe.types import Scalar

# Which settings change what SSDC means, so that both models must share them.
MEANING = ("site", "distance", "average")


@dataclass(frozen=True)
class Side:
    """One of the two models, with its passes.

    Attributes:
        name: the model as the user named it.
        clean: its clean pass, with SSDC.
        rpi: its RPI passes, one per draw.
        predicted: its clean predictions, None where it has no head.
        shifted: its predictions under each corruption.
        unjudged: why predictions were not made, or not compared with labels.
        group: the group of its zoo entry.
        provenance: the provenance of its zoo entry.
        notes: remarks of the loader.
    """

    name: str
    clean: PassRecord
    rpi: tuple[PassRecord, ...]
    predicted: PassRecord | None = None
    shifted: tuple[tuple[Corruption, PassRecord], ...] = ()
    unjudged: str | None = None
    group: str | None = None
    provenance: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def records(self) -> tuple[PassRecord, ...]:
        """All its passes."""
        judged = () if self.predicted is None else (self.predicted,)
        return (self.clean, *self.rpi, *judged, *(record for _, record in self.shifted))


Sides = tuple[Side, Side]


def check_comparable(sides: Sides) -> None:
    """Refuse passes that do not pair.

    Raises:
        DataError: if data, number of images, image groups or what SSDC means are not the same.
    """
    names = " and ".join(side.name for side in sides)
    data = sides[0].clean.settings["data"]
    for side in sides:
        for record in side.records:
            other = record.settings["data"]
            if other["fingerprint"] != data["fingerprint"]:
                raise DataError(
                    f"{names} were measured on different images ('{data['name']}', fingerprint "
                    f"{str(data['fingerprint'])[:16]}, and '{other['name']}', "
                    f"{str(other['fingerprint'])[:16]}); measure both with the same --data, "
                    "--split and --limit"
                )
    read = [[record.images for record in (side.clean, *side.rpi)] for side in sides]
    if len({count for counts in read for count in counts}) > 1:
        raise DataError(
            f"{names} were measured on different numbers of images ({min(read[0])} and "
            f"{min(read[1])}); look at what was left out, and measure both again with --fresh"
        )
    groups = [
        max(
            (len(one.leave_one_out) for r in (side.clean, *side.rpi) for one in r.layers), default=0
        )
        for side in sides
    ]
    if groups[0] != groups[1] and 0 not in groups:
        raise DataError(
            f"{names} hold intervals from {groups[0]} and {groups[1]} groups of images, which do "
            "not pair; measure both again with --fresh"
        )
    meaning = [
        {name: side.clean.settings[name] for name in MEANING}
        | {"RPI": ", ".join(record.condition for record in side.rpi)}
        for side in sides
    ]
    for name, value in meaning[0].items():
        if meaning[1][name] != value:
            raise DataError(
                f"{names} were measured with {name} '{value}' and '{meaning[1][name]}'; measure "
                "both in the same way"
            )


def missing(sides: Sides, scalars: tuple[Scalar, Scalar]) -> str | None:
    """Why a difference is undefined, naming whose number is missing; None where it is defined."""
    pairs = zip(sides, scalars, strict=True)
    found = {s.name: one.reason or "undefined" for s, one in pairs if one.value is None}
    reasons = list(found.values())
    if len(reasons) == 2 and reasons[0] == reasons[1]:
        return reasons[0]
    return "; ".join(f"{name}: {reason}" for name, reason in found.items()) or None


def three(scalars: tuple[Scalar, Scalar], apart: Scalar) -> dict[str, Any]:
    """Both numbers and the first minus the second, ready for JSON."""
    return {"first": asdict(scalars[0]), "second": asdict(scalars[1]), "difference": asdict(apart)}
