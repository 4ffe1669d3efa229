"""Which files are a local checkpoint: the standard names, shards of an index, the only one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save

from probe.families.checkpoint import read_state_dict
from probe.families.weight_files import weights_files
from tests.families.local_checkpoints import Host, Hostile, host

SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
PICKLED_SHARDS = ("pytorch_model-00001-of-00002.bin", "pytorch_model-00002-of-00002.bin")


@pytest.mark.parametrize("names", [SHARDS, PICKLED_SHARDS])
def test_shards_are_one_model(tmp_path: Path, model: Host, names: tuple[str, str]) -> None:
    index = model.write_shards(tmp_path, names)
    model.assert_same(model.load(tmp_path))
    parts = [read_state_dict(tmp_path / name) for name in names]
    assert parts[0].keys() | parts[1].keys() == model.state.keys()
    assert weights_files(index) == weights_files(tmp_path) == tuple(tmp_path / n for n in names)


def test_a_shard_that_is_a_pickle_runs_no_code(tmp_path: Path, model: Host) -> None:
    model.write_shards(tmp_path, PICKLED_SHARDS)
    torch.save({"a": Hostile(tmp_path / "ran")}, tmp_path / PICKLED_SHARDS[1])
    text = model.refused(tmp_path)
    assert text.startswith(f"'{tmp_path / PICKLED_SHARDS[1]}' is no plain state dict: reading it")
    assert not (tmp_path / "ran").exists()


def test_a_missing_shard_is_named(tmp_path: Path, model: Host) -> None:
    index = model.write_shards(tmp_path, SHARDS)
    (tmp_path / SHARDS[1]).unlink()
    assert model.refused(tmp_path) == (
        f"'{tmp_path}' lacks the shards {SHARDS[1]} of its {index.name}; fetch them, or save the "
        "model in one file"
    )


def test_a_damaged_shard_is_named(tmp_path: Path, model: Host) -> None:
    model.write_shards(tmp_path, SHARDS)
    path = tmp_path / SHARDS[1]
    path.write_bytes(path.read_bytes()[:-9])
    assert model.refused(tmp_path).startswith(f"'{path}' cannot be read as a checkpoint: ")


def test_a_weight_in_two_shards_is_named(tmp_path: Path, model: Host) -> None:
    model.write_shards(tmp_path, SHARDS)
    again = read_state_dict(tmp_path / SHARDS[1]) | {model.head: model.state[model.head]}
    again |= {model.norm: model.state[model.norm]}
    (tmp_path / SHARDS[1]).write_bytes(save(again))
    text = model.refused(tmp_path)
    assert text.startswith(f"'{tmp_path / SHARDS[1]}' holds ")
    assert " once more than the other shards; fetch them anew" in text


@pytest.mark.parametrize(
    "name",
    ["../outside.safetensors", "/etc/passwd", "..", ".", "", "a/b.safetensors", "a\\b", "a\0b"],
)
def test_an_index_cannot_lead_out_of_its_folder(tmp_path: Path, model: Host, name: str) -> None:
    index = model.write_shards(tmp_path / "it", SHARDS)
    (tmp_path / "outside.safetensors").write_bytes((tmp_path / "it" / SHARDS[1]).read_bytes())
    index.write_text(json.dumps({"weight_map": {"a": SHARDS[0], "b": name}}))
    assert model.refused(tmp_path / "it") == (
        f"'{index}' names files outside its folder: {name}; do not trust it, and fetch the "
        "checkpoint from its maker"
    )


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "{}", '{"weight_map": []}', '{"weight_map": {}}', '{"weight_map": {"a": 1}}',
     '{"weight_map": {"a": null, "b": "c"}}', '{"weight_map": {"a": ["b"]}}'],
)  # fmt: skip
def test_a_broken_index_is_named(tmp_path: Path, model: Host, text: str) -> None:
    index = model.write_shards(tmp_path, SHARDS)
    index.write_text(text)
    assert model.refused(tmp_path) == f"'{index}' is no index of weight shards; fetch it again"


def test_a_folder_of_several_candidates_is_refused(tmp_path: Path) -> None:
    timm = host("timm")
    timm.write(tmp_path, timm.copy())
    (tmp_path / "mine.pth").rename(tmp_path / "best.pth")
    for name in ("last.pt", "last.ckpt", "ema.safetensors"):
        (tmp_path / name).write_bytes(b"never read")
    assert timm.refused(tmp_path) == (
        f"'{tmp_path}' holds best.pth, ema.safetensors, last.ckpt, last.pt; name one of these files"
    )
    timm.assert_same(timm.load(tmp_path / "best.pth"))


def test_safetensors_stand_for_a_pickle_of_the_same_name(tmp_path: Path) -> None:
    timm = host("timm")
    timm.write(tmp_path, timm.copy(), safe=True)
    (tmp_path / "mine.pth").write_bytes(b"never read")
    timm.assert_same(timm.load(tmp_path))


def test_a_transformers_folder_needs_the_standard_names(tmp_path: Path) -> None:
    hf = host("hf")
    hf.write(tmp_path, hf.copy(), safe=True)
    (tmp_path / hf.safe).rename(tmp_path / "best.safetensors")
    text = hf.refused(tmp_path)
    assert "holds no weights; expected model.safetensors or pytorch_model.bin" in text
