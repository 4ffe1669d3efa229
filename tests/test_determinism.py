"""The same command gives the same bytes; batches and loader processes change no number."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.precision import MARGIN, Numbers, Way, compared, measure, table
from probe.data.open import open_data
from probe.data.source import IndexedSource
from tests.cli.command import invoke

ROOT = Path(__file__).resolve().parent.parent
LIMIT = 40
SHIPPED = ["digits_ape_s0", "digits_rope_s0", "digits_rpt_s0"]
COMMANDS = {
    "ssdc": ["ssdc", "digits_ape_s0", "--rpi-draws", "2", "--p-values"],
    "report": ["report", "digits_rope_s0"],
}


def content(path: Path) -> Any:
    """The content of a file without the number of loader processes, which is recorded.

    A report's manifest holds hashes of files with that number in them.
    """
    if path.suffix == ".html":
        return re.sub(r"(<dt>machine.workers</dt><dd>)\d+", r"\1", path.read_text())
    if path.suffix != ".json":
        return path.read_bytes()

    def stripped(value: Any) -> Any:
        if isinstance(value, list):
            return [stripped(one) for one in value]
        if isinstance(value, dict):
            hidden = ("workers", "inputs", "rendered")
            return {k: stripped(v) for k, v in value.items() if k not in hidden}
        return value

    return stripped(json.loads(path.read_text()))


def ran(folder: Path, command: str, workers: int, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The files of a command, relative to the folder that it runs in, but for measured times."""
    folder.mkdir()
    monkeypatch.chdir(folder)
    options = ["--limit", str(LIMIT), "--workers", str(workers), "--batch-size", "16"]
    done = invoke(*COMMANDS[command], "--runs", "runs", "--out", "out", *options)
    assert done.exit_code == 0, done.output
    found = (path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    return sorted(path for path in found if "hardware" not in str(path))


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
@pytest.mark.parametrize(("command", "workers"), [("ssdc", 0), ("ssdc", 4), ("report", 4)])
def test_the_same_command_gives_the_same_bytes(
    tmp_path: Path, command: str, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = ran(tmp_path / "a", command, 0, monkeypatch)
    again = ran(tmp_path / "b", command, workers, monkeypatch)
    assert {path.suffix for path in first} >= {".json", ".csv", ".png", ".svg"}
    assert again == first
    one, other = tmp_path / "a", tmp_path / "b"
    if workers == 0:
        assert [
            path for path in first if (one / path).read_bytes() != (other / path).read_bytes()
        ] == []
    assert [path for path in first if content(one / path) != content(other / path)] == []


@pytest.mark.parametrize("name", SHIPPED)
def test_batches_of_one_and_of_64_give_the_same_numbers(name: str) -> None:
    source = open_data("digits", limit=LIMIT)
    assert isinstance(source, IndexedSource)
    row = compared(*(measure(name, source, Way(batch_size=size), {}) for size in (64, 1)))
    assert row["ssdc"] <= 1e-6
    assert row["anchoring"] <= 1e-6
    assert row["predictions"] == LIMIT
    assert row["differ_beyond_margin"] == 0
    assert row["differ"] <= row["within_margin"]


def test_predictions_within_the_margin_are_counted_apart() -> None:
    margins = np.array([1.0, MARGIN / 2, MARGIN / 2, MARGIN])
    base = Numbers(np.zeros((2, 3)), 0.5, np.array([0, 1, 2, 3]), margins)
    other = Numbers(np.full((2, 3), -0.25), 0.75, np.array([9, 9, 2, 9]), margins)
    assert compared(base, other) == {
        "ssdc": 0.25, "anchoring": 0.25, "predictions": 4, "differ": 3, "differ_beyond_margin": 2,
        "within_margin": 2,
    }  # fmt: skip
    assert compared(base, base)["differ"] == 0


def test_a_coarser_precision_is_seen() -> None:
    """So that the tests above can fail."""
    source = open_data("digits", limit=LIMIT)
    assert isinstance(source, IndexedSource)
    ways = (Way(), Way(dtype="bfloat16"))
    row = compared(*(measure("digits_ape_s0", source, way, {}) for way in ways))
    assert 1e-6 < row["ssdc"] < 5e-3


def test_the_page_states_what_was_measured() -> None:
    """The table is the record's, and batches of one image moved nothing by more than is said."""
    record = json.loads((ROOT / "benchmarks" / "results" / "precision.json").read_text())
    assert table(record["models"]) in (ROOT / "docs" / "determinism.md").read_text()
    for one in record["models"].values():
        for row in one["rows"]:
            assert row.get("differ_beyond_margin", 0) == row.get("differ", 0)
            assert row["ssdc"] < (1e-6 if "of 1," in row["way"] else 2e-3)
