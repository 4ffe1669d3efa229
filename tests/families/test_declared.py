"""Entries with an inline anatomy: what loads, what it gives, and what each fault is answered."""

from __future__ import annotations

import copy
import importlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from probe.coverage.redraw import redraw
from probe.errors import AnatomyError, CheckpointError, UsageError
from probe.families import declared
from probe.families.import_loader import load_import
from probe.interventions import permute_patches, scale_positions
from probe.loading import load_model
from probe.types import Grid, LoadedModel, ModelSpec
from tests.families import unseen
from tests.families.tiny import all_sites, permutations, read, run, same

HERE = str(Path(__file__).parent)
GOOD: dict[str, Any] = {
    "image_size": [32, 48],
    "patches": {"module": "proj", "grid": [4, 6], "layout": "NCHW"},
    "blocks": [
        {"pattern": "layers.*", "attn_in": "norm1", "grid": [4, 6], "prefix": 1, "layout": "NLC"}
    ],
    "positions": [{"kind": "absolute", "where": "pos", "prefix": 1}],
    "features": {"module": "norm", "layout": "NLC", "class_index": 0},
    "head": "tensor",
}


def spec(anatomy: dict[str, Any] | None = None, **fields: Any) -> ModelSpec:
    fields = {"source": "import:unseen:build", "folder": HERE} | fields
    return ModelSpec("mine", anatomy=GOOD if anatomy is None else anatomy, **fields)


def loaded(anatomy: dict[str, Any] | None = None, **fields: Any) -> LoadedModel:
    return load_model(spec(anatomy, **fields), random_init=True, device="cpu")


def changed(*path: Any, **fields: Any) -> dict[str, Any]:
    """The good anatomy with other fields in the part that `path` leads to."""
    anatomy = copy.deepcopy(GOOD)
    part: Any = anatomy
    for key in path:
        part = part[key]
    part.update(fields)
    return anatomy


def refusal(anatomy: dict[str, Any], **fields: Any) -> str:
    with pytest.raises(AnatomyError) as caught:
        loaded(anatomy, **fields)
    return str(caught.value)


def test_tokens_are_those_of_the_stated_modules() -> None:
    model = loaded(options={"depth": 3})
    net: Any = model.module
    found = read(model, all_sites(model))
    assert [(s.layer, s.point) for s in found] == [
        (layer, point) for layer in range(3) for point in ("attn_in", "block_out")
    ]
    by_hand: list[Any] = []
    net.layers[1].norm1.register_forward_hook(lambda _m, _a, out: by_hand.append(out[:, 1:]))
    run(model)
    assert torch.equal(found[model.anatomy.attn_in[1]], by_hand[0])
    assert model.family == "inline"
    assert model.anatomy.patches.grid == Grid(4, 6)
    assert model.anatomy.features is not None
    assert model.anatomy.features.grid == Grid(4, 6)
    assert model.classes == 5


def test_interventions_act_and_compose_exactly() -> None:
    model = loaded()
    model.module.double()
    order = permutations(model)
    images = torch.randn(3, 3, 32, 48, dtype=torch.float64)
    bare = run(model, images)
    with permute_patches(model, order):
        moved = run(model, images)
    with scale_positions(model, 0.0):
        flat = run(model, images)
        with permute_patches(model, order):
            torch.testing.assert_close(run(model, images), flat, rtol=0, atol=1e-9)
    assert not same(bare, moved)
    assert not same(bare, flat)
    assert same(bare, run(model, images))


def test_side_input_reads_what_a_block_takes() -> None:
    anatomy = changed("blocks", 0, attn_in="", side="input")
    model = loaded(anatomy)
    found = read(model, all_sites(model))
    before, after = model.anatomy.block_out[0], model.anatomy.attn_in[1]
    assert torch.equal(found[before], found[after])


@pytest.mark.parametrize(
    ("anatomy", "told"),
    [
        (
            changed("patches", module="patch.proj"),
            "mine: anatomy.patches: no module 'patch.proj' ran in a forward pass at 32 x 48 px. "
            "Nearest: proj (Conv2d) gives (B, 16, 4, 6)",
        ),
        (
            changed("patches", grid=[6, 4]),
            "anatomy.patches: 'proj' gives (B, 16, 4, 6), but NCHW with grid [6, 4] and prefix 0 "
            "is stated. That is NCHW with grid [4, 6], or NHWC with grid [16, 4]",
        ),
        (changed("patches", layout="NLC"), "As layout NCHW it fits"),
        (
            changed("patches", module="norm", layout="NLC", prefix=1),
            "anatomy.patches: 'norm' runs after 'layers.0.norm1', so it is not the patch",
        ),
        (
            changed("blocks", 0, pattern="layer.*"),
            "anatomy.blocks[0]: the pattern 'layer.*' fits no module. Nearest: layers.0 (Block) "
            "gives (B, 25, 16)",
        ),
        (
            changed("blocks", 0, attn_in="norm_1"),
            "anatomy.blocks[0].attn_in: no module 'layers.0.norm_1' ran in a forward pass at "
            "32 x 48 px. Nearest: layers.0.norm1 (LayerNorm) gives (B, 25, 16)",
        ),
        (
            changed("blocks", 0, prefix=0),
            "'layers.0.norm1' gives (B, 25, 16), but NLC with grid [4, 6] and prefix 0 is stated. "
            "prefix 1 would fit that grid",
        ),
        (
            changed("blocks", 0, grid=[5, 6]),
            "That is NLC with 25 tokens, prefix tokens included",
        ),
        (
            changed("blocks", 0, block_out="attn.out_proj"),
            "anatomy.blocks[0].block_out: no module 'layers.0.attn.out_proj' ran",
        ),
        (
            GOOD | {"blocks": [GOOD["blocks"][0] | {"pattern": f"layers.{i}"} for i in (1, 0)]},
            "'layers.0.norm1' runs before 'layers.1.norm1'; list the blocks in order",
        ),
        (
            changed("patches", module="again"),
            "'again' ran 2 times in one forward pass, so which of them is meant is not clear",
        ),
        (
            changed("positions", 0, where="position"),
            "anatomy.positions[0]: the model has no tensor or module 'position'. Nearest: pos "
            "(1, 25, 16)",
        ),
        (
            changed("positions", 0, prefix=0),
            "'pos' has shape (1, 25, 16), which does not hold prefix 0 + 4 x 6 = 24 rows",
        ),
        (
            changed("positions", 0, where="unread"),
            "halving 'unread' changes nothing in a forward pass: it is not read",
        ),
        (
            changed("positions", 0, where="proj"),
            "'proj' is a module; an added table is a parameter or a buffer",
        ),
        (changed("features", class_index=1), "class_index 1 is none of the 1 prefix tokens"),
        (changed(head="logits"), "anatomy.head: the model gives a Tensor without 'logits'"),
    ],
)
def test_a_fault_is_answered_with_what_the_model_has(anatomy: dict[str, Any], told: str) -> None:
    assert told in refusal(anatomy)


UNITS: dict[str, Any] = {
    "image_size": [32, 48],
    "patches": {"module": "proj", "grid": [4, 6], "layout": "NCHW"},
    "blocks": [{"pattern": "layers.*", "attn_in": "norm1", "grid": [2, 3], "layout": "NLC"}],
}


@pytest.mark.parametrize(
    ("anatomy", "told"),
    [
        (UNITS, "anatomy.blocks[0].attn_in: 'layers.0.norm1' gives (8, 6, 16), 8 rows for 2"),
        (
            UNITS | {"blocks": [UNITS["blocks"][0] | {"attn_in": "", "side": "input"}]},
            "anatomy.blocks[0].attn_in: 'layers.0' takes (8, 6, 16), 8 rows for 2 images",
        ),
        (
            UNITS | {"patches": {"module": "folded", "grid": [2, 3], "layout": "NLC"}},
            "anatomy.patches: 'folded' gives (8, 6, 16), 8 rows for 2 images: windows or units "
            "come first there, not images; name a module outside of them",
        ),
    ],
)
def test_windows_are_no_images(anatomy: dict[str, Any], told: str) -> None:
    assert told in refusal(anatomy, source="import:unseen:Units")


def turned(where: str, **fields: Any) -> dict[str, Any]:
    return GOOD | {"positions": [{"kind": "rotary", "where": where} | fields]}


@pytest.mark.parametrize("where", ["sin", "cos", "both", "woven", "stacked", "coarse"])
def test_a_cached_sine_is_no_frequency(where: str) -> None:
    told = refusal(turned(where), source="import:unseen:Turned")
    assert told == (
        f"mine: anatomy.positions[0]: '{where}' holds sines or cosines, and scaling them does not "
        "scale the angles; state the frequencies that the angles are made from, or add scaled: "
        "false"
    )
    unscaled = loaded(turned(where, scaled=False), source="import:unseen:Turned")
    assert unscaled.anatomy.positions[0].rescale is None


@pytest.mark.parametrize("where", ["inv_freq", "freqs"])  # learned ones may be negative
def test_frequencies_scale_the_angles(where: str) -> None:
    model = loaded(turned(where), source="import:unseen:Turned")
    net: Any = model.module
    images = torch.randn(1, 3, 32, 48)
    with scale_positions(model, 0.5):
        found = run(model, images)
    getattr(net, where).mul_(0.5)
    assert same(found, run(model, images))


def test_a_head_in_a_field() -> None:
    fields = {"source": "import:unseen:Fields"}
    model = loaded(changed(head="logits"), **fields)
    assert model.predict is not None
    assert model.predict(model.forward(torch.randn(1, 3, 32, 48))).shape == (1, 5)
    told = refusal(changed(head="logit"), **fields)
    assert "the model gives a dict without 'logit'; it has embedding, logits" in told
    assert "'tensor' is dict, not logits" in refusal(changed(head="tensor"), **fields)
    headless = loaded({k: v for k, v in GOOD.items() if k != "head"})
    assert (headless.predict, headless.classes) == (None, None)


def test_another_image_size_is_refused() -> None:
    with pytest.raises(UsageError, match=r"states its anatomy at 32 x 48 px, so it cannot run at"):
        load_model(spec(), image_size=(48, 48), random_init=True, device="cpu")


def test_the_anatomy_and_the_options_enter_the_identity() -> None:
    one, same_one = loaded().identity, loaded().identity
    other_site = loaded(changed("blocks", 0, attn_in="", side="input")).identity
    other_options = loaded(options={"depth": 1}).identity
    assert one == same_one
    assert len({i.configuration for i in (one, other_site, other_options)}) == 3
    assert one.resolved == "import:unseen:build"
    assert one.weights == "random:0"


CODE = {
    "kin_net.py": """
import importlib
from kin_helpers import widths
from kin_base import Kin

class Net(Kin):
    def __init__(self):
        super().__init__(widths()[0])

def by_name():
    return importlib.import_module("kin_by" + "_name").Other(8)
""",
    "kin_base.py": """
import torch
from torch import nn

class Kin(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.proj = nn.Conv2d(3, width, 8, 8)

    def forward(self, images):
        from kin_parts.late import double
        return double(self.proj(images)).mean((2, 3))
""",
    "kin_helpers.py": "from kin_parts import WIDTH\ndef widths():\n    return [WIDTH]\n",
    "kin_parts/__init__.py": "from .numbers import *\n",
    "kin_parts/numbers.py": "WIDTH = 8\n",
    "kin_parts/late.py": "def double(x):\n    return 2 * x\n",
    "kin_by_name.py": "from kin_base import Kin\nclass Other(Kin):\n    pass\n",
}  # fmt: skip


@pytest.fixture(scope="module")
def kin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A network of several files, one of which is imported in the forward pass alone."""
    folder = tmp_path_factory.mktemp("kin")
    for name, text in CODE.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    return folder


def kin_configuration(kin: Path, build: str = "Net") -> str | None:
    source = ModelSpec("kin", f"import:kin_net:{build}", folder=str(kin))
    size = (32, 32)
    return load_import(source, image_size=size, random_init=True, seed=0).identity.configuration


@pytest.mark.parametrize("file", CODE)
def test_an_edit_to_any_file_of_the_network_is_another_identity(kin: Path, file: str) -> None:
    """Without it, passes that are stored of the network as it was would be taken for its own."""
    before, text = kin_configuration(kin), (kin / file).read_text()
    (kin / file).write_text(text + "# edited\n")
    after = kin_configuration(kin)
    (kin / file).write_text(text)
    assert before != after
    assert kin_configuration(kin) == before


@pytest.mark.parametrize("place", [".", "env/lib/site-packages", "elsewhere"])
def test_another_file_that_is_imported_leaves_the_identity(
    tmp_path: Path, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One beside the network that it does not import, or of an installed package that it does."""
    folder, name = tmp_path / "nets", f"apart_{len(place)}"
    lines = ["from torch import nn", "def build():", "    return nn.Conv2d(3, 4, 8)"]
    other = (folder / place if place != "elsewhere" else tmp_path / place) / f"{name}_other.py"
    other.parent.mkdir(parents=True)
    other.write_text("UNUSED = 1\n")
    folder.mkdir(exist_ok=True)
    (folder / f"{name}_other").mkdir(exist_ok=True)  # such as logs in a folder called wandb
    imported = [] if place == "." else [f"import {name}_other"]
    (folder / f"{name}.py").write_text("\n".join([*imported, *lines]))
    monkeypatch.syspath_prepend(str(other.parent))
    importlib.import_module(f"{name}_other")
    source = ModelSpec("apart", f"import:{name}:build", folder=str(folder))

    def configuration() -> str | None:
        raw = load_import(source, image_size=(8, 8), random_init=True, seed=0)
        return raw.identity.configuration

    before = configuration()
    other.write_text("UNUSED = 2\n")
    assert configuration() == before
    (folder / f"{name}.py").write_text("\n".join([*imported, *lines, "# edited"]))
    assert configuration() != before


def test_weights_must_fit_exactly(tmp_path: Path) -> None:
    state = unseen.build().state_dict()
    file = tmp_path / "mine.safetensors"
    save_file(state, file)
    model = load_model(spec(weights=str(file)), device="cpu")
    assert all(torch.equal(model.module.state_dict()[key], state[key]) for key in state)
    assert model.identity.weights.startswith("sha256:")
    state["heat.weight"] = state.pop("head.weight")
    state["pos"] = state["pos"][:, :9].contiguous()
    save_file(state, file)
    with pytest.raises(CheckpointError) as caught:
        load_model(spec(weights=str(file)), device="cpu")
    assert "does not fit import:unseen:build: 1 missing: head.weight; 1 unexpected: heat" in str(
        caught.value
    )
    assert "pos [1, 9, 16] for [1, 25, 16]" in str(caught.value)
    with pytest.raises(CheckpointError, match="names no weights; add `weights: FILE`"):
        load_model(spec(), device="cpu")


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"source": "import:unsene:build"}, "there is no module 'unsene' in "),
        ({"source": "import:unseen:bild"}, "has no constructor 'bild'. Did you mean build"),
        ({"source": "import:unseen:no_module"}, "gives a int, not a torch.nn.Module"),
        ({"options": {"dept": 2}}, "got an unexpected keyword argument 'dept'. Did you mean depth"),
    ],
)
def test_a_wrong_constructor_is_told(fields: dict[str, Any], told: str) -> None:
    with pytest.raises(UsageError) as caught:
        loaded(**fields)
    assert told in str(caught.value)


def test_a_module_name_that_is_taken_is_refused(tmp_path: Path) -> None:
    (tmp_path / "unseen.py").write_text("build = None\n")
    loaded()
    with pytest.raises(UsageError, match=r"'unseen' is already the name of .*unseen\.py.*rename"):
        loaded(folder=str(tmp_path))


def test_a_constructor_that_fails_tells_its_own_fault(tmp_path: Path) -> None:
    (tmp_path / "faulty_net.py").write_text("import a_missing_dependency\n")
    with pytest.raises(ModuleNotFoundError, match="a_missing_dependency"):
        loaded(source="import:faulty_net:build", folder=str(tmp_path))


SCRIPTS = {
    "parsing_net": (
        "import argparse\nargparse.ArgumentParser().parse_args(['--epochs', '3'])\n",
        "mine: importing 'parsing_net' ends the program (SystemExit: 2); put what the script runs "
        'under `if __name__ == "__main__":`',
    ),
    "ending_net": (
        "def build():\n    raise SystemExit('done')\n",
        "mine: calling import:ending_net:build ends the program (SystemExit: done); put what the",
    ),
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_that_exits_ends_its_model_alone(tmp_path: Path, name: str) -> None:
    text, told = SCRIPTS[name]
    (tmp_path / f"{name}.py").write_text(text)
    with pytest.raises(UsageError) as caught:
        loaded(source=f"import:{name}:build", folder=str(tmp_path))
    assert told in str(caught.value)


def test_a_size_at_which_the_network_does_not_run_is_told() -> None:
    told = refusal(changed(image_size=[32, 32]))
    assert told.startswith("mine: forward failed at 32 x 32 px: RuntimeError: The size of tensor a")
    assert told.endswith("; check the image size")


def test_memory_that_is_full_is_no_fault_of_the_anatomy(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> Any:
        raise torch.OutOfMemoryError("no room")

    monkeypatch.setattr(declared, "trace", full)
    with pytest.raises(torch.OutOfMemoryError, match="no room"):
        loaded()


def test_without_anatomy_no_family_reads_it() -> None:
    with pytest.raises(UsageError, match="does not say its image size"):
        load_model(replace(spec(), anatomy=None), random_init=True, device="cpu")
    with pytest.raises(AnatomyError, match=r"no family reads the architecture unseen\.Net"):
        load_model(replace(spec(), anatomy=None), random_init=True, image_size=(32, 48))


@pytest.mark.parametrize(
    ("options", "grid"), [({"img_size": 32, "patch_size": 8}, [4, 4])], ids=["timm"]
)
def test_an_inline_anatomy_replaces_a_familys(options: dict[str, Any], grid: list[int]) -> None:
    anatomy = {
        "image_size": [32, 32],
        "patches": {"module": "patch_embed", "grid": grid, "layout": "NLC"},
        "blocks": [
            {
                "pattern": "blocks.*",
                "attn_in": "norm2",
                "grid": grid,
                "prefix": 1,
                "layout": "NLC",
            }
        ],
    }
    options = options | {"depth": 2}
    source = "timm:vit_tiny_patch16_224"
    mine = loaded(anatomy, source=source, options=options)
    own = load_model(ModelSpec("own", source, options=options), random_init=True, device="cpu")
    assert (mine.family, own.family) == ("inline", "timm_vit")
    assert mine.identity.configuration != own.identity.configuration
    assert [site.module for site in mine.anatomy.attn_in] == ["blocks.0.norm2", "blocks.1.norm2"]


def test_a_bias_is_scaled_where_its_module_gives_it(make_biased: Callable[[], Any]) -> None:
    model = make_biased()
    redraw(model.module)  # timm starts the norms after attention at zero
    bare = run(model)
    with scale_positions(model, 0.5):
        assert not same(bare, run(model))
    assert same(bare, run(model))


@pytest.fixture
def make_biased() -> Callable[[], Any]:
    """A Swin V2 of timm whose bias is stated as what its MLP gives, through a sigmoid."""
    grid = [8, 8]
    anatomy = {
        "image_size": [32, 32],
        "patches": {"module": "patch_embed", "grid": grid, "layout": "NHWC"},
        "blocks": [
            {"pattern": "layers.0.blocks.*", "attn_in": "", "side": "input", "grid": grid,
             "layout": "NHWC"},
        ],
        "positions": [
            {"kind": "relative_bias", "where": "layers.*.blocks.*.attn.cpb_mlp",
             "through": "sigmoid"}
        ],
    }  # fmt: skip
    options = {"img_size": 32, "depths": [2], "num_heads": [2], "embed_dim": 16, "window_size": 4}
    source = "timm:swinv2_tiny_window8_256"
    return lambda: loaded(anatomy, source=source, options=options)
