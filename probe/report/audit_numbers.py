"""How an audit's numbers are written, and what every part of its output shares."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby, pairwise
from typing import Any

from probe.report.format import DASH, Footnotes, number, one_line

Json = Mapping[str, Any]
Columns = Mapping[str, Sequence[str]]

DEFECTS = {
    "defect_without_position": "without position",
    "defect_with_position": "with position",
    "defect_joint": "joint",
    "defect_within_windows": "inside windows",
}
NOT_WINDOWED = "only attention inside windows is permuted like this"
NOT_ASKED = "not asked for"
COUNTS = ("pairs", "allowed", "wrapped", "prefix", "padding")
_WHOLE = re.compile(r"^([-<>]?[\d,]*).*", re.DOTALL)


@dataclass(frozen=True)
class Group:
    """Lines of a card that rest on one level of evidence, under the same assumptions.

    `facts` are labels with texts, `first` and `columns` one table, `below` says how to read it.
    """

    title: str
    level: str
    assumes: Sequence[str]
    facts: Sequence[tuple[str, str]] = ()
    first: Columns = field(default_factory=dict)
    columns: Columns = field(default_factory=dict)
    below: Sequence[str] = ()


def traced(card: Json) -> dict[str, Any]:
    """The card in the form in which results of other commands say what they are traced by."""
    settings = dict(card["settings"]) | {
        key: card[key] for key in ("data", "seed", "image_size", "weights", "revision")
    }
    return {
        "model": card["model"],
        "resolved": card["resolved"],
        "images": card["data"]["taken"],
        "settings": settings,
        "skipped": [],
        "notes": card["notes"],
    }


def evidence(card: Json, item: str) -> tuple[str, list[str]]:
    """Level and assumptions of an item of the card."""
    found = card["evidence"][item]
    return found["level"], [found["assumes"]]


def why_missing(card: Json, item: str) -> str:
    """Why an item is null."""
    for left in card["left_out"]:
        if left["item"] == item:
            return one_line(left["reason"])
    return NOT_ASKED


def written(value: float) -> str:
    """Three decimals, `.612`; very small and very large numbers with an exponent, `7.6e-6`."""
    if value == 0:
        return "0"
    if 0.0005 <= abs(value) < 1000:
        return number(value)
    if 1000 <= abs(value) < 1e6:
        return f"{value:,.0f}"
    mantissa, exponent = f"{value:.1e}".split("e")
    return f"{mantissa.removesuffix('.0')}e{int(exponent)}"


def share(value: float) -> str:
    """A share in 0..1, never rounded to none or all of it."""
    if 0 < value < 0.0005:
        return "<.001"
    if 0.9995 <= value < 1:
        return ">.999"
    return number(value)


def count(value: int) -> str:
    """`38,416`."""
    return f"{value:,}"


def large(value: int, unit: str) -> str:
    """`4.60 GMACs`, `22.05 M`."""
    for size, prefix in ((1e9, "G"), (1e6, "M")):
        if value >= size:
            return f"{value / size:.2f} {prefix}{unit}"
    return f"{value:,} {unit}".rstrip()


def memory(value: int) -> str:
    """Bytes as `74.3 MiB`, from a thousand on as `1.46 GiB`."""
    return f"{value / 2**30:.2f} GiB" if value >= 1000 * 2**20 else f"{value / 2**20:.1f} MiB"


def pixels(sides: Sequence[int]) -> str:
    """`16x16 px`."""
    return f"{sides[0]}x{sides[1]} px"


def shape_text(shape: Sequence[int] | None) -> str:
    """`1x197x384`."""
    return "-" if shape is None else "x".join(map(str, shape)) or "scalar"


def ranges(numbers: Sequence[int]) -> str:
    """`0-3, 7`; every second one of four or more as `4-20 even`."""
    if len(numbers) > 3 and {b - a for a, b in pairwise(numbers)} == {2}:
        return f"{numbers[0]}-{numbers[-1]} {'odd' if numbers[0] % 2 else 'even'}"
    parts = []
    for _, run in groupby(enumerate(numbers), key=lambda pair: pair[1] - pair[0]):
        found = [value for _, value in run]
        parts.append(str(found[0]) if len(found) == 1 else f"{found[0]}-{found[-1]}")
    return ", ".join(parts)


def by_block(texts: Sequence[str]) -> str:
    """`0: .062, 1: .141, 2-11: 1.000`."""
    parts = []
    for text, run in groupby(range(len(texts)), key=texts.__getitem__):
        parts.append(f"{ranges(list(run))}: {text}")
    return ", ".join(parts)


def lined_up(cells: Sequence[str]) -> list[str]:
    """Cells whose decimal points stand below each other; a dash keeps to the left."""
    ahead = [len(_WHOLE.sub(r"\1", cell)) for cell in cells]
    most = max(ahead, default=0)
    return [
        cell if cell.startswith(DASH) else " " * (most - before) + cell
        for cell, before in zip(cells, ahead, strict=True)
    ]


def rounding(card: Json, row: Json) -> float:
    """Below it a defect of this block is rounding; it grows with the blocks that have run."""
    blocks = row["block"] + 1 if row["scope"] == "network" else 1
    return float(card["symmetry_tolerance"]) * blocks


def defect_text(card: Json, row: Json, key: str, notes: Footnotes) -> str:
    """A defect in a table: `0` where it is rounding, a dash with its reason where there is none."""
    value = row[key]
    if value is None:
        return notes.dash({"reason": row["reason"] or NOT_WINDOWED})
    return "0" if value <= rounding(card, row) else written(value)


def largest_defect(card: Json, key: str) -> tuple[float | None, str | None]:
    """The largest over blocks of one of `DEFECTS`, or why there is none."""
    if card["symmetry"] is None:
        return None, why_missing(card, "symmetry")
    values = [row[key] for row in card["symmetry"] if row.get(key) is not None]
    if values:
        return max(values), None
    return None, next((r["reason"] for r in card["symmetry"] if r["reason"]), NOT_WINDOWED)


def largest_text(card: Json, key: str, notes: Footnotes, *, short: bool = False) -> str:
    """The largest defect in words: `0 (below rounding 9.2e-5)`, or, `short`, `0`."""
    value, reason = largest_defect(card, key)
    if value is None:
        return notes.dash({"reason": reason})
    rows = [row for row in card["symmetry"] if row[key] is not None]
    above = [row[key] for row in rows if row[key] > rounding(card, row)]
    if above:
        return written(max(above))
    if short:
        return "0"
    return f"0 (below rounding {written(max(rounding(card, row) for row in rows))})"


def blocks_of(card: Json) -> list[dict[str, Any]]:
    """The blocks of all stages in order, each with the `grid` of its stage."""
    if card["attention"] is None:
        return []
    return [
        dict(block) | {"grid": stage["grid"]}
        for stage in card["attention"]["stages"]
        for block in stage["blocks"]
    ]


def scalar_text(scalar: Json, notes: Footnotes) -> str:
    """A {"value", "reason"} object, or a dash with its mark."""
    return notes.dash(scalar) if scalar["value"] is None else written(scalar["value"])


def intervals(scalars: Sequence[Json], notes: Footnotes) -> list[str]:
    """Numbers with their 95 % intervals, or dashes with marks, lined up."""
    return lined_up([notes.with_interval(scalar) for scalar in scalars])


def common_part(names: Sequence[str]) -> tuple[str, list[str]]:
    """What dotted names share, with a star for what differs, and that part of each.

    One name, or names with nothing in common, are their own parts and the pattern is empty.
    """
    split = [name.split(".") for name in names]
    least = min(map(len, split), default=0)
    lead = tail = 0
    while lead < least and len({parts[lead] for parts in split}) == 1:
        lead += 1
    while tail < least - lead and len({parts[-1 - tail] for parts in split}) == 1:
        tail += 1
    middles = [".".join(parts[lead : len(parts) - tail]) for parts in split]
    if len(set(names)) < 2 or lead + tail == 0 or not all(middles):
        return "", list(names)
    return ".".join([*split[0][:lead], "*", *split[0][len(split[0]) - tail :]]), middles
