"""`probe audit` as a user meets it: keys, figures that are published, refusals."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

import pytest

from tests.cli import tiny_zoo
from tests.cli.command import files, invoke

ZOO = ["--zoo", "zoo.yaml", "--random-init"]
SMALL = [*ZOO, "--data", "digits", "--limit", "12"]
MORE = """
  swin:
    source: "timm:swin_tiny_patch4_window7_224"
    options: {depths: [2, 2], embed_dim: 8, num_heads: [1, 1], img_size: 56, num_classes: 10}
  conv: {source: "timm:test_efficientnet"}
"""


@pytest.fixture(autouse=True)
def _zoo(here: Path) -> None:
    (here / "zoo.yaml").write_text(tiny_zoo.ZOO + MORE)


def as_json(*arguments: str) -> Any:
    return tiny_zoo.as_json("audit", *arguments)


def refused(code: int, *arguments: str) -> str:
    return tiny_zoo.refused(code, "audit", *arguments)


def test_the_json_has_the_promised_keys() -> None:
    card = as_json("ten", *SMALL)
    assert {"dim", "width", "rank", "nullity", "collision"} <= set(card["patch"])
    assert {"max_pixel_difference", "token_difference"} <= set(card["patch"]["collision"])
    assert [row["block"] for row in card["symmetry"]] == list(range(len(card["symmetry"])))
    defects = {"defect_without_position", "defect_with_position", "defect_joint"}
    assert all(defects <= set(row) for row in card["symmetry"])
    for stage in card["attention"]["stages"]:
        assert {"grid", "blocks"} <= set(stage)
        assert all({"kind", "pairs", "allowed"} <= set(block) for block in stage["blocks"])
    assert card["attention"]["blocks_until_all_reached"] == 1
    assert {"params", "image_tokens", "macs", "convention"} <= set(card["budget"])
    assert card["hardware"] is None
    assert card["left_out"] == []
    assert {item["level"] for item in card["evidence"].values()} == {
        "exact algebra", "analytic", "measured on images", "measured on this hardware",
        "stated by others",
    }  # fmt: skip


def test_hardware_is_timed_when_asked_for() -> None:
    card = as_json("ten", *SMALL, "--hardware", "--batch-size", "2")
    assert card["hardware"]["images_per_second"] > 0
    assert card["hardware"]["batch"] == 2


def test_two_models_are_two_cards_and_files(here: Path) -> None:
    found = invoke("audit", "ten", "swin", *SMALL, "--out", "cards")
    assert (found.exit_code, found.stderr) == (0, "")
    assert "exact algebra" in found.stdout
    assert files(here / "cards") == [
        "audit.csv", "audit.json", "audit.png", "audit.svg", "blocks.csv", "collisions.png",
        "collisions.svg",
    ]  # fmt: skip
    rows = list(csv.DictReader(io.StringIO((here / "cards" / "audit.csv").read_text())))
    assert [row["model"] for row in rows] == ["ten", "swin"]


def test_another_image_size_is_compared_with_the_own_one() -> None:
    card = as_json("ten", *SMALL, "--image-size", "192")
    positions, measured = card["resolution"]["positions"], card["resolution"]["measured"]
    assert positions["other"]["image_size"] == [192, 192]
    assert {"own", "other", "difference"} <= set(measured)


def test_the_analytic_figures_need_no_model(here: Path) -> None:
    found = invoke("audit", "--figures", "--out", "drawn")
    assert (found.exit_code, found.stderr) == (0, "")
    assert files(here / "drawn") == ["nullity.png", "nullity.svg", "pairs.png", "pairs.svg"]


def test_requests_that_make_no_sense() -> None:
    found = invoke("audit")
    assert found.exit_code == 2
    assert "name a model, as in `probe audit deit_small`, or ask for --figures" in found.stderr
    assert "--limit must be 1 or more, got 0" in refused(2, "ten", *ZOO, "--limit", "0")


def test_a_convolutional_network_is_refused_in_one_line() -> None:
    text = refused(1, "conv", *SMALL)
    assert "no family reads the architecture timm.models.efficientnet.EfficientNet" in text


def test_too_few_images_for_the_variance_are_said() -> None:
    card = as_json("ten", *ZOO, "--data", "digits", "--limit", "1")
    variance = card["patch"]["variance"]
    assert variance["share_lost"] is None
    assert "patches are too few for the variance in" in variance["reason"]
