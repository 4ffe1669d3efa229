"""Accuracy, FS and agreement, from tables of predictions written by hand."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from scipy.stats import binomtest

from probe.corruptions import parse
from probe.derive.fragility import (
    accuracy,
    agreement_fragility,
    fragility,
    fragility_result,
    shared_images,
    verdicts,
)
from probe.records import PassRecord
from tests.derive.by_hand import a_pass, predictions

JPEG, BLUR = parse("jpeg(quality=5)"), parse("gaussian_blur(sigma=2.5,kernel=5)")
RIGHT = [1, 1, 1, 1, 0]
ALL = np.ones(5, dtype=bool)
WILSON_4_OF_5 = binomtest(4, 5).proportion_ci(0.95, method="wilson")
NO_SIGNAL = "the model has no positional signal, so there is nothing to scale"


def every(record: PassRecord) -> np.ndarray:
    return shared_images([record])


class TestAccuracy:
    def test_is_counted_over_images(self) -> None:
        """In batches of two: 1, 1 and 0, whose mean would be 2/3."""
        found, right, labelled = accuracy(predictions(RIGHT), ALL)
        assert (found.value, right, labelled) == (0.8, 4, 5)
        assert (found.low, found.high) == pytest.approx((WILSON_4_OF_5.low, WILSON_4_OF_5.high))
        assert found.reason is None

    def test_images_without_a_label_are_left_out(self) -> None:
        found, right, labelled = accuracy(predictions([1, -1, 0, -1, 1]), ALL)
        assert (found.value, right, labelled) == (pytest.approx(2 / 3), 2, 3)

    def test_only_the_images_asked_for_count(self) -> None:
        among = np.array([True, False, False, False, True])
        found, right, labelled = accuracy(predictions(RIGHT), among)
        assert (found.value, right, labelled) == (0.5, 1, 2)

    @pytest.mark.parametrize(
        ("labels", "reason"),
        [
            ({"kind": "folder", "map": {}}, "the images have no labels"),
            (None, "predictions were not compared with labels"),
        ],
    )
    def test_without_labels_it_is_null(self, labels: Any, reason: str) -> None:
        record = predictions([-1] * 5, labels=labels)
        found = accuracy(record, ALL)
        assert (found[0].value, found[0].reason, *found[1:]) == (None, reason, 0, 0)
        assert fragility(record, record, ALL, 0).reason == reason


class TestFragility:
    def test_is_one_minus_the_ratio_of_accuracies(self) -> None:
        clean, shifted = predictions(RIGHT), predictions([1, 0, 0, 1, 0], JPEG)
        found = fragility(clean, shifted, ALL, 0)
        assert found.value == pytest.approx(1 - 0.4 / 0.8)
        assert found.low is not None
        assert found.high is not None
        assert 0 <= found.low < 0.5 < found.high <= 1
        assert accuracy(shifted, ALL)[0].value == 0.4

    def test_is_negative_when_the_corruption_helps(self) -> None:
        found = fragility(predictions([1, 0, 0, 0, 0]), predictions(RIGHT, JPEG), ALL, 0)
        assert found.value == -3.0

    @pytest.mark.parametrize(
        ("after", "value"), [(RIGHT, 0.0), ([0] * 5, 1.0), ([0, 1, 1, 1, 1], 0.0)]
    )
    def test_at_its_ends_and_without_a_change(self, after: list[int], value: float) -> None:
        assert fragility(predictions(RIGHT), predictions(after, JPEG), ALL, 0).value == value

    def test_without_a_right_clean_prediction_it_is_null(self) -> None:
        found = fragility(predictions([0] * 5), predictions(RIGHT, JPEG), ALL, 0)
        assert (found.value, found.low, found.high) == (None, None, None)
        assert found.reason == "no clean prediction is right"

    def test_dropped_resamples_are_said(self) -> None:
        found = fragility(predictions([1, 0, 0, 0, 0]), predictions([0] * 5, JPEG), ALL, 0)
        assert (found.value, found.low, found.high) == (1.0, 1.0, 1.0)
        assert found.reason is not None
        count, rest = found.reason.split(" ", 1)
        assert rest == "of 10000 resamples had no right clean prediction"
        assert int(count) == pytest.approx(10_000 * 0.8**5, abs=200)

    def test_one_image_has_no_interval(self) -> None:
        found = fragility(predictions([1]), predictions([0], JPEG), np.ones(1, dtype=bool), 0)
        assert (found.value, found.low) == (1.0, None)
        assert found.reason == "no interval from one image"

    def test_unlabelled_images_are_in_neither_accuracy(self) -> None:
        clean, shifted = predictions([1, 1, -1, 0, -1]), predictions([1, 0, -1, 1, -1], JPEG)
        assert fragility(clean, shifted, ALL, 0).value == 0.0
        clean, shifted = predictions([1, 1, -1, 0, -1]), predictions([1, 0, -1, 0, -1], JPEG)
        assert fragility(clean, shifted, ALL, 0).value == 0.5

    def test_what_does_not_apply_keeps_its_reason(self) -> None:
        clean, none = predictions(RIGHT), predictions([], JPEG, reason=NO_SIGNAL)
        for pair in ((clean, none), (none, clean)):
            assert fragility(*pair, ALL, 0).reason == NO_SIGNAL
            assert agreement_fragility(*pair, ALL).reason == NO_SIGNAL
        assert accuracy(none, ALL)[0].reason == NO_SIGNAL


class TestAgreement:
    def test_is_the_share_that_changed(self) -> None:
        clean = predictions([-1] * 5, classes=[3, 3, 2, 0, 1])
        shifted = predictions([-1] * 5, JPEG, classes=[3, 1, 2, 2, 0])
        found = agreement_fragility(clean, shifted, ALL)
        expected = binomtest(3, 5).proportion_ci(0.95, method="wilson")
        assert found.value == pytest.approx(0.6)
        assert (found.low, found.high) == pytest.approx((expected.low, expected.high))
        assert agreement_fragility(clean, clean, ALL).value == 0.0

    def test_differs_from_fs(self) -> None:
        """A wrong answer that becomes another wrong answer counts for agreement alone."""
        clean = predictions([1, 0], classes=[3, 1])
        shifted = predictions([1, 0], JPEG, classes=[3, 2])
        both = np.ones(2, dtype=bool)
        assert agreement_fragility(clean, shifted, both).value == 0.5
        assert fragility(clean, shifted, both, 0).value == 0.0

    def test_without_a_shared_image_it_is_null(self) -> None:
        record = predictions(RIGHT)
        found = agreement_fragility(record, record, ~ALL)
        assert (found.value, found.reason) == (None, "no image was read under both conditions")


class TestSharedImages:
    def test_are_those_that_every_pass_has_read(self) -> None:
        passes = [predictions(RIGHT, dropped=rows) for rows in ([], [1], [4, 1], [0])]
        assert shared_images(passes).tolist() == [False, False, True, True, False]

    def test_different_data_sets_are_refused(self) -> None:
        with pytest.raises(ValueError, match=r"^passes over different numbers of images: \[2, 5\]"):
            shared_images([predictions(RIGHT), predictions([1, 0])])

    def test_a_pass_without_predictions_is_refused(self) -> None:
        with pytest.raises(ValueError, match=r"^the pass under 'clean' holds no predictions$"):
            verdicts(a_pass([]))


SETTINGS = {"seed": 4, "weights": "sha256:1", "dtype": "float32"}
LABELS = {"kind": "wnid", "map": {"n01440764": 0}, "note": "by id", "by_name": None}


def result(
    clean: PassRecord, shifted: Sequence[tuple[Any, PassRecord]], **options: Any
) -> dict[str, Any]:
    found = fragility_result("vit", clean, shifted, **options)
    json.dumps(found, allow_nan=False)
    return found


class TestResult:
    def test_has_the_promised_fields(self) -> None:
        clean = predictions(RIGHT, labels=LABELS, settings=SETTINGS)
        jpeg, blur = predictions([1, 0, 0, 1, 0], JPEG), predictions(RIGHT, BLUR)
        found = result(clean, [(JPEG, jpeg), (BLUR, blur)], notes=["a note"])
        assert set(found) == {
            "model", "resolved", "family", "images", "labelled", "settings", "labels", "accuracy",
            "correct", "corruptions", "skipped", "notes",
        }  # fmt: skip
        assert (found["model"], found["resolved"], found["family"]) == (
            "vit", "timm:vit", "timm_vit"
        )  # fmt: skip
        assert (found["images"], found["labelled"], found["correct"]) == (5, 5, 4)
        assert found["accuracy"]["value"] == 0.8
        assert found["labels"] == LABELS
        assert found["settings"]["seed"] == 4
        assert found["settings"]["machine"] == {"batch_size": 32, "workers": 0}
        assert found["settings"]["accuracy_interval"] == "95 %, Wilson"
        assert "10000 resamples" in found["settings"]["fs_interval"]
        assert not {"condition", "measures", "labels"} & set(found["settings"])
        first, second = found["corruptions"]
        assert set(first) == {
            "corruption", "effective_sigma", "accuracy", "correct", "fs", "agreement_fs"
        }  # fmt: skip
        for scalar in (found["accuracy"], first["accuracy"], first["fs"], first["agreement_fs"]):
            assert set(scalar) == {"value", "low", "high", "reason"}
        assert (first["corruption"], first["effective_sigma"]) == ("jpeg(quality=5)", None)
        assert second["corruption"] == "gaussian_blur(sigma=2.5,kernel=5)"
        assert second["effective_sigma"] == pytest.approx(1.3345, abs=5e-5)
        assert (first["correct"], first["fs"]["value"]) == (2, 0.5)
        assert (second["correct"], second["fs"]["value"]) == (4, 0.0)
        assert found["notes"] == ["a note"]

    def test_an_image_that_one_pass_lacks_counts_nowhere(self) -> None:
        torn = ("b.png", "broken")
        clean = predictions(RIGHT, settings=SETTINGS)
        jpeg = predictions([1, 0, 0, 1, 0], JPEG, dropped=[1], skipped=(torn,))
        blur = predictions(RIGHT, BLUR, dropped=[1], skipped=(torn,))
        found = result(clean, [(JPEG, jpeg), (BLUR, blur)])
        assert (found["images"], found["correct"], found["accuracy"]["value"]) == (4, 3, 0.75)
        assert [row["correct"] for row in found["corruptions"]] == [2, 3]
        assert [row["fs"]["value"] for row in found["corruptions"]] == pytest.approx([1 / 3, 0])
        assert [list(entry) for entry in found["skipped"]] == [list(torn)]

    def test_without_labels(self) -> None:
        clean = predictions([-1] * 5, labels=None, settings=SETTINGS)
        changed = predictions([-1] * 5, JPEG, classes=[1, 0, 0, 0, 0], labels=None)
        found = result(clean, [(JPEG, changed)])
        reason = "predictions were not compared with labels"
        null = {"value": None, "low": None, "high": None, "reason": reason}
        (row,) = found["corruptions"]
        assert found["accuracy"] == row["accuracy"] == row["fs"] == null
        assert (found["correct"], row["correct"], found["labelled"]) == (None, None, 0)
        assert (found["images"], found["labels"]) == (5, None)
        assert row["agreement_fs"]["value"] == pytest.approx(0.2)

    def test_no_right_answer(self) -> None:
        clean = predictions([0] * 5, settings=SETTINGS)
        found = result(clean, [(JPEG, predictions(RIGHT, JPEG))])
        assert (found["accuracy"]["value"], found["correct"]) == (0.0, 0)
        (row,) = found["corruptions"]
        assert row["fs"]["reason"] == "no clean prediction is right"
        assert (row["fs"]["value"], row["correct"]) == (None, 4)
