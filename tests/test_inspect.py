"""What `probe zoo inspect` shows of a network, what it proposes, and how often that is right."""

from __future__ import annotations

import multiprocessing
import re
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from probe.cli.app import app
from probe.coverage.build import build
from probe.coverage.listed import LIBRARIES, Library, read_listing
from probe.errors import NoEffect, NotApplicable
from probe.families.base import RawModel
from probe.families.declared import declare, traced
from probe.families.trace import trace
from probe.inline import InlineAnatomy
from probe.inspect.proposal import Proposal, propose
from probe.inspect.tree import tree
from probe.interventions import permute_patches, rpi_permutations, scale_positions
from probe.loading import load_model
from probe.types import LoadedModel, Permutation
from probe.zoo import load_zoo
from tests.families import unseen
from tests.families.tiny import IMAGES, MAKERS, Watch, read

ENTRY = "schema: 1\nmodels:\n  mine: {source: 'import:nobodys:build', options: {depth: 3}}\n"

# Tokens that an entry has no words for (windows, pixels, units), and baselines, refused; signals
# that the families scale in ways of their own, told to be unclear.
OTHERS = {
    "timm_xcit": "same",
    "timm_tiny_vit": "none",
    "timm_tnt": "none",
    "timm_hiera": "none",
    "timm_nest": "none",
    "timm_resnet": "none",
    "timm_convnext": "none",
    "hf_aimv2_native": "same",
    "hf_mlcd": "same",
    "hf_mlcd_40x32": "same",
}
# Networks of 300 million weights, whose many passes would take minutes; counted as not proposed.
LARGE = {"MobileNetV5", "MobileNetV5Encoder"}
DOC = Path(__file__).resolve().parent.parent / "docs" / "extending.md"


def raw_of(model: LoadedModel) -> RawModel:
    """The model as if no family had read it."""
    size = model.anatomy.image_size
    return RawModel(
        model.module, "import", model.identity, size, None, model.forward, model.classes
    )


def readings(model: LoadedModel) -> tuple[list[torch.Tensor], ...]:
    """The tokens that feed every attention: clean, under RPI, and with positions halved."""
    sites, grid = model.anatomy.attn_in, model.anatomy.patches.grid
    order = rpi_permutations(grid, range(IMAGES), Permutation("image", 7))

    def tokens(change: Callable[[], AbstractContextManager[None]]) -> list[torch.Tensor]:
        try:
            with change():
                seen = read(model, sites)
        except (NotApplicable, NoEffect):
            return []
        return [seen[site] for site in sites]

    return (
        tokens(nullcontext),
        tokens(lambda: permute_patches(model, order)),
        tokens(lambda: scale_positions(model, 0.5)),
    )


def close(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether they are equal but for rounding: patches may be taken before or after a norm."""
    size = float(other.abs().max())
    return one.shape == other.shape and torch.allclose(one, other, rtol=0, atol=1e-5 * size)


def verdict(model: LoadedModel) -> tuple[str, Proposal]:
    """How far the proposal, unedited, reads and moves what the family does.

    `same` is the same tokens at every layer, clean and under RPI; `same+alpha` with positions
    halved too. `wrong` is another reading, though nothing is said to be missing.
    """
    found = propose(raw_of(model), "mine", traced(raw_of(model), "mine"))
    if found.anatomy is None:
        return "none", found
    raw, inline = declare(raw_of(model), InlineAnatomy.model_validate(found.anatomy), "mine")
    mine = replace(model, anatomy=inline.anatomy(raw.module, raw.image_size))
    ours, theirs = readings(mine), readings(model)
    equal = [
        len(one) == len(other) and all(map(close, one, other))
        for one, other in zip(ours, theirs, strict=True)
    ]
    if all(equal[:2]):
        return "same+alpha" if equal[2] else "same" if found.unclear else "same, wrong alpha", found
    return "less" if found.missing else "wrong", found


@pytest.fixture(scope="module")
def zoo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A zoo file beside the network that it names; one for all, as imports outlive a test."""
    folder = tmp_path_factory.mktemp("zoo")
    (folder / "nobodys.py").write_text(Path(unseen.__file__).read_text())
    (folder / "zoo.yaml").write_text(ENTRY)
    return folder / "zoo.yaml"


def test_a_network_of_nobody_is_proposed_as_it_is(zoo: Path) -> None:
    asked = ["zoo", "inspect", "mine", "--zoo", str(zoo), "--random-init", "--image-size", "32x48"]
    done = CliRunner().invoke(app, asked)
    assert done.exit_code == 0, done.output
    assert "layers.0 .. layers.2 (Block) gives (B, 25, 16)\n  layers.0.norm1 (Layer" in done.output
    assert "layers.1 " not in done.output
    assert "unclear: whether the output is logits; if not, leave out `head: tensor`" in done.output
    pasted = done.output[done.output.index("schema: 1") :]
    (zoo.parent / "pasted.yaml").write_text(pasted)
    model = load_model(load_zoo(zoo.parent / "pasted.yaml")["mine"], random_init=True, device="cpu")
    assert [site.module for site in model.anatomy.attn_in] == [
        f"layers.{i}.norm1" for i in range(3)
    ]
    assert [(p.where, p.kind, p.prefix) for p in model.anatomy.positions] == [
        ("pos", "absolute", 1)
    ]
    assert model.anatomy.patches.module == "proj"
    assert model.classes == 5


def test_what_is_not_found_is_said_and_fails() -> None:
    done = CliRunner().invoke(app, ["zoo", "inspect", "timm:resnet10t", "--random-init"])
    assert done.exit_code == 1
    assert "not found: a module that mixes tokens by anything but convolution\n" in done.output
    assert "schema" not in done.output


def test_siblings_of_another_shape_are_not_folded() -> None:
    network = torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 4, 4), torch.nn.Conv2d(4, 4, 1), torch.nn.Conv2d(4, 8, 1)
    )
    assert tree(trace(network, network, (8, 8))) == [
        "0 .. 1 (Conv2d) gives (B, 4, 2, 2)",
        "2 (Conv2d) gives (B, 8, 2, 2)",
    ]


@pytest.mark.parametrize("name", ["timm_vit", "timm_swin_v2", "hf_swin", "timm_levit"])
def test_a_proposal_leaves_the_model_as_it_was(name: str) -> None:
    model = MAKERS[name]()
    watch = Watch(model.module)
    raw = raw_of(model)
    assert propose(raw, "mine", traced(raw, "mine")).anatomy is not None
    assert watch.changes() == []


def test_a_network_that_fails_is_told_and_left_as_it_was() -> None:
    model = MAKERS["timm_vit"]()
    watch, calls = Watch(model.module), 0

    def forward(images: torch.Tensor) -> torch.Tensor:
        nonlocal calls
        calls += 1
        if calls > 5:
            raise ZeroDivisionError("not today")
        return model.forward(images)

    failing = replace(raw_of(model), forward=forward)
    with pytest.raises(ZeroDivisionError, match="not today"):
        propose(failing, "mine", traced(failing, "mine"))
    assert watch.changes() == []


def test_a_block_that_runs_again_is_told_and_the_search_ends() -> None:
    network = unseen.Net(2)
    network.layers[1] = network.layers[0]
    size = (32, 48)
    raw = replace(
        raw_of(MAKERS["timm_vit"]()), module=network.eval(), forward=network, image_size=size
    )
    found = propose(raw, "mine", traced(raw, "mine"))
    assert found.missing[-1].startswith("an anatomy that holds: mine: anatomy.blocks")
    assert "which run of 'layers.0' is meant, as it runs again" in found.missing


def test_an_image_size_that_does_not_fit_is_one_line(zoo: Path) -> None:
    asked = ["zoo", "inspect", "mine", "--zoo", str(zoo), "--random-init", "--image-size", "64"]
    done = CliRunner().invoke(app, asked)
    assert done.exit_code == 1
    told = "probe: mine: forward failed at 64 x 64 px: RuntimeError: The size of tensor a (65) must"
    assert done.output.startswith(told)
    assert done.output.count("\n") == 1


def test_tiny_models_of_every_family() -> None:
    found = {name: verdict(make())[0] for name, make in MAKERS.items()}
    assert {name: how for name, how in found.items() if how != "same+alpha"} == OTHERS


def verdict_on(asked: tuple[Library, str]) -> tuple[str, str]:
    library, key = asked
    return key, verdict(build(library, read_listing(library).architectures[key]))[0]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_architectures_of_both_libraries() -> None:
    """The rate that the docs state; and no other reading is proposed as if it were whole."""
    listed = {library: read_listing(library).architectures for library in LIBRARIES}
    found = {key: "none" for architectures in listed.values() for key in architectures}
    asked = [
        (library, key)
        for library, architectures in listed.items()
        for key, architecture in architectures.items()
        if not architecture.refused and key not in LARGE
    ]
    with multiprocessing.get_context("spawn").Pool(2, torch.set_num_threads, (1,)) as pool:
        found |= pool.imap_unordered(verdict_on, asked)
    assert [key for key, how in found.items() if "wrong" in how] == []
    works = [key for key, how in found.items() if how.startswith("same")]
    assert len(works) >= 0.8 * len(found), sorted(found.keys() - works)
    claim = r"Of the (\d+) architectures in .*\nproposals for (\d+) \((\d+) %\)"
    said = re.search(claim, DOC.read_text(encoding="utf-8"))
    assert said is not None
    total, stated, percent = map(int, said.groups())
    assert total == len(found)
    assert stated <= len(works)
    assert percent == round(100 * stated / total)
