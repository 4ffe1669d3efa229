"""`probe scale` as a user meets it: what it prints, what it writes, how it refuses."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest

from probe import engine
from probe.data.open import open_data
from probe.derive.scale import RULE
from probe.loading import load_model
from probe.plan import dose_tasks
from probe.readout import fit_readout, save
from probe.types import Condition, Permutation, Task
from probe.zoo import load_zoo
from tests.cli import tiny_zoo
from tests.cli.command import invoke, passes_run
from tests.cli.tiny_zoo import COMMON, DIGITS, SCALAR

NO_SIGNAL = "the model has no positional signal, so there is nothing to scale"
ZERO = "the positional tables are all zero (untrained), so alpha cannot act on them"
JPEG = "jpeg(quality=5)"


@pytest.fixture(autouse=True)
def _zoo(here: Path) -> None:
    tiny_zoo.write_zoo(here)


def as_json(*arguments: str) -> Any:
    return tiny_zoo.as_json("scale", *arguments)


def refused(code: int, *arguments: str) -> str:
    return tiny_zoo.refused(code, "scale", *arguments)


def null(reason: str) -> dict[str, Any]:
    return {"value": None, "low": None, "high": None, "reason": reason}


def test_the_json_has_the_promised_keys() -> None:
    result = as_json("ten", *DIGITS, "--image-size", "64", "--alphas", "1.0,0.5,0")
    assert set(result) == {
        "model", "resolved", "family", "images", "settings", "labels", "signals", "extension",
        "alphas", "corruptions", "regimes", "skipped", "notes",
    }  # fmt: skip
    assert (result["model"], result["images"]) == ("ten", 12)
    assert result["labels"]["kind"] == "classlabel"
    assert (result["signals"], result["extension"]) == (["absolute"], None)
    assert [row["alpha"] for row in result["alphas"]] == [1.0, 0.5, 0.0]
    for row in result["alphas"]:
        assert set(row) == {
            "alpha", "delta_ssdc_rpi", "anchoring", "accuracy", "correct", "labelled", "fs",
            "reason",
        }  # fmt: skip
        assert (list(row["fs"]), row["reason"]) == ([JPEG], None)
        for one in (row["delta_ssdc_rpi"], row["anchoring"], row["accuracy"], row["fs"][JPEG]):
            assert set(one) == SCALAR
        assert (row["accuracy"]["value"], row["labelled"]) == (row["correct"] / 12, 12)
        assert row["anchoring"]["low"] <= row["anchoring"]["value"] <= row["anchoring"]["high"]
    assert result["corruptions"] == [{"corruption": JPEG, "effective_sigma": None}]
    assert len({row["anchoring"]["value"] for row in result["alphas"]}) == 3
    assert result["regimes"]["rule"] == RULE
    for name in ("delta_ssdc_rpi", "anchoring"):
        assert set(result["regimes"][name]) == {"by_alpha", "knee"}
        assert set(result["regimes"][name]["knee"]) == SCALAR
    assert result["settings"]["weights"] == "random:0"


def test_alpha_one_is_what_the_other_commands_say(here: Path) -> None:
    command = ["ten", *DIGITS, "--image-size", "64"]
    (row,) = as_json(*command, "--alphas", "1")["alphas"]
    ssdc = tiny_zoo.as_json("ssdc", *command)
    assert row["anchoring"] == ssdc["anchoring"]
    assert row["delta_ssdc_rpi"] == ssdc["delta_ssdc_rpi"]
    fragility = tiny_zoo.as_json("fragility", *command, "--corruption", JPEG)
    assert row["accuracy"] == fragility["accuracy"]
    assert row["fs"] == {JPEG: fragility["corruptions"][0]["fs"]}


def test_files_and_the_screen(here: Path) -> None:
    command = ["rotary", *DIGITS, "--alphas", "1,0", "--out", "new/out", "--json", "x.json"]
    found = invoke("scale", *command)
    assert (found.exit_code, found.stderr) == (0, "")
    out = here / "new" / "out"
    assert sorted(path.name for path in out.iterdir()) == [
        "scale.csv", "scale.json", "scale.png", "scale.svg"
    ]  # fmt: skip
    assert (here / "x.json").read_bytes() == (out / "scale.json").read_bytes()
    assert found.stdout.splitlines()[-1].startswith("Written to new/out")
    extension = "rotation angles are scaled, an extension of the paper's definition"
    assert extension in found.stdout
    assert "labels classlabel, 10 classes" in found.stdout
    (result,) = json.loads((out / "scale.json").read_text())["results"]
    assert (result["signals"], result["extension"]) == (["rotary"], extension)
    rows = list(csv.DictReader(io.StringIO((out / "scale.csv").read_text())))
    assert {float(row["alpha"]) for row in rows} == {1.0, 0.0}


def test_delta_alone_stops_early(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Task] = []
    original = engine.run_passes

    def watched(model: Any, source: Any, passes: Any, *rest: Any, **options: Any) -> Any:
        seen.extend(one.task for one in passes)
        return original(model, source, passes, *rest, **options)

    monkeypatch.setattr(engine, "run_passes", watched)
    command = ["ten", *DIGITS, "--image-size", "64", "--alphas", "1,0.5"]
    whole = as_json(*command, "--measure", "delta,anchoring")
    stopped = as_json(*command, "--measure", "delta")
    assert [task.last_layer for task in seen] == [None, None, 1, 1]
    assert not any(task.top1 for task in seen)
    for row, other in zip(stopped["alphas"], whole["alphas"], strict=True):
        assert row["delta_ssdc_rpi"] == other["delta_ssdc_rpi"]
        assert other["anchoring"]["value"] is not None
        for name in ("anchoring", "accuracy"):
            assert row[name] == null("not measured")
        assert (row["fs"], row["correct"]) == ({}, None)
    assert stopped["labels"] is None


def test_measures_choose_the_passes() -> None:
    rpi = Permutation("image", 7)

    def tasks(alpha: float, *wanted: str, draws: int = 1) -> list[Task]:
        corruptions = [JPEG] if "fs" in wanted else []
        return dose_tasks(alpha, set(wanted), corruptions, "image", draws, 7, "absolute")

    scaled = {"alpha": 0.5, "signal": "absolute"}
    predicted = {"ssdc": False, "top1": True}
    assert tasks(0.5, "delta") == [Task(Condition(rpi, **scaled), last_layer=1)]
    assert tasks(0.5, "anchoring", "delta") == [Task(Condition(rpi, **scaled))]
    assert tasks(0.5, "accuracy") == [Task(Condition(**scaled), **predicted)]
    assert tasks(0.5, "fs") == [
        Task(Condition(corruption=name, **scaled), **predicted) for name in (None, JPEG)
    ]
    # At alpha 1 nothing is scaled, so these passes are those of the other commands.
    assert tasks(1.0, "delta", "fs", draws=2) == [
        Task(Condition(rpi), last_layer=1),
        Task(Condition(Permutation("image", 7, 1)), last_layer=1),
        Task(Condition(), **predicted),
        Task(Condition(corruption=JPEG), **predicted),
    ]


def test_accuracy_and_several_corruptions() -> None:
    blur = "gaussian_blur(sigma=2.5,kernel=5)"
    command = ["ten", *DIGITS, "--alphas", "1,0"]
    result = as_json(*command, "--measure", "fs", "--corruption", JPEG, "--corruption", blur)
    for row in result["alphas"]:
        assert list(row["fs"]) == [JPEG, blur]
        assert row["anchoring"] == row["delta_ssdc_rpi"] == null("not measured")
    (row, _) = as_json(*command, "--measure", "accuracy")["alphas"]
    assert row["fs"] == {}
    assert row["accuracy"] == result["alphas"][0]["accuracy"]


@pytest.mark.parametrize(
    ("model", "extra", "reason", "signals"),
    [
        ("unplaced", [], NO_SIGNAL, []),
        ("zero", [], ZERO, ["relative_bias"]),
        ("ten", ["--signal", "rotary"], "the model has no rotary signal (it has: absolute)", []),
    ],
)
def test_not_applicable_is_an_answer(
    model: str, extra: list[str], reason: str, signals: list[str]
) -> None:
    result = as_json(model, *DIGITS, *extra, "--alphas", "1,0.5,0")
    first, *others = result["alphas"]
    assert (first["reason"], first["alpha"]) == (None, 1.0)
    assert first["accuracy"]["value"] is not None
    for row, alpha in zip(others, (0.5, 0.0), strict=True):
        assert row == {
            "alpha": alpha, "delta_ssdc_rpi": null(reason), "anchoring": null(reason),
            "accuracy": null(reason), "correct": None, "labelled": None,
            "fs": {JPEG: null(reason)}, "reason": reason,
        }  # fmt: skip
    assert result["signals"] == signals


def test_not_applicable_at_every_alpha_is_shown_and_no_failure() -> None:
    found = invoke("scale", "unplaced", *DIGITS, "--alphas", "0.5,0")
    assert (found.exit_code, found.stderr) == (0, "")
    assert NO_SIGNAL in " ".join(found.stdout.split())


def test_unlabelled_images_and_headless_models_still_have_a_curve() -> None:
    short = ["--limit", "4", "--alphas", "1,0"]
    for model, data, why in [
        ("ten", [], "'photos' has no labels, which accuracy and FS need"),
        ("headless", ["--data", "digits"], "timm:test_vit.r160_in1k has no head to predict with"),
        ("thousand", ["--data", "digits"], "'digits' has 10 classes and the model 1000 outputs"),
    ]:
        result = as_json(model, *COMMON, "--image-size", "64", *data, *short)
        for row in result["alphas"]:
            assert row["anchoring"]["value"] is not None
            assert row["accuracy"]["reason"].startswith(f"not measured: {why}")
            assert (row["reason"], row["fs"]) == (None, {})


def test_a_readout_serves_a_headless_model(here: Path) -> None:
    spec = load_zoo(here / "zoo.yaml")["headless"]
    model = load_model(spec, image_size=(32, 32), random_init=True, device="cpu")
    save(fit_readout(model, open_data("digits", split="train", limit=60), grid=[1.0]), Path("r.st"))
    command = [*DIGITS, "--split", "test", "--alphas", "1,0", "--readout", "r.st"]
    result = as_json("headless", *command)
    assert result["alphas"][0]["correct"] >= 4
    assert any(note.startswith("classes come from a linear readout") for note in result["notes"])
    message = refused(2, "other", *command)
    assert message.startswith("the readout was fitted for timm:test_vit.r160_in1k (random:0), not")


def test_protocol_paper_shuffles_once_per_batch() -> None:
    result = as_json(
        "ten", *DIGITS, "--protocol", "paper", "--alphas", "1,0", "--batch-size", "5",
        "--measure", "delta",
    )  # fmt: skip
    assert result["settings"]["rpi"] == [
        "rpi(mode=batch,seed=0,draw=0)", "rpi(mode=batch,seed=0,draw=0)+alpha=0.0"
    ]  # fmt: skip
    assert result["settings"]["preprocess"]["source"] == "protocol paper"


def test_stored_passes_are_reused(monkeypatch: pytest.MonkeyPatch) -> None:
    ran = passes_run(monkeypatch)
    first = as_json("ten", *DIGITS, "--alphas", "1,0")
    assert ran == [6]
    assert as_json("ten", *DIGITS, "--alphas", "1,0") == first
    more = as_json("ten", *DIGITS, "--alphas", "1,0.5,0")
    assert ran == [6, 3]
    assert [more["alphas"][0], more["alphas"][2]] == first["alphas"]
    # The clean predictions and those under JPEG are those that fragility needs.
    tiny_zoo.as_json("fragility", "ten", *DIGITS, "--corruption", JPEG)
    assert ran == [6, 3]
