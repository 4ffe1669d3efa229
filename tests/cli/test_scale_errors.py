"""How `probe scale` refuses, and what it says to do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from probe.cli.scale import alphas_of
from tests.cli import tiny_zoo
from tests.cli.tiny_zoo import COMMON, DIGITS, image_folder

JPEG = "jpeg(quality=5)"


@pytest.fixture(autouse=True)
def _zoo(here: Path) -> None:
    tiny_zoo.write_zoo(here)


def as_json(*arguments: str) -> Any:
    return tiny_zoo.as_json("scale", *arguments)


def refused(code: int, *arguments: str) -> str:
    return tiny_zoo.refused(code, "scale", *arguments)


@pytest.mark.parametrize(
    ("extra", "code", "message"),
    [
        (["--measure", "accuracy"], 2, "timm:test_vit.r160_in1k has no head to predict with; fit "),
        (["--measure", "delta,fs"], 2, "timm:test_vit.r160_in1k has no head to predict with; fit "),
        (["--readout", "none.st"], 2, "there is no readout file 'none.st'; fit one with `probe re"),
    ],
)
def test_what_was_asked_for_is_not_left_out(extra: list[str], code: int, message: str) -> None:
    """A default measure that cannot be is a reason; one that was named is an error."""
    found = refused(code, "headless", *DIGITS, "--alphas", "1,0", *extra)
    assert found.startswith(message)
    assert "probe readout" in found


def test_unlabelled_images_are_refused_when_fs_is_asked_for() -> None:
    for extra in (["--measure", "fs"], ["--corruption", JPEG]):
        message = refused(1, "ten", *COMMON, "--limit", "4", *extra)
        assert "'photos' has no labels" in message
        assert "--measure agreement" in message


def test_one_class_is_refused(here: Path) -> None:
    image_folder(here / "images", {"n01440764": 3})
    command = ["thousand", *COMMON, "--data", "images", "--alphas", "1", "--measure"]
    assert "the data set has one class ('n01440764')" in refused(1, *command, "fs")
    result = as_json(*command, "accuracy")
    assert result["labels"]["map"] == {"n01440764": 0}


def test_alpha_above_one_is_refused_where_the_bias_is_bounded() -> None:
    command = ["bounded", *DIGITS, "--image-size", "64", "--measure", "delta", "--alphas"]
    message = refused(2, *command, "1,1.5")
    assert message == (
        "alpha must not exceed 1 for 'layers.0.blocks.0.attn.cpb_mlp', whose bias is bounded; got "
        "1.5"
    )
    result = as_json("ten", *command[1:], "2,1")
    assert result["alphas"][0]["delta_ssdc_rpi"]["value"] is not None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--alphas", "1,2.1"], "every alpha must lie in [0, 2]; got '2.1'"),
        (["--alphas", "1, -0.1"], "every alpha must lie in [0, 2]; got '-0.1'"),
        (["--alphas", "nan"], "every alpha must lie in [0, 2]; got 'nan'"),
        (["--alphas", "inf"], "every alpha must lie in [0, 2]; got 'inf'"),
        (["--alphas", "1,0.5,1.0"], "alpha 1 is given more than once"),
        (["--alphas", "0,-0.0"], "alpha 0 is given more than once"),
        (["--alphas", "1,,0"], "--alphas takes numbers parted by commas; got ''"),
        (["--alphas", ""], "--alphas takes numbers parted by commas; got ''"),
        (["--alphas", "one"], "--alphas takes numbers parted by commas; got 'one'"),
        (["--measure", "dleta"], "--measure takes delta, anchoring, accuracy, fs; got 'dleta'. D"),
        (["--measure", ""], "--measure takes delta, anchoring, accuracy, fs; got ''."),
        (["--corruption", "jpg(quality=5)"], "unknown corruption 'jpg'. Did you mean jpeg"),
        (["--corruption", JPEG, "--corruption", JPEG], f"{JPEG} is asked for more than once"),
        (
            ["--measure", "accuracy", "--corruption", JPEG],
            "--corruption is of use with --measure fs only; leave it out",
        ),
        (
            ["--measure", "delta", "--labels", "x.csv"],
            "--labels is of use with --measure accuracy or fs only; leave it out",
        ),
        (
            ["--measure", "delta,anchoring", "--readout", "x"],
            "--readout is of use with --measure accuracy or fs only; leave it out",
        ),
        (["--rpi-draws", "0"], "--rpi-draws must be at least 1, got 0"),
    ],
)
def test_usage_errors(here: Path, arguments: list[str], message: str) -> None:
    assert refused(2, "ten", *DIGITS, *arguments).startswith(message)
    assert not list(here.rglob("*.json"))


def test_minus_zero_is_zero() -> None:
    assert str(alphas_of("1,-0.0")) == "[1.0, 0.0]"
