"""`probe readout` as a user meets it: what it prints, what it writes, how it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner, Result

from probe.cli.app import app
from probe.data.open import open_data
from probe.loading import load_model
from probe.readout import load_readout, score, with_readout
from probe.types import ModelSpec

MODEL = ["timm:test_vit", "--random-init", "--image-size", "32"]
DIGITS = [*MODEL, "--data", "digits", "--train-split", "train"]
SMALL = [*DIGITS, "--limit", "200"]
FILE = Path("runs/readouts/timm-test_vit-digits.safetensors")


def probe(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["readout", *arguments])


def as_json(*arguments: str) -> Any:
    """The only result that `--json -` prints, which is all it prints."""
    found = probe(*arguments, "--json", "-")
    assert found.exit_code == 0, found.stderr
    assert found.stdout.isascii()
    envelope = json.loads(found.stdout)
    assert (envelope["schema"], envelope["failures"]) == (1, [])
    (result,) = envelope["results"]
    return result


def refused(code: int, *arguments: str) -> str:
    """The one line that a command ends with; nothing else is printed."""
    found = probe(*arguments)
    assert found.exit_code == code, found.output
    assert found.stdout == ""
    assert found.stderr.startswith("probe: ")
    assert found.stderr.count("\n") == 1
    return found.stderr.removeprefix("probe: ").rstrip("\n")


def written(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_a_readout_is_fitted_measured_and_saved(here: Path) -> None:
    result = as_json(*SMALL, "--eval-split", "test")
    assert result["model"] == "timm:test_vit"
    assert result["resolved"] == "timm:test_vit.r160_in1k"
    assert (result["family"], result["pool"], result["features"]) == ("timm_vit", "class", 64)
    assert result["class_names"] == list("0123456789")
    settings, accuracy = result["settings"], result["accuracy"]
    train = open_data("digits", split="train", limit=200)
    assert settings["data"] == {
        "name": "digits", "kind": "digits", "fingerprint": train.fingerprint, "total": 1253,
        "split": "train", "images": 200, "unlabelled": 0, "unreadable": 0,
    }  # fmt: skip
    assert len(settings["candidates"]) == 7
    assert accuracy["value"] == result["correct"] / result["images"]
    assert accuracy["low"] < accuracy["value"] < accuracy["high"]
    assert accuracy["value"] > 0.5
    assert accuracy["reason"] is None
    test = open_data("digits", split="test")
    assert result["images"] == test.total == result["evaluation"]["images"]
    assert result["evaluation"]["fingerprint"] == test.fingerprint
    assert (result["evaluation"]["split"], result["evaluation"]["classes"]) == ("test", 10)
    assert written(here) == [str(FILE)]
    assert result["file"] == str(FILE)
    readout = load_readout(FILE)
    assert readout.sha256 == result["sha256"]
    assert dict(readout.meta) == settings
    model = load_model(
        ModelSpec("x", "timm:test_vit"), image_size=(32, 32), random_init=True, device="cpu"
    )
    assert score(model, readout, test).correct == result["correct"]
    assert with_readout(model, readout).classes == 10


def test_what_is_printed(here: Path) -> None:
    result = as_json(*SMALL, "--eval-split", "test")
    settings, accuracy = result["settings"], result["accuracy"]
    bytes_before = FILE.read_bytes()
    found = probe(*SMALL, "--eval-split", "test", "--json", "copy.json")
    assert (found.exit_code, found.stderr) == (0, "")
    assert json.loads(Path("copy.json").read_text())["results"] == [result]
    assert FILE.read_bytes() == bytes_before
    assert found.stdout.splitlines() == [
        "timm:test_vit.r160_in1k",
        "readout    class-token features, 64 per image, 10 classes",
        "fitted to  200 images of digits (train)",
        f"C          {settings['c']:g}, the best of 7",
        f"held out   {settings['held_out_accuracy']:.3f}  ({settings['held_out_correct']} of "
        f"{settings['held_out']} training images)",
        f"training   {settings['training_accuracy']:.3f}  ({settings['training_correct']} of 200)",
        f"test       {accuracy['value']:.3f}  ({result['correct']} of {result['images']}; 95 % "
        f"interval {accuracy['low']:.3f} to {accuracy['high']:.3f}, Wilson)",
        f"Written to {FILE}",
    ]


def test_options(here: Path) -> None:
    result = as_json(
        *SMALL, "--pool", "both", "--dtype", "bfloat16", "--preprocess", "half", "--seed", "3",
        "--batch-size", "64", "--out", "some/where.safetensors",
    )  # fmt: skip
    assert (result["pool"], result["features"]) == ("both", 128)
    settings = result["settings"]
    assert (settings["dtype"], settings["seed"], settings["weights"]) == ("bfloat16", 3, "random:3")
    assert settings["preprocess"]["source"] == "half"
    assert (result["accuracy"]["value"], result["evaluation"]) == (None, None)
    assert result["accuracy"]["reason"] == "no --eval-split was given"
    assert written(here) == ["some/where.safetensors"]
    assert load_readout(Path("some/where.safetensors")).weight.shape == (10, 128)


def test_what_a_limit_leaves_out_is_said() -> None:
    found = probe(*SMALL, "--eval-split", "test", "--eval-limit", "3")
    assert found.exit_code == 0
    (note,) = [line for line in found.stdout.splitlines() if line.startswith("note: ")]
    assert note == (
        "note: the images of test hold 3 of the 10 classes; another --eval-limit may reach all"
    )


def test_classes_that_a_limit_missed_cannot_be_measured(here: Path) -> None:
    from datasets import ClassLabel, Dataset, Features
    from datasets import Image as ImageFeature

    features = Features({"image": ImageFeature(), "label": ClassLabel(names=["ant", "bee", "cow"])})
    labels = [0, 1, 2] * 4
    images = [Image.new("RGB", (8, 8), (80 * label, 99, 99)) for label in labels]
    (here / "data").mkdir()
    for split in ("train", "test"):
        table = Dataset.from_dict({"image": images, "label": labels}, features=features)
        table.to_parquet(str(here / "data" / f"{split}.parquet"))
    command = [*MODEL, "--data", "data", "--out", "x.safetensors"]
    both = ["--train-split", "train", "--eval-split", "test"]
    message = refused(1, *command, *both, "--limit", "4")  # rows 0, 3, 6, 9
    assert message == (
        "'data' has one class ('ant'), and a readout tells classes apart; add images of others"
    )
    assert not Path("x.safetensors").exists()
    message = refused(1, *command, *both, "--limit", "8")
    assert message == (
        "the readout has no class for cow of 'data'; fit it to images of all classes (another "
        "--limit may reach them)"
    )
    assert load_readout(Path("x.safetensors")).class_names == ("ant", "bee")
    found = probe(*command, "--train-split", "train")
    assert (found.exit_code, found.stderr) == (0, "")
    message = refused(2, *command, "--eval-split", "test")
    assert message == (
        "--eval-split needs --train-split, or the readout would be fitted to the images that it "
        "is measured on"
    )


def test_a_folder_is_the_training_data(here: Path) -> None:
    rng = np.random.default_rng(0)
    for name, shade in {"zebra": 60, "ant": 200}.items():
        (here / "images" / name).mkdir(parents=True)
        for number in range(5):
            pixels = rng.integers(shade - 50, shade + 50, (32, 32, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(here / "images" / name / f"{number}.png")
    result = as_json(*MODEL, "--data", "images")
    assert result["class_names"] == ["ant", "zebra"]
    assert result["file"] == "runs/readouts/timm-test_vit-images.safetensors"
    assert result["settings"]["training_accuracy"] == 1.0
    assert torch.isfinite(load_readout(Path(result["file"])).weight).all()
    for option in ("--train-split", "--eval-split"):
        message = refused(2, *MODEL, "--data", "images", option, "x")
        assert message == f"{option} 'x': an image folder has no splits; leave {option} out"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([*MODEL, "--data", "digits"], "'digits' has splits; name the one to fit to with --train-"),
        (MODEL, "name the labelled images to fit a readout of timm:test_vit to with --data"),
        ([*DIGITS, "--eval-split", "train"], "--eval-split 'train' is the training split, whose a"),
        ([*DIGITS, "--eval-split", "tset"], "digits has no split 'tset' (it has: train, validatio"),
        ([*DIGITS, "--eval-limit", "5"], "--eval-limit is for --eval-split; give both, or neither"),
        ([*DIGITS, "--limit", "0"], "--limit must be at least 1, got 0"),
        ([*DIGITS, "--seed", "-1"], "--seed must lie between 0 and 2**63 - 1, got -1"),
        ([*DIGITS, "--batch-size", "0"], "--batch-size must be at least 1, got 0"),
        ([*DIGITS, "--out", "."], "--out '.' is a folder; give a file"),
        (["deit_smal", *DIGITS[1:]], "unknown model 'deit_smal'. Did you mean deit_small, "),
        (
            ["timm:test_vit4", *DIGITS[1:], "--pool", "class"],
            "timm:test_vit4.r160_in1k has no class token among its last tokens, so there is no "
            "--pool class; choose --pool mean",
        ),
    ],
)
def test_usage_errors(here: Path, arguments: list[str], message: str) -> None:
    assert refused(2, *arguments).startswith(message)
    assert written(here) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            [*MODEL, "--data", "photos"],
            "'photos' has no labels to fit a readout to; give a folder ",
        ),
        ([*DIGITS, "--limit", "5"], "classes with a single image cannot be held out and fitted ("),
        (
            ["timm:test_efficientnet", *DIGITS[1:]],
            "no family reads the architecture timm.models.efficientnet",
        ),
        ([*DIGITS, "--out", "/proc/x/y"], "cannot write into /proc/x: "),
    ],
)
def test_what_cannot_be_fitted(here: Path, arguments: list[str], message: str) -> None:
    assert refused(1, *arguments).startswith(message)
    assert written(here) == []


def test_a_pool_that_does_not_exist() -> None:
    found = probe(*SMALL, "--pool", "max")
    assert (found.exit_code, found.stdout) == (2, "")
    assert "Invalid value for '--pool'" in found.stderr
