"""What `probe ssdc` writes: its files and the screen, and what it does where it cannot."""

from __future__ import annotations

import csv
import errno
import io
import json
import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.cli.command import (
    FILES,
    TINY,
    as_json,
    files,
    passes_run,
    probe,
    refused,
    subprocess_probe,
)


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


def test_a_run_that_fails_leaves_no_file_of_another(here: Path) -> None:
    assert probe(*TINY, "--limit", "3", "--out", "out").exit_code == 0
    assert files(here / "out") == FILES
    (here / "out" / "notes.txt").write_text("mine")
    message = refused(1, "timm:test_efficientnet", *TINY[1:], "--limit", "3", "--out", "out")
    assert message.startswith("timm:test_efficientnet: no family reads the architecture ")
    assert files(here / "out") == ["notes.txt", "ssdc.json"]
    envelope = json.loads((here / "out" / "ssdc.json").read_text())
    assert envelope["results"] == []
    assert [failure["model"] for failure in envelope["failures"]] == ["timm:test_efficientnet"]


@pytest.mark.parametrize(
    ("path", "code", "message"),
    [
        ("folder", 2, "--json folder is a folder; name a file"),
        ("/proc/x/y.json", 1, "cannot write into /proc/x: No such file or directory; choose"),
        ("taken/x.json", 1, "cannot write into "),
        ("pipe", 2, "--json pipe is no regular file; - is standard output"),
    ],
)
def test_json_that_cannot_be_written_is_refused_before_anything_runs(
    here: Path, monkeypatch: pytest.MonkeyPatch, path: str, code: int, message: str
) -> None:
    ran = passes_run(monkeypatch)
    (here / "folder").mkdir()
    (here / "taken").write_text("mine")
    os.mkfifo(here / "pipe")
    assert refused(code, *TINY, "--limit", "3", "--json", path).startswith(message)
    assert ran == []
    assert files(here) == ["folder", "pipe", "taken"]
    assert files(here / "folder") == []
