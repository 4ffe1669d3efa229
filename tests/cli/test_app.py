"""What every command does alike: help, wrong options, an output that nobody takes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.command import ROOT, TINY, files, invoke, only_line, subprocess_probe


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--bogus", "No such option: --bogus; see probe --help"),
        ("bogus", "No such command 'bogus'; see probe --help"),
        ("ssdc", "Missing argument 'MODEL'; see probe ssdc --help"),
        ("ssdc timm:test_vit --bogus", "No such option: --bogus"),
        ("ssdc timm:test_vit --rpi sideways", "Invalid value for '--rpi': "),
        ("ssdc timm:test_vit --rpi none", "Invalid value for '--rpi': "),
        ("ssdc timm:test_vit --limit many", "Invalid value for '--limit': "),
        ("ssdc timm:test_vit --limit", "Option '--limit' requires "),
        ("scale", "Missing argument 'MODEL'; see probe scale --help"),
        ("fragility", "Missing argument 'MODEL'; see probe fragility --help"),
        ("fragility timm:test_vit --measure speed", "Invalid value for '--measure': "),
        ("readout timm:test_vit --bogus", "No such option: --bogus"),
        ("zoo bogus", "No such command 'bogus'; see probe zoo --help"),
        ("zoo show", "Missing argument 'NAME'; see probe zoo show --help"),
        ("zoo show deit_small --bogus", "No such option: --bogus"),
        ("zoo list deit_small", "Got unexpected extra argument(s) (deit_small); see"),
    ],
)
def test_a_wrong_option_is_one_line_that_names_the_help(arguments: str, message: str) -> None:
    words = arguments.split()
    line = only_line(invoke(*words), 2)
    assert line.startswith(message)
    command = words[: 2 if words[:2] in (["zoo", "show"], ["zoo", "list"]) else 1]
    known = [word for word in command if word not in ("bogus", "--bogus")]
    assert line.endswith(f"; see {' '.join(['probe', *known])} --help")


@pytest.mark.parametrize(
    ("arguments", "shown"), [([], ("ssdc", "fragility", "zoo")), (["zoo"], ("list", "show"))]
)
def test_a_group_alone_prints_its_help(arguments: list[str], shown: tuple[str, ...]) -> None:
    alone, asked = invoke(*arguments), invoke(*arguments, "--help")
    assert (alone.exit_code, asked.exit_code) == (2, 0)
    assert alone.stderr == asked.stderr == ""
    assert alone.stdout.strip() == asked.stdout.strip()
    assert f"Usage: {' '.join(['probe', *arguments])} [OPTIONS] COMMAND" in alone.stdout
    assert all(name in alone.stdout for name in shown)


def test_a_name_that_no_file_can_have_is_one_line() -> None:
    name = "a" * 300
    assert only_line(invoke("ssdc", name), 2).startswith(f"unknown model '{name}'. A timm name is")


FULL = "probe: cannot write the output: No space left on device\n"


@pytest.mark.parametrize(
    "arguments",
    ["", "--help", "--version", "zoo", "zoo list", "zoo list --json", "zoo show vit_base"],
)
def test_a_full_output_is_one_line(arguments: str) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess_probe(*arguments.split(), stdout=full)
    assert (done.returncode, done.stderr) == (1, FULL)


def test_json_into_a_full_output_is_one_line_and_the_passes_are_kept(here: Path) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess_probe("ssdc", *TINY, "--limit", "3", "--json", "-", stdout=full)
    assert (done.returncode, done.stderr) == (1, FULL)
    assert len(files(here / "runs" / "passes" / "timm-test_vit.r160_in1k")) == 2


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
