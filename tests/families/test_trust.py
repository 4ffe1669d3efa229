"""Local checkpoints as they come, for every loader: loaded rightly, or refused with the keys."""

from __future__ import annotations

import argparse
import json
import pathlib
import pickle
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save
from torch import Tensor

from probe.errors import CheckpointError
from probe.families.checkpoint import PREFIXES, local_path, read_state_dict
from probe.loading import load_model
from tests.families.local_checkpoints import Host, Hostile, host
from tests.families.timm_specs import refusal

State = dict[str, Tensor]
LIGHTNING = {
    "epoch": 4, "global_step": 40, "pytorch-lightning_version": "2.4.0", "loops": {},
    "callbacks": {"ModelCheckpoint": {"best_model_score": torch.tensor(0.5)}},
    "lr_schedulers": [], "hyper_parameters": {"lr": 1e-3, "arch": "vit"},
}  # fmt: skip


def optimizer_state(model: Host) -> Any:
    """What AdamW has to save after a step."""
    weights = [tensor.clone().requires_grad_() for tensor in model.state.values()]
    optimizer = torch.optim.AdamW(weights)
    torch.stack([weight.sum() for weight in weights]).sum().backward()
    optimizer.step()
    return optimizer.state_dict()


def prefixed(state: State, prefix: str) -> State:
    return {prefix + name: tensor for name, tensor in state.items()}


STACKS = [
    *PREFIXES, "module.module.", "module._orig_mod.", "_orig_mod.module.", "model._orig_mod.",
    "model.module._orig_mod.model.", "net.module.",
]  # fmt: skip
WHOLE: dict[str, Callable[[Host, State], Any]] = {
    **{f"{p}*": lambda model, state, p=p: prefixed(state, p) for p in STACKS},
    "state_dict": lambda model, state: {"state_dict": state, "epoch": 3},
    "state_dict_ema alone": lambda model, state: {"state_dict_ema": state, "epoch": 3},
    "model_ema alone": lambda model, state: {"model_ema": prefixed(state, "module."), "step": 9},
    "optimizer beside it": lambda model, state: {
        "model": prefixed(state, "module."),
        "optimizer": optimizer_state(model),
        "lr_scheduler": {"last_epoch": 3, "_last_lr": [0.1]},
        "scaler": {"scale": 65536.0, "_growth_tracker": 7},
        "rng": {"cpu": torch.get_rng_state()},
        "metrics": {"top1": torch.tensor(0.5)},
        "args": argparse.Namespace(lr=0.1),
    },
    "Lightning, model.": lambda model, state: (
        LIGHTNING
        | {"state_dict": prefixed(state, "model."), "optimizer_states": [optimizer_state(model)]}
    ),
    "Lightning, net.": lambda model, state: (
        LIGHTNING | {"state_dict": prefixed(state, "net._orig_mod."), "optimizer_states": []}
    ),
}


ENTRIES = {
    "state_dict": "state_dict", "state_dict_ema alone": "state_dict_ema",
    "model_ema alone": "model_ema", "optimizer beside it": "model",
    "Lightning, model.": "state_dict", "Lightning, net.": "state_dict",
}  # fmt: skip


@pytest.mark.parametrize("name", WHOLE)
def test_what_holds_the_whole_model_once_is_that_model(
    tmp_path: Path, model: Host, name: str
) -> None:
    path = model.write(tmp_path, WHOLE[name](model, model.copy()))
    raw = model.load(tmp_path)
    model.assert_same(raw)
    entry = ENTRIES.get(name)
    told = [note for note in raw.notes if "entry" in note]
    assert told == ([f"the weights are the entry '{entry}' of {path.name}"] if entry else [])


@pytest.mark.parametrize("prefix", ["", "module.", "_orig_mod.model."])
def test_safetensors_with_a_prefix_are_that_model(tmp_path: Path, model: Host, prefix: str) -> None:
    model.write(tmp_path, prefixed(model.copy(), prefix), safe=True)
    model.assert_same(model.load(tmp_path))


@pytest.mark.parametrize("safe", [True, False])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_another_precision_is_brought_to_float32(
    tmp_path: Path, model: Host, dtype: torch.dtype, safe: bool
) -> None:
    model.write(tmp_path, {k: v.to(dtype) for k, v in model.copy().items()}, safe=safe)
    model.assert_same(model.load(tmp_path), dtype)


@pytest.mark.parametrize("stored", [torch.float16, torch.float64])
@pytest.mark.parametrize("asked", ["float16", "bfloat16", "float64"])
def test_the_asked_precision_is_given(
    tmp_path: Path, model: Host, stored: torch.dtype, asked: Any
) -> None:
    model.write(tmp_path, {k: v.to(stored) for k, v in model.copy().items()}, safe=True)
    found = load_model(model.spec(tmp_path), device="cpu", dtype=asked).module.state_dict()
    for name, tensor in model.module.state_dict().items():
        expected = tensor.to(stored).float().to(getattr(torch, asked))
        assert found[name].dtype == expected.dtype
        assert torch.equal(found[name], expected), name


def test_what_the_asked_precision_cannot_hold_is_refused(tmp_path: Path, model: Host) -> None:
    state = model.copy()
    state[model.norm][5] = 1e5
    model.write(tmp_path, state)
    text = refusal(
        CheckpointError,
        lambda: load_model(model.spec(tmp_path), device="cpu", dtype="float16"),
    )
    named = "import:unseen:Net" if model.library == "import" else f"file:{tmp_path.name}"
    assert text == (
        f"{named} in float16 holds NaN or infinite values in 1 of its weights: "
        f"{model.norm} (1 of 32 values); some are too large for it, so choose --dtype float32"
    )
    found = load_model(model.spec(tmp_path), device="cpu", dtype="bfloat16")
    assert float(found.module.state_dict()[model.norm][5]) == 99840  # the nearest bfloat16


@pytest.mark.parametrize("dtype", [torch.int64, torch.int8, torch.uint8, torch.bool])
@pytest.mark.parametrize("safe", [True, False])
def test_whole_numbers_are_no_weights(
    tmp_path: Path, model: Host, dtype: torch.dtype, safe: bool
) -> None:
    state = model.copy()
    state[model.norm] = torch.ones(32).to(dtype)
    path = model.write(tmp_path, state, safe=safe)
    assert model.refused(tmp_path) == (
        f"'{path}' holds no floating-point numbers in 1 of its weights: {model.norm} "
        f"({str(dtype).removeprefix('torch.')}); save them as float32, those of a quantised model "
        "dequantised"
    )


def test_complex_numbers_are_no_weights(tmp_path: Path, model: Host) -> None:
    state = model.copy()
    state[model.head] = state[model.head].to(torch.complex64)
    model.write(tmp_path, {"model": state})
    assert f"in 1 of its weights: {model.head} (complex64); save" in model.refused(tmp_path)


@pytest.mark.parametrize("prefix", ["", "module."])
def test_a_model_of_whole_numbers_alone_is_refused(
    tmp_path: Path, model: Host, prefix: str
) -> None:
    state = {name: (tensor * 100).to(torch.int8) for name, tensor in model.copy().items()}
    model.write(tmp_path, prefixed(state, prefix), safe=True)
    text = model.refused(tmp_path)
    assert f"holds no floating-point numbers in {len(state)} of its weights: " in text
    assert " (int8), " in text
    assert f" and {len(state) - 4} more; save them as float32" in text


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_weights_that_are_no_numbers_are_counted(tmp_path: Path, model: Host, value: float) -> None:
    state = model.copy()
    state[model.norm][3:6] = value
    state[model.head][0] = value
    path = model.write(tmp_path, state, safe=True)
    text = model.refused(tmp_path)
    assert text.startswith(f"'{path}' holds NaN or infinite values in 2 of its weights: ")
    assert f"{model.norm} (3 of 32 values)" in text
    assert f"{model.head} (1 of {len(state[model.head])} values)" in text
    advice = "; the training diverged or the file is damaged, so take another checkpoint"
    assert text.endswith(advice)


def test_numbers_beyond_float32_are_refused(tmp_path: Path, model: Host) -> None:
    state = {name: tensor.double() for name, tensor in model.copy().items()}
    state[model.norm][0] = 1e300
    model.write(tmp_path, state)
    assert f"in 1 of its weights: {model.norm} (1 of 32 values); " in model.refused(tmp_path)


@pytest.mark.parametrize("inside", ["alone", "beside the weights", "in the weights"])
@pytest.mark.parametrize("form", ["zip", "legacy", "bare pickle"])
def test_no_code_of_a_pickle_runs(tmp_path: Path, model: Host, inside: str, form: str) -> None:
    trace, state = tmp_path / "ran", model.copy()
    hostile = Hostile(trace)
    content: Any = {
        "alone": hostile,
        "beside the weights": {"model": state, "extra": hostile},
        "in the weights": state | {"extra": hostile},
    }[inside]
    path = model.write(tmp_path / "it", state)
    if form == "bare pickle":
        small = content if inside == "alone" else {"extra": hostile}
        path.write_bytes(pickle.dumps(small, 2))
    else:
        torch.save(content, path, _use_new_zipfile_serialization=form == "zip")
    assert model.refused(tmp_path / "it") == (
        f"'{path}' is no plain state dict: reading it would run code from the file (posix.mkdir); "
        "save the model's state_dict() as safetensors"
    )
    assert not trace.exists()
    pickle.loads(pickle.dumps(hostile))  # it would have left its trace
    assert trace.exists()


def test_objects_of_a_training_framework_are_named(tmp_path: Path, model: Host) -> None:
    settings = LIGHTNING | {"hyper_parameters": {"root": pathlib.PurePosixPath("data")}}
    model.write(tmp_path, settings | {"state_dict": prefixed(model.copy(), "model.")})
    text = model.refused(tmp_path)
    assert "would run code from the file (pathlib.PurePosixPath); save the model's" in text


PARTIAL: dict[str, tuple[Callable[[Host, State], Any], str]] = {
    "EMA and not": (
        lambda model, state: {"state_dict": state, "state_dict_ema": state},
        "holds several state dicts (state_dict, state_dict_ema); save the one you mean alone: "
        "torch.save(torch.load('{name}')['state_dict'], 'state_dict.pth')",
    ),
    "model and model_ema": (
        lambda model, state: {"model": state, "model_ema": prefixed(state, "module.")},
        "holds several state dicts (model, model_ema); save the one you mean alone: torch.save(",
    ),
    "EMA and not, in one dictionary": (
        lambda model, state: prefixed(state, "model.") | prefixed(state, "ema.module."),
        "the model's names stand after 'ema.module.' and 'model.': save the one you mean alone, "
        "without prefix",
    ),
    "an unknown prefix": (
        lambda model, state: prefixed(state, "student.encoder."),
        "the model's names stand after 'student.encoder.': save them alone, without that prefix",
    ),
    "Lightning with a loss that has weights": (
        lambda model, state: (
            LIGHTNING | {"state_dict": prefixed(state, "model.") | {"loss.weight": torch.ones(3)}}
        ),
        "the model's names stand after 'model.': save them alone, without that prefix",
    ),
    "a head of another width": (
        lambda model, state: state | {model.head: torch.zeros(11)},
        "1 of another shape: {head} ",
    ),
    "no head": (
        lambda model, state: {k: v for k, v in state.items() if k != model.head},
        "1 missing: {head}; check",
    ),
    "two heads": (
        lambda model, state: state | {"head_aux.weight": torch.ones(2)},
        "1 unexpected: head_aux.weight; check",
    ),
    "nothing": (lambda model, state: {}, "holds no state dict, but dict; save the model's alone"),
    "no model": (
        lambda model, state: {"optimizer": optimizer_state(model), "epoch": 3},
        "holds no state dict, but entries optimizer, epoch; save the model's alone",
    ),
}


@pytest.mark.parametrize("name", PARTIAL)
def test_what_is_not_the_whole_model_once_is_refused(
    tmp_path: Path, model: Host, name: str
) -> None:
    content, text = PARTIAL[name]
    path = model.write(tmp_path, content(model, model.copy()))
    found = model.refused(tmp_path)
    assert text.format(name=path.name, head=model.head) in found
    assert path.name in found or tmp_path.name in found


def forged(*tensors: tuple[str, str, list[int], list[int]], data: int = 16) -> bytes:
    """A file of safetensors whose header says what it is told to."""
    header = json.dumps({n: dict(dtype=d, shape=s, data_offsets=o) for n, d, s, o in tensors})
    return struct.pack("<Q", len(header)) + header.encode() + bytes(data)


WHOLE_FILE = save({"a": torch.ones(1000)})
DAMAGED = {
    "empty": b"",
    "cut in the length": WHOLE_FILE[:5],
    "cut in the header": WHOLE_FILE[:30],
    "cut in the data": WHOLE_FILE[:-1],
    "longer than it says": WHOLE_FILE + b"\0",
    "a header beyond the file": struct.pack("<Q", 10**6) + WHOLE_FILE[8:],
    "a header beyond all memory": struct.pack("<Q", 2**63) + WHOLE_FILE[8:],
    "data beyond the file": forged(("a", "F32", [1000], [0, 4000])),
    "fewer bytes than the shape": forged(("a", "F32", [1000], [0, 16])),
    "more bytes than the shape": forged(("a", "F32", [2], [0, 16])),
    "tensors over each other": forged(("a", "F32", [4], [0, 16]), ("b", "F32", [4], [0, 16])),
    "a hole": forged(("a", "F32", [2], [8, 16])),
    "offsets backwards": forged(("a", "F32", [4], [16, 0])),
    "a shape that overflows": forged(("a", "F32", [2**62, 2**62], [0, 16])),
    "an unknown type": forged(("a", "F99", [4], [0, 16])),
    "a page": b"<!DOCTYPE html>\n<html>\n",
    "a Git LFS pointer": b"version https://git-lfs.github.com/spec/v1\n",
}


@pytest.mark.parametrize("name", DAMAGED)
def test_damaged_safetensors_are_refused_in_one_line(
    tmp_path: Path, model: Host, name: str
) -> None:
    path = model.settled(tmp_path) / model.safe
    path.write_bytes(DAMAGED[name])
    text = model.refused(tmp_path)
    assert text.startswith(f"'{path}' cannot be read as a checkpoint: ")
    assert text.endswith(
        "; it is damaged or none, so fetch it anew or save its state dict as safetensors"
    )


@pytest.mark.parametrize("form", ["zip", "legacy", "empty", "a page", "a Git LFS pointer"])
def test_damaged_pickles_are_refused_in_one_line(tmp_path: Path, model: Host, form: str) -> None:
    path = model.settled(tmp_path) / model.pickled
    if form in DAMAGED:
        path.write_bytes(DAMAGED[form])
    else:
        torch.save(model.copy(), path, _use_new_zipfile_serialization=form == "zip")
        path.write_bytes(path.read_bytes()[:-1000])
    text = model.refused(tmp_path)
    assert text.startswith(f"'{path}' ")
    assert text.endswith("as safetensors")


@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
@pytest.mark.parametrize("form", ["safetensors", "zip", "legacy"])
@given(data=st.data())
def test_any_damage_is_told_or_harmless(
    tmp_path_factory: pytest.TempPathFactory, form: str, data: st.DataObject
) -> None:
    """A file that is cut, or has one byte changed, is never a traceback."""
    state = {"blocks.0.weight": torch.arange(6.0).reshape(2, 3), "head.bias": torch.ones(2)}
    path = tmp_path_factory.mktemp("it") / ("a.safetensors" if form == "safetensors" else "a.pth")
    if form == "safetensors":
        path.write_bytes(save(state))
    else:
        torch.save(state, path, _use_new_zipfile_serialization=form == "zip")
    content = bytearray(path.read_bytes())
    place = data.draw(st.integers(0, len(content) - 1))
    if data.draw(st.booleans()):
        del content[place:]
    else:
        content[place] ^= data.draw(st.integers(1, 255))
    path.write_bytes(content)
    told = f"'{path}' "
    try:
        read_state_dict(path)
    except CheckpointError as error:
        told = str(error)
    assert told.startswith(f"'{path}' ")
    assert "\n" not in told


def test_a_prefix_that_is_the_models_own_stays(tmp_path: Path) -> None:
    state = {"model.a": torch.ones(1), "model.b": torch.ones(1)}
    torch.save(state, tmp_path / "w.pth")
    assert read_state_dict(tmp_path / "w.pth", own=["model.a", "c"]).keys() == state.keys()
    assert read_state_dict(tmp_path / "w.pth", own=["a", "b"]).keys() == {"a", "b"}


def test_config_json_chooses_no_other_file(tmp_path: Path) -> None:
    """The weights that are loaded are those whose hash is recorded."""
    hf = host("hf")
    hf.write(tmp_path, hf.copy(), safe=True)
    other = {name: torch.zeros_like(tensor) for name, tensor in hf.state.items()}
    (tmp_path / "other.safetensors").write_bytes(save(other, metadata={"format": "pt"}))
    config = json.loads(hf.config or "") | {"transformers_weights": "other.safetensors"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    hf.assert_same(hf.load(tmp_path))


def test_quantisation_on_the_way_in_is_refused(tmp_path: Path) -> None:
    hf = host("hf")
    hf.write(tmp_path, hf.copy(), safe=True)
    asked = {"quantization_config": {"quant_method": "bitsandbytes", "load_in_8bit": True}}
    (tmp_path / "config.json").write_text(json.dumps(json.loads(hf.config or "") | asked))
    assert "config.json asks for quantised weights (quantization_config)" in hf.refused(tmp_path)


@pytest.mark.parametrize("name", ["../zoo.yaml", "/etc/passwd", "weights/../../zoo.yaml"])
def test_a_package_source_stays_inside_the_package(name: str) -> None:
    text = refusal(CheckpointError, lambda: local_path(f"package:{name}"))
    assert text == f"'package:{name}' leads out of the package; write file:PATH instead"


@pytest.mark.parametrize("name", ["x" * 5000, "a\0b", "a/" * 3000])
def test_what_can_be_no_path_is_not_there(name: str) -> None:
    assert "there is no checkpoint at" in refusal(
        CheckpointError, lambda: local_path(f"file:{name}")
    )
