"""Runs are appended to a zoo file, whose own text stays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from probe.errors import UsageError, ZooError
from probe.families.controlled import POSITION, VARIANTS
from probe.zoo import load_zoo
from train.zoo_entry import add_to_zoo, check_names, entry_name

ROOT = Path(__file__).resolve().parents[2]
OWN = """\
# my models
schema: 1

models:
  mine:   # the first
    source: timm:test_vit
    tags: [small]   # not large
  # Swin
  other: {source: timm:test_vit2}

suites:
  both: [mine, other]
"""


def record(variant: str = "ape", seed: int = 0, **more: Any) -> dict[str, Any]:
    return {
        "variant": variant, "seed": seed, "untrained": False, "data": {"source": "digits"}
    } | more  # fmt: skip


def test_appends_and_keeps_the_text_that_is_there(tmp_path: Path) -> None:
    zoo = tmp_path / "zoo.yaml"
    zoo.write_text(OWN)
    runs = [(tmp_path / f"runs/{v}-s1", record(v, 1)) for v in VARIANTS]
    names = add_to_zoo(zoo, runs, "digits")
    assert names == [f"digits_{v}_s1" for v in VARIANTS]
    text = zoo.read_text()
    assert [line for line in OWN.splitlines() if line not in text.splitlines()] == []
    found = load_zoo(zoo)
    for variant, name in zip(VARIANTS, names, strict=True):
        spec = found[name]
        assert spec.source == f"file:{tmp_path / 'runs' / f'{variant}-s1'}"
        assert (spec.position, spec.data) == (POSITION[variant], "digits")
        assert spec.group == "digits_controlled"
        assert spec.tags == ("controlled", variant, "trained")
        assert spec.provenance["pretraining"] == "recipe digits, seed 1, from scratch"
    assert [spec.name for spec in found.suite("both")] == ["mine", "other"]


def test_the_zoo_that_ships_keeps_every_line(tmp_path: Path) -> None:
    zoo = tmp_path / "zoo.yaml"
    text = (ROOT / "zoo.yaml").read_text("utf-8")
    zoo.write_text(text, "utf-8")
    add_to_zoo(zoo, [(tmp_path / "run", record(seed=99))], "digits")
    after = zoo.read_text("utf-8").splitlines()
    assert [line for line in text.splitlines() if line not in after] == []
    assert "  digits_ape_s99:" in after


def test_makes_a_file_and_renews_an_entry(tmp_path: Path) -> None:
    zoo, run = tmp_path / "new" / "zoo.yaml", tmp_path / "run"
    add_to_zoo(zoo, [(run, record())], "digits")
    once = zoo.read_bytes()
    add_to_zoo(zoo, [(run, record())], "digits")
    assert zoo.read_bytes() == once
    assert load_zoo(zoo)["digits_ape_s0"].source == f"file:{run}"
    zoo.write_bytes(once.replace(b"seed 0", b"seed 7"))
    add_to_zoo(zoo, [(run, record())], "digits")
    assert zoo.read_bytes() == once


def test_an_untrained_run_and_other_data(tmp_path: Path) -> None:
    zoo = tmp_path / "zoo.yaml"
    (name,) = add_to_zoo(
        zoo, [(tmp_path, record(untrained=True, data={"source": "/data/cifar10"}))], "cifar10"
    )
    spec = load_zoo(zoo)[name]
    assert name == "cifar10_ape_s0_untrained"
    assert (spec.data, spec.tags) == (None, ("controlled", "ape", "untrained"))
    assert spec.provenance["pretraining"] == "none"


def test_a_name_of_another_model_is_refused_and_nothing_is_written(tmp_path: Path) -> None:
    zoo = tmp_path / "zoo.yaml"
    zoo.write_text(OWN.replace("mine", "digits_ape_s0"))
    before = zoo.read_bytes()
    runs = [(tmp_path / "a", record("spe")), (tmp_path / "b", record())]
    wanted = (
        f"{zoo} has another model called 'digits_ape_s0' (timm:test_vit); rename it, or choose "
        "another --add-to"
    )
    with pytest.raises(UsageError) as caught:
        add_to_zoo(zoo, runs, "digits")
    assert str(caught.value) == wanted
    with pytest.raises(UsageError) as caught:
        check_names(zoo, {"digits_ape_s0": tmp_path / "b"})
    assert str(caught.value) == wanted
    assert zoo.read_bytes() == before
    check_names(zoo, {"digits_spe_s0": tmp_path / "a"})


def test_what_would_make_it_no_zoo_is_taken_back(tmp_path: Path) -> None:
    zoo = tmp_path / "zoo.yaml"
    zoo.write_text(OWN.replace("mine", "controlled"))
    before = zoo.read_bytes()
    with pytest.raises(ZooError, match="tag 'controlled' is a model's name"):
        add_to_zoo(zoo, [(tmp_path, record())], "digits")
    assert zoo.read_bytes() == before


def test_a_file_that_is_no_zoo_is_refused(tmp_path: Path) -> None:
    zoo = tmp_path / "zoo.yaml"
    zoo.write_text("schema: 1\nmodells: {}\n")
    for call in (
        lambda: check_names(zoo, {"digits_ape_s0": tmp_path}),
        lambda: add_to_zoo(zoo, [(tmp_path, record())], "digits"),
    ):
        with pytest.raises(ZooError, match=r"zoo\.yaml:2: unknown key 'modells'"):
            call()


@pytest.mark.parametrize("indent", [2, 4])
@pytest.mark.parametrize("dash", [0, 2])
def test_the_indentation_of_the_file_stays(tmp_path: Path, indent: int, dash: int) -> None:
    step = " " * indent
    text = (
        f"schema: 1\nmodels:\n{step}mine:\n{step * 2}source: timm:test_vit\n"
        f"{step * 2}tags:\n{step * 2}{' ' * dash}- small  # not large\n"
        f"suites:\n{step}all:\n{step}{' ' * dash}- 'mine'\n"
    )
    (tmp_path / "zoo.yaml").write_text(text)
    add_to_zoo(tmp_path / "zoo.yaml", [(tmp_path, record())], "digits")
    after = (tmp_path / "zoo.yaml").read_text().splitlines()
    assert [line for line in text.splitlines() if line not in after] == []
    assert f"{step}digits_ape_s0:" in after


@pytest.mark.parametrize(
    ("recipe", "name"),
    [("digits", "digits_ape_s0"), ("my recipe", "my-recipe_ape_s0"), ("_über", "ber_ape_s0")],
)
def test_any_recipe_gives_a_name_that_a_zoo_takes(tmp_path: Path, recipe: str, name: str) -> None:
    assert entry_name(recipe, "ape", 0, False) == name
    zoo = tmp_path / "zoo.yaml"
    assert add_to_zoo(zoo, [(tmp_path, record())], recipe) == [name]
    assert load_zoo(zoo)[name].group == f"{recipe}_controlled"
