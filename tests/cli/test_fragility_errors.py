"""How `probe fragility` refuses, and what it says to do; readouts for models without a head."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from probe.data.open import open_data
from probe.loading import load_model
from probe.readout import fit_readout, save
from probe.zoo import load_zoo
from tests.cli import tiny_zoo
from tests.cli.command import invoke
from tests.cli.tiny_zoo import COMMON, DIGITS, image_folder

ONE = ["--corruption", "jpeg(quality=5)"]


@pytest.fixture(autouse=True)
def _zoo(here: Path) -> None:
    tiny_zoo.write_zoo(here)


def as_json(*arguments: str) -> Any:
    return tiny_zoo.as_json("fragility", *arguments)


def refused(code: int, *arguments: str) -> str:
    return tiny_zoo.refused(code, "fragility", *arguments)


class TestReadouts:
    def fitted(self, path: str, **changes: Any) -> None:
        spec = load_zoo(Path("zoo.yaml"))["headless"]
        model = load_model(spec, image_size=(32, 32), random_init=True, device="cpu")
        train = open_data("digits", split="train", limit=60)
        save(replace(fit_readout(model, train, grid=[1.0]), **changes), Path(path))

    def test_a_headless_model_gets_accuracy(self) -> None:
        self.fitted("ten.safetensors")
        command = ["headless", *DIGITS, "--split", "test", "--readout", "ten.safetensors", *ONE]
        result = as_json(*command)
        assert result["correct"] >= 4
        assert result["accuracy"]["value"] == result["correct"] / 12
        assert result["labels"]["note"] == "by the model's label names"
        assert result["corruptions"][0]["fs"]["value"] is not None
        (note,) = [n for n in result["notes"] if n.startswith("classes come from a linear readout")]
        assert "logistic regression" in note

    def test_a_headless_model_without_one_is_refused(self) -> None:
        for measure in ("fs", "agreement"):
            message = refused(2, "headless", *DIGITS, "--measure", measure)
            assert message == (
                "timm:test_vit.r160_in1k has no head to predict with; fit one with `probe readout` "
                "and give it as --readout FILE"
            )

    @pytest.mark.parametrize(
        ("model", "extra", "message"),
        [
            ("other", [], "the readout was fitted for timm:test_vit.r160_in1k (random:0), not for"),
            ("headless", ["--seed", "1"], "the readout was fitted for timm:test_vit.r160_in1k (ra"),
            ("headless", ["--image-size", "48"], "the readout was fitted at image size 32x32, but"),
        ],
    )
    def test_of_another_model(self, model: str, extra: list[str], message: str) -> None:
        self.fitted("ten.safetensors")
        command = [model, *DIGITS, *extra, "--readout", "ten.safetensors", *ONE]
        found = refused(2, *command)
        assert found.startswith(message)

    def test_of_another_feature_size(self) -> None:
        ones = {name: torch.ones(70) for name in ("mean", "std")}
        self.fitted("wide.safetensors", weight=torch.zeros(10, 70), **ones)
        message = refused(2, "headless", *DIGITS, "--readout", "wide.safetensors", *ONE)
        assert message == (
            "the readout takes 70 features per image, but the model gives 64; fit one for this "
            "model with `probe readout`"
        )

    def test_a_file_that_is_none(self) -> None:
        message = refused(2, "headless", *DIGITS, "--readout", "none.safetensors")
        assert message.startswith("there is no readout file 'none.safetensors'; fit one with")
        message = refused(2, "headless", *DIGITS, "--readout", "zoo.yaml")
        assert message.startswith("'zoo.yaml' cannot be read as a readout: ")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--corruption", "jpge(quality=5)"], "unknown corruption 'jpge'. Did you mean jpeg"),
        (["--corruption", "jpeg(qualty=5)"], "jpeg has no parameter 'qualty'. Did you mean qual"),
        (["--corruption", "jpeg(quality=0)"], "quality of jpeg must be a whole number from 1 to"),
        (["--corruption", "jpeg"], "jpeg needs quality (a whole number from 1 to 100), such as"),
        (["--corruption", "jpeg(quality=nan)"], "quality of jpeg must be a whole number from 1 to"),
        (["--corruption", "(5)"], "'(5)' is no corruption; write NAME(PARAMETER=VALUE,...), such"),
        ([*ONE, "--corruption", "jpeg(quality=05)"], "jpeg(quality=5) is asked for more than once"),
        (["--suite", "paper", *ONE], "jpeg(quality=5) is asked for more than once"),
        (["--suite", "papr"], "unknown suite 'papr' (there are: paper, default, imagenet-c). Did"),
        (["--measure", "agreement", "--labels", "x.csv"], "--measure agreement needs no labels; "),
        (["--labels", "none.csv"], "--labels 'none.csv' is no file"),
    ],
)
def test_usage_errors(here: Path, arguments: list[str], message: str) -> None:
    assert refused(2, "ten", *DIGITS, *arguments).startswith(message)
    assert not list(here.rglob("*.json"))


def test_unlabelled_images_are_refused_with_what_to_do() -> None:
    message = refused(1, "ten", *COMMON, "--limit", "4")
    assert message == (
        "ten: 'photos' has no labels, which accuracy and FS need; ask for agreement fragility "
        "(--measure agreement), which needs none, or give --labels FILE (name,label)"
    )


def test_labels_that_do_not_fit_the_head_are_refused() -> None:
    message = refused(1, "thousand", *DIGITS)
    assert message == (
        "thousand: 'digits' has 10 classes and the model 1000 outputs; 10 of the classes are no "
        "single ones of imagenet-1k's label names (0, 1, 2 and 7 more): choose a model for this "
        "data, or give --labels FILE (name,label)"
    )


def test_one_class_is_refused(here: Path) -> None:
    image_folder(here / "images", {"n01440764": 3})
    message = refused(1, "thousand", *COMMON, "--data", "images")
    assert message == (
        "thousand: the data set has one class ('n01440764'), so FS would say nothing about telling "
        "classes apart; add images of others, or ask for agreement fragility (--measure agreement)"
    )
    result = as_json("thousand", *COMMON, "--data", "images", "--measure", "agreement", *ONE)
    assert result["images"] == 3


def test_a_label_outside_the_head(here: Path) -> None:
    (here / "labels.csv").write_text("name,label\ndigit-0012,10\n")
    message = refused(1, "ten", *DIGITS, "--labels", "labels.csv")
    assert "label 10 is outside the model's head (0 to 9)" in message


def test_images_too_small_for_imagenet_c() -> None:
    corruption = ["--corruption", "fog(severity=1)"]
    message = refused(1, "ten", *DIGITS, "--image-size", "16x32", *corruption)
    assert message.startswith("ten: every image had to be left out, the first, '")
    assert "ImageNet-C needs at least 32 pixels a side" in message


def test_what_is_no_measure() -> None:
    found = invoke("fragility", "ten", *DIGITS, "--measure", "fss")
    assert (found.exit_code, found.stdout) == (2, "")
    assert "Invalid value for '--measure'" in found.stderr
