"""A model's entry in the output of `probe ssdc`, from records written by hand."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from probe.derive.ssdc import ssdc_result
from probe.records import PassRecord
from tests.derive.by_hand import NARROW, a_pass, layer, values

OFF = {"value": None, "low": None, "high": None, "reason": "RPI is off"}


def clean_pass() -> PassRecord:
    return a_pass(
        [layer(0, 0.5), layer(1, 0.01), layer(2, 0.8, grid=(1, 3), subset=2)],
        skipped=(("torn.png", "no image"),),
    )


def rpi_pass(draw: int = 0, shift: float = 0.0) -> PassRecord:
    layers = [layer(0, 0.25 + shift), layer(1, 0.4 + shift), layer(2, 0.1 + shift, grid=(1, 3))]
    return a_pass(layers, f"rpi(mode=image,seed=0,draw={draw})")


class TestResult:
    def test_a_model_that_rpi_does_not_apply_to(self) -> None:
        why = "RPI does not apply: a convolutional network has no patch tokens"
        refused = rpi_pass().model_copy(update={"layers": (), "reason": why})
        found = ssdc_result("resnet", clean_pass(), [refused], p_values=True)
        nothing = OFF | {"reason": why}
        assert found["settings"]["rpi"] == []
        assert found["delta_ssdc_rpi"] == found["anchoring"] == found["final"] == nothing
        assert found["peak"] == {"layer": None, "value": None, "reason": why}
        for one in found["layers"]:
            assert one["clean"]["value"] is not None
            assert one["rpi"] == nothing | {"null_low": None, "null_high": None, "p": None}
            assert one["ratio"] == nothing

    def test_with_rpi(self) -> None:
        found = ssdc_result("vit", clean_pass(), [rpi_pass()], notes=["a note"])
        assert set(found) == {
            "model", "resolved", "family", "images", "settings", "layers", "delta_ssdc_rpi",
            "anchoring", "anchoring_by_grid", "final", "peak", "rpi_draw_sd", "ranked", "skipped",
            "notes",
        }  # fmt: skip
        assert (found["model"], found["resolved"], found["family"]) == (
            "vit", "timm:vit", "timm_vit"
        )  # fmt: skip
        assert found["images"] == 10
        assert found["settings"] == {
            "site": "attn_in",
            "resolved": "timm:vit",
            "family": "timm_vit",
            "rpi": ["rpi(mode=image,seed=0,draw=0)"],
            "alpha": 1.0,
            "corruption": None,
            "groups": 5,
            "machine": {"batch_size": 32, "workers": 0},
        }
        first, second, third = found["layers"]
        assert (first["layer"], first["grid"]) == (0, [2, 3])
        low, high = np.quantile(NARROW.astype(np.float32), [0.025, 0.975])
        assert first["clean"] == {
            "value": 0.5, "low": 0.5, "high": 0.5, "null_low": pytest.approx(low, abs=1e-7),
            "null_high": pytest.approx(high, abs=1e-7), "reason": None,
        }  # fmt: skip
        assert first["rpi"]["value"] == 0.25
        assert first["ratio"] == {"value": 0.5, "low": 0.5, "high": 0.5, "reason": None}
        assert second["ratio"]["value"] is None
        assert second["ratio"]["reason"] == "clean SSDC lies inside its null band"
        assert third["ratio"]["value"] == pytest.approx(0.125)
        assert found["delta_ssdc_rpi"]["value"] == pytest.approx(0.15)
        assert found["anchoring"]["value"] == pytest.approx(0.25)
        by_grid = [(entry["grid"], entry["value"]) for entry in found["anchoring_by_grid"]]
        assert by_grid == [([2, 3], pytest.approx(0.325)), ([1, 3], pytest.approx(0.1))]
        assert found["final"]["value"] == 0.1
        assert found["peak"] == {"layer": 1, "value": 0.4, "reason": None}
        assert found["rpi_draw_sd"] == [None] * 3
        assert found["ranked"] == [
            {"grid": [2, 3], "pairs": 15, "tokens": 6, "relabellings": 999},
            {"grid": [1, 3], "pairs": 15, "tokens": 2, "relabellings": 999},
        ]
        assert found["skipped"] == [["torn.png", "no image"]]
        assert found["notes"] == ["a note"]
        json.dumps(found, allow_nan=False)

    def test_without_rpi(self) -> None:
        found = ssdc_result("vit", clean_pass(), [])
        point = OFF | {"null_low": None, "null_high": None}
        assert [one["rpi"] for one in found["layers"]] == [point] * 3
        assert [one["ratio"] for one in found["layers"]] == [OFF] * 3
        assert found["layers"][0]["clean"]["value"] == 0.5
        for name in ("delta_ssdc_rpi", "anchoring", "final"):
            assert found[name] == OFF
        assert found["anchoring_by_grid"] == [OFF | {"grid": [2, 3]}, OFF | {"grid": [1, 3]}]
        assert found["peak"] == {"layer": None, "value": None, "reason": "RPI is off"}
        assert (found["rpi_draw_sd"], found["settings"]["rpi"]) == ([], [])

    def test_several_draws(self) -> None:
        found = ssdc_result("vit", clean_pass(), [rpi_pass(0), rpi_pass(1, 0.2)])
        assert [one["rpi"]["value"] for one in found["layers"]] == pytest.approx([0.35, 0.5, 0.2])
        assert found["rpi_draw_sd"] == pytest.approx([math.sqrt(0.02)] * 3)
        assert found["settings"]["rpi"] == [
            "rpi(mode=image,seed=0,draw=0)", "rpi(mode=image,seed=0,draw=1)"
        ]  # fmt: skip
        assert found["peak"]["value"] == pytest.approx(0.5)

    def test_a_null_layer(self) -> None:
        broken = a_pass([layer(0, 0.2), layer(1, None, reason="constant"), layer(2, 0.3)])
        found = ssdc_result("vit", a_pass(values(0.5, 0.6, 0.7)), [broken])
        assert found["layers"][1]["rpi"] == {
            "value": None, "low": None, "high": None, "null_low": None, "null_high": None,
            "reason": "constant",
        }  # fmt: skip
        assert found["anchoring"]["reason"] == "SSDC under RPI is undefined at layer 1: constant"
        assert found["peak"] == {
            "layer": None, "value": None, "reason": "SSDC under RPI is undefined at a layer"
        }  # fmt: skip
        assert found["final"]["value"] == 0.3

    def test_one_image(self) -> None:
        one = a_pass([layer(i, v, [None]) for i, v in enumerate([0.5, 0.6])], images=1)
        found = ssdc_result("vit", one, [one])
        reason = "no interval from one image"
        for scalar in (
            found["delta_ssdc_rpi"], found["anchoring"], found["final"],
            found["layers"][0]["clean"], found["layers"][0]["ratio"],
        ):  # fmt: skip
            assert scalar["value"] is not None
            assert (scalar["low"], scalar["high"], scalar["reason"]) == (None, None, reason)

    def test_p_values(self) -> None:
        found = ssdc_result("vit", clean_pass(), [rpi_pass()], p_values=True)
        first, second, _ = found["layers"]
        assert first["clean"]["p"] == pytest.approx(1 / 1000)
        inside = np.sum(np.abs(NARROW.astype(np.float32)) >= 0.01)
        assert second["clean"]["p"] == pytest.approx((1 + inside) / 1000)
        off = ssdc_result("vit", clean_pass(), [], p_values=True)
        assert off["layers"][0]["rpi"]["p"] is None
        plain = ssdc_result("vit", clean_pass(), [])
        assert "p" not in plain["layers"][0]["clean"]
