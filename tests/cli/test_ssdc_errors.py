"""How `probe ssdc` refuses and fails: one line that says what to do, and the right exit code."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from probe import engine
from tests.cli.command import FILES, ROOT, TINY, as_json, files, probe, refused


def test_one_broken_model_does_not_end_the_others(here: Path) -> None:
    models = ["timm:test_efficientnet", "timm:test_vit", "timm:test_vit3"]
    command = [*models, *TINY[1:], "--limit", "3", "--out", "out"]
    envelope = as_json(*command, code=1)
    assert [result["model"] for result in envelope["results"]] == models[1:]
    ((name, message),) = [(f["model"], f["error"]) for f in envelope["failures"]]
    assert name == "timm:test_efficientnet"
    assert message.startswith(
        "no family reads the architecture timm.models.efficientnet.EfficientNet; "
    )
    found = probe(*command)
    assert found.exit_code == 1
    assert found.stderr == f"probe: timm:test_efficientnet: {message}\n"
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
        ([*TINY, "--rpi-draws", "0"], "--rpi-draws must be at least 1, got 0"),
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


def test_a_network_without_a_grid_that_is_read() -> None:
    message = refused(1, "timm:test_efficientnet", *TINY[1:], "--limit", "3")
    assert message.startswith(
        "timm:test_efficientnet: no family reads the architecture "
        "timm.models.efficientnet.EfficientNet; it may have no token "
        "grid (of convolutional networks, ResNet and ConvNeXt are baselines)"
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
