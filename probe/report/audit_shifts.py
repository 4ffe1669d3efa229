"""What a card says of shifts of the view."""

from __future__ import annotations

from collections.abc import Iterator

from probe.report.audit_numbers import Group, Json, intervals, written
from probe.report.format import DASH, Footnotes, counted

SHIFTS_EXACT = (
    "a view moved by whole patches shows every patch that is still seen to the same linear map, so "
    "its token is found again, moved"
)
PARTS = {"half": "half a patch", "whole": "one patch"}


def translation_groups(card: Json, notes: Footnotes) -> Iterator[Group]:
    """Shifts by whole patches against shifts by part of one."""
    found = card["translation"]
    if found is None:
        return
    exact = found["exact"]
    if exact["holds"] is not None:
        largest = DASH if exact["largest"] is None else written(exact["largest"])
        verdict = "equal up to rounding" if exact["holds"] else "NOT equal"
        fact = f"{verdict}: largest change {largest}, tolerance {written(exact['tolerance'])}"
        yield Group(
            "Whole-patch shifts at the patch projection",
            exact["level"],
            [SHIFTS_EXACT],
            facts=[("tokens", fact)],
        )
    shifts = found["shifts"]
    first = {
        "shift, px": [str(shift["pixels"]) for shift in shifts],
        "whole": ["yes" if shift["whole_patches"] else "no" for shift in shifts],
    }
    titles = {
        "token_change_patch": "change at the\npatch projection",
        "token_change_last": "change at the\nlast layer",
        "prediction_change": "other\nprediction",
    }
    columns = {
        title: intervals([shift[key] for shift in shifts], notes) for key, title in titles.items()
    }
    strides = found["strides"]
    yield Group(
        "Shifts of the view",
        found["level"],
        [found["assumes"]],
        first=first,
        columns=columns,
        below=[
            "change: relative L2 between tokens and the unshifted ones moved along, mean over "
            f"{counted(found['images'], 'image')}, [low, high] 95 % jackknife interval",
            "other prediction: share of images with another top-1, 95 % Wilson interval",
            f"one token is {strides['patch']} px at the patch projection, {strides['last']} px at "
            "the last layer; a shift below that moves no token",
        ],
    )


def shift_of(card: Json, part: str) -> Json | None:
    """The shift by a `whole` patch, or the one below it that is nearest to `half` of one."""
    found = card["translation"]
    side = found["patch"]
    if part == "whole":
        return next((shift for shift in found["shifts"] if shift["pixels"] == side), None)
    below = [shift for shift in found["shifts"] if 0 < shift["pixels"] < side]
    return min(below, key=lambda shift: abs(2 * shift["pixels"] - side), default=None)


def change_at(card: Json, part: str, key: str) -> Json:
    """What one of the shifts of `shift_of` changed: a scalar."""
    shift = shift_of(card, part)
    if shift is None:
        return {"value": None, "reason": f"no shift by {PARTS[part]} was asked for"}
    change: Json = shift[key]
    return change
