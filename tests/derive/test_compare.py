"""The first model minus the second, from records written by hand."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy.stats import binomtest

from probe.corruptions import parse
from probe.derive.compare import compare_result
from probe.derive.sides import Side
from probe.errors import DataError, NotApplicable
from probe.numerics.paired import bootstrap_fragility_difference, paired_difference
from probe.records import LayerRecord, PassRecord
from tests.derive.by_hand import a_pass, half_width, layer, predictions, values

JPEG, BLUR = parse("jpeg(quality=5)"), parse("gaussian_blur(sigma=2.5,kernel=5)")
RPI = "rpi(mode=image,seed=0,draw=0)"
SETTINGS: dict[str, Any] = {
    "distance": "l1",
    "average": "similarity",
    "seed": 0,
    "weights": "sha256:00",
    "interval": "95 %, delete-a-group jackknife over images, group = position mod 5",
    "data": {"name": "digits", "fingerprint": "blake2b:0123456789abcdef", "taken": 10},
}
UP, DOWN = [0.01, -0.02, 0.03, 0.0, -0.02], [0.02, -0.03, 0.04, 0.01, -0.04]
IN1K = {"pretraining": "ImageNet-1k, supervised"}


def settled(record: PassRecord, **settings: Any) -> PassRecord:
    known = record.settings | SETTINGS | {"labels": record.settings.get("labels")} | settings
    return record.model_copy(update={"settings": known})


def side(
    name: str,
    layers: Sequence[LayerRecord],
    right: Sequence[int] | None = None,
    under: Mapping[Any, Sequence[int]] | None = None,
    *,
    settings: Mapping[str, Any] | None = None,
    images: int = 10,
    condition: str = RPI,
    classes: Mapping[Any, Sequence[int]] | None = None,
    dropped: Mapping[Any, Sequence[int]] | None = None,
    **changes: Any,
) -> Side:
    """A model: its layers under RPI, clean verdicts, and verdicts under corruptions."""
    extra, classes, dropped = dict(settings or {}), classes or {}, dropped or {}

    def judged(verdicts: Sequence[int], of: Any) -> PassRecord:
        return settled(
            predictions(verdicts, of, classes=classes.get(of), dropped=dropped.get(of, ())), **extra
        )

    return Side(
        name=name,
        clean=settled(a_pass(layers, images=images), **extra),
        rpi=(settled(a_pass(layers, condition, images=images), **extra),),
        predicted=None if right is None else judged(right, "clean"),
        shifted=tuple((one, judged(verdicts, one)) for one, verdicts in (under or {}).items()),
        **changes,
    )


def interval(entry: Mapping[str, Any]) -> tuple[float, float, float]:
    return entry["low"], entry["value"], entry["high"]


def test_a_model_that_rpi_does_not_apply_to_is_not_compared() -> None:
    why = "RPI does not apply: a convolutional network has no patch tokens"
    whole, bare = side("vit", [layer(0, 0.5)]), side("resnet", [layer(0, 0.5)])
    refused = tuple(
        one.model_copy(update={"layers": (), "images": 0, "reason": why}) for one in bare.rpi
    )
    with pytest.raises(NotApplicable, match=f"^{why}$"):
        compare_result(whole, replace(bare, rpi=refused))


class TestCurves:
    def pair(self) -> tuple[Side, Side]:
        first = side("a", [layer(0, 0.2, UP), layer(1, 0.5, DOWN), layer(2, 0.6, UP)])
        second = side("b", [layer(0, 0.3, DOWN), layer(1, 0.4, UP), layer(2, 0.1, DOWN)])
        return first, second

    def test_differences_are_paired_by_group(self) -> None:
        found = compare_result(*self.pair())
        up, down = np.array(UP), np.array(DOWN)
        expected = {
            "anchoring": (1.3 / 3 - 0.8 / 3, ((2 * up + down) - (2 * down + up)) / 3),
            "delta_ssdc_rpi": (0.3 - 0.1, (down - up) - (up - down)),
            "final": (0.5, up - down),
        }
        for name, (value, spread) in expected.items():
            low, middle, high = interval(found[name]["difference"])
            assert middle == pytest.approx(value)
            assert high - middle == pytest.approx(half_width(value + spread))
            assert middle - low == pytest.approx(half_width(value + spread))
        assert found["anchoring"]["first"]["value"] == pytest.approx(1.3 / 3)
        assert found["anchoring"]["second"]["value"] == pytest.approx(0.8 / 3)

    def test_every_layer_under_rpi(self) -> None:
        found = compare_result(*self.pair())
        assert found["layers_reason"] is None
        rows = [(row["layer"], row["grid"]) for row in found["layers"]]
        assert rows == [(0, [2, 3]), (1, [2, 3]), (2, [2, 3])]
        apart = [row["difference"]["value"] for row in found["layers"]]
        assert apart == pytest.approx([-0.1, 0.1, 0.5])
        width = found["layers"][0]["difference"]["high"] - apart[0]
        assert width == pytest.approx(half_width(np.array(UP) - np.array(DOWN)))

    def test_what_both_owe_to_the_images_cancels(self) -> None:
        first, second = side("a", [layer(0, 0.5, UP)] * 2), side("b", [layer(0, 0.2, UP)] * 2)
        found = compare_result(first, second)["anchoring"]
        assert interval(found["difference"]) == pytest.approx((0.3, 0.3, 0.3))
        assert found["first"]["high"] - found["first"]["low"] > 0.02

    def test_turning_the_models_round_turns_the_sign(self) -> None:
        first, second = self.pair()
        one, other = compare_result(first, second), compare_result(second, first)
        for name in ("anchoring", "delta_ssdc_rpi", "final"):
            low, value, high = interval(one[name]["difference"])
            assert interval(other[name]["difference"]) == pytest.approx((-high, -value, -low))

    def test_draws_are_averaged_first(self) -> None:
        first, second = self.pair()
        more = settled(a_pass(values(0.4, 0.5, 0.6), "rpi(mode=image,seed=0,draw=1)"))
        first, second = (Side(s.name, s.clean, (*s.rpi, more)) for s in (first, second))
        found = compare_result(first, second)
        assert found["final"]["first"]["value"] == pytest.approx(0.6)
        assert found["final"]["difference"]["value"] == pytest.approx(0.25)
        assert found["first"]["settings"]["rpi"] == [RPI, "rpi(mode=image,seed=0,draw=1)"]

    @pytest.mark.parametrize(
        ("second", "reason", "note"),
        [
            (
                values(0.1, 0.2),
                "depths differ (3 and 2)",
                "anchoring averages over 3 layers of a and 2 of b",
            ),
            (
                values(0.1, 0.2, 0.3, grid=(4, 4)),
                "grids differ at layer 0 (2x3 and 4x4)",
                "SSDC depends on the grid, and the grids differ: a 2x3; b 4x4",
            ),
            (
                [layer(0, 0.1), layer(1, 0.1), layer(2, 0.1, grid=(1, 2))],
                "grids differ at layer 2 (2x3 and 1x2)",
                "SSDC depends on the grid, and the grids differ: a 2x3; b 2x3, 1x2",
            ),
        ],
    )
    def test_layers_that_do_not_fit_are_not_compared(
        self, second: list[LayerRecord], reason: str, note: str
    ) -> None:
        found = compare_result(self.pair()[0], side("b", second))
        assert (found["layers"], found["layers_reason"]) == ([], reason)
        assert found["notes"] == [note]
        assert found["anchoring"]["difference"]["value"] is not None

    def test_an_undefined_number_says_whose(self) -> None:
        first = self.pair()[0]
        second = side("b", [layer(0, 0.1), layer(1, None, reason="constant"), layer(2, 0.2)])
        found = compare_result(first, second)
        assert found["anchoring"]["difference"] == {
            "value": None, "low": None, "high": None,
            "reason": "b: SSDC under RPI is undefined at layer 1: constant",
        }  # fmt: skip
        assert found["delta_ssdc_rpi"]["difference"]["reason"] == "b: constant"
        assert found["delta_ssdc_rpi"]["first"]["value"] == pytest.approx(0.3)
        assert found["final"]["difference"]["value"] == pytest.approx(0.4)
        one = side("a", [layer(0, 0.1)])
        both = compare_result(one, Side("b", one.clean, one.rpi))["delta_ssdc_rpi"]["difference"]
        assert both["reason"] == "the model has one block"

    def test_one_image_has_no_interval(self) -> None:
        layers = [layer(i, 0.1 * i, [0.0]) for i in range(2)]
        found = compare_result(side("a", layers, images=1), side("b", layers, images=1))
        apart = found["final"]["difference"]
        assert (apart["value"], apart["low"]) == (0.0, None)
        assert apart["reason"] == "no interval from one image"


class TestRefusals:
    def test_other_images(self) -> None:
        data = SETTINGS["data"] | {"name": "photos", "fingerprint": "blake2b:fedcba9876543210"}
        other = side("b", values(0.1, 0.2), settings={"data": data})
        with pytest.raises(DataError) as error:
            compare_result(side("a", values(0.1, 0.2)), other)
        assert str(error.value) == (
            "a and b were measured on different images ('digits', fingerprint blake2b:01234567, "
            "and 'photos', blake2b:fedcba98); measure both with the same --data, --split and "
            "--limit"
        )

    def test_predictions_over_other_images(self) -> None:
        first, second = (side(n, values(0.1, 0.2), [1, 0]) for n in "ab")
        assert second.predicted is not None
        data = SETTINGS["data"] | {"fingerprint": "blake2b:ffff"}
        other = Side("b", second.clean, second.rpi, settled(second.predicted, data=data))
        with pytest.raises(DataError, match=r"^a and b were measured on different images"):
            compare_result(first, other)

    def test_other_counts(self) -> None:
        with pytest.raises(DataError) as error:
            compare_result(side("a", values(0.1)), side("b", values(0.1), images=9))
        assert str(error.value) == (
            "a and b were measured on different numbers of images (10 and 9); look at what was "
            "left out, and measure both again with --fresh"
        )

    def test_other_groups(self) -> None:
        first, second = side("a", values(0.1)), side("b", values(0.1, spread=[0.0] * 4))
        with pytest.raises(DataError) as error:
            compare_result(first, second)
        assert str(error.value) == (
            "a and b hold intervals from 5 and 4 groups of images, which do not pair; measure both "
            "again with --fresh"
        )

    @pytest.mark.parametrize(
        ("changes", "words"),
        [
            ({"settings": {"site": "block_out"}}, "site 'attn_in' and 'block_out'"),
            ({"settings": {"distance": "l2"}}, "distance 'l1' and 'l2'"),
            ({"settings": {"average": "image"}}, "average 'similarity' and 'image'"),
            (
                {"condition": "rpi(mode=shared,seed=0,draw=0)"},
                f"RPI '{RPI}' and 'rpi(mode=shared,seed=0,draw=0)'",
            ),
        ],
    )
    def test_another_meaning(self, changes: dict[str, Any], words: str) -> None:
        with pytest.raises(DataError) as error:
            compare_result(side("a", values(0.1)), side("b", values(0.1), **changes))
        assert str(error.value) == (
            f"a and b were measured with {words}; measure both in the same way"
        )


CURVE = values(0.1, 0.2)
A = [1, 1, 1, 1, 1, 1, 1, 1, 0, 0]
B = [1, 1, 1, 0, 0, 0, 0, 1, 1, 0]


class TestPredictions:
    def test_accuracy_and_mcnemar(self) -> None:
        found = compare_result(side("a", CURVE, A), side("b", CURVE, B))
        accuracy = found["accuracy"]
        assert accuracy["right"] == {
            "both": 4, "first_only": 4, "second_only": 1, "neither": 1
        }  # fmt: skip
        assert found["labelled"] == 10
        assert (accuracy["first"]["value"], accuracy["second"]["value"]) == (0.8, 0.5)
        low, value, high = interval(accuracy["difference"])
        assert value == pytest.approx(0.3)
        assert (low, high) == paired_difference((4, 4, 1, 1))
        # 5 images differ, 4 to 1: 2 * (1 + 5) / 32
        assert accuracy["mcnemar_p"] == pytest.approx(0.375)
        assert accuracy["mcnemar_p"] == pytest.approx(binomtest(4, 5).pvalue)

    def test_fs_is_paired_over_images(self) -> None:
        a = [1, 1, 1, 1, 0, 0, 0, 1, 0, 1]
        b = [1, 0, 1, 0, 0, 0, 0, 0, 1, 0]
        found = compare_result(side("a", CURVE, A, {JPEG: a}), side("b", CURVE, B, {JPEG: b}))
        (row,) = found["corruptions"]
        assert (row["corruption"], row["column"]) == ("jpeg(quality=5)", "jpeg_q5")
        assert row["fs"]["first"]["value"] == pytest.approx(1 - 6 / 8)
        assert row["fs"]["second"]["value"] == pytest.approx(1 - 3 / 5)
        low, value, high = interval(row["fs"]["difference"])
        assert value == pytest.approx(0.25 - 0.4)
        right = [np.array(one) == 1 for one in (A, a, B, b)]
        expected = bootstrap_fragility_difference((right[0], right[1]), (right[2], right[3]), 0)
        assert expected is not None
        assert (low, high) == expected[:2]

    def test_agreement_needs_no_labels(self) -> None:
        none = [-1] * 10
        clean = list(range(10))
        moved = {"a": [9, *clean[1:]], "b": [9, 8, 7, *clean[3:]]}
        first, second = (
            side(name, CURVE, none, {BLUR: none}, classes={"clean": clean, BLUR: moved[name]})
            for name in "ab"
        )
        found = compare_result(first, second)
        (row,) = found["corruptions"]
        agreement = row["agreement_fs"]
        assert (agreement["first"]["value"], agreement["second"]["value"]) == (0.1, 0.3)
        low, value, high = interval(agreement["difference"])
        assert value == pytest.approx(-0.2)
        assert (low, high) == paired_difference((1, 0, 2, 7))
        assert found["labelled"] == 0
        for entry in (found["accuracy"], row["fs"]):
            assert entry["difference"]["reason"] == "the images have no labels"
        assert (found["accuracy"]["mcnemar_p"], found["accuracy"]["right"]) == (None, None)

    def test_only_images_that_all_passes_read_count(self) -> None:
        """Image 0 failed under b's corruption, image 9 has no label for a."""
        first = side("a", CURVE, [*A[:9], -1], {JPEG: [*A[:9], -1]})
        second = side("b", CURVE, B, {JPEG: B}, dropped={JPEG: [0]})
        found = compare_result(first, second)
        assert found["labelled"] == 8
        assert found["accuracy"]["right"] == {
            "both": 3, "first_only": 4, "second_only": 1, "neither": 0
        }  # fmt: skip
        assert found["accuracy"]["first"]["value"] == pytest.approx(7 / 8)
        assert found["corruptions"][0]["fs"]["difference"]["value"] == 0.0

    def test_a_model_without_a_head(self) -> None:
        why = "the model has no head to predict with"
        first = side("a", CURVE, A, {JPEG: A})
        found = compare_result(first, side("b", CURVE, unjudged=why))
        assert found["accuracy"]["first"]["value"] == 0.8
        assert found["accuracy"]["difference"]["reason"] == f"b: {why}"
        (row,) = found["corruptions"]
        for measure in ("fs", "agreement_fs"):
            assert row[measure]["first"]["value"] == 0.0
            assert row[measure]["second"] == {
                "value": None, "low": None, "high": None, "reason": why
            }  # fmt: skip
            assert row[measure]["difference"]["reason"] == f"b: {why}"
        neither = compare_result(side("a", CURVE, unjudged=why), side("b", CURVE, unjudged=why))
        assert neither["corruptions"] == []
        assert neither["accuracy"]["difference"]["reason"] == why

    def test_a_model_whose_labels_do_not_map(self) -> None:
        why = "'digits' has 10 classes and the model 1000 outputs"
        first = side("a", CURVE, A, {JPEG: A})
        second = side("b", CURVE, [-1] * 10, {JPEG: [-1] * 10}, unjudged=why)
        found = compare_result(first, second)
        assert found["accuracy"]["first"]["value"] == 0.8
        assert found["accuracy"]["difference"]["reason"] == f"b: {why}"
        (row,) = found["corruptions"]
        assert row["fs"]["difference"]["reason"] == f"b: {why}"
        assert row["agreement_fs"]["difference"]["value"] == 0.0

    def test_an_undefined_fs_keeps_its_reason(self) -> None:
        first, second = side("a", CURVE, A, {JPEG: A}), side("b", CURVE, [0] * 10, {JPEG: B})
        (row,) = compare_result(first, second)["corruptions"]
        assert row["fs"]["difference"]["reason"] == "b: no clean prediction is right"
        assert row["fs"]["first"]["value"] == 0.0

    def test_dropped_resamples_are_said(self) -> None:
        one = [1, *[0] * 9]
        first, second = side("a", CURVE, A, {JPEG: A}), side("b", CURVE, one, {JPEG: one})
        (row,) = compare_result(first, second)["corruptions"]
        count, rest = row["fs"]["difference"]["reason"].split(" ", 1)
        assert rest == "of 10000 resamples had no right clean prediction of one model"
        assert int(count) == pytest.approx(10_000 * 0.9**10, abs=250)
        assert row["fs"]["difference"]["low"] == 0.0


def test_the_entry_is_json_and_names_both() -> None:
    first = side("a", CURVE, A, {JPEG: A}, group="g", provenance=IN1K, notes=("a note",))
    second = side("b", CURVE, B, {JPEG: B}, group="h", provenance=IN1K)
    found = compare_result(first, second)
    assert json.loads(json.dumps(found, allow_nan=False)).keys() == found.keys()
    assert set(found) == {
        "first", "second", "images", "labelled", "intervals", "controlled", "anchoring",
        "delta_ssdc_rpi", "final", "layers", "layers_reason", "accuracy", "corruptions", "notes",
    }  # fmt: skip
    assert found["controlled"] == {
        "controlled": False,
        "note": "not a controlled comparison: training recipe differs (group g: a; group h: b)",
    }
    assert found["intervals"]["ssdc"] == f"{SETTINGS['interval']}, paired by group"
    assert found["images"] == 10
    one = found["first"]
    assert (one["model"], one["group"], one["provenance"]) == ("a", "g", IN1K)
    assert (one["grids"], one["depth"], one["notes"]) == ([[2, 3]], 2, ["a note"])
    assert one["settings"]["data"] == SETTINGS["data"]
    assert "labels" not in one["settings"]
