"""`probe ssdc` as a user meets it: what it prints, what it writes, how it refuses."""

from __future__ import annotations

import csv
import errno
import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner, Result

from probe import engine
from probe.cli.app import app

ROOT = Path(__file__).resolve().parents[2]
TINY = ["timm:test_vit", "--random-init", "--image-size", "64", "--data", "digits"]
FILES = ["layers.csv", "ssdc.json", "ssdc.png", "ssdc.svg", "summary.csv"]
SCALAR = {"value", "low", "high", "reason"}


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Commands write below the working folder, which is a new one for each test."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def probe(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["ssdc", *arguments])


def as_json(*arguments: str, code: int = 0) -> Any:
    """The envelope that `--json -` prints, which is all it prints."""
    found = probe(*arguments, "--json", "-")
    assert found.exit_code == code, found.stderr
    return json.loads(found.stdout)


def refused(code: int, *arguments: str) -> str:
    """The one line that a command ends with; nothing else is printed."""
    found = probe(*arguments)
    assert found.exit_code == code, found.output
    assert found.stdout == ""
    assert found.stderr.startswith("probe: ")
    assert found.stderr.count("\n") == 1
    assert "Traceback" not in found.stderr
    return found.stderr.removeprefix("probe: ").rstrip("\n")


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def subprocess_probe(*arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "probe", *arguments],
        env=os.environ | {"PYTHONPATH": str(ROOT)} | env,
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_json_has_the_promised_keys() -> None:
    envelope = as_json(*TINY, "--limit", "6")
    assert set(envelope) == {"schema", "results", "failures"}
    assert (envelope["schema"], envelope["failures"]) == (1, [])
    (result,) = envelope["results"]
    assert set(result) >= {
        "model", "resolved", "family", "images", "settings", "layers", "delta_ssdc_rpi",
        "anchoring", "anchoring_by_grid", "final", "peak",
    }  # fmt: skip
    assert result["model"] == "timm:test_vit"
    assert result["resolved"] == "timm:test_vit.r160_in1k"
    assert (result["family"], result["images"], len(result["layers"])) == ("timm_vit", 6, 6)
    for number, layer in enumerate(result["layers"]):
        assert set(layer) == {"layer", "grid", "clean", "rpi", "ratio"}
        assert (layer["layer"], layer["grid"]) == (number, [4, 4])
        assert set(layer["ratio"]) == SCALAR
        for condition in ("clean", "rpi"):
            point = layer[condition]
            assert set(point) == SCALAR | {"null_low", "null_high"}
            assert point["low"] <= point["value"] <= point["high"]
            assert -1 <= point["null_low"] < 0 < point["null_high"] <= 1
            assert point["reason"] is None
    for name in ("delta_ssdc_rpi", "anchoring", "final"):
        assert set(result[name]) == SCALAR
        assert result[name]["low"] <= result[name]["value"] <= result[name]["high"]
    curve = [layer["rpi"]["value"] for layer in result["layers"]]
    assert result["delta_ssdc_rpi"]["value"] == pytest.approx(curve[1] - curve[0])
    assert result["anchoring"]["value"] == pytest.approx(np.mean(curve))
    assert result["final"]["value"] == curve[-1]
    assert result["peak"]["value"] == max(curve)
    assert result["peak"]["layer"] == int(np.argmax(curve))
    (by_grid,) = result["anchoring_by_grid"]
    assert set(by_grid) == SCALAR | {"grid"}
    assert {k: by_grid[k] for k in SCALAR} == result["anchoring"]


def test_every_setting_is_recorded() -> None:
    (result,) = as_json(*TINY, "--limit", "5", "--seed", "3", "--distance", "l2")["results"]
    settings = result["settings"]
    assert set(settings) == {
        "resolved", "revision", "weights", "family", "options", "image_size", "preprocess", "data",
        "site", "distance", "average", "seed", "dtype", "device", "interval", "versions", "rpi",
        "machine", "alpha", "corruption", "groups", "configuration",
    }  # fmt: skip
    assert (settings["alpha"], settings["corruption"], settings["groups"]) == (1.0, None, 5)
    assert settings["configuration"].startswith("sha256:")
    assert settings["weights"] == "random:3"
    assert settings["image_size"] == settings["preprocess"]["size"] == [64, 64]
    assert settings["data"]["name"] == "digits"
    assert settings["data"]["taken"] == 5
    assert settings["data"]["fingerprint"].startswith("blake2b:")
    assert (settings["site"], settings["distance"]) == ("attn_in", "l2")
    assert (settings["average"], settings["seed"]) == ("similarity", 3)
    assert (settings["dtype"], settings["rpi"]) == ("float32", ["rpi(mode=image,seed=3,draw=0)"])
    assert settings["machine"] == {"batch_size": 32, "workers": 0}
    assert settings["interval"] == (
        "95 %, delete-a-group jackknife over images, group = position mod 5"
    )
    assert set(settings["versions"]) >= {"probe", "torch", "timm", "transformers", "numpy"}


def test_files_and_the_screen(here: Path) -> None:
    found = probe(*TINY, "--limit", "4", "--out", "new/out", "--json", "copy/x.json")
    assert (found.exit_code, found.stderr) == (0, "")
    out = here / "new" / "out"
    assert files(out) == FILES
    assert found.stdout.startswith("timm:test_vit · timm:test_vit.r160_in1k (random:0 weights)\n")
    assert found.stdout.splitlines()[-1].startswith("Written to new/out")
    for title in ("SSDC clean", "SSDC under RPI", "delta SSDC", "anchoring", "peak"):
        assert title in found.stdout
    envelope = json.loads((out / "ssdc.json").read_text())
    assert (here / "copy" / "x.json").read_bytes() == (out / "ssdc.json").read_bytes()
    rows = list(csv.DictReader(io.StringIO((out / "layers.csv").read_text())))
    assert len(rows) == 12
    layers = envelope["results"][0]["layers"]
    for row in rows:
        point = layers[int(row["layer"])][row["condition"]]
        assert float(row["value"]) == point["value"]
    (summary,) = csv.DictReader(io.StringIO((out / "summary.csv").read_text()))
    assert float(summary["anchoring"]) == envelope["results"][0]["anchoring"]["value"]
    with Image.open(out / "ssdc.png") as image:
        assert image.format == "PNG"
    assert "<svg" in (out / "ssdc.svg").read_text()


def test_the_default_folder_lies_under_runs(here: Path) -> None:
    assert probe(*TINY, "--limit", "3").exit_code == 0
    assert files(here) == ["runs"]
    assert files(here / "runs" / "ssdc" / "timm-test_vit") == FILES
    assert probe(*TINY, "--limit", "3", "--runs", "kept").exit_code == 0
    assert files(here / "kept" / "ssdc" / "timm-test_vit") == FILES


def test_stored_passes_are_reused(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[int] = []
    original = engine.run_passes

    def watched(model: Any, source: Any, passes: Any, *rest: Any, **options: Any) -> Any:
        ran.append(len(passes))
        return original(model, source, passes, *rest, **options)

    monkeypatch.setattr(engine, "run_passes", watched)
    command = [*TINY, "--limit", "4", "--out", "out"]
    assert probe(*command).exit_code == 0
    first = {name: (here / "out" / name).read_bytes() for name in FILES}
    assert ran == [2]
    assert probe(*command).exit_code == 0
    assert ran == [2]
    assert probe(*command, "--batch-size", "1").exit_code == 0
    assert ran == [2]
    assert {name: (here / "out" / name).read_bytes() for name in FILES} == first
    assert probe(*command, "--rpi-draws", "2").exit_code == 0
    assert ran == [2, 1]
    assert probe(*command, "--limit", "3").exit_code == 0
    assert ran == [2, 1, 2]
    assert probe(*command, "--fresh").exit_code == 0
    assert ran == [2, 1, 2, 2]
    assert {name: (here / "out" / name).read_bytes() for name in FILES} == first


def test_rpi_off() -> None:
    (result,) = as_json(*TINY, "--limit", "4", "--rpi", "off")["results"]
    for layer in result["layers"]:
        assert layer["clean"]["value"] is not None
        assert (layer["rpi"]["value"], layer["rpi"]["reason"]) == (None, "RPI is off")
    assert result["anchoring"] == {"value": None, "low": None, "high": None, "reason": "RPI is off"}
    assert result["settings"]["rpi"] == []
    found = probe(*TINY, "--limit", "4", "--rpi", "off")
    assert found.exit_code == 0
    assert "SSDC clean" in found.stdout


def test_draws_are_averaged() -> None:
    def curve(*arguments: str) -> list[float]:
        (result,) = as_json(*TINY, "--limit", "4", *arguments)["results"]
        return [layer["rpi"]["value"] for layer in result["layers"]]

    one = curve()
    (three,) = as_json(*TINY, "--limit", "4", "--rpi-draws", "3")["results"]
    assert three["settings"]["rpi"] == [f"rpi(mode=image,seed=0,draw={d})" for d in range(3)]
    assert all(sd > 0 for sd in three["rpi_draw_sd"])
    values = [layer["rpi"]["value"] for layer in three["layers"]]
    assert values != pytest.approx(one, abs=1e-3)
    assert curve("--rpi", "shared") != pytest.approx(one, abs=1e-3)


def test_protocol_paper() -> None:
    (result,) = as_json(*TINY, "--limit", "6", "--protocol", "paper", "--batch-size", "4")[
        "results"
    ]
    settings = result["settings"]
    assert settings["rpi"] == ["rpi(mode=batch,seed=0,draw=0)"]
    assert settings["machine"]["batch_size"] == 4
    preprocess = settings["preprocess"]
    assert preprocess["resize"] == ["squash", [64, 64]]
    assert (preprocess["crop"], preprocess["interpolation"]) == (None, "bilinear")
    assert preprocess["source"] == "protocol paper"
    message = refused(2, *TINY, "--protocol", "paper", "--rpi", "off")
    assert message == "--protocol paper shuffles once per batch; leave out --rpi"


def test_p_values() -> None:
    (result,) = as_json(*TINY, "--limit", "4", "--p-values")["results"]
    for layer in result["layers"]:
        for condition in ("clean", "rpi"):
            assert 1 / 1000 <= layer[condition]["p"] <= 1


def test_other_sites_and_sizes() -> None:
    (result,) = as_json(
        "timm:test_vit", "--random-init", "--data", "digits", "--limit", "3",
        "--image-size", "64x96", "--site", "block_out", "--average", "image",
        "--dtype", "bfloat16", "--preprocess", "half",
    )["results"]  # fmt: skip
    assert [layer["grid"] for layer in result["layers"]] == [[4, 6]] * 6
    assert (
        result["delta_ssdc_rpi"]["reason"] == "delta SSDC is defined at attn_in, not at block_out"
    )
    assert result["settings"]["dtype"] == "bfloat16"
    assert result["settings"]["preprocess"]["source"] == "half"


def test_one_image_has_no_interval() -> None:
    (result,) = as_json(*TINY, "--limit", "1")["results"]
    assert result["images"] == 1
    for scalar in (result["anchoring"], result["layers"][0]["clean"]):
        assert scalar["value"] is not None
        assert (scalar["low"], scalar["reason"]) == (None, "no interval from one image")
    assert probe(*TINY, "--limit", "1").exit_code == 0


def test_photos_are_the_default() -> None:
    (result,) = as_json("timm:test_vit", "--random-init", "--image-size", "64", "--limit", "3")[
        "results"
    ]
    assert result["settings"]["data"]["name"] == "photos"
    assert result["settings"]["data"]["total"] >= 48
    assert result["images"] == 3


def test_one_broken_model_does_not_end_the_others(here: Path) -> None:
    models = ["timm:resnet18", "timm:test_vit", "timm:test_vit3"]
    command = [*models, *TINY[1:], "--limit", "3", "--out", "out"]
    envelope = as_json(*command, code=1)
    assert [result["model"] for result in envelope["results"]] == models[1:]
    ((name, message),) = [(f["model"], f["error"]) for f in envelope["failures"]]
    assert name == "timm:resnet18"
    assert message.startswith("no family reads the architecture timm.models.resnet.ResNet; ")
    found = probe(*command)
    assert found.exit_code == 1
    assert found.stderr == f"probe: timm:resnet18: {message}\n"
    assert "timm:test_vit3" in found.stdout
    assert json.loads((here / "out" / "ssdc.json").read_text()) == envelope
    assert files(here / "out") == FILES


def test_a_request_that_does_not_fit_one_of_several_is_its_failure() -> None:
    command = ["timm:test_vit", "timm:nosuch", *TINY[1:], "--limit", "3"]
    envelope = as_json(*command, code=1)
    assert [result["model"] for result in envelope["results"]] == ["timm:test_vit"]
    assert [failure["model"] for failure in envelope["failures"]] == ["timm:nosuch"]


def test_an_unexpected_error_is_a_failure_with_its_traceback_in_a_file(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError("deep inside\nsecond line")

    monkeypatch.setattr(engine, "run_passes", broken)
    message = refused(1, *TINY, "--limit", "3", "--out", "out")
    path = Path("out") / "failure-timm-test_vit.txt"
    assert message == (
        f"timm:test_vit: unexpected ZeroDivisionError: deep inside; the traceback is in {path}"
    )
    assert path.read_text().startswith("Traceback (most recent call last)")
    assert files(here / "out") == ["failure-timm-test_vit.txt", "ssdc.json"]


def test_a_lack_of_memory_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried")

    monkeypatch.setattr(engine, "run_passes", broken)
    message = refused(1, *TINY, "--limit", "3")
    assert message == "timm:test_vit: out of memory; choose a smaller --batch-size"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["deit_smal"], "unknown model 'deit_smal'. Did you mean deit_small, "),
        (["./nowhere.pth"], "unknown model './nowhere.pth'."),
        (["timm:test_vitt", "--random-init"], "timm has no model 'test_vitt'. Did you mean test_v"),
        (["deit_small", "deit_small"], "deit_small is named more than once"),
        (["deit_small", "--arch", "x"], "--arch names the architecture of a state-dict file"),
        ([*TINY, "--limit", "0"], "--limit must be at least 1, got 0"),
        ([*TINY, "--limit", "-3"], "--limit must be at least 1, got -3"),
        ([*TINY, "--image-size", "63"], "test_vit.r160_in1k cuts patches of 16 x 16 px, which do"),
        ([*TINY, "--image-size", "0"], "--image-size must be pixels, as 224 or 224x448; got '0'"),
        ([*TINY, "--image-size", "x"], "--image-size must be pixels, as 224 or 224x448; got 'x'"),
        ([*TINY, "--image-size", "6x"], "--image-size must be pixels, as 224 or 224x448; got '6x'"),
        ([*TINY, "--rpi-draws", "0"], "--rpi-draws must be at least 1, got 0; --rpi off leaves"),
        ([*TINY, "--batch-size", "0"], "--batch-size must be at least 1, got 0"),
        ([*TINY, "--workers", "-1"], "--workers must be 0 or more, got -1"),
        ([*TINY, "--seed", "-1"], "--seed must lie between 0 and 2**63 - 1, got -1"),
        ([*TINY, "--device", "zork"], "--device zork is not available here: "),
        ([*TINY, "--data", "zork"], "unknown data 'zork'. --data takes photos, digits, a folder"),
        ([*TINY, "--data", "digit"], "unknown data 'digit'. Did you mean digits?"),
        ([*TINY, "--data", "photos", "--split", "x"], "--split 'x': photos has no splits"),
        ([*TINY, "--preprocess", "imagnet"], "--preprocess 'imagnet' is neither imagenet, half"),
        ([*TINY, "--zoo", "none.yaml"], "cannot read the zoo file none.yaml: No such file"),
    ],
)
def test_usage_errors(here: Path, arguments: list[str], message: str) -> None:
    assert refused(2, *arguments).startswith(message)
    assert not list(here.rglob("*.json"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["timm:test_vit", "--bogus"], "No such option: --bogus"),
        (["timm:test_vit", "--rpi", "sideways"], "Invalid value for '--rpi'"),
        (["timm:test_vit", "--limit", "many"], "Invalid value for '--limit'"),
        ([], "Missing argument 'MODEL"),
    ],
)
def test_options_that_do_not_exist(arguments: list[str], message: str) -> None:
    found = probe(*arguments)
    assert found.exit_code == 2
    assert found.stdout == ""
    assert message in found.stderr


def test_a_network_without_a_grid_that_is_read() -> None:
    message = refused(1, "timm:resnet18", *TINY[1:], "--limit", "3")
    assert message.startswith(
        "timm:resnet18: no family reads the architecture timm.models.resnet.ResNet; "
        "it may have no token grid (convolutional networks have none yet)"
    )


def test_a_grid_of_one_token() -> None:
    message = refused(1, *TINY, "--image-size", "16")
    assert message == (
        "timm:test_vit.r160_in1k has a grid of one token at image size 16x16; "
        "choose a larger --image-size"
    )


def test_a_model_without_preprocessing(here: Path) -> None:
    import timm
    from safetensors.torch import save_file

    save_file(timm.create_model("test_vit").state_dict(), "weights.safetensors")
    command = ["weights.safetensors", "--arch", "test_vit", "--data", "digits", "--limit", "3"]
    message = refused(1, *command)
    assert message.startswith("weights.safetensors: file:")
    assert message.endswith(
        "carries no preprocessing; choose --preprocess imagenet, half or a FILE"
    )
    (result,) = as_json(*command, "--preprocess", "half")["results"]
    assert result["settings"]["preprocess"]["source"] == "half"
    assert result["settings"]["weights"].startswith("sha256:")


@pytest.mark.parametrize("hidden", [False, True])
def test_an_empty_folder(here: Path, hidden: bool) -> None:
    (here / "images").mkdir()
    if hidden:
        (here / "images" / ".git").mkdir()
    assert "images" in refused(1, *TINY, "--data", "images")
    assert files(here) == ["images"]


def test_a_file_in_the_way_of_out(here: Path) -> None:
    (here / "taken").write_text("mine")
    for option in ("--out", "--runs"):
        message = refused(1, *TINY, option, "taken")
        assert message.startswith("cannot write into taken")
        assert message.endswith("; choose another folder")
    assert (here / "taken").read_text() == "mine"


def test_a_folder_that_takes_no_file(here: Path) -> None:
    message = refused(1, *TINY, "--out", "/proc/none")
    assert message.startswith("cannot write into /proc/none: ")
    assert files(here) == []


def test_a_full_disk(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_handle: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    message = refused(1, *TINY, "--limit", "3", "--out", "out")
    assert message == (
        "cannot write out/ssdc.json: No space left on device; choose another folder or free space"
    )
    assert [path for path in here.rglob("*") if path.is_file()] == []


def test_an_interrupt_ends_with_one_line(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(engine, "run_passes", interrupt)
    message = refused(130, *TINY, "--limit", "3", "--out", "out")
    assert message == "interrupted; the same command without --fresh goes on from what is stored"
    assert files(here / "out") == []


# The real signal, sent to itself when the third batch is about to be run.
INTERRUPTED = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a background shell ignores it
from probe import engine
from probe.cli.app import main
original, calls = engine.normalise, []
def normalise(*args):
    calls.append(1)
    if len(calls) == 3:
        os.kill(os.getpid(), signal.SIGINT)
    return original(*args)
engine.normalise = normalise
main()
"""


def test_ctrl_c_saves_and_the_same_command_goes_on(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = [*TINY, "--limit", "8", "--batch-size", "2"]
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED, "ssdc", *command],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 130
    assert done.stdout == ""
    assert (
        done.stderr
        == "probe: interrupted; the same command without --fresh goes on from what is stored\n"
    )
    assert len(files(here / "runs" / "partial")) == 2
    ran: list[int] = []
    original = engine.normalise
    monkeypatch.setattr(
        engine, "normalise", lambda batch, *rest: ran.append(len(batch)) or original(batch, *rest)
    )
    resumed = as_json(*command)
    assert ran == [2, 2]
    ran.clear()
    assert as_json(*command, "--runs", "other") == resumed
    assert ran == [2, 2, 2, 2]


def test_standard_output_is_json_and_nothing_else(here: Path) -> None:
    """In a process of its own, on a terminal that knows ASCII only."""
    folder = here / "größe"
    folder.mkdir()
    for number in range(3):
        pixels = np.random.default_rng(number).integers(0, 256, (64, 64, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{number}é.png")
    command = [*TINY[:-1], "größe", "--json", "-"]
    done = subprocess_probe("ssdc", *command, PYTHONIOENCODING="ascii", PYTHONUTF8="0")
    assert (done.returncode, done.stderr) == (0, "")
    envelope = json.loads(done.stdout)
    assert envelope["results"][0]["settings"]["data"]["name"] == "größe"
    assert done.stdout.isascii()


def test_names_that_are_not_utf_8(here: Path) -> None:
    folder = os.fsencode(here / "images")
    os.mkdir(folder)
    for number in range(100):
        name = os.path.join(folder, b"%03d\xff.png" % number)
        with open(name, "wb") as file:
            if number == 50:
                file.write(b"torn")
            else:
                Image.new("RGB", (64, 64), (number, 2 * number, 255 - number)).save(file, "png")
                # One colour is no picture: add a corner.
                corner = Image.new("RGB", (64, 64), (number, 0, 0))
                corner.paste((255, 255, number), (0, 0, 20 + number % 40, 30))
                file.seek(0)
                corner.save(file, "png")
    (result,) = as_json(*TINY[:-1], "images", "--rpi", "off")["results"]
    assert result["images"] == 99
    assert result["skipped"][0][0] == "050\udcff.png"
    found = probe(*TINY[:-1], "images", "--rpi", "off", "--out", "out")
    assert found.exit_code == 0
    assert (here / "out" / "layers.csv").exists()


@pytest.mark.parametrize(("option", "code"), [(["--json"], 141), ([], 1)])  # rich's own is 1
def test_a_closed_pipe_is_no_error(option: list[str], code: int) -> None:
    child = subprocess.Popen(
        [sys.executable, "-m", "probe", "zoo", "list", *option],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert child.stdout is not None
    assert child.stderr is not None
    child.stdout.close()
    assert child.stderr.read() == b""
    child.stderr.close()
    assert child.wait() == code


@pytest.mark.parametrize("command", [["--help"], ["ssdc", "--help"], ["--version"]])
def test_help_imports_nothing_heavy(command: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "probe", *command],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert ("Usage: " in done.stdout) == ("--help" in command)
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "typer" in imported
    heavy = {"torch", "timm", "transformers", "datasets", "numpy", "scipy", "matplotlib", "PIL"}
    assert imported & heavy == set()
