"""The report is a pure function of cards and records: each number is the one of its own command."""

from __future__ import annotations

import base64
import json
from typing import Any

import numpy as np
import pytest

from probe.corruptions import parse
from probe.derive.fragility import fragility_result
from probe.derive.report import Asked, report
from probe.derive.scale import Dose, scale_result
from probe.derive.ssdc import ssdc_result
from probe.records import ModelCard, PassRecord
from probe.types import Failure
from tests.derive.by_hand import a_pass, predictions, values

JPEG, BLUR = "jpeg(quality=5)", "true_gaussian_blur(sigma=2.5)"
RPI = "rpi(mode=image,seed=0,draw=0)"
DATA = {"name": "./digits", "kind": "digits", "fingerprint": "blake2b:0", "total": 9,
        "split": "test", "revision": None, "taken": 4}  # fmt: skip
COMMON: dict[str, Any] = {
    "resolved": "timm:vit", "revision": None, "weights": "random:0", "configuration": "c",
    "family": "timm_vit", "options": {}, "image_size": [32, 48], "preprocess": {},
    "data": DATA, "site": "attn_in", "distance": "l1", "average": "similarity", "seed": 0,
    "dtype": "float32", "device": "cpu", "interval": "95 %", "versions": {"probe": "0"},
    "labels": {"note": "by name"}, "notes": ["a note"],
}  # fmt: skip
ASKED = Asked("mine", "default", (JPEG, BLUR), (JPEG,), (1.0, 0.5))
RIGHT, WORSE, SCALED = (1, 1, 1, 0), (1, 0, 1, 0), (1, 1, 0, 0)


def card(**changes: Any) -> ModelCard:
    fields: dict[str, Any] = {
        "key": "0" * 64, "model": "vit", "source": "timm:vit", "group": "g", "tags": ("small",),
        "provenance": {"teacher": "t"}, "hub": None, "position": "absolute",
        "grids": ((2, 3), (2, 3), (1, 2)), "params": 7, "macs": 8, "macs_reason": None,
        "signals": ("absolute",), "unscaled": None, "head": True, "unjudged": None,
        "readout": None, "common": COMMON,
    }  # fmt: skip
    return ModelCard(**(fields | changes))


def both(numbers: tuple[float, ...], correct: tuple[int, ...]) -> PassRecord:
    """A clean pass with curves and predictions."""
    judged = predictions(correct)
    return judged.model_copy(update={"layers": tuple(values(*numbers, spread=SPREAD))})


SPREAD = [0.01, -0.01, 0.02, 0.0, -0.02]
CLEAN = both((0.5, 0.4, 0.3), RIGHT)
DRAW = a_pass(values(0.1, 0.3, 0.2, spread=SPREAD), RPI)
DIM = a_pass(values(0.05, 0.1, 0.1, spread=SPREAD), f"{RPI}+alpha=0.5")
JUDGED = [
    predictions(WORSE, JPEG),
    predictions(RIGHT, BLUR),
    predictions(SCALED, "alpha=0.5"),
    predictions((0, 0, 0, 0), f"alpha=0.5+{JPEG}"),
]
RECORDS = [CLEAN, DRAW, DIM, *JUDGED]


def one(records: list[PassRecord], asked: Asked = ASKED, **changes: Any) -> dict[str, Any]:
    (entry,) = report([(card(**changes), records)], [], asked, "digits")["models"]
    return entry  # type: ignore[no-any-return]


def test_a_model_that_rpi_does_not_apply_to_is_a_row_of_reasons() -> None:
    why = "RPI does not apply: a convolutional network has no patch tokens"
    refused = [r.model_copy(update={"layers": (), "reason": why}) for r in (DRAW, DIM)]
    found = one([CLEAN, *refused, *JUDGED])
    for name in ("anchoring", "final", "delta_ssdc_rpi"):
        assert (found[name]["value"], found[name]["reason"]) == (None, why)
    assert [layer["clean"]["value"] for layer in found["layers"]] == [0.5, 0.4, 0.3]
    assert {layer["rpi"]["reason"] for layer in found["layers"]} == {why}
    assert found["maps"] == []
    assert found["accuracy"]["value"] == 0.75


def test_facts_come_from_the_card() -> None:
    found = report([(card(), RECORDS)], [Failure("gone", "no such file")], ASKED, "digits")
    assert (found["schema"], found["title"], found["protocol"]) == (1, "mine", "default")
    assert found["data"] == DATA | {"name": "digits"}
    assert found["failures"] == [{"model": "gone", "error": "no such file"}]
    assert found["settings"]["rpi"] == [RPI]
    assert found["settings"]["versions"] == {"probe": "0"}
    assert found["settings"]["accuracy_interval"] == "95 %, Wilson"
    (model,) = found["models"]
    expected = {
        "model": "vit", "resolved": "timm:vit", "revision": None, "weights": "random:0",
        "family": "timm_vit", "group": "g", "tags": ["small"], "position": "absolute",
        "grid": [2, 3], "grids": [[2, 3], [1, 2]], "depth": 3, "image_size": [32, 48],
        "params": 7, "macs": 8, "provenance": {"teacher": "t"}, "readout": None,
        "images": 4, "labelled": 4, "notes": ["a note"], "skipped": [], "published": [],
    }  # fmt: skip
    assert {name: model[name] for name in expected} == expected
    assert model["settings"]["data"] == {"name": "digits"}
    json.dumps(found, allow_nan=False)


def test_numbers_are_those_of_the_single_commands() -> None:
    found = one(RECORDS)
    curves = ssdc_result("vit", CLEAN, [DRAW])
    for name in ("anchoring", "anchoring_by_grid", "final", "peak", "delta_ssdc_rpi", "layers"):
        assert found[name] == curves[name], name
    shifted = [(parse(text), record) for text, record in zip((JPEG, BLUR), JUDGED, strict=False)]
    judged = fragility_result("vit", CLEAN, shifted)
    assert (found["accuracy"], found["correct"]) == (judged["accuracy"], 3)
    for ours, theirs, column in zip(
        found["corruptions"], judged["corruptions"],
        ("jpeg_q5", "true_gaussian_blur_s2.5"), strict=True,
    ):  # fmt: skip
        assert ours == {**theirs, "column": column}
    doses = [
        Dose(1.0, (DRAW,), CLEAN, ((parse(JPEG), JUDGED[0]),)),
        Dose(0.5, (DIM,), JUDGED[2], ((parse(JPEG), JUDGED[3]),)),
    ]
    assert found["alphas"] == scale_result("vit", doses)["alphas"]
    assert found["alphas"][1]["fs"][JPEG]["value"] == 1.0


def test_the_order_of_records_says_nothing() -> None:
    assert one(RECORDS[::-1]) == one(RECORDS)


def test_draws_are_averaged() -> None:
    second = a_pass(values(0.3, 0.5, 0.4, spread=SPREAD), RPI.replace("draw=0", "draw=1"))
    found = one([*RECORDS, second])
    assert found["anchoring"] == ssdc_result("vit", CLEAN, [DRAW, second])["anchoring"]
    assert found["settings"]["rpi"] == [RPI, RPI.replace("draw=0", "draw=1")]


def test_a_model_that_alpha_does_not_reach() -> None:
    nothing = "the model has no positional signal, so there is nothing to scale"
    found = one([CLEAN, DRAW, *JUDGED[:2]], signals=(), unscaled=nothing, position="none")
    whole, scaled = found["alphas"]
    assert whole["reason"] is None
    assert whole["anchoring"] == found["anchoring"]
    assert scaled["reason"] == nothing
    for name in ("anchoring", "delta_ssdc_rpi", "accuracy"):
        assert scaled[name] == {"value": None, "low": None, "high": None, "reason": nothing}
    assert scaled["fs"] == {JPEG: scaled["accuracy"]}


def test_a_condition_that_does_not_apply_after_all() -> None:
    zero = "the positional tables are all zero (untrained), so alpha cannot act on them"
    empty = [
        a_pass([], f"{RPI}+alpha=0.5", images=0, reason=zero),
        predictions((), "alpha=0.5", reason=zero),
        predictions((), f"alpha=0.5+{JPEG}", reason=zero),
    ]
    found = one([CLEAN, DRAW, *JUDGED[:2], *empty])
    assert found["alphas"][1]["reason"] == zero
    assert found["alphas"][1]["fs"][JPEG]["reason"] == zero


def test_without_a_head() -> None:
    headless = "the model has no head to predict with, and no readout"
    plain = a_pass(values(0.5, 0.4, 0.3, spread=SPREAD))
    found = one([plain, DRAW, DIM], head=False, unjudged=headless)
    assert found["accuracy"]["reason"] == headless
    assert (found["correct"], found["labelled"]) == (None, None)
    assert [entry["column"] for entry in found["corruptions"]] == [
        "jpeg_q5", "true_gaussian_blur_s2.5"
    ]  # fmt: skip
    for entry in found["corruptions"]:
        for name in ("accuracy", "fs", "agreement_fs"):
            assert entry[name] == {"value": None, "low": None, "high": None, "reason": headless}
    assert found["alphas"][1]["anchoring"]["value"] == pytest.approx(0.25 / 3)
    assert found["alphas"][1]["accuracy"]["reason"] == headless


def test_without_labels_agreement_is_left() -> None:
    why = "'pictures' has no labels"
    unread = [
        record.model_copy(update={"settings": record.settings | {"labels": None},
                                  "correct": np.full(4, -1, dtype=np.int8)})
        for record in (CLEAN, *JUDGED[:2])
    ]  # fmt: skip
    found = one([*unread, DRAW, DIM], unjudged=why, common=COMMON | {"labels": None})
    assert found["accuracy"]["reason"] == why
    assert found["corruptions"][0]["fs"]["reason"] == why
    assert found["corruptions"][0]["agreement_fs"]["value"] == 0
    assert found["labelled"] is None
    assert found["alphas"][0]["accuracy"]["reason"] == why


def test_what_was_not_measured_says_so() -> None:
    found = one([predictions(RIGHT), *JUDGED[:2]], Asked("x", "default", (JPEG,), (JPEG,), ()))
    assert found["anchoring"]["reason"] == "not measured"
    assert found["layers"] == found["maps"] == found["alphas"] == []
    assert found["peak"] == {"layer": None, "value": None, "reason": "not measured"}
    assert found["accuracy"]["value"] == 0.75


def test_maps_are_averaged_over_draws() -> None:
    def mapped(record: PassRecord, *levels: int) -> PassRecord:
        layers = [
            layer.model_copy(update={"maps": np.full(3 * 6, level, dtype=np.uint8)})
            for layer, level in zip(record.layers, levels, strict=False)
        ]
        return record.model_copy(update={"layers": (*layers, *record.layers[len(layers) :])})

    second = a_pass(values(0.1, 0.3, 0.2), RPI.replace("draw=0", "draw=1"))
    found = one([mapped(CLEAN, 9, 8), mapped(DRAW, 100, 7), mapped(second, 103)])["maps"]
    (only,) = found  # layer 1 lacks one draw's, layer 2 all
    assert (only["layer"], only["grid"]) == (0, [2, 3])
    assert only["tokens"] == [[1, 1], [0, 0], [0, 1]]
    assert [base64.b64decode(row) for row in only["clean"]] == [bytes([9] * 6)] * 3
    assert [base64.b64decode(row) for row in only["rpi"]] == [bytes([102] * 6)] * 3


def test_a_smaller_batch_is_remarked() -> None:
    small = DRAW.model_copy(update={"machine": {"batch_size": 8, "workers": 0, "halved_from": 32}})
    assert one([CLEAN, small])["notes"] == [
        "a note", "out of memory with 32 images per forward pass: run with 8"
    ]  # fmt: skip


def test_published_rows_are_asked_for_each_model() -> None:
    seen: list[str] = []

    def rows(entry: dict[str, Any]) -> list[dict[str, Any]]:
        seen.append(entry["model"])
        return [{"what": "anchoring"}]

    found = report(
        [(card(), RECORDS), (card(model="b"), RECORDS)], [], ASKED, "digits", published=rows
    )
    assert seen == ["vit", "b"]
    assert found["models"][1]["published"] == [{"what": "anchoring"}]


def test_other_images_are_refused() -> None:
    other = card(model="b", common=COMMON | {"data": DATA | {"fingerprint": "blake2b:1"}})
    with pytest.raises(ValueError, match="must be measured on the same images"):
        report([(card(), RECORDS), (other, RECORDS)], [], ASKED, "digits")
    typed = card(model="b", common=COMMON | {"data": DATA | {"name": "digits"}})
    assert len(report([(card(), RECORDS), (typed, RECORDS)], [], ASKED, "digits")["models"]) == 2
