"""No name of a model, a report or a condition leads a file out of the folder it belongs to."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from probe.cards import Cards
from probe.cli.batch import unexpected
from probe.cli.each import EachRequest, folder_of
from probe.cli.report_batch import _unexpected
from probe.errors import UnknownModel
from probe.hardware import load_hardware, save_hardware
from probe.manifest import Manifest, load_manifest, manifest_path
from probe.store import Store, write_atomically
from probe.types import ModelSpec
from probe.zoo import load_zoo
from tests.cli.command import invoke
from tests.families.timm_specs import ARCH, SMALL, trained

KEY = "0123456789abcdef" * 4
ZOO = load_zoo()
HARMFUL = [
    "../../x", "..", ".", "", "/", "/etc/passwd", "//x", "~", "~root/x", "a/../../b", "..\\..\\x",
    "C:\\x", "a\0b", "\0", "x" * 5000, "../" * 400, "\n", "a\nb", "-rf", ".hidden", "\u202e",
    "é" * 300, "\udcff", "con", "a" * 79 + "/..", "hf:../../x",
    "timm:/etc/x", "%2e%2e%2f", "$HOME", "`id`",
]  # fmt: skip
NAMES = st.one_of(
    st.sampled_from(HARMFUL),
    st.text(st.characters(codec=None), max_size=400),
    st.lists(st.sampled_from(["..", ".", "/", "\\", "\0", "a", "~"]), max_size=12).map("".join),
)


def pass_path(root: Path, name: str) -> Path:
    return Store(root).path(name, name, KEY)


def card_path(root: Path, name: str) -> Path:
    return Cards(root).path(name, KEY)


def report_path(root: Path, name: str) -> Path:
    return manifest_path(root, name)


def command_path(root: Path, name: str) -> Path:
    request = EachRequest((name, name), None, None, root, None, None)
    return folder_of(request, "audit") / "audit.json"


PLACES: dict[str, Callable[[Path, str], Path]] = {
    "passes": pass_path, "cards": card_path, "reports": report_path, "audit": command_path,
}  # fmt: skip


def files(folder: Path) -> list[Path]:
    return [Path(place) / name for place, _, names in os.walk(folder) for name in names]


def assert_plain(path: Path, root: Path) -> None:
    """Below the root, step by step, by names that every file system takes."""
    inside = path.relative_to(root)
    assert path.resolve().is_relative_to(root.resolve())
    for part in inside.parts:
        assert part.isascii()
        assert part.isprintable()
        assert part not in (".", "..")
        assert not part.startswith("-")
        assert not set(part) & set('/\\:*?"<>|$`~ ')
        assert 1 <= len(part) <= 120


@pytest.mark.parametrize("place", PLACES)
@given(name=NAMES)
def test_a_path_stays_in_its_folder(place: str, name: str) -> None:
    root = Path("/nowhere/runs")
    path = PLACES[place](root, name)
    assert_plain(path, root)
    assert path.relative_to(root).parts[0] == place
    assert len(path.relative_to(root).parts) == (2 if place in ("cards", "reports") else 3)


@settings(max_examples=40)
@given(name=NAMES)
@example(name="../../x")
@example(name="a\0b")
@example(name="x" * 5000)
def test_what_is_written_under_a_name_lies_there_and_comes_back(name: str) -> None:
    """Hardware, manifests, failures with their tracebacks, and a file at each path."""
    with tempfile.TemporaryDirectory() as place:
        top = Path(place)
        root = top / "a" / "b" / "runs"
        save_hardware(root, name, {"seconds": 1.0})
        assert load_hardware(root, [name])["models"] == {name: {"seconds": 1.0}}
        for build in PLACES.values():
            write_atomically(build(root, name), "content")
        manifest = Manifest(
            name=name.encode("utf-8", "replace").decode(), title="t", protocol="p", against=None,
            data_name="d", corruptions=(), dosed=(), alphas=(),
        )  # fmt: skip
        assert load_manifest(manifest.save(root)) == manifest
        spec = ModelSpec(name, f"hf:{name}")
        failure = unexpected(spec, ValueError("x"), root / "out", keep=True)
        assert failure.model == name
        batch: Any = SimpleNamespace(
            request=SimpleNamespace(processes=SimpleNamespace(main=True), runs=root),
            data=SimpleNamespace(facts={"name": "photos"}),
        )
        entry: Any = SimpleNamespace(spec=spec)
        assert " is in failures" in _unexpected(batch, entry, ValueError("x"))
        written = files(top)
        assert len(written) == len(PLACES) + 3
        for path in written:
            assert_plain(path, root)


@given(name=NAMES)
def test_a_name_that_is_no_model_is_refused_as_that(name: str) -> None:
    try:
        found = ZOO.resolve(name).source
    except UnknownModel as error:
        found = str(error)
    assert "unknown model" in found or found.startswith(("file:/", "hf:", "timm:"))


@pytest.mark.parametrize("command", ["ssdc", "readout"])
def test_a_checkpoint_above_the_working_folder_writes_below_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    """Its name has the dots of its path in it."""
    here = tmp_path / "work" / "here"
    here.mkdir(parents=True)
    module = trained(num_classes=10)
    save_file(module.state_dict(), tmp_path / "mine ;x.safetensors")
    options = ", ".join(f"{name}: {value}" for name, value in (SMALL | {"num_classes": 10}).items())
    (tmp_path / "zoo.yaml").write_text(
        "schema: 1\nmodels:\n  a..b:\n    source: 'file:mine ;x.safetensors'\n"
        f"    arch: {ARCH}\n    options: {{img_size: 64, {options}}}\n"
    )
    monkeypatch.chdir(here)
    before = set(files(tmp_path))
    where = ["--zoo", "../../zoo.yaml", "--data", "digits", "--limit", "60"]
    split = {"ssdc": [], "readout": ["--train-split", "train"]}[command]
    done = invoke(command, "a..b", *where, *split, "--preprocess", "half")
    assert done.exit_code == 0, done.output
    gone = invoke(command, "../../mine ;x.safetensors", *where)
    assert gone.exit_code in (1, 2)
    written = set(files(tmp_path)) - before
    assert written
    for path in written:
        assert path.is_relative_to(here / "runs"), path
