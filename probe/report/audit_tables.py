"""CSV tables of `probe audit`: full precision, what is missing as empty cells with a reason."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from probe.report.audit_numbers import (
    COUNTS,
    DEFECTS,
    Json,
    blocks_of,
    largest_defect,
    rounding,
    why_missing,
)
from probe.report.audit_shifts import change_at, shift_of
from probe.report.format import grid_text, one_line, plain
from probe.report.tables import cell, csv_text, scalar_cells, scalar_columns

PATCH = ("dim", "width", "rank", "nullity", "nullity_bound", "nearly_lost")
COLLISION = ("max_pixel_difference", "token_difference")
SHARES = ("share_lost", "share_nearly")
BUDGET = ("params", "image_tokens", "prefix_tokens", "macs", "activation_bytes")
EXPOSURE = ("pretraining", "teacher")
CHANGES = ("token_change_patch", "token_change_last", "prediction_change")
SHIFTS = {"half": "half_patch", "whole": "one_patch"}
HARDWARE = ("images_per_second", "peak_memory_bytes", "device", "accelerator", "batch", "threads")
BLOCK = ("layer", "rows", "cols", "kind", "window_rows", "window_cols", "shift_rows", "shift_cols")

Row = dict[str, str]


def audit_csv(envelope: Json) -> str:
    """One row per model: the headline numbers of every item of its card.

    Defects are the largest over blocks, relative; pairs are summed over blocks, per image and head;
    `share_reached_first` and `_last` are shares of all pairs after the first and the last block.
    Changes under shifts are those at the last layer and at the patch projection, by the shift that
    is nearest to half a patch and by one patch, of `shift_px` pixels. Units: `_bytes` in bytes,
    `max_pixel_difference` in levels of 255, shares in 0..1. Each `reason` column says why numbers
    before it are missing. Models that failed have no row.
    """
    rows = [_model(card) for card in envelope["results"]]
    head = list(rows[0]) if rows else ["model", "resolved", "family"]
    return csv_text(head, [list(row.values()) for row in rows])


def _model(card: Json) -> Row:
    row = {key: plain(card[key]) for key in ("model", "resolved", "family")}
    row["image_size"], row["grid"] = grid_text(card["image_size"]), grid_text(card["grid"])
    row |= {"seed": str(card["seed"]), "dtype": plain(card["settings"]["dtype"])}
    row |= {"data": plain(card["data"]["name"]), "images": _text(card["data"]["taken"])}
    row |= _patch(card) | _symmetry(card) | _attention(card) | _positions(card)
    row |= _translation(card)
    budget, exposure = card["budget"], card["exposure"]
    row |= {key: _text(budget[key]) for key in BUDGET}
    row["budget_reason"] = one_line(budget["reason"] or "")
    row |= {key: one_line(exposure.get(key, "")) for key in EXPOSURE}
    hardware = card["hardware"] or {}
    row |= {key: _text(hardware.get(key)) for key in HARDWARE}
    left = [f"{one['item']}: {one['reason']}" for one in card["left_out"]]
    return row | {"left_out": one_line("; ".join(left))}


def _text(value: Any) -> str:
    """Numbers that read back exactly, names as they are, nothing for None."""
    if value is None:
        return ""
    return cell(value) if isinstance(value, float) else plain(str(value))


def _reason(card: Json, item: str, own: str | None = None) -> str:
    return why_missing(card, item) if card[item] is None else one_line(own or "")


def _patch(card: Json) -> Row:
    found: Mapping[str, Any] = card["patch"] or {}
    values = found.get("singular_values") or [None]
    rank = found.get("rank")
    row = {"stem": _text(found.get("stem"))}
    kernel = found.get("kernel") or (None, None)
    row |= {"patch_rows": _text(kernel[0]), "patch_cols": _text(kernel[1])}
    row |= {key: _text(found.get(key)) for key in PATCH}
    row["rank_tolerance"] = _text(found.get("tolerance"))
    row["largest_singular_value"] = _text(values[0])
    row["smallest_singular_value"] = _text(values[rank - 1] if rank else None)
    row["condition"] = _text(found.get("condition"))
    collision = found.get("collision") or {}
    row |= {key: _text(collision.get(key)) for key in COLLISION}
    row["collision_reason"] = _reason(card, "patch", found.get("reason"))
    variance = found.get("variance") or {}
    row["variance_patches"] = _text(variance.get("patches"))
    row |= {f"variance_{key}": _text(variance.get(key)) for key in SHARES}
    why = variance.get("reason") if variance else found.get("reason")
    return row | {"variance_reason": _reason(card, "patch", why)}


def _symmetry(card: Json) -> Row:
    row, reasons = {}, []
    for key in DEFECTS:
        value, reason = largest_defect(card, key)
        row[key] = _text(value)
        if reason is not None and key != "defect_within_windows":
            reasons.append(one_line(reason))
    row["defect_tolerance"] = _text(card["symmetry_tolerance"])
    return row | {"symmetry_reason": "; ".join(dict.fromkeys(reasons))}


def _attention(card: Json) -> Row:
    blocks, found = blocks_of(card), card["attention"]
    depth: Sequence[Any] = found["share_reached"] if found else (None,)
    row = {"blocks": _text(len(blocks) if found else None)}
    row |= {key: _text(sum(b[key] for b in blocks) if found else None) for key in COUNTS}
    row["by_formula"] = "" if not found else _yes(all(b["as_expected"] for b in blocks))
    until = found["blocks_until_all_reached"] if found else None
    row["blocks_until_all_reached"] = _text(until)
    row |= {"share_reached_first": _text(depth[0]), "share_reached_last": _text(depth[-1])}
    checks = found["perturbation"] if found else ()
    row["moved_beyond_reach"] = _text(sum(c["beyond"] for c in checks) if found else None)
    never = "the last block does not reach it" if found and until is None else None
    return row | {"attention_reason": _reason(card, "attention", never)}


def _yes(value: bool) -> str:
    return "yes" if value else "no"


def _positions(card: Json) -> Row:
    found = card["positions"]
    signals: Sequence[Json] = found or ()
    tables = [signal for signal in signals if signal["norm"]["value"] is not None]
    scored = [s["table_ssdc"]["value"] for s in signals if s["table_ssdc"]["value"] is not None]
    kinds = dict.fromkeys(signal["kind"] for signal in signals)
    first = tables[0] if tables else None
    row = {"positions": "+".join(kinds) or ("none" if found is not None else "")}
    row["position_signals"] = _text(len(signals) if found is not None else None)
    row["position_prefix_rows"] = _text(max((s["prefix_rows"] for s in signals), default=None))
    row["position_norm"] = _text(first["norm"]["value"] if first else None)
    row["token_norm"] = _text(first["token_norm"]["value"] if first else None)
    row["position_ratio"] = _text(first["ratio"]["value"] if first else None)
    row["position_ssdc_lowest"] = _text(min(scored, default=None))
    row["position_ssdc_highest"] = _text(max(scored, default=None))
    why = None if scored else next((s["table_ssdc"]["reason"] for s in signals), None)
    return row | {"position_reason": _reason(card, "positions", why)}


def _translation(card: Json) -> Row:
    row: Row = {}
    absent = {"value": None, "low": None, "high": None}
    for part, label in SHIFTS.items():
        shift = None if card["translation"] is None else shift_of(card, part)
        row[f"shift_px_{label}"] = _text(None if shift is None else shift["pixels"])
        for key in CHANGES:
            if card["translation"] is None:
                scalar: Json = absent | {"reason": why_missing(card, "translation")}
            else:
                scalar = absent | dict(change_at(card, part, key))
            names = scalar_columns(f"{key}_{label}")
            row |= dict(zip(names, scalar_cells(scalar), strict=True))
    return row


def blocks_csv(envelope: Json) -> str:
    """One row per model and block: its attention, what it has reached, and its defects.

    `window` and `shift` are in tokens, empty for global attention; pairs are ordered, per image and
    head; `formula_pairs` and `formula_allowed` are their closed form; `share_reached` is the share
    of (token, patch) pairs after the block. `scope` says whether a defect is of the block alone or
    of all blocks so far, `tolerance` below what it is rounding. Models that failed have no row.
    """
    head = ["model", "resolved", "family", *BLOCK, *COUNTS, "formula_pairs", "formula_allowed"]
    head += ["share_reached", "scope", *DEFECTS, "tolerance", "remains", "reason"]
    rows = [row for card in envelope["results"] for row in _blocks(card)]
    return csv_text(head, rows)


def _blocks(card: Json) -> list[list[str]]:
    model = [plain(card[key]) for key in ("model", "resolved", "family")]
    attention = {block["layer"]: block for block in blocks_of(card)}
    defects = {row["block"]: row for row in card["symmetry"] or ()}
    depth = card["attention"]["share_reached"] if card["attention"] else ()
    reached = dict(zip(attention, depth, strict=True))
    rows = []
    for layer in sorted({*attention, *defects}):
        row = [*model, str(layer), *_pairs(attention.get(layer))]
        row.append(_text(reached.get(layer)))
        reasons = [why_missing(card, item) for item in ("attention", "symmetry") if not card[item]]
        rows.append(row + _defects(card, defects.get(layer), reasons))
    return rows


def _pairs(block: Json | None) -> list[str]:
    if block is None:
        return [""] * (len(BLOCK) - 1 + len(COUNTS) + 2)
    window, shift = block["window"] or (None, None), block["shift"] or (None, None)
    found = [*block["grid"], block["kind"], *window, *shift]
    found += [block[key] for key in COUNTS]
    return [_text(value) for value in (*found, *block["by_formula"])]


def _defects(card: Json, row: Json | None, reasons: Sequence[str]) -> list[str]:
    if row is None:
        return [""] * (len(DEFECTS) + 3) + ["; ".join(reasons)]
    found = [row["scope"], *(row[key] for key in DEFECTS), rounding(card, row), row["remains"]]
    why = [*reasons, one_line(row["reason"] or "")]
    return [*(_text(value) for value in found), "; ".join(text for text in why if text)]
