"""Correlations over a zoo, what is said beside them, and whether its models compare."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from scipy.stats import spearmanr

from probe.derive.zoo import CAUTION, METHOD, controlled, zoo_statistics

Json = dict[str, Any]
RECIPE = {"pretraining": "ImageNet-1k, supervised"}


def scalar(value: float | None, reason: str | None = None) -> Json:
    return {"value": value, "low": None, "high": None, "reason": reason}


def model(
    name: str,
    anchoring: float | None,
    fs: float | None,
    *,
    delta: float | None = 0.1,
    agreement: float | None = 0.2,
    group: str | None = None,
    grids: int = 1,
    reason: str = "constant tokens",
    **more: Any,
) -> Json:
    return {
        "model": name,
        "group": group,
        "weights": "sha256:00",
        "provenance": RECIPE,
        "grids": [[8 * (i + 1), 8] for i in range(grids)],
        "anchoring": scalar(anchoring, None if anchoring is not None else reason),
        "delta_ssdc_rpi": scalar(delta, None if delta is not None else reason),
        "corruptions": [
            {
                "corruption": "jpeg(quality=5)",
                "column": "jpeg_q5",
                "fs": scalar(fs, None if fs is not None else "no labels"),
                "agreement_fs": scalar(agreement),
            }
        ],
    } | more


def zoo(count: int, seed: int = 0, **options: Any) -> list[Json]:
    rng = np.random.default_rng(seed)
    return [
        model(f"m{i}", *rng.normal(size=2), delta=rng.normal(), agreement=rng.normal(), **options)
        for i in range(count)
    ]


def entry(
    models: list[Json],
    x: str = "anchoring",
    y: str = "fs_jpeg_q5",
    group: str | None = None,
    seed: int = 0,
) -> Json:
    found = [
        one
        for one in zoo_statistics(models, seed)["correlations"]
        if (one["x"], one["y"], one["group"]) == (x, y, group)
    ]
    assert len(found) == 1
    return found[0]


class TestCorrelations:
    def test_every_pair_of_columns_is_there(self) -> None:
        models = zoo(4, group="a") + zoo(3, 1, group="b") + zoo(2, 2, group="c") + zoo(3, 3)
        found = zoo_statistics(models)
        keys = [(one["x"], one["y"], one["group"]) for one in found["correlations"]]
        assert keys == [
            (x, y, group)
            for group in (None, "a", "b")
            for x in ("anchoring", "delta_ssdc_rpi")
            for y in ("fs_jpeg_q5", "agreement_jpeg_q5")
        ]
        assert [one["models"] for one in found["correlations"]] == [12] * 4 + [4] * 4 + [3] * 4
        assert found["notes"][:2] == [METHOD, CAUTION]
        assert found["notes"][2].startswith("12 correlations are listed and their p is not corr")
        assert json.loads(json.dumps(found, allow_nan=False)) == found

    @pytest.mark.parametrize("x", ["anchoring", "delta_ssdc_rpi"])
    @pytest.mark.parametrize(
        ("y", "name"), [("fs_jpeg_q5", "fs"), ("agreement_jpeg_q5", "agreement_fs")]
    )
    def test_numbers_are_scipys(self, x: str, y: str, name: str) -> None:
        models = zoo(9)
        columns = [[m[x]["value"], m["corruptions"][0][name]["value"]] for m in models]
        first, second = np.array(columns).T
        found = entry(models, x, y)
        assert set(found) == {
            "x", "y", "group", "models", "rho", "low", "high", "p", "loo_low", "loo_high",
            "reason", "notes",
        }  # fmt: skip
        assert found["rho"] == pytest.approx(spearmanr(first, second).statistic, abs=1e-12)
        without = [spearmanr(np.delete(first, i), np.delete(second, i)).statistic for i in range(9)]
        assert found["loo_low"] == pytest.approx(min(without), abs=1e-12)
        assert found["loo_high"] == pytest.approx(max(without), abs=1e-12)
        assert found["low"] < found["rho"] < found["high"]
        assert 0 < found["p"] <= 1
        assert (found["reason"], found["notes"]) == (None, [])

    def test_within_a_group_only_its_models_count(self) -> None:
        """Each group falls, and the two together rise."""
        models = [model(f"a{i}", i, 5 - i, group="a") for i in range(5)]
        models += [model(f"b{i}", 10 + i, 20 - i, group="b") for i in range(5)]
        assert entry(models)["rho"] > 0.4
        for group in ("a", "b"):
            assert entry(models, group=group)["rho"] == -1.0
            assert entry(models, group=group)["p"] == pytest.approx(2 / 120)

    def test_the_seed_moves_the_interval(self) -> None:
        models = zoo(30)
        assert entry(models, seed=1) == entry(models, seed=1)
        assert entry(models, seed=1)["low"] != entry(models, seed=2)["low"]
        assert entry(models, seed=1)["rho"] == entry(models, seed=2)["rho"]

    def test_models_without_a_number_are_named_and_left_out(self) -> None:
        models = zoo(6)
        models[1]["anchoring"] = scalar(None, "constant tokens")
        models[2]["corruptions"][0]["fs"] = scalar(None, "no clean prediction is right")
        models[4]["corruptions"] = []
        found = entry(models)
        assert found["models"] == 3
        assert found["notes"][:3] == [
            "left out for want of anchoring: constant tokens: m1",
            "left out for want of fs_jpeg_q5: no clean prediction is right: m2",
            "left out for want of fs_jpeg_q5: not measured: m4",
        ]
        kept = entry([models[i] for i in (0, 3, 5)])
        assert (found["rho"], found["low"], found["p"]) == (kept["rho"], kept["low"], kept["p"])

    def test_a_constant_side_gives_no_correlation(self) -> None:
        models = [model(f"m{i}", 0.5, i) for i in range(5)]
        found = entry(models)
        assert (found["rho"], found["low"], found["p"], found["loo_low"]) == (None,) * 4
        assert found["reason"] == "anchoring is the same in all 5 models"
        models = [model(f"m{i}", i, 0.0) for i in range(5)]
        assert entry(models)["reason"] == "fs_jpeg_q5 is the same in all 5 models"

    @pytest.mark.parametrize("count", [0, 1, 2])
    def test_fewer_than_three_models(self, count: int) -> None:
        found = zoo_statistics(zoo(count))
        assert found["notes"] == ["fewer than three models: there is no rank correlation"]
        assert len(found["correlations"]) == (4 if count else 0)
        for one in found["correlations"]:
            assert one["rho"] is None
            assert one["reason"] == f"fewer than three models have both {one['x']} and {one['y']}"

    def test_a_zoo_without_labels_keeps_agreement(self) -> None:
        models = [model(f"m{i}", i, None, agreement=i % 3) for i in range(6)]
        assert (
            entry(models)["reason"] == "fewer than three models have both anchoring and fs_jpeg_q5"
        )
        assert entry(models, y="agreement_jpeg_q5")["rho"] is not None


class TestNotes:
    @pytest.mark.parametrize(
        ("count", "note"),
        [
            (3, "fewer than five models (3): p cannot fall below .333"),
            (4, "fewer than five models (4): p cannot fall below .083"),
        ],
    )
    def test_few_models(self, count: int, note: str) -> None:
        found = entry(zoo(count))
        assert note in found["notes"]
        assert found["p"] >= (1 / 3 if count == 3 else 1 / 12)
        assert (found["loo_low"] is None) == (count == 3)
        assert not any("fewer than five" in one for one in entry(zoo(5))["notes"])

    def test_a_dominant_group(self) -> None:
        models = zoo(4, group="deit") + zoo(3, 1, group="swin")
        note = "one group dominates: 4 of 7 models belong to deit"
        assert note in entry(models)["notes"]
        assert note not in entry(models, group="deit")["notes"]
        half = zoo(4, group="deit") + zoo(3, 1, group="swin") + zoo(1, 2)
        assert not any("dominates" in one for one in entry(half)["notes"])

    def test_one_group_alone(self) -> None:
        models = zoo(6, group="digits")
        assert "all 6 models belong to one group, digits" in entry(models)["notes"]
        assert entry(models)["rho"] == entry(models, group="digits")["rho"]

    def test_models_that_are_left_out_do_not_dominate(self) -> None:
        models = zoo(4, group="deit") + zoo(3, 1, group="swin")
        models[0]["anchoring"] = scalar(None, "constant tokens")
        assert not any("dominates" in one for one in entry(models)["notes"])

    def test_mixed_grids(self) -> None:
        models = [*zoo(12), model("swin", 0.5, 0.3, delta=None, grids=4)]
        assert entry(models)["notes"] == [
            "models with several grids (swin) are ranked with models of one; anchoring averages "
            "over all of them"
        ]
        assert not any("grids" in one for one in entry(models, "delta_ssdc_rpi")["notes"])
        assert entry(zoo(12, grids=4))["notes"] == []

    def test_dropped_resamples_are_counted(self) -> None:
        models = [model(f"m{i}", i, float(i == 0)) for i in range(5)]
        found = entry(models)
        (note,) = [one for one in found["notes"] if "resamples" in one]
        count, rest = note.split(" ", 1)
        assert rest == "of 10000 resamples of models gave no correlation and were dropped"
        # Without the one model that differs, or with nothing else.
        assert int(count) == pytest.approx(10_000 * (0.8**5 + 0.2**5), abs=200)
        assert (
            "without one of the models rho is undefined: no leave-one-out range" in found["notes"]
        )


def card(name: str, group: str | None = "g", weights: str = "sha256:0", **facts: str) -> Json:
    return {"model": name, "group": group, "weights": weights, "provenance": facts}


IN1K = "ImageNet-1k, supervised"


class TestControlled:
    def test_equal_facts(self) -> None:
        found = controlled([card("a", pretraining=IN1K), card("b", pretraining=IN1K)])
        assert found == {
            "controlled": True,
            "note": "controlled comparison: the same pretraining (ImageNet-1k, supervised), "
            "teacher (none) and training recipe (group g)",
        }

    @pytest.mark.parametrize(
        ("second", "words"),
        [
            (
                card("b", pretraining="LVD-142M"),
                "pretraining differs (ImageNet-1k, supervised: a; LVD-142M: b)",
            ),
            (
                card("b", pretraining=IN1K, teacher="RegNetY-16GF"),
                "teacher differs (none: a; RegNetY-16GF: b)",
            ),
            (
                card("b", pretraining=IN1K, teacher="unknown"),
                "teacher may differ (unknown for b)",
            ),
            (
                card("b", "h", pretraining=IN1K),
                "training recipe differs (group g: a; group h: b)",
            ),
            (card("b", None, pretraining=IN1K), "training recipe may differ (unknown for b)"),
            (
                card("b", pretraining="unknown"),
                "pretraining may differ (unknown for b); teacher may differ (unknown for b)",
            ),
            (
                card("b"),
                "pretraining may differ (unknown for b); teacher may differ (unknown for b)",
            ),
            (
                card("b", None, "random:0", pretraining=IN1K),
                "pretraining differs (ImageNet-1k, supervised: a; none, random weights: b); "
                "training recipe differs (group g: a; none, random weights: b)",
            ),
        ],
    )
    def test_what_differs_is_said(self, second: Json, words: str) -> None:
        found = controlled([card("a", pretraining=IN1K), second])
        assert found == {"controlled": False, "note": f"not a controlled comparison: {words}"}

    def test_nothing_known_counts_as_different(self) -> None:
        found = controlled([card("a", None), card("b", None)])
        assert found["note"] == (
            "not a controlled comparison: pretraining may differ (unknown for all); teacher may "
            "differ (unknown for all); training recipe may differ (unknown for all)"
        )

    def test_seeds_are_replicates(self) -> None:
        pair = [
            card(f"s{seed}", pretraining=f"recipe digits, seed {seed}, from scratch")
            for seed in (0, 12)
        ]
        assert controlled(pair) == {
            "controlled": True,
            "note": "controlled comparison: the same pretraining (recipe digits, from scratch), "
            "teacher (none) and training recipe (group g); training seeds differ",
        }
        assert not controlled(pair[:1] * 2)["note"].endswith("seeds differ")
        other = card("u", pretraining="none")
        assert "pretraining differs" in controlled([pair[0], other])["note"]

    def test_untrained_models_differ_in_no_training(self) -> None:
        pair = [card("a", "g", "random:0"), card("b", "h", "random:0", pretraining=IN1K)]
        note = "random weights: no pretraining or teacher differs"
        assert controlled(pair) == {"controlled": True, "note": note}

    @pytest.mark.parametrize("models", [[], [card("a")]])
    def test_one_model_is_no_comparison(self, models: list[Json]) -> None:
        note = "one model: nothing is compared"
        assert controlled(models) == {"controlled": True, "note": note}

    def test_many_models_are_counted(self) -> None:
        models = [card(f"m{i}", pretraining=f"set {min(i, 5)}") for i in range(20)]
        note = controlled([*models, card("last")])["note"]
        assert note == (
            "not a controlled comparison: pretraining differs (set 5: 15 models; set 0: m0; "
            "set 1: m1; set 2: m2; and 2 more kinds; unknown: last); teacher may differ (unknown "
            "for last)"
        )
