"""Processes that share the images of a run give the numbers of one, and end together."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from probe.distributed import ALONE, launched_alone, processes_of_launch, speaks
from probe.errors import UsageError
from probe.plan import Settings
from probe.records import PassRecord
from probe.store import Store
from tests.cli.command import TINY, invoke
from tests.cli.tiny_zoo import DIGITS, write_zoo
from tests.launched import ROOT, Job, launch
from tests.shared_work import BY_FOUR, CASES, WORK, tiny
from tests.small_runs import pictures, run

# Seconds on an idle core; the limit is for processes that wait in vain.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

THREE = ("less than a batch each", "a short last batch", "stream", "no signal")
SHARED = [
    ["ssdc", *TINY, "--limit", "70", "--runs", "ssdc"],
    ["ssdc", *TINY, "--limit", "70", "--protocol", "paper", "--batch-size", "8"],
    ["fragility", "ten", *DIGITS, "--batch-size", "5", "--runs", "fragility"],
    ["scale", "ten", *DIGITS, "--batch-size", "5", "--alphas", "1,0.5", "--runs", "scale"],
    ["report", "ten", *DIGITS, "--batch-size", "5", "--measure", "ssdc,agreement"],
]
SPOILT = [
    ["fault", "ssdc", *TINY, "--limit", "40", "--runs", "spoilt", "--out", "spoilt/out"],
    ["ssdc", "deit_smal"],
    ["ssdc", *TINY, "--rpi", "often"],
    ["ssdc", *TINY, "--protocol", "paper", "--rpi", "shared"],
    ["ssdc", *TINY, "--data", "./nowhere"],
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("shared")


@pytest.fixture(scope="module")
def launched(folder: Path) -> list[list[Any]]:
    """The answers of the processes of three launches, which all ended without a word."""
    for rank in range(2):
        (folder / str(rank)).mkdir()
        write_zoo(folder / str(rank))
    asked = [[*arguments, "--json", "-"] for arguments in SHARED] + SPOILT
    groups = launch(
        folder,
        Job("tests.shared_work", "everything", (str(folder),)),
        Job("tests.shared_work", "shared", (THREE,), count=3),
        Job("tests.shared_work", "commands", (str(folder), asked)),
    )
    for one in (one for group in groups for one in group):
        assert (one.code, one.printed) == (0, "")
    return [[one.answer for one in group] for group in groups]


@pytest.fixture(scope="module")
def both(launched: list[list[Any]]) -> list[dict[str, Any]]:
    """What each of two processes has got."""
    return launched[0]


@pytest.fixture(scope="module")
def commands(launched: list[list[Any]]) -> list[list[Any]]:
    """(code, standard output, standard error) of every command, process by process."""
    return launched[2]


def assert_equal(found: list[str], expected: list[PassRecord]) -> None:
    """The same numbers to 1e-6, and the same predictions, image by image."""
    assert len(found) == len(expected)
    for text, one in zip(found, expected, strict=True):
        other = PassRecord.from_json(text)
        assert (other.key, other.images, other.reason) == (one.key, one.images, one.reason)
        assert sorted(other.skipped) == sorted(one.skipped)
        assert len(other.layers) == len(one.layers)
        for a, b in zip(other.layers, one.layers, strict=True):
            assert a.value == pytest.approx(b.value, abs=1e-6)
            assert len(a.leave_one_out) == len(b.leave_one_out)
            for x, y in zip(a.leave_one_out, b.leave_one_out, strict=True):
                assert x == pytest.approx(y, abs=1e-6)
            np.testing.assert_allclose(a.null, b.null, rtol=0, atol=1e-6)
        for name in ("predicted", "correct"):
            np.testing.assert_array_equal(getattr(other, name), getattr(one, name))


@pytest.mark.parametrize("name", CASES)
def test_two_processes_give_the_numbers_of_one(both: list[dict[str, Any]], name: str) -> None:
    counts: list[int] = []
    alone = CASES[name](progress=counts.append)
    assert_equal(both[0][name]["records"], alone)
    assert both[1][name]["records"] == both[0][name]["records"]
    assert both[0][name]["progress"] == sum(counts)
    machine = PassRecord.from_json(both[0][name]["records"][0]).machine
    assert machine == alone[0].machine | {"processes": 2}


@pytest.mark.parametrize("name", THREE)
def test_three_processes_do_too(launched: list[list[Any]], name: str) -> None:
    for found in launched[1]:
        assert_equal(found[name]["records"], CASES[name]())


def test_the_main_process_stores_once(both: list[dict[str, Any]], folder: Path) -> None:
    """The other takes its word for what is stored."""
    assert [(one["stored False"], one["stored True"]) for one in both] == [(0, 5), (0, 5)]
    store = folder / "store"
    assert len(list(store.glob("passes/*/*.json"))) == 5
    assert list(store.glob("partial/*")) == []


def test_an_interrupted_run_goes_on_in_every_process(both: list[dict[str, Any]]) -> None:
    found = both[0]["interrupted"]
    assert found["saved"] == ["1of2x4.npz"] * 5 + ["2of2x4.npz"] * 5
    assert found["reads"] == [8, 7]  # of 12 and 11
    assert found["left"] == []
    assert_equal(found["records"], CASES["a short last batch"]())


@pytest.mark.parametrize("case", ["our error", "a fault"])
def test_an_error_of_one_process_ends_all_at_once(both: list[dict[str, Any]], case: str) -> None:
    """The others stop where they are; the images of the main process would be 200."""
    main, other = both[0][case]["error"]
    if case == "our error":
        assert main == other == ["DataError", "the disk is gone"]
    else:
        assert main == ["PeerError", "ZeroDivisionError: the disk is gone (in process 1)"]
        assert other == ["ZeroDivisionError", "the disk is gone"]
    reads = both[0][case]["reads"]
    assert reads[0] < 100
    assert reads[1] <= 4


def test_an_error_of_all_is_that_of_the_first(both: list[dict[str, Any]]) -> None:
    assert [one["both"] for one in both] == [["UsageError", "process 0 says no"]] * 2


def test_processes_with_other_images_are_refused(both: list[dict[str, Any]]) -> None:
    refusal = (
        "the processes would measure different things; give all of them the same data, weights "
        "and versions"
    )
    assert [one["differing"] for one in both] == [["UsageError", refusal]] * 2


def test_unreadable_images_are_counted_over_all_shares(both: list[dict[str, Any]]) -> None:
    message = (
        "at least 2 of 120 images cannot be read, above the 1 % allowed ('image 7': it is "
        "damaged; 'image 119': it is damaged); repair or remove them"
    )
    assert [one["too many holes"] for one in both] == [["DataError", message]] * 2


def test_one_process_may_halve_its_batches(both: list[dict[str, Any]]) -> None:
    work = [one for one in WORK if "batch" not in str(one.condition)]
    alone = run(tiny(), pictures(23), work, BY_FOUR)
    assert_equal(both[0]["short of memory"], alone)
    machine = PassRecord.from_json(both[0]["short of memory"][0]).machine
    assert machine == {"batch_size": 2, "workers": 0, "halved_from": 4, "processes": 2}


def numbers(value: Any) -> Any:
    """`value`, its numbers to 1e-6."""
    if isinstance(value, dict):
        return {key: numbers(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [numbers(inner) for inner in value]
    return pytest.approx(value, abs=1e-6) if isinstance(value, float) else value


def without_machine(value: Any) -> Any:
    """`value` without what may differ between machines."""
    if isinstance(value, dict):
        return {key: without_machine(inner) for key, inner in value.items() if key != "machine"}
    return [without_machine(inner) for inner in value] if isinstance(value, list) else value


@pytest.mark.parametrize("number", range(len(SHARED)))
def test_a_command_prints_the_same_numbers_once(
    commands: list[list[Any]], number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    main, other = commands
    assert other[number] == [0, "", ""]
    code, printed, said = main[number]
    assert (code, said) == (0, "")
    monkeypatch.chdir(tmp_path)
    write_zoo(tmp_path)
    alone = invoke(*SHARED[number], "--json", "-")
    assert alone.exit_code == 0, alone.stderr
    expected = json.loads(alone.stdout)
    assert expected.get("results") or expected.get("models")
    assert without_machine(json.loads(printed)) == numbers(without_machine(expected))


def test_one_process_alone_writes(commands: list[list[Any]], folder: Path) -> None:
    main, other = (
        {path.name for path in (folder / rank).rglob("*") if path.is_file()} for rank in "01"
    )
    assert other == {"zoo.yaml", "data.json"}  # what it remembers of the data is not a result
    assert {"fragility.csv", "fragility.json", "fragility.svg", "fragility.png"} <= main
    assert {"report.json", "index.html", "summary.csv"} <= main


def test_an_error_is_one_line_of_the_main_process(commands: list[list[Any]], folder: Path) -> None:
    main, other = commands
    ended = main[len(SHARED) :]
    assert other[len(SHARED) :] == [[0, "", ""]] * len(SPOILT)
    assert [code for code, _, _ in ended] == [1, 2, 2, 2, 2]
    for _, printed, said in ended:
        assert printed == ""
        assert said.startswith("probe: ")
        assert said.count("\n") == 1
    trace = Path("spoilt/out/failure-timm-test_vit.txt")
    assert ended[0][2] == (
        "probe: timm:test_vit: unexpected PeerError: ZeroDivisionError: deep inside "
        f"(in process 1); the traceback is in {trace}\n"
    )
    assert "in fault" in (folder / "0" / trace).read_text()
    assert "unknown model 'deit_smal'" in ended[1][2]


def test_accelerate_launches_it(tmp_path: Path) -> None:
    """As documented; on a machine without GPUs its processes use the CPU."""
    done = subprocess.run(
        [
            *(sys.executable, "-m", "accelerate.commands.launch", "--multi_gpu"),
            *("--num_processes", "2", "--num_machines", "1", "--mixed_precision", "no"),
            *("--dynamo_backend", "no", "--main_process_port", "0", "-m", "probe"),
            *("ssdc", *TINY, "--limit", "40", "--batch-size", "8", "--json", "-"),
        ],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (result,) = json.loads(done.stdout)["results"]
    assert result["settings"]["machine"] == {"batch_size": 8, "workers": 0, "processes": 2}
    assert result["images"] == 40


def test_one_process_pays_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert processes_of_launch() is ALONE
    code = "import sys, probe.distributed as d; d.processes_of_launch(); d.speaks()\n"
    code += "print('torch' in sys.modules, 'accelerate' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout == "False False\n"


def test_processes_that_cannot_meet_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    for name in ("RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    processes_of_launch.cache_clear()
    with pytest.raises(UsageError) as error:
        processes_of_launch()
    assert str(error.value) == (
        "2 processes were started, but not told how to meet; start them with accelerate launch "
        "or torchrun, or unset WORLD_SIZE"
    )
    assert speaks()
    monkeypatch.setenv("RANK", "1")
    assert not speaks()


def test_a_launcher_that_started_one_process_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    assert not launched_alone()
    monkeypatch.setenv("ACCELERATE_USE_CPU", "True")
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    found = invoke("ssdc", *TINY, "--limit", "3", "--json", "-")
    assert found.exit_code == 0
    assert json.loads(found.stdout)["failures"] == []
    assert found.stderr == (
        "probe: one process was started, since accelerate launch --cpu needs MPI for more; "
        "accelerate launch --multi_gpu starts several without GPUs too\n"
    )


def test_runs_folders_merge_by_copying(tmp_path: Path) -> None:
    """Passes of two folders, copied into one, serve both."""
    import shutil

    settings, images = Settings(batch_size=8), pictures(9)
    first = run(tiny(), images, WORK[:2], settings, Store(tmp_path / "a"))
    second = run(tiny(), images, WORK[1:], settings, Store(tmp_path / "b"))
    for name in "ab":
        shutil.copytree(tmp_path / name, tmp_path / "both", dirs_exist_ok=True)
    store = Store(tmp_path / "both")
    for record in (*first, *second):
        found = store.load(record.model, record.condition, record.key)
        assert found is not None
        assert found.to_json() == record.to_json()
    assert len(list((tmp_path / "both").glob("passes/*/*.json"))) == len(WORK)
