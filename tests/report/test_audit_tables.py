from __future__ import annotations

import csv
import io
from collections.abc import Callable
from typing import Any

import pytest

from probe.report.audit_tables import audit_csv, blocks_csv
from tests.report.audit_cards import (
    ANEW,
    ENVELOPES,
    EPS,
    FULL,
    OVERLAP,
    UNREAD,
    card,
    rotary,
    swin,
    wrap,
)

Json = dict[str, Any]
DEFECTS = ("defect_without_position", "defect_with_position", "defect_joint")
COUNTS = ("pairs", "allowed", "wrapped", "prefix", "padding")


def read(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text, newline="")))


def value(text: str) -> float | None:
    return float(text) if text else None


@pytest.mark.parametrize("name", ["vit", "several"])
def test_golden_tables(name: str, golden: Callable[[str, str], None]) -> None:
    golden(f"audit_{name}.csv", audit_csv(ENVELOPES[name]) + "\n" + blocks_csv(ENVELOPES[name]))


def test_headline_numbers_read_back_exactly() -> None:
    made = card("vit", hardware=rotary()["hardware"])
    made["symmetry"][4]["defect_joint"] = 0.125
    (row,) = read(audit_csv(wrap(made)))
    patch, budget = made["patch"], made["budget"]
    for key in ("dim", "width", "rank", "nullity", "nullity_bound", "nearly_lost"):
        assert row[key] == str(patch[key])
    assert value(row["condition"]) == patch["condition"]
    assert value(row["rank_tolerance"]) == patch["tolerance"]
    assert value(row["largest_singular_value"]) == patch["singular_values"][0]
    assert value(row["smallest_singular_value"]) == patch["singular_values"][-1]
    for key in ("max_pixel_difference", "token_difference"):
        assert value(row[key]) == patch["collision"][key]
    assert value(row["variance_share_lost"]) == patch["variance"]["share_lost"]
    assert value(row["variance_share_nearly"]) == patch["variance"]["share_nearly"]
    for key in DEFECTS:
        assert value(row[key]) == max(one[key] for one in made["symmetry"])
    assert value(row["defect_joint"]) == 0.125
    assert value(row["defect_tolerance"]) == EPS
    blocks = made["attention"]["stages"][0]["blocks"]
    for key in COUNTS:
        assert row[key] == str(sum(one[key] for one in blocks))
    assert (row["blocks"], row["blocks_until_all_reached"]) == ("12", "1")
    assert (row["share_reached_first"], row["share_reached_last"]) == ("1.0", "1.0")
    assert (row["by_formula"], row["moved_beyond_reach"]) == ("yes", "0")
    assert (row["positions"], row["position_prefix_rows"]) == ("absolute", "1")
    assert value(row["position_norm"]) == 1.2188
    assert value(row["token_norm"]) == 9.8765
    assert value(row["position_ratio"]) == 0.1234
    assert (row["position_ssdc_lowest"], row["position_ssdc_highest"]) == ("0.6543", "0.6543")
    for key in ("params", "image_tokens", "prefix_tokens", "macs", "activation_bytes"):
        assert row[key] == str(budget[key])
    assert (row["pretraining"], row["teacher"]) == ("ImageNet-1k, supervised", "none")
    assert value(row["images_per_second"]) == 45.678
    assert (row["peak_memory_bytes"], row["batch"]) == ("1234567890", "32")
    shifts = {one["pixels"]: one for one in made["translation"]["shifts"]}
    for label, pixels in (("half_patch", 8), ("one_patch", 16)):
        assert row[f"shift_px_{label}"] == str(pixels)
        for key in ("token_change_patch", "token_change_last", "prediction_change"):
            column = f"{key}_{label}"
            scalar = shifts[pixels][key]
            found = [value(row[column]), value(row[f"{column}_low"]), value(row[f"{column}_high"])]
            assert found == [scalar["value"], scalar["low"], scalar["high"]]
    assert row["left_out"] == ""
    assert [row[k] for k in row if k.endswith("_reason") and row[k]] == []


def test_reasons_stand_beside_what_is_missing() -> None:
    rows = read(audit_csv(ENVELOPES["several"]))
    _vit, windows, rope, stem = rows
    assert windows["collision_reason"] == FULL
    assert (windows["max_pixel_difference"], windows["nullity"]) == ("", "0")
    assert windows["position_ssdc_lowest"] == "0.3"
    assert float(windows["position_ssdc_highest"]) == pytest.approx(0.52)
    assert rope["defect_joint"] == ""
    assert rope["symmetry_reason"] == ANEW
    assert rope["prediction_change_half_patch_reason"] == "the model has no head to predict with"
    assert rope["budget_reason"] == "activations not counted: no backward"
    assert rope["token_norm"] == ""
    assert stem["stem"] == "overlapping"
    assert stem["collision_reason"] == stem["variance_reason"] == OVERLAP
    assert stem["attention_reason"] == UNREAD
    assert stem["symmetry_reason"] == "a block takes no tokens"
    assert stem["position_reason"] == "the table is not where the family says"
    reason = "patches are not disjoint squares"
    assert stem["token_change_last_half_patch_reason"] == reason
    assert "attention: family timm_odd does not say" in stem["left_out"]
    assert (stem["macs"], stem["pairs"], stem["blocks"]) == ("", "", "")


def test_half_a_patch_is_the_nearest_shift_and_says_which() -> None:
    made = card("vit")
    shifts = made["translation"]["shifts"]
    made["translation"]["shifts"] = [shift for shift in shifts if shift["pixels"] in (0, 2, 6, 16)]
    (row,) = read(audit_csv(wrap(made)))
    assert (row["shift_px_half_patch"], row["shift_px_one_patch"]) == ("6", "16")
    six = next(shift for shift in shifts if shift["pixels"] == 6)
    assert value(row["token_change_last_half_patch"]) == six["token_change_last"]["value"]
    made["translation"]["shifts"] = shifts[:1]
    (row,) = read(audit_csv(wrap(made)))
    assert (row["shift_px_half_patch"], row["token_change_last_half_patch"]) == ("", "")
    reason = "no shift by half a patch was asked for"
    assert row["token_change_last_half_patch_reason"] == reason
    reason = "no shift by one patch was asked for"
    assert row["prediction_change_one_patch_reason"] == reason


def test_a_model_that_never_reaches_all_says_so() -> None:
    made = card("vit")
    made["attention"] |= {"blocks_until_all_reached": None, "share_reached": [0.25] * 12}
    (row,) = read(audit_csv(wrap(made)))
    assert row["blocks_until_all_reached"] == ""
    assert row["attention_reason"] == "the last block does not reach it"


@pytest.mark.parametrize("make", [lambda: card("vit"), swin, rotary])
def test_every_block_has_a_row_with_its_own_numbers(make: Callable[[], Json]) -> None:
    made = make()
    rows = iter(read(blocks_csv(wrap(made))))
    layer = 0
    for stage in made["attention"]["stages"]:
        for block in stage["blocks"]:
            row = next(rows)
            assert (row["model"], row["layer"]) == (made["model"], str(layer))
            assert [int(row["rows"]), int(row["cols"])] == stage["grid"]
            assert row["kind"] == block["kind"]
            for key in ("window", "shift"):
                found = [row[f"{key}_rows"], row[f"{key}_cols"]]
                assert found == [str(side) for side in block[key] or ("", "")]
            assert [int(row[key]) for key in COUNTS] == [block[key] for key in COUNTS]
            formula = [int(row["formula_pairs"]), int(row["formula_allowed"])]
            assert formula == block["by_formula"]
            assert float(row["share_reached"]) == made["attention"]["share_reached"][layer]
            defect = made["symmetry"][layer]
            assert row["scope"] == defect["scope"]
            for key in (*DEFECTS, "defect_within_windows"):
                assert value(row[key]) == defect[key]
            so_far = layer + 1 if defect["scope"] == "network" else 1
            assert float(row["tolerance"]) == EPS * so_far
            assert row["remains"] == (defect["remains"] or "")
            assert row["reason"] == (defect["reason"] or "")
            layer += 1
    assert next(rows, None) is None


def test_blocks_without_attention_keep_their_defects() -> None:
    left = [{"item": "attention", "reason": UNREAD}]
    rows = read(blocks_csv(wrap(card("vit", attention=None, left_out=left))))
    assert len(rows) == 12
    assert (rows[3]["pairs"], rows[3]["kind"], rows[3]["reason"]) == ("", "", UNREAD)
    assert float(rows[3]["defect_with_position"]) == pytest.approx(0.5821)
    rows = read(blocks_csv(wrap(card("vit", symmetry=None))))
    assert (rows[3]["pairs"], rows[3]["scope"]) == ("38416", "")
    assert rows[3]["reason"] == "not asked for"


def test_names_are_quoted_and_made_printable() -> None:
    text = audit_csv(wrap(card('a,"b"\n\udc80')))
    assert "\r" not in text
    assert len(text.splitlines()) == 2
    assert read(text)[0]["model"] == 'a,"b"\\n\\udc80'


def test_no_results_give_headers_alone() -> None:
    assert audit_csv(wrap()) == "model,resolved,family\n"
    assert len(blocks_csv(wrap()).splitlines()) == 1
