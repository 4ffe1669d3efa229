"""Every listed architecture, built and run, against the targets and the page; and what a break is.

The slow run takes all architectures of both libraries through `probe.coverage.contract`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from typer.testing import CliRunner

from probe.cli.zoo import zoo_app
from probe.coverage import contract, covered, listed
from probe.coverage.build import build, enlarge
from probe.coverage.covered import Covered, Share, cover, one_thread, share
from probe.coverage.listed import LIBRARIES, Architecture, Library, Listing, read_listing
from probe.coverage.page import coverage_page, measured_with
from probe.errors import AnatomyError, NotApplicable, UsageError
from probe.types import LoadedModel
from probe.wiring import EditOutput
from tests.families.tiny import fresh

PAGE = Path(__file__).resolve().parents[2] / "docs" / "coverage.md"


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_every_architecture_of_both_libraries_and_the_page_that_says_so() -> None:
    listings = {library: read_listing(library) for library in LIBRARIES}
    with one_thread():
        found = {
            library: [cover(library, *named) for named in listing.architectures.items()]
            for library, listing in listings.items()
        }
    everything = [one for rows in found.values() for one in rows]
    broken = {c.architecture: c.reason for c in everything if c.works is None and not c.refused}
    assert broken == {}
    for library, listing in listings.items():
        refused = {one.architecture for one in found[library] if one.refused}
        assert refused == {n for n, one in listing.architectures.items() if one.refused}
    failed = [
        (one.architecture, field, outcome.words)
        for one in everything
        if one.works is not None
        for field in ("ssdc", "rpi", "alpha", "accuracy")
        if (outcome := getattr(one.works, field)).works is False
    ]
    assert failed == []
    for rows in (*found.values(), everything):
        assert share(rows, "ssdc").percent >= 95
        assert share(rows, "rpi").percent >= 90
    excluded = {library: listing.excluded for library, listing in listings.items()}
    said = PAGE.read_text(encoding="utf-8").split("\n\n")
    now = coverage_page(found, excluded, {}).split("\n\n")
    at = now.index(measured_with({}))  # versions are those of who wrote it
    assert said[at].startswith("Built with timm ")
    remedy = "write it anew: probe zoo coverage --out docs/coverage.md"
    assert said[:at] + said[at + 1 :] == now[:at] + now[at + 1 :], remedy


def works(name: str, **changes: Any) -> contract.Works:
    model = fresh(name)
    return contract.works(replace(model, **{k: change(model) for k, change in changes.items()}))


def test_what_works_is_said_in_words() -> None:
    found = works("timm_vit")
    assert [one.works for one in vars(found).values()] == [True] * 4
    assert found.alpha.words == "absolute"
    assert works("timm_eva_02").alpha.words == "absolute, rotary"
    assert works("timm_vit_no_pe").alpha == contract.Outcome(
        None, "the model has no positional signal, so there is nothing to scale"
    )
    assert works("timm_vit_features").accuracy == contract.Outcome(None, "no head")
    partly = works("timm_eva_02", anatomy=with_one_signal_that_stays)
    assert partly.alpha == contract.Outcome(True, "absolute (not rotary)")


def with_one_signal_that_stays(model: LoadedModel) -> Any:
    positions = [
        replace(p, rescale=None) if p.kind == "rotary" else p for p in model.anatomy.positions
    ]
    return replace(model.anatomy, positions=tuple(positions))


def sites(**changes: Any) -> Callable[[LoadedModel], Any]:
    """The anatomy with fields of its first layer's `attn_in` changed."""

    def anatomy(model: LoadedModel) -> Any:
        first, *rest = model.anatomy.attn_in
        return replace(model.anatomy, attn_in=(replace(first, **changes), *rest))

    return anatomy


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (sites(module="norm"), r"'norm' runs out of order|'blocks.0' runs out of order"),
        (sites(module="blocks.0.attn.attn_drop"), r"'blocks.0.attn.attn_drop' never ran"),
        (sites(prefix=0), r"tokens at 'blocks.0.norm1' have shape"),
        (sites(module="gone"), "the model has no module 'gone'"),
    ],
)
def test_sites_that_are_wrong_end_it(change: Callable[[LoadedModel], Any], message: str) -> None:
    with pytest.raises(AnatomyError, match=message):
        works("timm_vit", anatomy=change)


def test_layers_without_a_value_end_it() -> None:
    model = fresh("timm_vit")
    model.module.get_submodule("patch_embed.proj").weight.zero_()
    model.module.get_parameter("pos_embed").zero_()
    with pytest.raises(AnatomyError, match="SSDC of layer 0 is undefined: "):
        contract.works(model)


def test_what_reading_changes_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def meddling(module: nn.Module, *rest: Any) -> Iterator[None]:
        with contract_observe(module, *rest), torch.inference_mode(False):
            handle = module.register_forward_hook(lambda m, a, out: out + 1)
            yield
            handle.remove()

    contract_observe = contract.observe
    monkeypatch.setattr(contract, "observe", meddling)
    with pytest.raises(AnatomyError, match="reading tokens changes what the model computes"):
        works("timm_vit")


def test_rpi_that_is_none_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def never(model: LoadedModel, order: Tensor) -> Iterator[None]:
        yield

    @contextmanager
    def refused(model: LoadedModel, order: Tensor) -> Iterator[None]:
        raise NotApplicable("there is no patch projection")
        yield

    monkeypatch.setattr(contract, "permute_patches", never)
    found = works("timm_vit")
    told = "the patch tokens at 'patch_embed' are not permuted one by one"
    assert found.rpi == contract.Outcome(False, told)
    assert found.alpha.works
    monkeypatch.setattr(contract, "permute_patches", refused)
    assert works("timm_vit").rpi == contract.Outcome(None, "there is no patch projection")


def test_alpha_that_does_nothing_is_told() -> None:
    def idle(model: LoadedModel) -> Any:
        (site,) = model.anatomy.positions
        keep = EditOutput(lambda value, alpha: value.clone())
        return replace(model.anatomy, positions=(replace(site, where="pos_drop", rescale=keep),))

    told = works("timm_vit", anatomy=idle).alpha
    assert told == contract.Outcome(False, "scaling 'pos_drop' by 0.0 changed nothing")


def test_what_is_left_behind_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def lasting(model: LoadedModel, alpha: float) -> Iterator[None]:
        model.module.get_parameter("pos_embed").add_(1 - alpha)
        yield

    monkeypatch.setattr(contract, "scale_positions", lasting)
    assert works("timm_vit").alpha == contract.Outcome(
        False, "something is left behind in the model"
    )


def test_logits_of_another_width_are_told() -> None:
    found = works("timm_vit", classes=lambda model: 8)
    assert found.accuracy == contract.Outcome(False, "logits have shape (2, 7) for 8 classes")


def test_what_is_refused_and_what_breaks(monkeypatch: pytest.MonkeyPatch) -> None:
    refused = cover("timm", "GhostNet", Architecture(name="ghostnet_050"))
    assert refused.refused
    assert refused.works is None
    assert str(refused.reason).startswith("no family reads the architecture timm.models.ghost")
    named = Architecture(name="ghostnet_050", refused="it has no patches")
    assert cover("timm", "GhostNet", named).reason == "it has no patches"
    unknown = cover("transformers", "vitt", Architecture(name="ViTModell"))
    assert unknown.reason == (
        "transformers has no model class 'ViTModell'. Did you mean ViTModel, ViTMSNModel, "
        "ViTMAEModel?"
    )

    def failing(model: LoadedModel) -> contract.Works:
        raise ZeroDivisionError("odd\nmore")

    monkeypatch.setattr(covered, "works", failing)
    tiny = {"depth": 2, "embed_dim": 48, "num_heads": 3, "img_size": 64}
    broken = cover("timm", "V", Architecture(name="vit_tiny_patch16_224", options=tiny))
    assert (broken.refused, broken.works, broken.family) == (False, None, "timm_vit")
    assert broken.reason == "ZeroDivisionError: odd"


STAGES = {"hidden_sizes": [8, 8, 16, 16], "depths": [1, 1, 1, 1]}
WIDE = {"hidden_sizes": [64, 64, 128, 128], "depths": [1, 1, 1, 1], "embedding_size": 32}


@pytest.mark.parametrize(
    ("library", "name", "options"),
    [
        ("timm", "test_resnet", {}),
        ("timm", "test_convnext", {}),
        ("transformers", "ResNetForImageClassification", STAGES | {"embedding_size": 8}),
        ("transformers", "ConvNextForImageClassification", STAGES),
        ("transformers", "ConvNextV2ForImageClassification", STAGES),
        ("transformers", "RegNetForImageClassification", WIDE),
        ("transformers", "BitForImageClassification", WIDE | {"num_groups": 8}),
    ],
)
def test_convolutional_baselines_have_ssdc_alone(
    library: Library, name: str, options: dict[str, Any]
) -> None:
    one = Architecture(name=name, options=options, image_size=[64, 96])
    covered = cover(library, name, one)
    found = covered.works
    assert found is not None, covered.reason
    assert [one.works for one in vars(found).values()] == [True, None, None, True]
    assert found.rpi.words.startswith("RPI does not apply: ")
    assert "convolutional" in found.alpha.words


def test_attention_without_a_way_around_keeps_tokens_apart() -> None:
    """Weights drawn with a spread of 0.02 let tokens of LeViT collapse into one."""
    one = Architecture(name="levit_128s")
    assert cover("timm", "LevitDistilled", one).works is not None
    layers = nn.Sequential(nn.Linear(100, 50), nn.Linear(9, 9))
    layers.requires_grad_(False)
    with torch.no_grad():
        for layer in layers:
            layer.weight.normal_(0, 0.02, generator=torch.Generator().manual_seed(0))
        layers[1].weight.normal_(0, 2, generator=torch.Generator().manual_seed(0))
    before = layers[1].weight.clone()
    enlarge(layers)
    assert float(layers[0].weight.std()) == pytest.approx(0.1, rel=1e-5)
    assert torch.equal(layers[1].weight, before)


def test_image_size_and_options_reach_the_model() -> None:
    options = {"depth": 2, "embed_dim": 48, "num_heads": 3}
    one = Architecture(name="vit_tiny_patch16_224", options=options, image_size=[32, 64])
    model = build("timm", one)
    assert model.anatomy.image_size == (32, 64)
    assert len(model.anatomy.attn_in) == 2


YES, NO, NONE = contract.Outcome(True), contract.Outcome(False, "b|d"), contract.Outcome(None, "n")


def made(name: str, *outcomes: contract.Outcome, **fields: Any) -> Covered:
    found = contract.Works(*outcomes) if outcomes else None
    return Covered("timm", name, "x", "f", ((4, 4), (2, 2)), found, **fields)


def test_shares_count_what_is_refused_and_leave_out_what_does_not_apply() -> None:
    rows = [
        made("A", YES, YES, YES, NONE),
        made("B", YES, NO, NONE, YES),
        made("C", YES, NONE, NONE, NONE),
        made("D", refused=True, reason="no"),
    ]
    assert share(rows, "ssdc") == Share(3, 4)
    assert share(rows, "rpi") == Share(1, 4)
    assert share(rows, "alpha") == Share(1, 2)
    assert share(rows, "accuracy") == Share(1, 2)
    assert (Share(3, 4).percent, Share(0, 0).percent) == (75.0, 100.0)


def test_the_page_says_it_all() -> None:
    rows = [
        made("A", YES, NO, replace(YES, words="rotary"), NONE),
        made("D", refused=True, reason="has no grid"),
        made("E", reason="ValueError: odd"),
    ]
    page = coverage_page(
        {"timm": rows},
        {"timm": {"ResNet": "convolutional", "VGG": "convolutional"}},
        {"timm": "9.9"},
    )
    lines = page.splitlines()
    assert "Built with timm 9.9." in lines
    assert "| SSDC | 1 of 3 (33.3 %) | 1 of 3 (33.3 %) |" in lines
    assert "| `A` | `x` | f | 4 x 4, 2 x 2 | yes | no: b\\|d | rotary | -: n |" in lines
    assert "| timm | `D` | has no grid |" in lines
    assert "| timm | `E` | broken: ValueError: odd |" in lines
    assert "| timm | convolutional | `ResNet`, `VGG` |" in lines


def test_a_list_says_what_is_wrong_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listed, "__file__", str(tmp_path / "listed.py"))
    path = tmp_path / "timm.yaml"
    head = "schema: 1\nlibrary: {}\narchitectures: {{A: {{name: a{}}}}}\nexcluded: {{{}: r}}\n"
    for filled, message in (
        (("timm", "", "A"), "timm.yaml: A is listed and excluded; mend the list"),
        (("transformers", "", "B"), "timm.yaml: it is of transformers; mend the list"),
        (("timm", ", size: 1", "B"), r"timm.yaml:3: unknown key 'size'"),
        (("timm", ", image_size: [3]", "B"), r"timm.yaml:3: 'architectures.A.image_size': "),
    ):
        path.write_text(head.format(*filled))
        with pytest.raises(UsageError, match=message):
            read_listing("timm")


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny = {"depth": 2, "embed_dim": 48, "num_heads": 3, "img_size": 64}
    names = {"V": ("vit_tiny_patch16_224", tiny), "R": ("ghostnet_050", {})}
    named = {key: Architecture(name=n, options=o) for key, (n, o) in names.items()}

    def reading(library: Library) -> Listing:
        found = named if library == "timm" else {}
        return Listing(schema=1, library=library, architectures=found, excluded={"B": "why"})

    monkeypatch.setattr(listed, "read_listing", reading)
    done = CliRunner().invoke(zoo_app, ["coverage", "--out", str(tmp_path / "c.md")])
    assert done.exit_code == 0, done.output
    assert "  SSDC: 1 of 2 (50.0 %)" in done.stdout
    assert "timm R: refused: no family reads the architecture" in done.stdout
    assert "| timm | why | `B` |" in (tmp_path / "c.md").read_text()

    def failing(model: LoadedModel) -> contract.Works:
        raise AnatomyError("odd")

    monkeypatch.setattr(covered, "works", failing)
    done = CliRunner().invoke(zoo_app, ["coverage", "--json"])
    assert done.exit_code == 1
    told = json.loads(done.stdout)
    assert told["failures"] == [{"model": "timm:V", "error": "odd"}]
    assert told["shares"]["together"]["rpi"] == {"count": 0, "of": 2}
    assert [row["architecture"] for row in told["results"]] == ["V", "R"]
