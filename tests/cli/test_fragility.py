"""`probe fragility` as a user meets it: what it prints, what it writes, how it refuses."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from probe.corruptions import suite
from probe.corruptions.kinds import KINDS
from probe.data.open import open_data
from probe.records import PassRecord
from tests.cli import tiny_zoo
from tests.cli.command import invoke, passes_run
from tests.cli.tiny_zoo import COMMON, DIGITS, SCALAR, image_folder

DEFAULT = ["jpeg(quality=5)", "gaussian_blur(sigma=2.5,kernel=5)", "true_gaussian_blur(sigma=2.5)"]
ONE = ["--corruption", "jpeg(quality=5)"]
WNIDS = {"n01440764": 4, "n01443537": 3, "n01484850": 2}


@pytest.fixture(autouse=True)
def _zoo(here: Path) -> None:
    tiny_zoo.write_zoo(here)


def as_json(*arguments: str) -> Any:
    return tiny_zoo.as_json("fragility", *arguments)


def refused(code: int, *arguments: str) -> str:
    return tiny_zoo.refused(code, "fragility", *arguments)


def clean_pass(folder: Path) -> PassRecord:
    """The one stored clean pass."""
    (path,) = (folder / "runs" / "passes").glob("*/clean-*.json")
    return PassRecord.from_json(path.read_text())


def test_the_json_has_the_promised_keys() -> None:
    result = as_json("ten", *DIGITS)
    assert set(result) == {
        "model", "resolved", "family", "images", "labelled", "settings", "labels", "accuracy",
        "correct", "corruptions", "skipped", "notes",
    }  # fmt: skip
    assert (result["model"], result["resolved"]) == ("ten", "timm:test_vit.r160_in1k")
    assert (result["images"], result["labelled"]) == (12, 12)
    assert result["labels"]["kind"] == "classlabel"
    assert result["labels"]["map"] == {str(digit): digit for digit in range(10)}
    assert result["accuracy"]["value"] == result["correct"] / 12
    assert [row["corruption"] for row in result["corruptions"]] == DEFAULT
    sigmas = [row["effective_sigma"] for row in result["corruptions"]]
    assert sigmas[0] is None
    assert sigmas[1:] == pytest.approx([1.3345, 2.5], abs=2e-3)
    for row in result["corruptions"]:
        assert set(row) == {
            "corruption", "effective_sigma", "accuracy", "correct", "fs", "agreement_fs"
        }  # fmt: skip
        for name in ("accuracy", "fs", "agreement_fs"):
            assert set(row[name]) == SCALAR
        assert row["accuracy"]["value"] == row["correct"] / 12
        if result["correct"]:
            assert row["fs"]["value"] == pytest.approx(1 - row["correct"] / result["correct"])
        else:
            assert row["fs"]["reason"] == "no clean prediction is right"
    settings = result["settings"]
    assert settings["weights"] == "random:0"
    assert (settings["seed"], settings["dtype"]) == (0, "float32")
    assert settings["data"]["taken"] == 12
    assert settings["fs_interval"].startswith("95 %, paired bootstrap over images")
    assert settings["accuracy_interval"] == "95 %, Wilson"


def test_files_and_the_screen(here: Path) -> None:
    found = invoke("fragility", "ten", *DIGITS, *ONE, "--out", "new/out", "--json", "copy/x.json")
    assert (found.exit_code, found.stderr) == (0, "")
    out = here / "new" / "out"
    assert sorted(path.name for path in out.iterdir()) == [
        "fragility.csv", "fragility.json", "fragility.png", "fragility.svg"
    ]  # fmt: skip
    assert (here / "copy" / "x.json").read_bytes() == (out / "fragility.json").read_bytes()
    assert found.stdout.splitlines()[-1].startswith("Written to new/out")
    for text in ("clean accuracy", "jpeg(quality=5)", "FS", "labels classlabel, 10 classes"):
        assert text in found.stdout
    assert "by order: as many class numbers as the head has outputs" in found.stdout
    (result,) = json.loads((out / "fragility.json").read_text())["results"]
    clean, jpeg = csv.DictReader(io.StringIO((out / "fragility.csv").read_text()))
    assert (clean["corruption"], jpeg["corruption"]) == ("clean", "jpeg(quality=5)")
    assert float(clean["accuracy"]) == result["accuracy"]["value"]
    (row,) = result["corruptions"]
    assert float(jpeg["agreement_fs"]) == row["agreement_fs"]["value"]


def test_stored_passes_are_reused(monkeypatch: pytest.MonkeyPatch) -> None:
    ran = passes_run(monkeypatch)
    first = as_json("ten", *DIGITS, *ONE)
    more = as_json("ten", *DIGITS, *ONE, "--corruption", "jpeg( quality = 10 )")
    assert ran == [2, 1]
    assert more["corruptions"][0] == first["corruptions"][0]
    assert more["accuracy"] == first["accuracy"]
    again = as_json("ten", *DIGITS, *ONE, "--batch-size", "5")
    assert len(ran) == 2
    assert again == first
    as_json("ten", *DIGITS, *ONE, "--seed", "1")
    as_json("ten", *DIGITS, *ONE, "--fresh")
    assert ran[2:] == [2, 2]


def test_folders_by_wordnet_id(here: Path) -> None:
    image_folder(here / "images", WNIDS)
    result = as_json("thousand", *COMMON, "--data", "images", *ONE)
    assert (result["labels"]["kind"], result["images"]) == ("wnid", 9)
    assert result["labels"]["map"] == {"n01440764": 0, "n01443537": 1, "n01484850": 2}
    assert result["labels"]["note"] == "by the WordNet ids of imagenet-1k"
    record = clean_pass(here)
    assert record.predicted is not None
    assert record.correct is not None
    said = np.repeat([0, 1, 2], [4, 3, 2])
    assert record.correct.tolist() == (record.predicted == said).astype(int).tolist()


def test_a_label_file(here: Path) -> None:
    """Labels that are the model's own answers: always right, and FS is what agreement says."""
    agreement = as_json("ten", *DIGITS, "--measure", "agreement")
    predicted = clean_pass(here).predicted
    assert predicted is not None
    names = open_data("digits", split=None, limit=12)
    pairs = [
        f"{names.read(position).name},{one}"  # type: ignore[union-attr]
        for position, one in enumerate(predicted)
    ]
    (here / "labels.csv").write_text("name,label\n" + "\n".join(pairs) + "\n")
    result = as_json("ten", *DIGITS, "--labels", "labels.csv")
    assert result["labels"]["kind"] == "file"
    assert len(result["labels"]["by_name"]) == 64
    assert (result["accuracy"]["value"], result["correct"]) == (1.0, 12)
    for row, other in zip(result["corruptions"], agreement["corruptions"], strict=True):
        assert row["agreement_fs"] == other["agreement_fs"]
        assert row["fs"]["value"] == pytest.approx(row["agreement_fs"]["value"])


def test_agreement_needs_no_labels() -> None:
    result = as_json("ten", *COMMON, "--limit", "6", "--measure", "agreement")
    assert result["settings"]["data"]["name"] == "photos"
    assert (result["images"], result["labels"], result["correct"]) == (6, None, None)
    reason = "predictions were not compared with labels"
    null = {"value": None, "low": None, "high": None, "reason": reason}
    assert result["accuracy"] == null
    for row in result["corruptions"]:
        assert (row["fs"], row["accuracy"], row["correct"]) == (null, null, None)
        assert 0 <= row["agreement_fs"]["low"] <= row["agreement_fs"]["value"] <= 1


def test_suites(here: Path) -> None:
    paper = as_json("ten", *DIGITS, "--suite", "paper")
    assert [row["corruption"] for row in paper["corruptions"]] == DEFAULT[:2]
    mixed = as_json("ten", *DIGITS, "--suite", "paper", "--corruption", "jpeg(quality=50)")
    rows = [row["corruption"] for row in mixed["corruptions"]]
    assert rows == ["jpeg(quality=50)", *DEFAULT[:2]]


def test_protocol_paper() -> None:
    result = as_json("ten", *DIGITS, "--protocol", "paper")
    assert [row["corruption"] for row in result["corruptions"]] == DEFAULT[:2]
    preprocess = result["settings"]["preprocess"]
    assert (preprocess["source"], preprocess["resize"]) == ("protocol paper", ["squash", [32, 32]])
    message = refused(2, "ten", *DIGITS, "--protocol", "paper", "--suite", "imagenet-c")
    assert message == "--protocol paper has its own corruptions; leave out --suite"


def test_imagenet_c() -> None:
    result = as_json("ten", *DIGITS[:-1], "2", "--suite", "imagenet-c")
    names = [row["corruption"] for row in result["corruptions"]]
    assert names == [str(one) for one in suite("imagenet-c")]
    assert len(names) == 75
    assert {row["effective_sigma"] for row in result["corruptions"]} == {None}
    assert all(row["agreement_fs"]["value"] in (0.0, 0.5, 1.0) for row in result["corruptions"])


def test_imagenet_c_without_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    from probe.errors import UsageError

    def missing() -> None:
        raise UsageError("the ImageNet-C corruptions need an optional extra")

    monkeypatch.setitem(KINDS, "fog", replace(KINDS["fog"], require=missing))
    message = refused(2, "ten", *DIGITS, "--suite", "imagenet-c")
    assert message == "the ImageNet-C corruptions need an optional extra"


def test_a_corruption_that_fails_on_one_image(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []

    def brittle(image: np.ndarray, _: Any, *, quality: int) -> np.ndarray:
        calls.append(quality)
        if len(calls) == 3:
            raise ValueError("too odd")
        return image // 2

    monkeypatch.setitem(KINDS, "jpeg", replace(KINDS["jpeg"], apply=brittle))
    result = as_json("ten", *DIGITS, "--corruption", DEFAULT[1], *ONE)
    ((name, why),) = result["skipped"]
    assert name.startswith("digit-")
    assert why.startswith("jpeg(quality=5) failed on image ")
    assert why.endswith(": too odd; leave that image out")
    assert (result["images"], result["labelled"], len(calls)) == (11, 11, 12)
    for row in result["corruptions"]:
        assert row["accuracy"]["value"] == pytest.approx(row["correct"] / 11)


def test_one_broken_model_does_not_end_the_others() -> None:
    found = invoke("fragility", "thousand", "ten", *DIGITS, *ONE, "--json", "-")
    assert found.exit_code == 1
    envelope = json.loads(found.stdout)
    assert [result["model"] for result in envelope["results"]] == ["ten"]
    assert [failure["model"] for failure in envelope["failures"]] == ["thousand"]
    assert found.stderr.startswith("probe: thousand: 'digits' has 10 classes and the model 1000")
