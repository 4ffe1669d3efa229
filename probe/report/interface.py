"""The exact items of every model of a report: what its interface loses, keeps and reaches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from probe.report.format import DASH, number

HEAD = (
    "model",
    "patch: pixels to width",
    "lost directions",
    "defect without position",
    "with position",
    "both moved",
    "pairs of layer 0",
    "blocks until all reached",
)
SHOWN = 0.0005  # smaller ones would be printed as .000
WORDS = (
    "Lost directions: pixel directions of a patch that no token sees, of all its coordinates. "
    "Defect: how far the worst block is from commuting with permutations of its tokens, relative "
    "L2, without any positional signal, with it, and with signal and tokens moved together; 0 is "
    "below rounding. Pairs: allowed (query, key) pairs of patch tokens, per image and head. "
    "Blocks until every token can depend on every patch, by the model's own masks."
)

Json = Mapping[str, Any]


def interface_rows(report: Json) -> list[list[str]]:
    """One row per model under `HEAD`; empty when no model has these items."""
    models = [model for model in report["models"] if model["interface"]]
    return [_row(model["model"], model["interface"]) for model in models]


def interface_notes(report: Json) -> list[str]:
    """What remains without position, and what was left out and why, each once."""
    told: dict[str, list[str]] = {}
    for model in report["models"]:
        found = model["interface"]
        if not found:
            continue
        defects = found["symmetry"] or {}
        notes = [f"left out, {one['item']}: {one['reason']}" for one in found["left_out"]]
        if defects.get("remains"):
            notes.append(f"what remains without position is the {defects['remains']}")
        if defects.get("reason"):
            notes.append(defects["reason"])
        for note in notes:
            told.setdefault(note, []).append(model["model"])
    return [f"{', '.join(names)}: {note}" for note, names in told.items()]


def _row(name: str, found: Json) -> list[str]:
    patch, defects, attention = found["patch"], found["symmetry"], found["attention"]
    row = [name]
    if patch is None:
        row += [DASH, DASH]
    else:
        row += [f"{patch['dim']} to {patch['width']}", f"{patch['nullity']} of {patch['dim']}"]
    kinds = ("without_position", "with_position", "joint")
    row += [_defect(defects, f"defect_{kind}", found["tolerance"]) for kind in kinds]
    if attention is None:
        return [*row, DASH, DASH]
    first = attention["stages"][0]["blocks"][0]
    blocks = attention["blocks_until_all_reached"]
    return [*row, f"{first['allowed']:,}", "never" if blocks is None else str(blocks)]


def _defect(defects: Json | None, name: str, tolerance: float) -> str:
    value = None if defects is None else defects[name]
    if value is None:
        return DASH
    if value < tolerance:
        return "0"
    return number(value) if value >= SHOWN else f"{value:.0e}"
