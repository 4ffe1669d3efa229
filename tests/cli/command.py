"""Running `probe` in this process or in one of its own, and what its answers must look like."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import IO, Any

import pytest
from typer.testing import CliRunner, Result

from probe import engine
from probe.cli.app import app

ROOT = Path(__file__).resolve().parents[2]
TINY = ["timm:test_vit", "--random-init", "--image-size", "64", "--data", "digits"]
FILES = ["layers.csv", "ssdc.json", "ssdc.png", "ssdc.svg", "summary.csv"]


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(app, arguments)


def probe(*arguments: str) -> Result:
    """`probe ssdc`."""
    return invoke("ssdc", *arguments)


def as_json(*arguments: str, code: int = 0) -> Any:
    """The envelope that `probe ssdc --json -` prints, which is all it prints."""
    found = probe(*arguments, "--json", "-")
    assert found.exit_code == code, found.stderr
    return json.loads(found.stdout)


def only_line(found: Result, code: int) -> str:
    """The one line that a command ends with; nothing else is printed."""
    assert found.exit_code == code, found.output
    assert found.stdout == ""
    assert found.stderr.startswith("probe: ")
    assert found.stderr.count("\n") == 1
    assert "Traceback" not in found.stderr
    return found.stderr.removeprefix("probe: ").rstrip("\n")


def refused(code: int, *arguments: str) -> str:
    """The one line that `probe ssdc` ends with."""
    return only_line(probe(*arguments), code)


def passes_run(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A list that gets the number of passes of every reading of the data."""
    ran: list[int] = []
    original = engine.run_passes

    def watched(model: Any, source: Any, passes: Any, *rest: Any, **options: Any) -> Any:
        ran.append(len(passes))
        return original(model, source, passes, *rest, **options)

    monkeypatch.setattr(engine, "run_passes", watched)
    return ran


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def subprocess_probe(
    *arguments: str, stdout: int | IO[Any] = subprocess.PIPE, **env: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "probe", *arguments],
        env=os.environ | {"PYTHONPATH": str(ROOT)} | env,
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
