"""The reports in `reports/`: rendered again from their records, they are the same bytes."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.cli.command import invoke

REPORTS = Path(__file__).resolve().parent.parent / "reports"


def test_there_are_published_reports() -> None:
    assert {path.name for path in REPORTS.iterdir() if path.is_dir()} >= {"digits"}


@pytest.mark.parametrize("name", sorted(p.name for p in REPORTS.iterdir() if p.is_dir()))
def test_it_is_rendered_again_to_the_same_bytes(name: str, tmp_path: Path) -> None:
    shutil.copytree(REPORTS / name / "runs", tmp_path / "runs")
    done = invoke("report", "--render-only", str(tmp_path / "runs"), "--out", str(tmp_path / "out"))
    assert done.exit_code == 0, done.stderr

    def files(folder: Path) -> dict[str, bytes]:
        inside = [path for path in folder.rglob("*") if path.is_file()]
        found = {str(path.relative_to(folder)): path.read_bytes() for path in inside}
        return {
            n: c for n, c in found.items() if n != "hardware.json" and not n.startswith("runs/")
        }

    published, again = files(REPORTS / name), files(tmp_path / "out")
    assert sorted(published) == sorted(again)
    assert [n for n in published if published[n] != again[n]] == []


@pytest.mark.parametrize("name", sorted(p.name for p in REPORTS.iterdir() if p.is_dir()))
def test_it_names_no_folder_of_a_machine(name: str) -> None:
    for path in (REPORTS / name).rglob("*"):
        if path.is_file() and path.suffix != ".png":
            text = path.read_bytes()
            assert not any(
                part in text for part in (b"/home/", b"/tmp/", str(REPORTS.parent).encode())
            ), path
