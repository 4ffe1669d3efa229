"""`probe report`: a batch over tiny models, what it writes, what it reuses, what it refuses."""

from __future__ import annotations

import csv
import errno
import json
import os
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from probe import engine, store
from probe.cli import report_files
from probe.records import PassRecord
from tests.cli.command import invoke, only_line, passes_run, subprocess_probe
from tests.cli.tiny_zoo import DIGITS, SCALAR, image_folder, write_zoo

FILES = {
    "index.html", "summary.csv", "layers.csv", "records.parquet", "report.json", "REPORT.md",
    "hardware.json",
}  # fmt: skip
MODELS = ("ten", "unplaced", "headless")
SHIFTS = ["jpeg_q5", "gaussian_blur_s2.5_k5", "true_gaussian_blur_s2.5"]


@pytest.fixture(autouse=True)
def _zoo(here: Path) -> None:
    write_zoo(here)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only `report.json`: what draws has its own tests."""

    def only(content: Any, text: str, hardware: Any) -> dict[str, bytes | str]:
        return {"report.json": text}

    monkeypatch.setattr(report_files, "_rendered", only)


def report(*arguments: str, code: int = 0, out: str = "out") -> Any:
    """What `probe report` over the tiny zoo leaves in `report.json`."""
    found = invoke("report", *arguments, *DIGITS, "--out", out)
    assert found.exit_code == code, found.output + found.stderr
    text = Path(out, "report.json").read_text()
    assert "NaN" not in text
    return json.loads(text)


def contents(folder: str) -> dict[str, bytes]:
    root = Path(folder)
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in root.rglob("*")
        if path.is_file() and path.name != "hardware.json"
    }


def refused(code: int, *arguments: str) -> str:
    return only_line(invoke("report", *arguments), code)


class TestContent:
    def test_files_and_numbers(self, here: Path) -> None:
        found = report(*MODELS)
        assert {path.name for path in (here / "out").iterdir()} >= FILES
        assert (here / "out" / "figures" / "depth.svg").is_file()
        assert (here / "out" / "figures" / "depth.png").is_file()
        assert (found["schema"], found["title"], found["protocol"]) == (
            1, "ten, unplaced, headless", "default"
        )  # fmt: skip
        assert found["data"]["name"] == "digits"
        assert (found["data"]["total"], found["data"]["taken"]) == (275, 12)
        assert found["failures"] == []
        ten, unplaced, headless = found["models"]
        assert [m["model"] for m in found["models"]] == list(MODELS)
        assert (ten["grid"], ten["depth"], ten["image_size"]) == ([2, 2], 3, [32, 32])
        assert (ten["position"], unplaced["position"]) == ("absolute", "none")
        assert ten["params"] > 10_000
        assert ten["macs"] > 100_000
        assert (ten["images"], ten["labelled"]) == (12, 12)
        assert set(ten["anchoring"]) == SCALAR
        assert ten["anchoring"]["low"] <= ten["anchoring"]["value"] <= ten["anchoring"]["high"]
        assert [c["column"] for c in ten["corruptions"]] == SHIFTS
        assert ten["corruptions"][1]["effective_sigma"] == pytest.approx(1.3345, abs=1e-4)
        assert ten["corruptions"][0]["effective_sigma"] is None
        assert [row["alpha"] for row in ten["alphas"]] == [1.0, 0.75, 0.5, 0.25, 0.0]
        assert all(row["reason"] is None for row in ten["alphas"])
        assert ten["alphas"][0]["anchoring"] == ten["anchoring"]
        assert ten["alphas"][0]["fs"]["jpeg(quality=5)"] == ten["corruptions"][0]["fs"]
        assert [m["layer"] for m in ten["maps"]] == [0, 1, 2]
        nothing = "the model has no positional signal, so there is nothing to scale"
        assert [row["reason"] for row in unplaced["alphas"]] == [None, *[nothing] * 4]
        assert headless["accuracy"]["reason"] == (
            "the model has no head to predict with, and no readout"
        )
        assert headless["labelled"] is None
        assert headless["corruptions"][0]["agreement_fs"]["value"] is None
        assert headless["alphas"][4]["anchoring"]["value"] is not None
        rows = list(csv.DictReader((here / "out" / "summary.csv").read_text().splitlines()))
        assert [row["model"] for row in rows] == list(MODELS)
        assert float(rows[0]["anchoring"]) == ten["anchoring"]["value"]
        assert rows[0]["fs_jpeg_q5_low"] != "" or ten["corruptions"][0]["fs"]["low"] is None
        table = pq.read_table(here / "out" / "records.parquet").to_pylist()
        assert {row["model"] for row in table} == set(MODELS)

    def test_the_same_numbers_as_the_single_commands(self, quick: None) -> None:
        (model,) = report("ten")["models"]

        def single(command: str) -> Any:
            found = invoke(command, "ten", *DIGITS, "--json", "-", "--runs", "other")
            return json.loads(found.stdout)["results"][0]

        curves = single("ssdc")
        for name in ("anchoring", "anchoring_by_grid", "delta_ssdc_rpi", "final", "peak", "layers"):
            assert model[name] == curves[name], name
        judged = single("fragility")
        assert (model["accuracy"], model["correct"]) == (judged["accuracy"], judged["correct"])
        for ours, theirs in zip(model["corruptions"], judged["corruptions"], strict=True):
            assert {key: ours[key] for key in theirs} == theirs

    def test_measure_narrows(self, quick: None, monkeypatch: pytest.MonkeyPatch) -> None:
        ran = passes_run(monkeypatch)
        (model,) = report("ten", "--measure", "ssdc")["models"]
        assert ran == [2]
        assert model["alphas"] == []
        assert model["accuracy"]["reason"] == "not measured"
        assert model["corruptions"][0]["agreement_fs"]["reason"] == "not measured"
        (model,) = report("ten", "--measure", "agreement")["models"]
        assert ran == [2, 4]
        assert model["anchoring"]["reason"] == "not measured"
        assert model["layers"] == model["maps"] == model["alphas"] == []
        assert model["corruptions"][2]["agreement_fs"]["value"] is not None

    def test_images_without_labels_give_agreement(self, here: Path, quick: None) -> None:
        image_folder(here, {"pictures": 5})
        arguments = ["ten", "--zoo", "zoo.yaml", "--random-init", "--image-size", "32"]
        found = invoke("report", *arguments, "--data", "pictures", "--out", "out")
        assert found.exit_code == 0, found.stderr
        (model,) = json.loads((here / "out/report.json").read_text())["models"]
        assert "has no labels" in model["accuracy"]["reason"]
        assert "has no labels" in model["corruptions"][0]["fs"]["reason"]
        assert model["corruptions"][0]["agreement_fs"]["value"] is not None
        assert model["labelled"] is None

    def test_protocol_paper(self, quick: None) -> None:
        found = report("ten", "--protocol", "paper", "--batch-size", "5", "--rpi-draws", "2")
        assert found["protocol"] == "paper"
        (model,) = found["models"]
        assert [c["column"] for c in model["corruptions"]] == SHIFTS[:2]
        assert found["settings"]["rpi"] == [
            f"rpi(mode=batch,seed=0,draw={draw})" for draw in (0, 1)
        ]
        assert model["settings"]["preprocess"]["source"] == "protocol paper"
        assert model["settings"]["batch_size"] == 5

    def test_against_published_and_hardware(self, here: Path) -> None:
        (model,) = report("ten", "--against", "published", "--hardware")["models"]
        assert model["published"] == []  # nobody has published this one
        hardware = json.loads((here / "out/hardware.json").read_text())
        one = hardware["models"]["ten"]
        assert one["images_per_second"] > 0
        assert (one["batch"], one["dtype"], one["device"]) == (32, "float32", "cpu")
        assert one["peak_memory_bytes"] is None
        assert hardware["machine"]["cores"] == os.cpu_count()

    def test_no_folder_of_this_machine_is_written(self, here: Path) -> None:
        pictures = image_folder(here, {"a": 3, "b": 3})
        lines = [
            "schema: 1",
            "models:",
            "  gone: {source: 'file:missing.pth', arch: test_vit}",
            "  ten: {source: 'timm:test_vit', options: {depth: 3, num_classes: 10}}",
        ]
        (here / "own.yaml").write_text("\n".join(lines))
        found = invoke(
            "report", "ten", "gone", "--zoo", str(here / "own.yaml"), "--data", str(pictures),
            "--image-size", "32", "--random-init", "--out", str(here / "out"), "--runs", "runs",
        )  # fmt: skip
        assert found.exit_code in (0, 1), found.stderr
        for name, content in contents("out").items():
            assert str(here).encode() not in content, name


class TestReuse:
    def test_a_second_run_changes_nothing(
        self, here: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        ran = passes_run(monkeypatch)
        report(*MODELS)
        first, times = contents("out"), (here / "out/index.html").stat().st_mtime_ns
        assert len(ran) == 3
        report(*MODELS)
        assert len(ran) == 3
        assert contents("out") == first
        assert (here / "out/index.html").stat().st_mtime_ns == times
        (here / "out/summary.csv").write_text("edited")
        report(*MODELS)
        assert contents("out") == first
        report(*MODELS, out="elsewhere")
        assert contents("elsewhere") == first
        assert len(ran) == 3

    def test_the_second_run_imports_no_torch(self, here: Path) -> None:
        report("ten", "headless")
        code = (
            "import atexit, sys\n"
            "atexit.register(lambda: print(*sorted({'torch', 'timm', 'transformers', 'datasets'}"
            " & set(sys.modules)), 'end', file=sys.stderr))\n"
            "from probe.cli.app import main\nmain()"
        )
        (here / "watched.py").write_text(code)
        import subprocess
        import sys

        root = Path(report_files.__file__).parents[2]
        for out in ("out", "new"):
            done = subprocess.run(
                [sys.executable, "watched.py", "report", "ten", "headless", *DIGITS, "--out", out],
                env=os.environ | {"PYTHONPATH": str(root)},
                capture_output=True, text=True, check=False,
            )  # fmt: skip
            assert done.returncode == 0, done.stderr
            assert done.stderr.splitlines()[-1] == "end"

    def test_a_new_model_runs_alone(self, quick: None, monkeypatch: pytest.MonkeyPatch) -> None:
        ran = passes_run(monkeypatch)
        report("ten")
        found = report("ten", "headless")
        assert len(ran) == 2
        assert [m["model"] for m in found["models"]] == ["ten", "headless"]
        report("ten", "headless", "--fresh")
        assert len(ran) == 4

    def test_passes_of_other_commands_are_reused(
        self, quick: None, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        assert invoke("ssdc", "ten", *DIGITS).exit_code == 0
        ran = passes_run(monkeypatch)
        report("ten", "--measure", "ssdc")
        assert ran == []

    def test_a_truncated_record_is_named_and_run_again(
        self, here: Path, quick: None, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        first = report("ten")
        (path,) = (here / "runs/passes").glob("*/clean-*.json")
        path.write_bytes(path.read_bytes()[:-50])
        ran = passes_run(monkeypatch)
        found = invoke("report", "ten", *DIGITS, "--out", "out")
        assert found.exit_code == 0
        assert f"{path.relative_to(here / 'runs')} is no whole record; set aside" in found.stderr
        assert ran == [1]
        assert json.loads((here / "out/report.json").read_text()) == first
        assert path.with_suffix(".broken").is_file()

    def test_render_only(self, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        report("ten", "headless")
        first = contents("out")
        monkeypatch.setattr(engine, "run_passes", None)
        found = invoke("report", "--render-only", "runs", "--out", "again")
        assert found.exit_code == 0, found.stderr
        assert contents("again") == first
        assert found.stderr == ""

    def test_render_only_takes_the_newest_and_says_so(self, here: Path, quick: None) -> None:
        report("ten", out="one")
        report("headless", out="two")
        found = invoke("report", "--render-only", "runs", "--out", "again")
        assert "rendering 'two', the newest of 2 reports in runs" in found.stderr
        found = invoke("report", "--render-only", "runs", "--out", "again", "--name", "one")
        assert found.stderr == ""
        assert json.loads((here / "again/report.json").read_text())["title"] == "ten"
        line = refused(2, "--render-only", "runs", "--name", "ones")
        assert line == "runs holds no report 'ones' (it has: one, two). Did you mean one?"

    def test_copying_merges_runs_folders(self, here: Path, quick: None) -> None:
        import shutil

        whole = report("ten", "headless", out="whole")
        for number, model in enumerate(("ten", "headless")):
            found = invoke("report", model, *DIGITS, "--out", "x", "--runs", f"part{number}")
            assert found.exit_code == 0
            shutil.copytree(here / f"part{number}", here / "merged", dirs_exist_ok=True)
        found = invoke("report", "ten", "headless", *DIGITS, "--out", "y", "--runs", "merged")
        assert found.exit_code == 0
        assert json.loads((here / "y/report.json").read_text()) == whole

    def test_shards_run_and_the_whole_renders(
        self, here: Path, quick: None, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        models = ("ten", "headless", "unplaced")
        for shard in ("1/2", "2/2"):
            found = invoke("report", *models, *DIGITS, "--shard", shard, "--out", "out")
            assert found.exit_code == 0, found.stderr
            assert not (here / "out").exists()
        ran = passes_run(monkeypatch)
        assert len(report(*models)["models"]) == 3
        assert ran == []
        assert "--shard takes I/N" in refused(2, *models, *DIGITS, "--shard", "3/2")
        assert "has no model, since only 3 are chosen" in refused(
            2, *models, *DIGITS, "--shard", "4/4"
        )


class TestPlan:
    def test_dry_run(self, here: Path, quick: None) -> None:
        found = invoke("report", *MODELS, *DIGITS, "--dry-run")
        assert found.exit_code == 0, found.stderr
        assert "up to 17" in found.stdout
        assert "3 models were never loaded with these settings" in found.stdout
        assert not (here / "runs" / "passes").exists()
        report(*MODELS)
        for path in (here / "runs/passes").glob("*/alpha=0.5*.json"):
            path.unlink()
        found = invoke("report", *MODELS, *DIGITS, "--dry-run")
        rows = {line.split()[0]: line.split() for line in found.stdout.splitlines() if line.strip()}
        assert rows["ten"][1:4] == ["17", "15", "2"]
        assert rows["unplaced"][1:4] == ["5", "5", "0"]
        assert rows["headless"][1:4] == ["6", "6", "0"]
        assert "2 passes to run over 12 images each" in found.stdout


class TestFailures:
    def test_a_failure_is_a_row(self, here: Path) -> None:
        """Alone, it leaves nothing to draw."""
        (here / "broken.pth").write_bytes(b"no weights")
        zoo = (here / "zoo.yaml").read_text()
        (here / "zoo.yaml").write_text(
            zoo + "  broken: {source: 'file:broken.pth', arch: test_vit}\n"
        )
        report("ten")
        weights = [a for a in DIGITS if a != "--random-init"]
        found = invoke("report", "broken", *weights, "--out", "out")
        assert found.exit_code == 1
        message = "'broken.pth' is no plain state dict"
        assert found.stderr.startswith(f"probe: broken: {message}")
        only = json.loads((here / "out/report.json").read_text())
        assert only["models"] == []
        assert only["failures"][0]["model"] == "broken"
        assert only["failures"][0]["error"].startswith(message)
        names = {path.name for path in (here / "out").rglob("*") if path.is_file()}
        assert names == {"report.json", "hardware.json"}

    def test_the_others_go_on(self, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        original = engine.run_passes

        def fails_once(model: Any, *rest: Any, **options: Any) -> list[PassRecord]:
            if model.spec.name == "ten":
                raise RuntimeError(f"it broke in {here}/somewhere\nsecond line")
            return original(model, *rest, **options)

        monkeypatch.setattr(engine, "run_passes", fails_once)
        found = report("ten", "headless", code=1)
        assert [m["model"] for m in found["models"]] == ["headless"]
        error = (
            "unexpected RuntimeError: it broke in somewhere; the traceback is in "
            "failures/ten.txt of the runs folder"
        )
        assert found["failures"] == [{"model": "ten", "error": error}]
        assert "fails_once" in (here / "runs/failures/ten.txt").read_text()
        rows = list(csv.DictReader((here / "out/summary.csv").read_text().splitlines()))
        assert {row["model"]: row["error"] for row in rows} == {"headless": "", "ten": error}
        monkeypatch.setattr(engine, "run_passes", original)
        assert report("ten", "headless")["failures"] == []

    def test_no_space_left(self, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        replace = os.replace

        def full(old: Any, new: Any) -> None:
            if "passes" in str(new):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            replace(old, new)

        monkeypatch.setattr(store.os, "replace", full)
        line = refused(1, "ten", "headless", *DIGITS)
        assert "No space left on device; choose another folder or free space" in line
        assert list((here / "runs/passes").rglob("*.json")) == []


class TestRefusals:
    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ([], "name models, or choose some with --suite, --tag, --group or --zoo FILE"),
            (["--suite", "digit"], "no suite 'digit' in the zoo."),
            (["--tag", "smal"], "no model has the tag 'smal'. Did you mean small"),
            (["--group", "deit_in1"], "no model has the group 'deit_in1'. Did you mean deit_in1k"),
            (["--tag", "dinov2", "--group", "deit_in1k"], "no model"),
            (["ten", "--suite", "overview", "--zoo", "zoo.yaml"], "not both"),
            (["ten", "ten", "--zoo", "zoo.yaml"], "ten is named more than once"),
            (["ten", "--zoo", "zoo.yaml", "--measure", "sdc"], "Did you mean ssdc?"),
            (["--zoo", "empty.yaml"], "empty.yaml has no models"),
            (["ten", "--render-only", "runs"], "--render-only renders a stored report whole"),
            (["--render-only", "runs"], "runs is no runs folder of probe"),
            (["ten", "--zoo", "zoo.yaml", "--rpi-draws", "0"], "--rpi-draws must be at least 1"),
        ],
    )
    def test_wrong_requests(self, here: Path, arguments: list[str], message: str) -> None:
        (here / "empty.yaml").write_text("schema: 1\nmodels: {}\n")
        assert message in refused(2, *arguments)
        assert not (here / "runs").exists()

    def test_one_table_needs_one_data_set(self, here: Path) -> None:
        text = (here / "zoo.yaml").read_text()
        text = text.replace("num_classes: 10}}", "num_classes: 10}, data: digits}", 1)
        (here / "zoo.yaml").write_text(text)
        assert refused(2, "ten", "other", "--zoo", "zoo.yaml") == (
            "one table needs one data set, but ten is measured on digits and other on photos; "
            "choose one with --data"
        )

    def test_a_folder_that_is_not_ours(self, here: Path) -> None:
        (here / "mine").mkdir()
        (here / "mine" / "thesis.tex").write_text("years of work")
        line = refused(1, "ten", *DIGITS, "--runs", "mine")
        assert line == (
            "mine is no runs folder of probe: it holds 'thesis.tex'; choose another --runs folder"
        )
        assert os.listdir(here / "mine") == ["thesis.tex"]

    def test_a_record_of_a_newer_probe(self, here: Path, quick: None) -> None:
        report("ten")
        (path,) = (here / "runs/passes").glob("*/clean-*.json")
        path.write_text(path.read_text().replace('"version": 3', '"version": 4'))
        line = refused(1, "ten", *DIGITS, "--out", "new")
        assert "has version 4, and this probe reads up to 3" in line
        assert path.is_file()

    def test_help_is_light(self) -> None:
        done = subprocess_probe("report", "--help")
        assert done.returncode == 0
        assert "--render-only" in done.stdout
