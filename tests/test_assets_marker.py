"""A missing assets folder skips tests on a laptop and fails them in CI."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

CASES = """
import pytest

def test_fixture(assets):
    assert (assets / "here").exists()

@pytest.mark.assets
def test_mark():
    pytest.skip("no weights")

def test_other():
    pytest.skip("not about assets")
"""
INI = "[pytest]\nmarkers =\n    assets: real weights\n"


def run(folder: Path, **env: str) -> tuple[int, str]:
    shutil.copy(Path(__file__).with_name("conftest.py"), folder / "conftest.py")
    (folder / "test_cases.py").write_text(CASES)
    (folder / "pytest.ini").write_text(INI)
    clean = {key: value for key, value in os.environ.items() if not key.startswith("PROBE_")}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(folder)],
        cwd=folder,
        env=clean | env,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout


def test_unset_skips(tmp_path: Path) -> None:
    code, out = run(tmp_path)
    assert code == 0
    assert out.splitlines()[-1].startswith("3 skipped")


def test_required_and_missing_fails(tmp_path: Path) -> None:
    code, out = run(tmp_path, PROBE_REQUIRE_ASSETS="1")
    assert code == 1
    assert out.splitlines()[-1].startswith("1 failed, 1 skipped, 1 error")
    assert "skipped although PROBE_REQUIRE_ASSETS is 1" in out
    assert "PROBE_TEST_ASSETS is not set" in out
    assert "no weights" in out


@pytest.mark.parametrize("exists", [True, False])
def test_named_folder(tmp_path: Path, exists: bool) -> None:
    folder = tmp_path / "assets"
    if exists:
        folder.mkdir()
        (folder / "here").touch()
    _, out = run(tmp_path, PROBE_TEST_ASSETS=str(folder))
    assert ("1 passed, 2 skipped" in out) == exists
    assert ("which is no folder" in out) != exists
