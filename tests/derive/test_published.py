from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from probe.derive.published import compare_published
from probe.derive.published_file import read_published
from probe.errors import UsageError

Json = dict[str, Any]
VIT = "hf:google/vit-base-patch16-224"
ROPE = "timm:vit_base_patch16_rope_224.naver_in1k"


def scalar(value: float | None, half: float = 0.01, reason: str | None = None) -> Json:
    if value is None:
        return {"value": None, "low": None, "high": None, "reason": reason or "undefined"}
    return {"value": value, "low": value - half, "high": value + half, "reason": None}


def entry(resolved: str = VIT, **other: Any) -> Json:
    """A model of a report whose SSDC is .4 clean and .3 under RPI at every layer."""
    point = {"null_low": -0.02, "null_high": 0.02}
    layer = {"grid": [14, 14], "clean": scalar(0.4) | point, "rpi": scalar(0.3) | point}
    found = {
        "model": "mine",
        "resolved": resolved,
        "group": None,
        "tags": ["base"],
        "grid": [14, 14],
        "images": 1000,
        "settings": {
            "site": "attn_in",
            "distance": "l1",
            "average": "similarity",
            "rpi": ["rpi(mode=image,seed=0,draw=0)"],
            "data": {"name": "imagenet"},
        },
        "anchoring": scalar(0.41, 0.02),
        "delta_ssdc_rpi": scalar(0.17, 0.001),
        "accuracy": scalar(0.81, 0.02),
        "layers": [layer | {"layer": i} for i in range(12)],
        "corruptions": [
            {"corruption": "jpeg(quality=5)", "fs": scalar(0.43)},
            {"corruption": "true_gaussian_blur(sigma=6)", "fs": scalar(0.3)},
        ],
        "alphas": [],
    }
    return found | other


def variant(name: str, *tags: str, group: str = "imagenet100_controlled", **other: Any) -> Json:
    alphas = [
        {
            "alpha": alpha,
            "delta_ssdc_rpi": scalar(0.05 * alpha),
            "fs": {"jpeg(quality=5)": scalar(0.6), "fog(severity=1)": scalar(0.2)},
        }
        for alpha in (1.0, 0.75, 0.5)
    ]
    tags = tags or ("trained",)
    own = {"group": group, "tags": ["controlled", name, *tags], "alphas": alphas}
    return entry("file:runs/x", **(own | other))


def by_what(found: list[Json]) -> dict[str, Json]:
    assert len({row["what"] for row in found}) == len(found)
    return {row["what"]: row for row in found}


def test_a_checkpoint_is_told_by_its_resolved_id() -> None:
    rows = by_what(compare_published(entry(), "default"))
    curves = {f"SSDC {kind}, layer {i}" for kind in ("clean", "under RPI") for i in range(12)}
    assert set(rows) == curves | {
        "anchoring, mean of the published curve",
        "delta SSDC, from the published curve",
        "accuracy",
        "FS true_gaussian_blur(sigma=6)",
    }
    assert rows["SSDC clean, layer 2"]["published"] == 0.6119
    assert rows["SSDC under RPI, layer 11"]["published"] == 0.1338
    # the twelve published values sum to 4.9060; .4799 - .3090
    assert rows["anchoring, mean of the published curve"]["published"] == 0.4088
    assert rows["delta SSDC, from the published curve"]["published"] == 0.1709
    assert rows["accuracy"]["published"] == 0.802
    assert rows["FS true_gaussian_blur(sigma=6)"]["published"] == 0.326
    assert {row["source"] for row in rows.values()} == {
        "mahmoud-mannes/vit-sae-analysis, results/reference and results/runs"
    }
    rope = by_what(compare_published(entry(ROPE), "default"))
    assert rope["SSDC under RPI, layer 0"]["published"] == -0.0121
    assert rope["accuracy"]["published"] == 0.836


@pytest.mark.parametrize(
    "resolved",
    [
        "timm:vit_base_patch16_224.augreg_in21k_ft_in1k",
        "hf:google/vit-base-patch16-384",
        "file:google/vit-base-patch16-224",
    ],
)
def test_other_checkpoints_have_nothing_published(resolved: str) -> None:
    assert compare_published(entry(resolved), "default") == []


def test_differences_and_whether_they_lie_inside() -> None:
    rows = by_what(compare_published(entry(), "default"))
    inside = rows["anchoring, mean of the published curve"]
    assert inside["ours"] == entry()["anchoring"]
    assert inside["difference"] == pytest.approx(0.41 - 0.4088)
    assert inside["inside"] is True
    outside = rows["SSDC clean, layer 0"]
    assert outside["ours"] == scalar(0.4)
    assert outside["difference"] == pytest.approx(0.4 - 0.5096)
    assert outside["inside"] is False
    edge = by_what(compare_published(entry(accuracy=scalar(0.802, 0.0)), "default"))["accuracy"]
    assert edge["inside"] is True


def test_undefined_numbers_have_no_difference_and_no_verdict() -> None:
    without = {"value": 0.4, "low": None, "high": None, "reason": "no interval from one image"}
    found = entry(anchoring=scalar(None, reason="why"), accuracy=without)
    rows = by_what(compare_published(found, "default"))
    row = rows["anchoring, mean of the published curve"]
    assert (row["difference"], row["inside"], row["ours"]["reason"]) == (None, None, "why")
    row = rows["accuracy"]
    assert row["difference"] == pytest.approx(0.4 - 0.802)
    assert row["inside"] is None


@pytest.mark.parametrize(
    ("setting", "value", "reason"),
    [
        ("site", "block_out", "the published SSDC has site attn_in, ours block_out"),
        ("distance", "l2", "the published SSDC has distance l1, ours l2"),
        ("average", "image", "the published SSDC has average similarity, ours image"),
    ],
)
def test_ssdc_with_other_settings_is_no_counterpart(setting: str, value: str, reason: str) -> None:
    found = entry()
    found["settings"] = found["settings"] | {setting: value}
    rows = by_what(compare_published(found, "default"))
    for what, row in rows.items():
        if what in ("accuracy", "FS true_gaussian_blur(sigma=6)"):
            assert row["ours"]["value"] is not None
        else:
            assert row["ours"] == scalar(None, reason=reason)
            assert (row["difference"], row["inside"]) == (None, None)


def test_another_grid_or_depth_is_no_counterpart() -> None:
    rows = by_what(compare_published(entry(grid=[24, 24]), "default"))
    reason = "the published SSDC is on a grid of 14x14, ours on 24x24"
    assert rows["SSDC clean, layer 0"]["ours"]["reason"] == reason
    short = by_what(compare_published(entry(layers=entry()["layers"][:2]), "default"))
    assert short["SSDC clean, layer 1"]["ours"]["value"] == 0.4
    assert short["SSDC clean, layer 2"]["ours"]["reason"] == "the model has 2 layers here"


def test_how_both_were_measured_is_said_in_words() -> None:
    rows = by_what(compare_published(entry(), "default"))
    assert rows["SSDC clean, layer 0"]["protocol"] == (
        "published: one permutation per batch of 256, similarity averaged over images, L1 "
        "distance, input of attention, 1,000 images of ImageNet-1k's validation set, streamed; "
        "here: one permutation per image, 1,000 images of imagenet"
    )
    assert rows["FS true_gaussian_blur(sigma=6)"]["protocol"] == (
        "published: 1,000 images of ImageNet-1k's validation set, streamed; the blur is "
        "ImageNet-C's Gaussian blur at severity 5, sigma 6; here: 1,000 images of imagenet; the "
        "authors' second run gave 0.385"
    )
    paper = entry(images=1)
    paper["settings"] = paper["settings"] | {
        "rpi": ["rpi(mode=batch,seed=0,draw=0)"],
        "batch_size": 64,
    }
    (first, *_) = compare_published(paper, "paper")
    assert first["protocol"].endswith("here: one permutation per batch of 64, 1 image of imagenet")
    del paper["settings"]["rpi"]
    (first, *_) = compare_published(paper, "paper")
    assert "here: one permutation per batch of 64" in first["protocol"]


def test_a_variant_of_the_papers_recipe_is_told_by_group_and_tags() -> None:
    rows = by_what(compare_published(variant("ape"), "default"))
    assert set(rows) == {
        "accuracy",
        "FS jpeg(quality=5)",
        *(f"delta SSDC at alpha {a}" for a in ("1", "0.5")),
        *(f"FS jpeg(quality=5) at alpha {a}" for a in ("1", "0.5")),
    }
    assert rows["accuracy"]["published"] == 0.6406
    assert rows["accuracy"]["protocol"].endswith(
        "; the published value is a mean of 4 training seeds (sd 0.0018)"
    )
    assert rows["delta SSDC at alpha 0.5"]["published"] == 0.0475
    assert rows["delta SSDC at alpha 0.5"]["difference"] == pytest.approx(0.025 - 0.0475)
    assert rows["FS jpeg(quality=5) at alpha 0.5"]["published"] == 0.5975
    assert {row["source"] for row in rows.values()} == {
        "arXiv:2606.00124v1, tables 1, B.1, B.2 and D"
    }
    spe = by_what(compare_published(variant("spe"), "default"))
    assert spe["delta SSDC at alpha 1"]["protocol"].endswith("is of one training seed")
    none = by_what(compare_published(variant("none"), "default"))
    assert none["FS jpeg(quality=5)"]["published"] == 0.6458


@pytest.mark.parametrize(
    "found",
    [
        variant("ape", group="imagenet100-deit_controlled"),
        variant("ape", group="cifar10_controlled"),
        variant("ape", "untrained"),
        variant("sincos"),
        entry("file:x", tags=["ape", "trained"]),
    ],
)
def test_other_recipes_and_untrained_variants_match_nothing(found: Json) -> None:
    assert compare_published(found, "default") == []


def test_every_shipped_study_states_source_and_protocol() -> None:
    file = read_published()
    assert list(file.studies) == ["paper", "vit_sae_analysis"]
    paper = file.studies["paper"].models
    assert [model.variant for model in paper] == ["ape", "spe", "rope", "none", "rpt"]
    assert [len(model.alphas) for model in paper] == [10, 10, 0, 0, 0]
    for model in file.studies["vit_sae_analysis"].models:
        assert len(model.clean) == len(model.rpi) == 12


HEAD = """schema: 1
studies:
  one:
    source: a page
    setting: {site: attn_in, distance: l1, average: similarity}
    ssdc: somehow
    accuracy: somehow
    models:
"""


@pytest.fixture
def refused(tmp_path: Path) -> Callable[[str], str]:
    def check(text: str) -> str:
        path = tmp_path / "published.yaml"
        path.write_text(text, encoding="utf-8")
        with pytest.raises(UsageError) as caught:
            read_published(path)
        return str(caught.value).removeprefix(str(path))

    return check


@pytest.mark.parametrize(
    ("model", "line", "message"),
    [
        ("{resolved: x, acuracy: {value: 1.0}}", 9, "unknown key 'acuracy'. Did you mean"),
        ("{resolved: x, variant: ape}", 9, "give either 'resolved' or 'variant'"),
        ("{variant: ape}", 3, "variants need the 'recipe'"),
        ("{resolved: x, grid: [2, 2], clean: [0.1], rpi: [0.1, 0.2]}", 9, "as many layers"),
        ("{resolved: x, clean: [0.1]}", 9, "curves need the 'grid'"),
        ("{resolved: x, grid: [2, 2], clean: [1.1]}", 9, "less than or equal to 1"),
        ("{resolved: x, fs: {jpeg(quality=500): {value: 0.1}}}", 9, "quality of jpeg must be"),
        ("{resolved: x, fs: {jpeg( quality=5 ): {value: 0.1}}}", 9, "as jpeg(quality=5)"),
        ("{resolved: x, accuracy: {value: high}}", 9, "should be a valid number, got 'high'"),
    ],
)
def test_faults_of_a_file_are_told_with_their_line(
    refused: Callable[[str], str], model: str, line: int, message: str
) -> None:
    said = refused(f"{HEAD}      - {model}\n")
    assert message in said
    assert said.startswith(f":{line}:")


def test_a_newer_schema_is_refused(refused: Callable[[str], str]) -> None:
    assert "'schema': input should be less than or equal to 1" in refused("schema: 2\nstudies: {}")
