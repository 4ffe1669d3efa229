"""`probe compare` as a user meets it: what it prints, what it writes, how it refuses."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli import tiny_zoo
from tests.cli.command import files, invoke, passes_run
from tests.cli.tiny_zoo import COMMON, DIGITS, SCALAR

DEFAULT = ["jpeg(quality=5)", "gaussian_blur(sigma=2.5,kernel=5)", "true_gaussian_blur(sigma=2.5)"]
ONE = ["--corruption", "jpeg(quality=5)"]
MORE = """
  deep: {source: "timm:test_vit", options: {depth: 4, num_classes: 10}}
  wide:
    source: timm:test_vit
    options: {depth: 3, num_classes: 10, patch_size: 8}
  placed: {source: "timm:test_vit", data: digits, options: {depth: 3, num_classes: 10}}
"""


@pytest.fixture(autouse=True)
def _zoo(here: Path) -> None:
    (here / "zoo.yaml").write_text(tiny_zoo.ZOO + MORE)


def as_json(*arguments: str) -> Any:
    return tiny_zoo.as_json("compare", *arguments)


def refused(code: int, *arguments: str) -> str:
    return tiny_zoo.refused(code, "compare", *arguments)


def screen(width: int, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> str:
    monkeypatch.setenv("COLUMNS", str(width))
    found = invoke("compare", *arguments)
    assert (found.exit_code, found.stderr) == (0, "")
    return found.stdout


def test_the_json_has_the_promised_keys() -> None:
    result = as_json("ten", "other", *DIGITS)
    assert set(result) == {
        "first", "second", "images", "labelled", "intervals", "controlled", "anchoring",
        "delta_ssdc_rpi", "final", "layers", "layers_reason", "accuracy", "corruptions", "notes",
    }  # fmt: skip
    assert (result["first"]["model"], result["second"]["model"]) == ("ten", "other")
    assert (result["images"], result["labelled"]) == (12, 12)
    assert [row["corruption"] for row in result["corruptions"]] == DEFAULT
    numbers = [result[name] for name in ("anchoring", "delta_ssdc_rpi", "final", "accuracy")]
    numbers += result["layers"]
    numbers += [row[name] for row in result["corruptions"] for name in ("fs", "agreement_fs")]
    assert len(numbers) == 4 + 3 + 6
    for entry in numbers:
        for part in ("first", "second", "difference"):
            assert set(entry[part]) == SCALAR
        if entry["difference"]["value"] is not None:
            apart = entry["first"]["value"] - entry["second"]["value"]
            assert entry["difference"]["value"] == pytest.approx(apart, abs=1e-12)
    assert sum(result["accuracy"]["right"].values()) == 12
    assert 0 < result["accuracy"]["mcnemar_p"] <= 1
    assert result["controlled"]["note"] == "random weights: no pretraining or teacher differs"


def test_numbers_are_those_of_the_other_commands() -> None:
    result = as_json("ten", "other", *DIGITS, *ONE)
    curves = tiny_zoo.as_json("ssdc", "other", *DIGITS)
    for number in ("anchoring", "delta_ssdc_rpi", "final"):
        assert result[number]["second"] == curves[number]
    for mine, theirs in zip(result["layers"], curves["layers"], strict=True):
        assert mine["second"] == {key: theirs["rpi"][key] for key in SCALAR}
    judged = tiny_zoo.as_json("fragility", "other", *DIGITS, *ONE)
    assert result["accuracy"]["second"] == judged["accuracy"]
    (mine,), (theirs,) = result["corruptions"], judged["corruptions"]
    for number in ("fs", "agreement_fs"):
        assert mine[number]["second"] == theirs[number]


def test_files_and_the_csv(here: Path) -> None:
    found = invoke("compare", "ten", "other", *DIGITS, *ONE, "--out", "new", "--json", "copy.json")
    assert (found.exit_code, found.stderr) == (0, "")
    assert files(here / "new") == ["compare.csv", "compare.json"]
    assert (here / "copy.json").read_bytes() == (here / "new" / "compare.json").read_bytes()
    (result,) = json.loads((here / "copy.json").read_text())["results"]
    rows = list(csv.DictReader(io.StringIO((here / "new" / "compare.csv").read_text())))
    assert {(row["first_model"], row["second_model"]) for row in rows} == {("ten", "other")}
    named = [(row["measure"], row["layer"], row["corruption"]) for row in rows]
    assert named == [
        ("anchoring", "", ""), ("delta_ssdc_rpi", "", ""), ("final", "", ""),
        ("ssdc_rpi", "0", ""), ("ssdc_rpi", "1", ""), ("ssdc_rpi", "2", ""),
        ("accuracy", "", ""),
        ("fs", "", "jpeg(quality=5)"), ("agreement_fs", "", "jpeg(quality=5)"),
    ]  # fmt: skip
    assert float(rows[0]["difference"]) == result["anchoring"]["difference"]["value"]
    assert float(rows[0]["difference_low"]) == result["anchoring"]["difference"]["low"]
    assert float(rows[6]["p"]) == result["accuracy"]["mcnemar_p"]
    assert rows[0]["p"] == ""


def test_what_is_stored_is_not_measured_again(monkeypatch: pytest.MonkeyPatch) -> None:
    ran = passes_run(monkeypatch)
    first = as_json("ten", "other", *DIGITS, *ONE)
    assert ran == [3, 3]  # clean with predictions, RPI, JPEG
    turned = as_json("other", "ten", *DIGITS, *ONE)
    assert len(ran) == 2
    value = first["anchoring"]["difference"]["value"]
    assert turned["anchoring"]["difference"]["value"] == pytest.approx(-value)
    as_json("ten", "deep", *DIGITS, *ONE)
    assert ran[2:] == [3]


@pytest.mark.parametrize("width", [80, 120])
def test_the_screen(monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    text = screen(width, monkeypatch, "ten", "other", *DIGITS)
    lines = [line.rstrip() for line in text.splitlines()]
    assert max(map(len, lines)) <= width
    assert lines[0] == "ten minus other"
    assert lines[1].startswith("A ten · timm:test_vit.r160_in1k (random:0 weights)")
    assert "random weights: no pretraining or teacher differs" in lines
    heads = [line.split() for line in lines if line.endswith("A - B")]
    assert len(heads) == 3
    assert all(head[-7:] == ["A", "ten", "B", "other", "A", "-", "B"] for head in heads)
    (result,) = json.loads(Path("runs/compare/ten+other/compare.json").read_text())["results"]
    for number in ("anchoring", "final"):
        value = f"{result[number]['difference']['value']:.3f}".replace("0.", ".", 1)
        assert value in text
    joined = " ".join(text.split())
    counts = result["accuracy"]["right"]
    assert f"right of 12 images: both {counts['both']} · ten alone {counts['first_only']}" in joined
    assert "McNemar p" in text
    assert "~ the interval of the difference holds 0" in text
    if width == 120:
        assert "FS gaussian_blur(sigma=2.5,kernel=5)" in text


def test_long_names_are_letters_above_their_columns(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = "a_model_with_a_very_long_name_indeed"
    entry = f'  {long}: {{source: "timm:test_vit", options: {{depth: 3, num_classes: 10}}}}\n'
    (here / "zoo.yaml").write_text(tiny_zoo.ZOO + entry)
    text = screen(80, monkeypatch, "ten", long, *DIGITS, *ONE)
    assert max(len(line.rstrip()) for line in text.splitlines()) <= 80
    assert f"B {long}" in text
    heads = [line.split() for line in text.splitlines() if line.rstrip().endswith("A - B")]
    assert all(head[-6:] == ["A", "ten", "B", "A", "-", "B"] for head in heads)


def test_other_depths_and_grids(monkeypatch: pytest.MonkeyPatch) -> None:
    text = screen(120, monkeypatch, "ten", "deep", *DIGITS, *ONE)
    assert "layers are not compared: depths differ (3 and 4)" in text
    assert "note: anchoring averages over 3 layers of ten and 4 of deep" in text
    result = as_json("ten", "wide", *DIGITS, *ONE)
    assert result["layers_reason"] == "grids differ at layer 0 (2x2 and 4x4)"
    assert result["notes"] == ["SSDC depends on the grid, and the grids differ: ten 2x2; wide 4x4"]
    assert result["anchoring"]["difference"]["value"] is not None


def test_without_labels_agreement_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    result = as_json("ten", "other", *COMMON, "--limit", "6", *ONE)
    assert result["first"]["settings"]["data"]["name"] == "photos"
    why = "'photos' has no labels, which accuracy and FS need"
    assert result["accuracy"]["difference"]["reason"] == why
    (row,) = result["corruptions"]
    assert row["fs"]["difference"]["reason"] == why
    assert row["agreement_fs"]["difference"]["value"] is not None
    text = screen(120, monkeypatch, "ten", "other", *COMMON, "--limit", "6", *ONE)
    assert f"(1) {why}" in text
    assert "agreement jpeg(quality=5)" in text


def test_without_a_head_curves_are_left(monkeypatch: pytest.MonkeyPatch) -> None:
    text = screen(80, monkeypatch, "headless", "headless_too", *headless())
    joined = " ".join(text.split())
    assert "accuracy — (1)" in joined
    assert "(1) the model has no head to predict with, and no readout" in joined
    assert "FS" not in text
    result = as_json("headless", "headless_too", *headless())
    assert result["corruptions"] == []
    assert result["anchoring"]["difference"]["value"] is not None


def headless() -> list[str]:
    entry = '  headless_too: {source: "timm:test_vit2", options: {depth: 3, num_classes: 0}}\n'
    Path("zoo.yaml").write_text(tiny_zoo.ZOO + entry)
    return DIGITS


def test_protocol_paper() -> None:
    result = as_json("ten", "other", *DIGITS, "--protocol", "paper")
    assert [row["corruption"] for row in result["corruptions"]] == DEFAULT[:2]
    assert result["first"]["settings"]["rpi"] == ["rpi(mode=batch,seed=0,draw=0)"]
    assert result["first"]["settings"]["preprocess"]["source"] == "protocol paper"


def test_draws() -> None:
    result = as_json("ten", "other", *DIGITS, *ONE, "--rpi-draws", "2")
    assert len(result["second"]["settings"]["rpi"]) == 2


def test_one_broken_model_leaves_nothing_to_compare(here: Path) -> None:
    found = invoke("compare", "ten", "timm:test_vit3_none", *DIGITS, "--json", "-")
    assert found.exit_code == 1
    envelope = json.loads(found.stdout)
    assert envelope["results"] == []
    (failure,) = envelope["failures"]
    assert failure["model"] == "timm:test_vit3_none"
    assert found.stderr.startswith("probe: timm:test_vit3_none")
    assert files(here / "runs" / "compare" / "ten+timm-test_vit3_none") == ["compare.json"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["ten"], "a comparison is of two models, A and B; got 1"),
        (["ten", "other", "deep"], "a comparison is of two models, A and B; got 3"),
        (["ten", "ten"], "ten is named more than once"),
        (["ten", "tan"], "unknown model 'tan'. Did you mean ten"),
        (["ten", "other", "--rpi-draws", "0"], "--rpi-draws must be at least 1, got 0"),
        (["ten", "other", "--corruption", "jpge(quality=5)"], "unknown corruption 'jpge'. Did you"),
        (["ten", "other", *ONE, *ONE], "jpeg(quality=5) is asked for more than once"),
        (["ten", "other", "--labels", "none.csv"], "--labels 'none.csv' is no file"),
    ],
)
def test_usage_errors(here: Path, arguments: list[str], message: str) -> None:
    assert refused(2, *arguments, *DIGITS).startswith(message)
    assert not list(here.rglob("*.json"))


def test_models_with_data_of_their_own() -> None:
    message = refused(2, "placed", "ten", *COMMON)
    assert message == (
        "placed is measured on digits and ten on photos by default, and a comparison needs the "
        "same images; name them with --data"
    )
