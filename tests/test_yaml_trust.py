"""YAML that a stranger wrote: no tag is obeyed, in zoo files, recipes or `--set`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from probe.data.preprocess_file import read_preprocess
from probe.errors import UsageError, ZooError
from probe.zoo import load_zoo
from train.recipe import load_recipe, recipes_folder

TAGGED = [
    "!!python/object/apply:os.mkdir ['TRACE']",
    "!!python/object/new:os.mkdir ['TRACE']",
    "!!python/name:os.mkdir",
    "!!python/module:antigravity",
    "!custom x",
    "!<tag:yaml.org,2002:python/object/apply:os.mkdir> ['TRACE']",
    "!!binary aGk=",
    "!!set {a, b}",
    "!!timestamp 2001-01-01",
    "!!float 1",
    "!!str x",
    "!!map {a: 1}",
    "! x",
]


def zoo_file(folder: Path, value: str) -> None:
    path = folder / "zoo.yaml"
    path.write_text(f"schema: 1\nmodels:\n  a:\n    source: hf:o/x\n    options: {{x: {value} }}\n")
    load_zoo(path)


def zoo_suite(folder: Path, value: str) -> None:
    path = folder / "zoo.yaml"
    path.write_text(f"schema: 1\nmodels: {{}}\nsuites:\n  s:\n    - {value}\n")
    load_zoo(path)


def recipe_file(folder: Path, value: str) -> None:
    lines = (recipes_folder() / "digits" / "ape.yaml").read_text().splitlines()
    place = next(i for i, line in enumerate(lines) if line.startswith("variant: "))
    lines[place] = f"variant: {value}"
    (folder / "ape.yaml").write_text("\n".join(lines) + "\n")
    load_recipe(str(folder), "ape")


@pytest.mark.parametrize("value", TAGGED)
@pytest.mark.parametrize("read", [zoo_file, zoo_suite, recipe_file])
def test_a_tag_is_refused_with_its_line_and_not_obeyed(
    tmp_path: Path, read: Callable[[Path, str], None], value: str
) -> None:
    trace = tmp_path / "ran"
    with pytest.raises(UsageError, match=r"yaml:\d+: YAML tags are not allowed; write plain") as e:
        read(tmp_path, value.replace("TRACE", str(trace)))
    assert isinstance(e.value, ZooError) == (read is not recipe_file)
    assert "\n" not in str(e.value)
    assert not trace.exists()


@pytest.mark.parametrize("value", TAGGED)
def test_a_tag_in_set_is_refused(tmp_path: Path, value: str) -> None:
    trace = tmp_path / "ran"
    change = f"train.lr={value.replace('TRACE', str(trace))}"
    with pytest.raises(UsageError) as caught:
        load_recipe("digits", "ape", [change])
    assert str(caught.value) == (f"--set {change}: YAML tags are not allowed; write a plain value")
    assert not trace.exists()


@pytest.mark.parametrize(
    ("value", "what"),
    [*((value, "YAML tags") for value in TAGGED), ("&a [1, 1, 1]", "anchors and aliases")],
)
def test_preprocessing_is_plain_values(tmp_path: Path, value: str, what: str) -> None:
    trace, path = tmp_path / "ran", tmp_path / "mine.yaml"
    lines = [
        "resize: null", "crop: null", "interpolation: bilinear", "std: [1, 1, 1]", "mean: MEAN"
    ]  # fmt: skip
    path.write_text("\n".join(lines).replace("MEAN", "[0.5, 0.5, 0.5]"))
    assert read_preprocess(str(path), (32, 32)).mean == (0.5, 0.5, 0.5)
    path.write_text("\n".join(lines).replace("MEAN", value.replace("TRACE", str(trace))))
    with pytest.raises(UsageError) as caught:
        read_preprocess(str(path), (32, 32))
    assert str(caught.value) == (
        f"preprocessing file '{path}': line 5: {what} are not allowed; write plain values"
    )
    assert not trace.exists()


def test_a_tag_of_a_directive_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "zoo.yaml"
    path.write_text(
        "%TAG !py! tag:yaml.org,2002:python/\n---\nschema: 1\nmodels: !py!object:os.mkdir {}\n"
    )
    with pytest.raises(ZooError, match=r"zoo\.yaml:4: YAML tags are not allowed"):
        load_zoo(path)


def test_shipped_files_have_no_tags(tmp_path: Path) -> None:
    """The same readers take a value without a tag."""
    zoo_file(tmp_path, "1")
    recipe_file(tmp_path, "ape")
    assert load_recipe("digits", "ape", ["train.lr=1e-3"]).train.lr == 1e-3
