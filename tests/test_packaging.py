"""What the distribution says of itself, what the wheel carries, and that the pins fit."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (file,) = folder.glob("*.whl")
    return zipfile.ZipFile(file)


def test_metadata() -> None:
    assert PROJECT["name"] == "vit-probe"
    assert PROJECT["requires-python"] == ">=3.11"
    assert PROJECT["license"] == "MIT"
    assert PROJECT["scripts"] == {"probe": "probe.cli.app:main"}


def test_wheel_carries_both_packages_and_the_zoo(wheel: zipfile.ZipFile) -> None:
    names = wheel.namelist()
    assert {name.split("/")[0] for name in names if "dist-info" not in name} == {"probe", "train"}
    for name in (
        "probe/types.py",
        "probe/cli/zoo.py",
        "probe/coverage/timm.yaml",
        "probe/coverage/transformers.yaml",
        "probe/report/web/page.html",
        "probe/report/web/vendor/chart.umd.min.js",
        "probe/report/web/vendor/chart.LICENSE.md",
        "probe/weights/digits/ape-s0/model.safetensors",
        "train/loop.py",
        "train/recipes/digits/ape.yaml",
        "train/classes/imagenet100-cmc.txt",
    ):
        assert name in names
    assert wheel.read("probe/zoo.yaml") == (ROOT / "zoo.yaml").read_bytes()


def test_the_zoo_works_from_an_unpacked_wheel(wheel: zipfile.ZipFile, tmp_path: Path) -> None:
    wheel.extractall(tmp_path)
    code = "import probe.zoo as z; print(z.__file__, z.load_zoo()['deit_small'].source)"
    done = subprocess.run(
        [sys.executable, "-P", "-c", code],
        env={"PYTHONPATH": str(tmp_path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == [
        str(tmp_path / "probe/zoo.py"),
        "timm:deit_small_patch16_224.fb_in1k",
    ]


def test_constraints_pin_every_direct_dependency() -> None:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = {}
    for line in lines:
        if line and not line.startswith("#"):
            name, version = line.split("==")
            assert canonical(name) not in pins, f"{name} is pinned twice"
            pins[canonical(name)] = Version(version)
    extras = PROJECT["optional-dependencies"]
    texts = [*PROJECT["dependencies"], *extras["test"], *extras["lint"]]
    for requirement in map(Requirement, texts):
        pinned = pins[canonical(requirement.name)]
        assert pinned in requirement.specifier, f"{requirement} but {pinned} is pinned"
        assert str(requirement.specifier), f"{requirement.name} has no lower bound"
    assert extras["dev"] == ["vit-probe[test,lint]"]
    assert (str(pins["torch"]), str(pins["torchvision"])) == ("2.14.1", "0.29.1")


def test_a_python_that_is_too_old_is_named(tmp_path: Path) -> None:
    old = tmp_path / "python-old"
    old.write_text("#!/bin/sh\nexit 1\n")
    old.chmod(0o755)
    done = subprocess.run(
        ["make", "setup", f"PYTHON={old}", f"VENV={tmp_path / 'venv'}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert f"Python 3.11 or newer is needed and was not found as '{old}'" in done.stderr
    assert not (tmp_path / "venv").exists()
