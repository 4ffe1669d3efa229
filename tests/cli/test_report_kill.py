"""Killed at any moment, a report goes on and ends with the same bytes; two at once do no harm."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from probe.records import PassRecord
from probe.store import Store
from tests.cli.command import ROOT
from tests.cli.tiny_zoo import DIGITS, write_zoo

ARGUMENTS = ["report", "ten", "unplaced", *DIGITS, "--batch-size", "4"]
KILLS = 12
OUT = ["--out", "out/digits"]


def start(folder: Path, *arguments: str, script: bool = True) -> subprocess.Popen[str]:
    folder.mkdir(exist_ok=True)
    write_zoo(folder)
    first = [str(ROOT / "tests/cli/killed.py")] if script else ["-m", "probe"]
    return subprocess.Popen(
        [sys.executable, *first, *arguments],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ended(process: subprocess.Popen[str]) -> str:
    _, errors = process.communicate(timeout=850)
    assert process.returncode == 0, errors
    return errors


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != "hardware.json"
    }


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_killed_at_random_points(tmp_path: Path) -> None:
    errors = ended(start(tmp_path / "whole", "0", "0", "0", *ARGUMENTS, *OUT))
    took = float(errors.split("TOOK ")[1])
    whole = contents(tmp_path / "whole/out/digits")
    assert len(whole) > 10
    torn = tmp_path / "torn"
    ended(start(torn, f"{took}", f"{KILLS}", "1", *ARGUMENTS, *OUT))
    names = sorted(path.name for path in (tmp_path / "whole/runs/passes").rglob("*.json"))
    for out in torn.glob("out*"):
        assert contents(out / "digits") == whole, out.name
    for runs in torn.glob("runs*"):
        assert sorted(path.name for path in (runs / "passes").rglob("*.json")) == names
        assert list(runs.rglob("*.broken")) == []


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_two_reports_at_once(tmp_path: Path) -> None:
    arguments = [*ARGUMENTS, "--measure", "ssdc"]
    both = [start(tmp_path / "here", *arguments, "--out", out, script=False) for out in ("a", "b")]
    for one in both:
        ended(one)
    assert contents(tmp_path / "here/a") == contents(tmp_path / "here/b")
    store = Store(tmp_path / "here/runs")
    found = list((store.root / "passes").rglob("*.json"))
    assert len(found) == 4
    for path in found:
        record = PassRecord.from_json(path.read_bytes())
        assert store.path(record.model, record.condition, record.key) == path
    assert list(store.root.rglob("*.new")) == []
    assert list(store.root.rglob("*.broken")) == []
