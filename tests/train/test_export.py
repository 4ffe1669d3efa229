"""A finished run is a timm folder that loads as any other, with a record that fits its weights."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
import timm
import torch

from probe.families.controlled import POSITION, VARIANTS
from probe.loading import load_model
from probe.zoo import Zoo
from tests.train.tiny_runs import digits, tiny, trained, weights
from train.export import finished


@pytest.mark.parametrize("variant", VARIANTS)
def test_it_loads_and_gives_the_recorded_accuracy(tmp_path: Path, variant: str) -> None:
    record = trained(tmp_path, "train.steps=4", variant=variant)
    model = load_model(Zoo({}).resolve(str(tmp_path)), device="cpu")
    assert model.identity.weights == record["weights"]
    assert model.anatomy.patches.grid.tokens == 64
    kinds = [site.kind for site in model.anatomy.positions]
    assert set(kinds) == {POSITION[variant]} - {"none"}  # type: ignore[index]
    assert model.class_names == digits().class_names
    for name, part in (("validation", digits().validation), ("test", digits().test)):
        pixels = torch.from_numpy(part.images[part.rows].copy()).permute(0, 3, 1, 2).float() / 255
        assert model.predict is not None
        with torch.inference_mode():
            logits = model.predict(model.forward((pixels - 0.5) / 0.5))
        right = int((logits.argmax(1).numpy() == part.labels).sum())
        assert {"correct": right, "images": len(part)} == record[name]


def test_timm_builds_it_without_this_project(tmp_path: Path) -> None:
    trained(tmp_path, untrained=True, variant="rope")
    model = timm.create_model(f"local-dir:{tmp_path}", pretrained=True)
    found = {name: value.half() for name, value in model.state_dict().items()}
    stored = weights(tmp_path)
    assert found.keys() == stored.keys()
    assert all(torch.equal(found[name], stored[name]) for name in stored)
    assert model.pretrained_cfg["mean"] == [0.5, 0.5, 0.5]


def test_the_configuration_says_what_dropout_had_no_part_in(tmp_path: Path) -> None:
    trained(tmp_path, "model.dropout.mlp=0.3", "model.drop_path=0.3", untrained=True)
    config = json.loads((tmp_path / "config.json").read_text())
    assert not [key for key in config["model_args"] if "drop" in key]
    assert config["num_classes"] == 10
    assert config["label_names"] == list(digits().class_names)
    assert config["pretrained_cfg"]["input_size"] == [3, 32, 32]
    assert config["pretrained_cfg"]["interpolation"] == tiny().image.interpolation


@pytest.mark.parametrize(("dtype", "size"), [("float16", 2), ("float32", 4)])
def test_the_stored_type(tmp_path: Path, dtype: str, size: int) -> None:
    record = trained(tmp_path, f"keep.dtype={dtype}", untrained=True)
    content = (tmp_path / "model.safetensors").read_bytes()
    assert {value.element_size() for value in weights(tmp_path).values()} == {size}
    assert record["weights"] == f"sha256:{hashlib.sha256(content).hexdigest()}"


def test_only_a_whole_run_is_finished(tmp_path: Path) -> None:
    record = trained(tmp_path, untrained=True)
    assert finished(tmp_path) == record
    for name in ("training.json", "config.json", "model.safetensors"):
        content = (tmp_path / name).read_bytes()
        for broken in (content[:-20], b""):
            (tmp_path / name).write_bytes(broken)
            assert finished(tmp_path) is None
        (tmp_path / name).write_bytes(content)
        assert finished(tmp_path) == record
    assert finished(tmp_path / "nowhere") is None
