"""State-dict files: which are read, which are refused, and what the refusal says."""

from __future__ import annotations

import argparse
import hashlib
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from probe.errors import CheckpointError
from probe.families.checkpoint import (
    check_finite,
    file_sha256,
    local_path,
    mismatch,
    read_state_dict,
)
from probe.families.weight_files import weights_files

STATE = {"a.weight": torch.arange(6.0).reshape(2, 3), "a.count": torch.tensor(3)}


def equal(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[key], other[key]) for key in one)


class Harmful:
    def __reduce__(self) -> tuple[Any, ...]:
        return (print, ("code from the file ran",))


@pytest.mark.parametrize("suffix", [".safetensors", ".pth", ".bin"])
def test_a_plain_state_dict_is_read(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"weights{suffix}"
    if suffix == ".safetensors":
        save_file(STATE, path)
    else:
        torch.save(STATE, path)
    assert equal(read_state_dict(path), STATE)


@pytest.mark.parametrize("prefix", ["module.", "model.", "_orig_mod.", "module._orig_mod.model."])
def test_a_prefix_that_all_keys_carry_is_stripped(tmp_path: Path, prefix: str) -> None:
    torch.save({prefix + key: value for key, value in STATE.items()}, tmp_path / "w.pth")
    assert equal(read_state_dict(tmp_path / "w.pth"), STATE)


def test_a_prefix_that_some_keys_lack_stays(tmp_path: Path) -> None:
    mixed = {"module.a": torch.ones(1), "b": torch.ones(1)}
    torch.save(mixed, tmp_path / "w.pth")
    assert read_state_dict(tmp_path / "w.pth").keys() == mixed.keys()


@pytest.mark.parametrize("key", ["state_dict", "model", "model_ema", "teacher"])
def test_the_one_state_dict_of_a_training_file_is_taken(tmp_path: Path, key: str) -> None:
    file = {
        key: STATE, "epoch": 3, "args": argparse.Namespace(lr=0.1), "optimizer": {"state": {}},
        "rng": {"cpu": torch.get_rng_state()}, "empty": {},
    }  # fmt: skip
    torch.save(file, tmp_path / "w.pth")
    assert equal(read_state_dict(tmp_path / "w.pth"), STATE)


def test_several_state_dicts_are_refused_by_name(tmp_path: Path) -> None:
    torch.save({"state_dict_ema": STATE, "state_dict": STATE, "epoch": 1}, tmp_path / "w.pth")
    with pytest.raises(CheckpointError) as caught:
        read_state_dict(tmp_path / "w.pth")
    assert "holds several state dicts (state_dict, state_dict_ema); save the one" in str(
        caught.value
    )


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ({"epoch": 3, "lr": 0.1}, "holds no state dict, but entries epoch, lr; save"),
        ({"a": torch.ones(1), "epoch": 3}, "holds no state dict, but entries a, epoch; save"),
        ([torch.ones(1)], "holds no state dict, but list; save"),
        ({}, "holds no state dict, but dict; save"),
    ],
)
def test_what_is_no_state_dict_is_described(tmp_path: Path, content: Any, text: str) -> None:
    torch.save(content, tmp_path / "w.pth")
    with pytest.raises(CheckpointError) as caught:
        read_state_dict(tmp_path / "w.pth")
    assert text in str(caught.value)


def test_a_pickle_cannot_run_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.save({"model": Harmful()}, tmp_path / "w.pth")
    with pytest.raises(CheckpointError, match="reading it would run code from the file") as caught:
        read_state_dict(tmp_path / "w.pth")
    assert "\n" not in str(caught.value)
    assert "ran" not in capsys.readouterr().out


@pytest.mark.parametrize("name", ["w.safetensors", "w.pth"])
@pytest.mark.parametrize("content", [b"", b"not a checkpoint at all", bytes(200)])
def test_a_damaged_file_gives_one_line(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(CheckpointError) as caught:
        read_state_dict(tmp_path / name)
    assert str(tmp_path / name) in str(caught.value)
    assert str(caught.value).endswith("as safetensors")  # what to do
    assert "\n" not in str(caught.value)


def test_a_truncated_file_gives_one_line(tmp_path: Path) -> None:
    save_file({"a": torch.ones(1000)}, tmp_path / "w.safetensors")
    whole = (tmp_path / "w.safetensors").read_bytes()
    (tmp_path / "w.safetensors").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(CheckpointError, match="cannot be read as a checkpoint") as caught:
        read_state_dict(tmp_path / "w.safetensors")
    assert str(caught.value).endswith(
        "; it is damaged or none, so fetch it anew or save its state dict as safetensors"
    )
    assert "\n" not in str(caught.value)


def test_a_text_that_is_named_like_a_checkpoint(tmp_path: Path) -> None:
    """Such as a page that was saved in place of the file, or a pointer of Git LFS."""
    for text in ("<!DOCTYPE html>\n<html>\n", "version https://git-lfs.github.com/spec/v1\n"):
        (tmp_path / "w.pth").write_text(text)
        with pytest.raises(CheckpointError) as caught:
            read_state_dict(tmp_path / "w.pth")
        assert str(caught.value).startswith(f"'{tmp_path / 'w.pth'}' is no plain state dict: ")
        assert "or it is damaged; save the model's state_dict() as safetensors" in str(caught.value)
        assert "\n" not in str(caught.value)


def test_a_folder_prefers_safetensors(tmp_path: Path) -> None:
    def chosen(place: Path) -> list[str]:
        return [path.name for path in weights_files(place)]

    with pytest.raises(CheckpointError, match="holds no weights"):
        weights_files(tmp_path)
    torch.save(STATE, tmp_path / "last.pth")
    assert chosen(tmp_path) == ["last.pth"]
    torch.save(STATE, tmp_path / "pytorch_model.bin")
    assert chosen(tmp_path) == ["pytorch_model.bin"]
    save_file(STATE, tmp_path / "model.safetensors")
    assert chosen(tmp_path) == ["model.safetensors"]
    assert chosen(tmp_path / "last.pth") == ["last.pth"]


def test_a_folder_of_equals_is_refused(tmp_path: Path) -> None:
    for epoch in range(6):
        torch.save(STATE, tmp_path / f"epoch{epoch}.pth")
    with pytest.raises(CheckpointError) as caught:
        weights_files(tmp_path)
    text = "holds epoch0.pth, epoch1.pth, epoch2.pth, epoch3.pth and 2 more; name one"
    assert text in str(caught.value)


def test_hash_is_of_the_bytes(tmp_path: Path) -> None:
    (tmp_path / "w.bin").write_bytes(b"abc")
    assert file_sha256(tmp_path / "w.bin") == "sha256:" + hashlib.sha256(b"abc").hexdigest()


def test_local_paths(tmp_path: Path) -> None:
    assert local_path(f"file:{tmp_path}") == tmp_path
    assert local_path("package:types.py").name == "types.py"
    with pytest.raises(CheckpointError, match=r"no checkpoint at '.*gone'; check the path"):
        local_path(f"file:{tmp_path / 'gone'}")


def test_mismatch_names_the_first_keys_and_counts_all() -> None:
    assert mismatch([], [], []) is None
    line = mismatch((f"m{i}" for i in range(6)), ["u"], ["head.weight [2] for [3]"])
    assert line == (
        "6 missing: m0, m1, m2, m3 and 2 more; 1 unexpected: u; "
        "1 of another shape: head.weight [2] for [3]"
    )


def test_a_buffer_without_bound_is_no_broken_weight() -> None:
    module = torch.nn.Linear(2, 2)
    module.register_buffer("highest", torch.tensor(float("inf")))
    module.register_buffer("spread", torch.ones(3))
    check_finite(module, "it")
    module.spread[1] = float("inf")
    with pytest.raises(CheckpointError, match=r"in 1 of its weights: spread \(1 of 3 values\)"):
        check_finite(module, "it")
    module.spread[1], module.highest = 1, torch.tensor(float("nan"))
    with pytest.raises(CheckpointError, match=r"weights: highest \(1 of 1 values\)"):
        check_finite(module, "it")
    module.highest = torch.tensor(float("inf"))
    module.weight.data[:] = float("inf")
    with pytest.raises(CheckpointError, match=r"weights: weight \(4 of 4 values\)"):
        check_finite(module, "it")
