"""`probe tasks` as a user meets it: what it prints, what it writes, how it refuses."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.cli.command import files, invoke, only_line

TINY = ["--seeds", "2", "--train", "24", "--test", "8"]
ARRANGED = ["--task", "arrangement", *TINY]
SCALAR = {"value", "low", "high", "reason"}


def as_json(*arguments: str, code: int = 0) -> Any:
    found = invoke("tasks", *arguments, "--json", "-")
    assert found.exit_code == code, found.stderr
    assert found.stdout.isascii()
    assert "NaN" not in found.stdout
    envelope = json.loads(found.stdout)
    assert set(envelope) == {"schema", "results", "failures"}
    assert envelope["schema"] == 1
    return envelope


def test_the_json(here: Path) -> None:
    (result,) = as_json("digits_ape_s0", *TINY)["results"]
    assert set(result) == {
        "model", "resolved", "revision", "weights", "family", "pool", "image_size", "patch", "grid",
        "seeds", "images", "skipped", "tasks", "settings", "versions", "notes",
    }  # fmt: skip
    assert (result["model"], result["pool"]) == ("digits_ape_s0", "class")
    assert result["image_size"] == [32, 32]
    assert (result["patch"], result["grid"], result["seeds"]) == ([4, 4], [8, 8], [0, 1])
    assert result["weights"].startswith("sha256:")
    assert result["settings"]["preprocess"]["resize"] is None
    assert result["settings"]["resized"].startswith("nothing")
    assert {"probe", "torch", "scikit-learn"} <= set(result["versions"])
    assert [task["task"] for task in result["tasks"]] == [
        "scale", "alignment", "relation", "arrangement",
    ]  # fmt: skip
    for task in result["tasks"]:
        assert task["level"] == "controlled task"
        assert task["chance"] == 1 / len(task["classes"])
        assert len(task["regularisation"]) == 2
        assert task["assumes"]
        for curve in (task, *task["subgroups"]):
            assert curve["levels"]
            for level in curve["levels"]:
                assert set(level["accuracy"]) == set(level["over_seeds"]) == SCALAR
                assert len(level["per_seed"]) == 2
        for level in task["levels"]:
            share, images = level["accuracy"], level["images"]
            assert images == 16
            assert share["value"] == level["correct"] / images == np.mean(level["per_seed"])
            assert share["low"] < share["value"] or share["value"] == 0
            assert share["value"] < share["high"] or share["value"] == 1
    left = result["tasks"][0]["left_out"]
    reason = "it takes 33 px, the image has 32"
    assert left[0] == {"factor": "size", "unit": "patches", "level": 4.0, "reason": reason}
    folder = here / "runs" / "tasks" / "digits_ape_s0"
    assert files(folder) == ["tasks.csv", "tasks.json", "tasks.png", "tasks.svg"]
    assert json.loads((folder / "tasks.json").read_text())["results"] == [result]


def test_the_table_and_the_figure(here: Path) -> None:
    (result,) = as_json("digits_rope_s0", "--pool", "both", *TINY, "--out", "o")["results"]
    rows = list(csv.DictReader(io.StringIO(Path("o/tasks.csv").read_text())))
    for task in result["tasks"]:
        for name, levels in (
            ("all", task["levels"]),
            *((group["name"], group["levels"]) for group in task["subgroups"]),
        ):
            own = [
                row
                for row in rows
                if (row["task"], row["subgroup"]) == (task["task"], name) and row["images"]
            ]
            assert [float(row["level"]) for row in own] == [level["level"] for level in levels]
            for row, level in zip(own, levels, strict=True):
                value = level["accuracy"]["value"]
                assert row["accuracy"] == ("" if value is None else repr(value))
                assert row["correct"] == str(level["correct"])
        left = [row for row in rows if row["task"] == task["task"] and not row["images"]]
        assert [row["accuracy_reason"] for row in left] == [
            one["reason"] for one in task["left_out"]
        ]
    assert {row["patch"] for row in rows} == {"4x4"}
    text = Path("o/tasks.svg").read_text()
    for word in ("scale", "alignment: move by whole patches", "relation", "arrangement", "chance",
                 "digits_rope_s0", "offset, share of a patch", "size, patches", "accuracy",
                 "it takes 33 px, the image has 32"):  # fmt: skip
        assert f">{word}" in text or word in text
    with Image.open("o/tasks.png") as image:
        assert image.width > 800


def test_the_screen(here: Path) -> None:
    found = invoke("tasks", "digits_ape_s0", *TINY)
    assert (found.exit_code, found.stderr) == (0, "")
    text = " ".join(found.stdout.split())
    for part in (
        "digits_ape_s0",
        "readout of the class token",
        "patches 4x4 px on a grid of 8x8",
        "seeds 0, 1",
        "image size 32x32",
        "scale: Which shape is it, at each size of the object?",
        "chance .250",
        "light object",
        "move by whole patches",
        "left out: size 4 (it takes 33 px, the image has 32); size 6 (",
        "; move 4 (it takes a grid of 10x10 patches, the model has 8x8); ",
        "95 % Wilson interval over scenes",
        "controlled task",
        "Written to runs/tasks/digits_ape_s0: tasks.csv, tasks.json, tasks.png, tasks.svg",
    ):
        assert part in text


def test_several_models_are_compared(here: Path) -> None:
    found = invoke("tasks", "digits_ape_s0", "digits_none_s0", *ARRANGED)
    assert (found.exit_code, found.stderr) == (0, "")
    text = " ".join(found.stdout.split())
    assert "2 models" in text
    assert "width, patches" in text
    assert "rows, columns (chance .500)" in text
    assert "alignment:" not in text
    left = "left out on digits_ape_s0, digits_none_s0: width 7 (two stripes take 14 patches, the"
    assert left in text


def test_examples(here: Path) -> None:
    arguments = ["digits_ape_s0", "digits_none_s0", *ARRANGED, "--task", "alignment", "--out", "o"]
    assert invoke("tasks", *arguments, "--examples").exit_code == 0
    assert files(Path("o")) == [
        "examples-alignment-32x32-p4x4.png", "examples-arrangement-32x32-p4x4.png",
        "tasks.csv", "tasks.json", "tasks.png", "tasks.svg",
    ]  # fmt: skip
    with Image.open("o/examples-arrangement-32x32-p4x4.png") as sheet:
        assert sheet.height > 3 * 128
        assert len(sheet.convert("L").getcolors()) > 50
    assert invoke("tasks", *arguments).exit_code == 0
    assert files(Path("o")) == ["tasks.csv", "tasks.json", "tasks.png", "tasks.svg"]


def test_a_small_grid_says_what_it_cannot_do(here: Path) -> None:
    arguments = ["timm:test_vit", "--random-init", "--image-size", "32", *TINY]
    (result,) = as_json(*arguments)["results"]
    assert (result["grid"], result["patch"]) == ([2, 2], [16, 16])
    scale, alignment, relation, arrangement = result["tasks"]
    assert [level["level"] for level in scale["levels"]] == [0.5]
    assert alignment["reason"] == (
        "the image has no room for this task: it takes a grid of 7x7 patches, the model has 2x2"
    )
    assert relation["reason"].endswith("it takes a grid of 4x4 patches, the model has 2x2")
    assert [level["level"] for level in arrangement["levels"]] == [1.0]
    shown = " ".join(invoke("tasks", *arguments).stdout.split())
    assert f"alignment: {alignment['reason']}" in shown
    assert "the grid? not run" in shown


def test_a_model_that_fails_is_a_row(here: Path) -> None:
    arguments = ["timm:resnet18", "timm:test_vit", "--random-init", "--image-size", "64", *ARRANGED]
    envelope = as_json(*arguments, code=1)
    (failure,) = envelope["failures"]
    assert failure["model"] == "timm:resnet18"
    assert failure["error"] == (
        "scenes are aligned to patches, but a convolutional network has no patch tokens that could "
        "change places"
    )
    (result,) = envelope["results"]
    assert result["model"] == "timm:test_vit"
    assert result["weights"] == "random:0"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--task", "arangement"], "unknown task 'arangement'. Did you mean arrangement"),
        (["--task", "arrangement", "--seeds", "0"], "--seeds must be at least 1"),
        (["--test", "0"], "--test must be at least 1"),
        (["--batch-size", "0"], "--batch-size must be at least 1, got 0"),
        (["--image-size", "big"], "--image-size must be pixels, as 224 or 224x448; got 'big'"),
    ],
)
def test_wrong_requests(here: Path, arguments: list[str], message: str) -> None:
    found = invoke("tasks", "timm:test_vit", "--random-init", *arguments)
    line = only_line(found, 2)
    assert message in line


def test_a_pool_that_is_not_there(here: Path) -> None:
    arguments = ["--random-init", "--pool", "class", *ARRANGED]
    model = "timm:swin_tiny_patch4_window7_224"
    line = only_line(invoke("tasks", model, *arguments), 2)
    assert line.endswith(
        "no class token among its last tokens, so there is no --pool class; choose --pool mean"
    )
    line = only_line(invoke("tasks"), 2)
    assert line == "Missing argument 'MODEL'; see probe tasks --help"
