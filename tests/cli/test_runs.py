"""`probe runs`: what a folder holds, and what may go."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from probe.manifest import Manifest, ModelRef, PassRef
from probe.plan import versions
from probe.records import PassRecord
from probe.store import Store
from tests.cli.command import invoke, only_line

CURRENT, OLD = versions(), {**versions(), "code": "000000000000"}


def saved(store: Store, key: str, made_by: dict[str, str], condition: str = "clean") -> Path:
    record = PassRecord(
        key=key * 64,
        model="timm:vit",
        condition=condition,
        settings={"versions": made_by},
        machine={},
        images=1,
    )
    return store.save(record)


def report_of(keys: str) -> Manifest:
    passes = tuple(PassRef(resolved="timm:vit", condition="clean", key=key * 64) for key in keys)
    return Manifest(
        name="mine",
        title="mine",
        protocol="default",
        against=None,
        data_name="photos",
        corruptions=(),
        dosed=(),
        alphas=(),
        models=(ModelRef(model="vit", card="c" * 64, passes=passes),),
    )


@pytest.fixture
def full(here: Path) -> dict[str, Path]:
    """A runs folder with something of every kind, by what should become of it."""
    store = Store(here / "runs")
    store.claim()
    found = {
        "kept current": saved(store, "1", CURRENT),
        "kept by its report": saved(store, "2", OLD),
        "gone old": saved(store, "3", OLD, "jpeg(quality=5)"),
    }
    report_of("12").save(store.root)
    for name, key in (("kept sums", "4"), ("gone finished sums", "1"), ("gone old sums", "5")):
        store.save_partial(key * 64, {})
        found[name] = store.root / "partial" / f"{key * 20}.npz"
    long_ago = time.time() - 8 * 24 * 3600
    os.utime(found["gone old sums"], (long_ago, long_ago))
    found["gone set aside"] = found["gone old"].with_suffix(".broken")
    found["gone set aside"].write_text("{")
    found["gone half written"] = store.root / "passes" / ".x.json.abc.new"
    found["kept being written"] = store.root / "passes" / ".y.json.abc.new"
    for name in ("gone half written", "kept being written"):
        found[name].touch()
    os.utime(found["gone half written"], (long_ago, long_ago))
    for name, key, made_by in (
        ("kept card", "c", OLD), ("gone card", "d", OLD), ("kept new card", "e", CURRENT)
    ):  # fmt: skip
        path = store.root / "cards" / f"vit-{key * 20}.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps({"key": key * 64, "common": {"versions": made_by}}))
        found[name] = path
    found["kept memory"] = store.root / "cards" / "files.json"
    found["kept memory"].write_text("{}")
    return found


def test_prune(full: dict[str, Path]) -> None:
    everything = set(full)
    found = invoke("runs", "prune", "runs")
    assert found.exit_code == 0
    gone = {name for name in everything if name.startswith("gone")}
    assert f"Would delete {len(gone)} files" in found.stdout
    assert "Nothing is deleted without --yes" in found.stdout
    listed = set(found.stdout.splitlines()[:-1])
    assert listed == {str(full[name].relative_to(Path.cwd() / "runs")) for name in gone}
    assert all(path.exists() for path in full.values())
    found = invoke("runs", "prune", "runs", "--yes")
    assert found.stdout.startswith(f"Deleted {len(gone)} files")
    assert {name for name, path in full.items() if path.exists()} == everything - gone
    assert invoke("runs", "prune", "runs", "--yes").stdout == "Nothing to delete in runs.\n"


def test_list(full: dict[str, Path]) -> None:
    found = invoke("runs", "list", "runs")
    assert found.exit_code == 0
    assert "report mine: 1 models, 2 passes" in found.stdout
    row = next(line for line in found.stdout.splitlines() if "timm:vit" in line)
    assert row.split()[:3] == ["timm:vit", "3", "2"]


@pytest.mark.parametrize("arguments", [["list", "mine"], ["prune", "mine", "--yes"], ["list"]])
def test_a_folder_that_is_not_ours(here: Path, arguments: list[str]) -> None:
    (here / "mine").mkdir()
    (here / "mine" / "x.broken").write_text("not yours")
    line: Any = only_line(invoke("runs", *arguments), 2)
    folder = arguments[1] if len(arguments) > 1 else "runs"
    assert line == f"{folder} is no runs folder of probe; name the one that commands ran into"
    assert (here / "mine" / "x.broken").exists()
