"""Local timm checkpoints: state-dict files with their architecture, and folders in hub format."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from safetensors.torch import save_file
from torch import Tensor

from probe.errors import CheckpointError, UnknownModel, UsageError
from probe.types import ModelSpec
from tests.families.timm_specs import (
    ARCH,
    FILE,
    equal_states,
    file_spec,
    images,
    load,
    refusal,
    trained,
    untrained,
)


def test_a_file_gives_its_weights_bit_for_bit(tmp_path: Path) -> None:
    module, path = trained(), tmp_path / "mine.safetensors"
    save_file(module.state_dict(), path)
    raw = load(file_spec(path))
    assert equal_states(raw.module, module)
    assert raw.identity.weights == "sha256:" + hashlib.sha256(path.read_bytes()).hexdigest()
    assert raw.identity.resolved == f"file:{path.name}"
    assert raw.identity.revision is None
    assert raw.image_size == (64, 64)
    assert raw.classes == 7
    assert raw.preprocess is None  # none came with the file
    assert "state_dict" not in raw.module.pretrained_cfg
    assert torch.equal(raw.forward(images((64, 64))), module.eval()(images((64, 64))))


def test_a_wrapped_training_file_loads(tmp_path: Path) -> None:
    module, path = trained(), tmp_path / "last.pth"
    wrapped = {f"module._orig_mod.{key}": value for key, value in module.state_dict().items()}
    torch.save({"model": wrapped, "epoch": 9}, path)
    assert equal_states(load(file_spec(path)).module, module)


def test_known_conversions_of_timm_apply(tmp_path: Path) -> None:
    """Original DeiT III files call their layer scales gamma_1 and gamma_2."""
    module, path = trained(init_values=1e-5, no_embed_class=True), tmp_path / "deit3.pth"
    original = {
        key.replace("ls1.gamma", "gamma_1").replace("ls2.gamma", "gamma_2"): value
        for key, value in module.state_dict().items()
    }
    assert "blocks.0.gamma_1" in original
    torch.save(original, path)
    options = {"init_values": 1e-5, "no_embed_class": True}
    assert equal_states(load(file_spec(path, **options)).module, module)


def test_an_untrained_model_of_a_file_reads_no_weights(tmp_path: Path) -> None:
    path = tmp_path / "mine.safetensors"
    path.write_bytes(b"never read")
    raw = untrained(file_spec(path), seed=2)
    assert raw.identity.weights == "random:2"
    torch.manual_seed(2)
    assert equal_states(raw.module, timm.create_model(ARCH, **FILE))


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda s: s.pop("norm.bias"), "1 missing: norm.bias"),
        (lambda s: s.update(extra=torch.ones(1)), "1 unexpected: extra"),
        (
            lambda s: s.update({"head.bias": torch.ones(9)}),
            "1 of another shape: head.bias [9] for [7]; check the architecture and its options",
        ),
        (
            lambda s: s.update(pos_embed=torch.ones(1, 5, 32)),
            "1 of another shape: pos_embed [1, 5, 32] for [1, 17, 32]",
        ),
        (
            lambda s: s.update({"patch_embed.proj.weight": torch.ones(32, 3, 8, 8)}),
            "1 of another shape: patch_embed.proj.weight [32, 3, 8, 8] for [32, 3, 16, 16]",
        ),
        (
            lambda s: s.update({"norm.bias": torch.ones(4, 8)}),
            "1 of another shape: norm.bias [4, 8] for [32]",
        ),
    ],
)
def test_weights_that_do_not_all_match_are_named(
    tmp_path: Path, change: Callable[[dict[str, Tensor]], Any], text: str
) -> None:
    state = dict(trained().state_dict())
    change(state)
    save_file(state, tmp_path / "mine.safetensors")
    assert text in refusal(CheckpointError, lambda: load(file_spec(tmp_path / "mine.safetensors")))


@pytest.mark.parametrize("asked", [{"num_classes": 10}, {"num_classes": 0}, {"depth": 3}])
def test_no_part_of_a_file_is_dropped_or_left_untrained(
    tmp_path: Path, asked: dict[str, Any]
) -> None:
    save_file(trained().state_dict(), tmp_path / "mine.safetensors")
    text = refusal(CheckpointError, lambda: load(file_spec(tmp_path / "mine.safetensors", **asked)))
    key = "blocks.2.attn" if "depth" in asked else "head.bias"
    assert key in text


def test_weights_of_another_architecture_are_refused(tmp_path: Path) -> None:
    save_file({"stem.conv.weight": torch.ones(4)}, tmp_path / "other.safetensors")
    text = refusal(CheckpointError, lambda: load(file_spec(tmp_path / "other.safetensors")))
    assert "missing: blocks.0.attn.proj.bias, blocks.0.attn.proj.weight" in text
    assert "1 unexpected: stem.conv.weight" in text


def test_another_image_size_resamples_by_timm_and_is_noted(tmp_path: Path) -> None:
    module, path = trained(), tmp_path / "mine.safetensors"
    save_file(module.state_dict(), path)
    raw = load(file_spec(path), (96, 64))
    assert raw.image_size == (96, 64)
    assert raw.notes == (
        "run at 96 x 64 px; the checkpoint's own size is 64 x 64, and timm resamples position "
        "tables that depend on it",
    )
    expected = timm.layers.resample_abs_pos_embed(
        module.pos_embed, new_size=[6, 4], old_size=[4, 4], num_prefix_tokens=1
    )
    torch.testing.assert_close(raw.module.pos_embed, expected, rtol=0, atol=0)
    assert torch.equal(raw.module.blocks[1].mlp.fc2.weight, module.blocks[1].mlp.fc2.weight)


def test_a_file_trained_at_a_rectangle_is_left_as_it_is(tmp_path: Path) -> None:
    module, path = trained(img_size=(32, 128)), tmp_path / "wide.safetensors"
    save_file(module.state_dict(), path)
    raw = load(file_spec(path, img_size=[32, 128]))
    assert raw.notes == ()
    assert torch.equal(raw.module.pos_embed, module.pos_embed)


def test_a_file_needs_an_architecture(tmp_path: Path) -> None:
    save_file(trained().state_dict(), tmp_path / "mine.safetensors")
    path = tmp_path / "mine.safetensors"
    assert "name a timm one with --arch" in refusal(UsageError, lambda: load(file_spec(path, None)))
    text = refusal(UnknownModel, lambda: load(file_spec(path, "deit_tiny")))
    assert "Did you mean deit_tiny_patch16_224" in text
    gone = refusal(CheckpointError, lambda: load(file_spec(tmp_path / "gone.pth")))
    assert "there is no checkpoint at" in gone


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    module = trained()
    module.pretrained_cfg |= {"mean": (0.1, 0.2, 0.3), "crop_pct": 0.5}
    timm.models.save_for_hf(module, tmp_path, safe_serialization=True)
    return tmp_path


@pytest.mark.parametrize("file", ["", "model.safetensors"])
def test_a_timm_folder_brings_architecture_and_preprocessing(folder: Path, file: str) -> None:
    raw = load(ModelSpec("mine", f"file:{folder / file}"))
    assert equal_states(raw.module, trained())
    assert (raw.image_size, raw.classes, raw.notes) == ((64, 64), 7, ())
    assert raw.preprocess is not None
    assert raw.preprocess.mean == (0.1, 0.2, 0.3)
    assert (raw.preprocess.resize, raw.preprocess.crop) == (("short", 128), (64, 64))
    assert raw.identity.weights.startswith("sha256:")


def test_the_configuration_is_hashed_wherever_the_folder_lies(
    folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Equal weights fit every number of heads, so they alone do not say which model it is."""
    other = tmp_path_factory.mktemp("other") / "place"
    shutil.copytree(folder, other)
    one = load(ModelSpec("mine", f"file:{folder}")).identity
    same = load(ModelSpec("mine", f"file:{other}")).identity
    assert (one.weights, one.configuration) == (same.weights, same.configuration)
    assert one.configuration.startswith("sha256:")
    config = json.loads((other / "config.json").read_text())
    config["model_args"] |= {"num_heads": 4}
    (other / "config.json").write_text(json.dumps(config))
    split = load(ModelSpec("mine", f"file:{other}")).identity
    assert split.weights == one.weights
    assert split.configuration != one.configuration


def test_options_and_architecture_of_a_file_are_hashed(tmp_path: Path) -> None:
    path = tmp_path / "mine.safetensors"
    save_file(trained().state_dict(), path)
    moved = tmp_path / "moved.safetensors"
    moved.write_bytes(path.read_bytes())
    specs = [
        file_spec(path),
        file_spec(moved),
        file_spec(path, act_layer="relu"),
        file_spec(path, num_heads=4),
        file_spec(path, "vit_tiny_patch16_224"),
    ]
    found = [load(spec).identity for spec in specs]
    assert len({identity.weights for identity in found}) == 1
    assert found[0].configuration == found[1].configuration
    assert len({identity.configuration for identity in found}) == 4


def test_a_timm_folder_contradicts_another_architecture(folder: Path) -> None:
    spec = ModelSpec("mine", f"file:{folder}", arch="vit_tiny_patch16_224")
    text = refusal(UsageError, lambda: load(spec))
    assert "is a checkpoint of deit_tiny_patch16_224, not of vit_tiny_patch16_224" in text


def test_a_broken_config_is_named(folder: Path) -> None:
    (folder / "config.json").write_text("{")
    text = refusal(CheckpointError, lambda: load(ModelSpec("mine", f"file:{folder}")))
    assert "config.json' is not readable JSON" in text
