"""The dose-response, its regimes and its knee, from doses written by hand."""

from __future__ import annotations

import json
from typing import Any

import pytest

from probe.corruptions import parse
from probe.derive.scale import RULE, Dose, regimes, scale_result
from tests.derive.by_hand import a_pass, layer, predictions, values

JPEG = parse("jpeg(quality=5)")
NO_SIGNAL = "the model has no positional signal, so there is nothing to scale"
NONE = {"value": None, "low": None, "high": None, "reason": None}


def scalar(value: float | None, half: float | None = 0.01, reason: str | None = None) -> dict:
    bounded = value is not None and half is not None
    low, high = (value - half, value + half) if bounded else (None, None)
    return {"value": value, "low": low, "high": high, "reason": reason}


def rows(points: dict[float, Any]) -> list[dict[str, Any]]:
    """Rows of one measure, m; a number gets an interval of 0.01 to both sides."""
    made = {a: p if isinstance(p, dict) else scalar(p) for a, p in points.items()}
    return [{"alpha": alpha, "m": point} for alpha, point in made.items()]


class TestRegimes:
    def test_follow_the_stated_rule(self) -> None:
        found = regimes(
            rows({1.0: 0.5, 0.9: 0.4, 0.8: 0.399, 0.5: 0.3, 0.3: 0.0501, 0.2: 0.05, 0.0: 0.02}), "m"
        )
        assert found["by_alpha"] == {
            "1": "stable", "0.9": "stable", "0.8": "transition", "0.5": "transition",
            "0.3": "transition", "0.2": "collapsed", "0": "collapsed",
        }  # fmt: skip
        assert "stable: at least 0.8 of the value at alpha 1" in RULE
        assert "collapsed: at most 0.1 of it" in RULE

    def test_an_interval_that_holds_zero_has_collapsed(self) -> None:
        found = regimes(rows({1.0: 0.5, 0.5: scalar(0.45, 0.5), 0.4: scalar(0.45, 0.4)}), "m")
        assert found["by_alpha"] == {"1": "stable", "0.5": "collapsed", "0.4": "stable"}

    def test_a_curve_that_turns_negative_has_collapsed(self) -> None:
        found = regimes(rows({1.0: 0.5, 0.0: -0.4}), "m")
        assert found["by_alpha"]["0"] == "collapsed"

    def test_above_one(self) -> None:
        found = regimes(rows({2.0: 0.2, 1.5: 0.7, 1.0: 0.5, 0.0: 0.1}), "m")
        assert found["by_alpha"] == {
            "2": "transition", "1.5": "stable", "1": "stable", "0": "transition"
        }  # fmt: skip
        # The knee lies where the signal is turned down, not up.
        assert 0 < found["knee"]["value"] < 1

    def test_a_value_without_an_interval_goes_by_its_share(self) -> None:
        found = regimes(rows({1.0: 0.5, 0.5: scalar(0.45, None), 0.0: scalar(0.01, None)}), "m")
        assert found["by_alpha"] == {"1": "stable", "0.5": "stable", "0": "collapsed"}


class TestKnee:
    def test_is_interpolated(self) -> None:
        found = regimes(rows({1.0: 0.8, 0.6: 0.6, 0.4: 0.3, 0.0: 0.0}), "m")
        # 0.4, half of 0.8, lies a third of the way from 0.3 at 0.4 to 0.6 at 0.6.
        assert found["knee"] == NONE | {"value": pytest.approx(0.4 + 0.2 / 3)}

    def test_the_order_of_alphas_changes_nothing(self) -> None:
        points = {0.4: 0.3, 1.0: 0.8, 0.0: 0.0, 0.6: 0.6}
        ordered = dict(sorted(points.items(), reverse=True))
        one, other = regimes(rows(points), "m"), regimes(rows(ordered), "m")
        assert one == other

    def test_is_where_the_curve_first_falls(self) -> None:
        found = regimes(rows({1.0: 0.8, 0.8: 0.2, 0.6: 0.7, 0.0: 0.1}), "m")
        assert found["knee"]["value"] == pytest.approx(0.8 + 0.2 * 0.2 / 0.6)

    def test_exactly_half_is_not_below(self) -> None:
        found = regimes(rows({1.0: 0.8, 0.5: 0.4, 0.0: 0.4}), "m")
        assert found["knee"]["value"] is None
        assert found["knee"]["reason"] == (
            "the curve does not fall below half its value at alpha 1"
        )
        found = regimes(rows({1.0: 0.8, 0.5: 0.4, 0.0: 0.3}), "m")
        assert found["knee"]["value"] == pytest.approx(0.5)

    def test_an_undefined_alpha_is_passed_over(self) -> None:
        undefined = scalar(None, reason="constant")
        found = regimes(rows({1.0: 0.8, 0.5: undefined, 0.0: 0.0}), "m")
        assert found["knee"]["value"] == pytest.approx(0.5)
        assert "0.5" not in found["by_alpha"]


@pytest.mark.parametrize(
    ("points", "reason"),
    [
        ({}, "not measured"),
        ({1.0: scalar(None, reason="one block"), 0.0: scalar(None, reason="other")}, "one block"),
        ({0.9: 0.5, 0.0: 0.1}, "alpha 1 was not measured"),
        ({1.0: scalar(None, reason="constant"), 0.0: 0.1}, "alpha 1 was not measured"),
        ({1.0: scalar(0.5, None), 0.0: 0.1}, "the value at alpha 1 has no interval"),
        ({1.0: scalar(0.5, 0.5), 0.0: 0.1}, "the value at alpha 1 is not above 0"),
        ({1.0: -0.5, 0.0: 0.1}, "the value at alpha 1 is not above 0"),
    ],
)
def test_without_a_positive_value_at_one_there_are_no_regimes(
    points: dict[float, Any], reason: str
) -> None:
    assert regimes(rows(points), "m") == {"by_alpha": {}, "knee": NONE | {"reason": reason}}


def test_one_alpha_has_no_knee() -> None:
    found = regimes(rows({1.0: 0.5}), "m")
    assert found["by_alpha"] == {"1": "stable"}
    assert found["knee"]["reason"] == "fewer than two alphas up to 1 were measured"


SPREAD = [0.001, -0.001, 0.002, 0.0, -0.002]


def dose(alpha: float, first: float, second: float, correct: list[int], jpeg: list[int]) -> Dose:
    layers = [layer(0, first), layer(1, second, SPREAD), layer(2, second)]
    name = "rpi(mode=image,seed=0,draw=0)" + ("" if alpha == 1 else f"+alpha={alpha}")
    shuffled = a_pass(layers, name, images=5)
    return Dose(alpha, (shuffled,), predictions(correct), ((JPEG, predictions(jpeg, JPEG)),))


def result(doses: list[Dose], **options: Any) -> dict[str, Any]:
    found = scale_result("vit", doses, **options)
    assert "NaN" not in json.dumps(found, allow_nan=False)
    return found


class TestResult:
    def test_has_a_row_for_each_alpha(self) -> None:
        doses = [
            dose(1.0, 0.1, 0.5, [1, 1, 1, 1, 0], [1, 1, 0, 0, 0]),
            dose(0.5, 0.1, 0.2, [1, 1, 0, 0, 0], [1, 0, 0, 0, 0]),
            dose(0.0, 0.1, 0.1, [0, 0, 0, 0, 0], [1, 0, 0, 0, 0]),
        ]
        found = result(doses, kinds=["absolute"], notes=["a note"])
        assert set(found) == {
            "model", "resolved", "family", "images", "settings", "labels", "signals", "extension",
            "alphas", "corruptions", "regimes", "skipped", "notes",
        }  # fmt: skip
        table = found["alphas"]
        for row in table:
            assert set(row) == {
                "alpha", "delta_ssdc_rpi", "anchoring", "accuracy", "correct", "labelled", "fs",
                "reason",
            }  # fmt: skip
            assert list(row["fs"]) == ["jpeg(quality=5)"]
            for one in (
                row["delta_ssdc_rpi"],
                row["anchoring"],
                row["accuracy"],
                *row["fs"].values(),
            ):
                assert set(one) == {"value", "low", "high", "reason"}
            assert row["reason"] is None
        assert [row["alpha"] for row in table] == [1.0, 0.5, 0.0]
        delta = [row["delta_ssdc_rpi"]["value"] for row in table]
        assert delta == pytest.approx([0.4, 0.1, 0.0])
        anchors = [row["anchoring"]["value"] for row in table]
        assert anchors == pytest.approx([1.1 / 3, 0.5 / 3, 0.1])
        assert [row["accuracy"]["value"] for row in table] == [0.8, 0.4, 0.0]
        assert [row["correct"] for row in table] == [4, 2, 0]
        assert [row["labelled"] for row in table] == [5, 5, 5]
        fs = [row["fs"]["jpeg(quality=5)"] for row in table]
        assert [one["value"] for one in fs] == [0.5, 0.5, None]
        assert fs[2]["reason"] == "no clean prediction is right"
        assert found["corruptions"] == [{"corruption": "jpeg(quality=5)", "effective_sigma": None}]
        assert found["regimes"]["rule"] == RULE
        assert found["regimes"]["delta_ssdc_rpi"]["by_alpha"] == {
            "1": "stable", "0.5": "transition", "0": "collapsed"
        }  # fmt: skip
        assert found["regimes"]["delta_ssdc_rpi"]["knee"]["value"] == pytest.approx(2 / 3)
        assert (found["signals"], found["extension"]) == (["absolute"], None)
        assert (found["images"], found["notes"]) == (5, ["a note"])
        assert len(found["settings"]["rpi"]) == 3

    def test_a_model_without_a_signal(self) -> None:
        none = a_pass([], "rpi+alpha=0.5", images=0, reason=NO_SIGNAL)
        nothing = predictions([], reason=NO_SIGNAL)
        doses = [
            dose(1.0, 0.1, 0.5, [1, 1, 1, 1, 0], [1, 1, 0, 0, 0]),
            Dose(0.5, (none,), nothing, ((JPEG, nothing),)),
        ]
        first, second = result(doses)["alphas"]
        assert (first["reason"], first["accuracy"]["value"]) == (None, 0.8)
        null = NONE | {"reason": NO_SIGNAL}
        assert second == {
            "alpha": 0.5, "delta_ssdc_rpi": null, "anchoring": null, "accuracy": null,
            "correct": None, "labelled": None, "fs": {"jpeg(quality=5)": null},
            "reason": NO_SIGNAL,
        }  # fmt: skip

    def test_nothing_applies_at_all(self) -> None:
        none = a_pass([], "rpi+alpha=0.5", images=0, reason=NO_SIGNAL)
        found = result([Dose(0.5, (none,)), Dose(0.0, (none,))])
        assert found["images"] == 0
        assert found["regimes"]["anchoring"]["knee"]["reason"] == NO_SIGNAL

    def test_delta_alone(self) -> None:
        stopped = a_pass(values(0.1, 0.3), "rpi", images=5)
        (row,) = result([Dose(1.0, (stopped,))], anchored=False)["alphas"]
        assert row["delta_ssdc_rpi"]["value"] == pytest.approx(0.2)
        for name in ("anchoring", "accuracy"):
            assert row[name] == NONE | {"reason": "not measured"}
        assert (row["correct"], row["fs"], row["reason"]) == (None, {}, None)

    def test_accuracy_alone(self) -> None:
        (row,) = result([Dose(1.0, clean=predictions([1, 0]))])["alphas"]
        assert row["delta_ssdc_rpi"]["reason"] == row["anchoring"]["reason"] == "not measured"
        assert (row["accuracy"]["value"], row["fs"]) == (0.5, {})

    def test_why_predictions_were_not_judged(self) -> None:
        shuffled = a_pass(values(0.1, 0.3), "rpi")
        (row,) = result([Dose(1.0, (shuffled,))], unjudged="not measured: no labels")["alphas"]
        assert row["accuracy"]["reason"] == "not measured: no labels"

    def test_angles_are_said_to_be_an_extension(self) -> None:
        shuffled = a_pass(values(0.1, 0.3), "rpi")
        found = result([Dose(1.0, (shuffled,))], kinds=["absolute", "rotary"])
        assert found["extension"] == (
            "rotation angles are scaled, an extension of the paper's definition"
        )

    def test_draws_are_averaged(self) -> None:
        two = (a_pass(values(0.1, 0.3), "rpi 0"), a_pass(values(0.1, 0.5), "rpi 1"))
        (row,) = result([Dose(1.0, two)])["alphas"]
        assert row["delta_ssdc_rpi"]["value"] == pytest.approx(0.3)

    def test_images_that_a_corruption_failed_on_count_nowhere(self) -> None:
        clean = predictions([1, 1, 0])
        jpeg = predictions([1, 0, 0], JPEG, dropped=[0], skipped=(("a.png", "broken"),))
        found = result([Dose(1.0, clean=clean, shifted=((JPEG, jpeg),))])
        (row,) = found["alphas"]
        assert (row["accuracy"]["value"], row["correct"]) == (0.5, 1)
        assert row["fs"]["jpeg(quality=5)"]["value"] == 1.0
        assert [tuple(entry) for entry in found["skipped"]] == [("a.png", "broken")]

    def test_nor_at_another_alpha(self) -> None:
        clean, whole = predictions([1, 1, 0]), predictions([1, 1, 1], JPEG)
        torn = predictions([1, 0, 0], JPEG, dropped=[0], skipped=(("a.png", "broken"),))
        doses = [
            Dose(1.0, clean=clean, shifted=((JPEG, whole),)),
            Dose(0.5, clean=clean, shifted=((JPEG, torn),)),
        ]
        first, second = result(doses)["alphas"]
        assert (first["labelled"], second["labelled"]) == (2, 2)
        assert first["fs"]["jpeg(quality=5)"]["value"] == -1.0
        assert second["fs"]["jpeg(quality=5)"]["value"] == 1.0
