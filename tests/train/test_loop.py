"""One run: what its settings do, and how it ends when it cannot go on."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from probe.errors import StoreError, TrainingError, UsageError
from probe.families.controlled import VARIANTS, build
from tests.train.tiny_runs import (
    FILES,
    digits,
    distance,
    lines,
    logits,
    losses,
    reset,
    tiny,
    trained,
    weights,
)
from train import loop
from train.draws import generator
from train.evaluate import count_correct
from train.loop import Moment, Options, Trainer, accelerator_for
from train.state import saved_meta

SHORT = "train.steps=6"
PLAIN = ("train.schedule=constant", "train.warmup=0", "keep.dtype=float32")


def prepared(folder: Path, options: Options, *changes: str) -> Trainer:
    reset()
    recipe = tiny(*changes)
    return Trainer(recipe, 0, digits(), accelerator_for(recipe, folder, 1, options), options, 1)


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_variant_trains_and_its_loss_falls(tmp_path: Path, variant: str) -> None:
    record = trained(tmp_path, "train.steps=30", "train.lr=5e-3", variant=variant)
    found = losses(tmp_path)
    assert np.mean(found[-5:]) < 0.95 * np.mean(found[:3])
    assert files(tmp_path) == FILES
    assert (record["variant"], record["steps"], record["processes"]) == (variant, 30, 1)
    assert record["loss"] == found[-1]


def test_the_seed_decides_the_weights(tmp_path: Path) -> None:
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        trained(tmp_path / name, SHORT, "model.dropout.mlp=0.1", seed=seed)
    for name in ("model.safetensors", "metrics.jsonl", "training.json"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    assert distance(tmp_path / "a", tmp_path / "c") > 0.01


def test_the_global_generators_are_left_alone(tmp_path: Path) -> None:
    before = torch.random.get_rng_state(), np.random.get_state()[1].tolist()  # type: ignore[index]
    trained(tmp_path, "train.steps=2", "augment.mixup=0.5", "model.drop_path=0.2")
    assert torch.equal(torch.random.get_rng_state(), before[0])
    assert np.random.get_state()[1].tolist() == before[1]  # type: ignore[index]


def test_untrained_is_the_network_as_it_starts(tmp_path: Path) -> None:
    record = trained(tmp_path, untrained=True, variant="spe", seed=4)
    start = build(tiny(variant="spe").network(10), "spe", 4).state_dict()
    found = weights(tmp_path)
    assert found.keys() == start.keys()
    assert all(torch.equal(found[name], start[name].half()) for name in start)
    assert files(tmp_path) == [".lock", "config.json", "model.safetensors", "training.json"]
    assert (record["untrained"], record["steps"], "loss" in record) == (True, 0, False)


def test_accumulation_changes_no_update(tmp_path: Path) -> None:
    for name, accumulate in (("one", 1), ("four", 4)):
        trained(tmp_path / name, "keep.dtype=float32", f"train.accumulate={accumulate}")
    one, four = losses(tmp_path / "one"), losses(tmp_path / "four")
    assert max(abs(a - b) for a, b in zip(one, four, strict=True)) < 1e-5
    assert torch.allclose(logits(tmp_path / "one"), logits(tmp_path / "four"), atol=1e-3)


def test_the_gradient_is_clipped_after_it_was_noted(tmp_path: Path) -> None:
    start = build(tiny().network(10), "ape", 0).state_dict()
    moved = {}
    for clip in ("", "1e-12"):
        # Far below Adam's epsilon, a clipped gradient moves nothing.
        changes = (*PLAIN, SHORT, f"train.clip={clip}", "train.weight_decay=0")
        trained(tmp_path / f"clip{clip}", *changes)
        found = weights(tmp_path / f"clip{clip}")
        moved[clip] = max(float((found[name] - start[name]).abs().max()) for name in start)
    assert moved[""] > 0.005
    assert moved["1e-12"] < 1e-5
    free, clipped = (lines(tmp_path / name)[0] for name in ("clip", "clip1e-12"))
    assert free["grad_norm"] > 1
    assert clipped["grad_norm"] == pytest.approx(free["grad_norm"], rel=0.5)


def test_the_averaged_weights_are_exported(tmp_path: Path) -> None:
    for steps in (1, 2, 3):
        trained(tmp_path / str(steps), *PLAIN, f"train.steps={steps}")
    trained(tmp_path / "ema", *PLAIN, "train.steps=3", "train.ema=0.75")
    one, two, three = (weights(tmp_path / str(steps)) for steps in (1, 2, 3))
    for name, value in weights(tmp_path / "ema").items():
        average = 0.75 * (0.75 * one[name] + 0.25 * two[name]) + 0.25 * three[name]
        assert torch.allclose(value, average, atol=1e-6), name
    assert losses(tmp_path / "ema") == losses(tmp_path / "3")


def test_the_averaged_weights_are_judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    judged: list[dict[str, torch.Tensor]] = []

    def watched(model: nn.Module, *rest: Any) -> int:
        judged.append({name: value.clone() for name, value in model.state_dict().items()})
        return count_correct(model, *rest)

    monkeypatch.setattr(loop, "count_correct", watched)
    record = trained(tmp_path, SHORT, "train.ema=0.5", "keep.dtype=float32")
    (seen,) = judged
    assert all(torch.equal(seen[name], value) for name, value in weights(tmp_path).items())
    part = record["validation"]
    assert lines(tmp_path)[-1]["validation_accuracy"] == part["correct"] / part["images"]
    assert part["images"] == 269


def test_bfloat16_trains_on_the_cpu(tmp_path: Path) -> None:
    for precision in ("no", "bf16"):
        trained(tmp_path / precision, SHORT, f"train.precision={precision}", "keep.dtype=float32")
    full, half = losses(tmp_path / "no"), losses(tmp_path / "bf16")
    assert full != half
    assert max(abs(a / b - 1) for a, b in zip(full, half, strict=True)) < 0.02
    assert {value.dtype for value in weights(tmp_path / "bf16").values()} == {torch.float32}


def test_float16_needs_a_gpu(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        trained(tmp_path, "train.precision=fp16")
    assert str(caught.value) == (
        "fp16 needs a GPU, and accelerate would train in full precision on the CPU; --set "
        "train.precision=bf16 or no"
    )
    assert files(tmp_path) == []


def test_the_scale_of_float16_gradients_is_kept_with_the_state(tmp_path: Path) -> None:
    trainer = prepared(tmp_path, Options(cpu=True), "train.steps=3")
    trainer.accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    trainer.run(tmp_path, 0, {"fingerprint": "", "versions": {}})
    meta = saved_meta(tmp_path) or {}
    other = prepared(tmp_path, Options(cpu=True), "train.steps=3")
    other.accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    other.resume(tmp_path, meta)
    assert other.accelerator.scaler.get_scale() == 8.0


def test_averaging_under_bfloat16_averages_what_is_trained(tmp_path: Path) -> None:
    """A copy of a prepared network must not go on calling the network it was copied from."""
    changes = ("train.precision=bf16", "train.ema=0.9999")
    trainer = prepared(tmp_path, Options(cpu=True), *changes)
    pixels = torch.randn(2, 3, 32, 32)
    assert trainer.ema is not None
    trainer.ema.update_parameters(trainer.raw)
    with torch.no_grad():
        before = trainer.ema.module.eval()(pixels)
        for parameter in trainer.raw.parameters():
            parameter.add_(0.1)
        assert torch.equal(trainer.ema.module(pixels), before)
        assert not torch.equal(trainer.raw.eval()(pixels), before)


def test_mixup_is_seeded_and_needs_pairs(tmp_path: Path) -> None:
    for name in ("a", "b"):
        trained(tmp_path / name, SHORT, "augment.mixup=0.8", "augment.cutmix=1.0")
    assert losses(tmp_path / "a") == losses(tmp_path / "b")
    trained(tmp_path / "plain", SHORT)
    assert losses(tmp_path / "a") != losses(tmp_path / "plain")
    with pytest.raises(UsageError, match=r"pair the images of a forward pass, and 15 is odd; "):
        trained(tmp_path / "odd", "augment.mixup=0.8", "train.batch=15")


def test_a_batch_that_cannot_be_cut_is_refused() -> None:
    with pytest.raises(UsageError, match="accumulate must divide batch"):
        tiny("train.accumulate=5")


def test_progress_counts_images_and_carries_what_was_logged(tmp_path: Path) -> None:
    seen: list[Moment] = []
    options = Options(cpu=True, progress=seen.append)
    prepared(tmp_path, options, "train.steps=5", "keep.evaluate_every=4").run(tmp_path, 0, {})
    assert [(one.step, one.images) for one in seen] == [(n, 16 * n) for n in range(1, 6)]
    assert {(one.steps, one.whole) for one in seen} == {(5, 80)}
    found = {line["step"]: line for line in lines(tmp_path)}
    assert list(found) == [2, 3, 4, 5]
    for one in seen:
        line = found.get(one.step, {})
        assert (one.loss, one.accuracy) == (line.get("loss"), line.get("validation_accuracy"))
    assert [one.step for one in seen if one.accuracy is not None] == [4, 5]


def test_a_loss_that_is_not_finite_stops_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from train.mixing import Objective

    loss, calls = Objective.loss, []

    def planted(self: Objective, logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        return loss(self, logits, target) * (float("nan") if len(calls) == 11 else 1)

    monkeypatch.setattr(Objective, "loss", planted)
    with pytest.raises(TrainingError) as caught:
        trained(tmp_path, "keep.log_every=7")
    assert str(caught.value) == (
        "the loss or its gradient is not finite at step 11; the state of step 9 is kept. Lower "
        "train.lr, or set train.clip"
    )
    meta = saved_meta(tmp_path)
    assert meta is not None
    assert meta["step"] == 9
    assert lines(tmp_path)[-1]["step"] == 10
    with pytest.raises(UsageError, match=r"another run, which differs in train\.lr; choose"):
        trained(tmp_path, "keep.log_every=7", "train.lr=1e-4")
    monkeypatch.undo()
    assert trained(tmp_path, "keep.log_every=7")["steps"] == 20


def test_a_rate_that_is_far_too_high_stops_the_run_before_a_state(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match=r"not finite at step 2; no state was saved yet\. Low"):
        trained(tmp_path, "train.lr=1e30", "train.warmup=0", "keep.save_every=10")
    assert files(tmp_path) == [".lock", "metrics.jsonl"]


def test_weights_that_are_not_finite_are_not_saved(tmp_path: Path) -> None:
    with pytest.raises(TrainingError) as caught:
        trained(tmp_path, "train.lr=1e38", "train.warmup=0", "keep.save_every=1", *PLAIN)
    assert "is not finite after step 1; what was saved before is kept. Lower" in str(caught.value)
    assert saved_meta(tmp_path) is None


def test_weights_that_float16_cannot_hold_are_not_exported(tmp_path: Path) -> None:
    with pytest.raises(TrainingError) as caught:
        trained(tmp_path, "train.steps=1", "train.lr=1e5", "train.warmup=0")
    assert str(caught.value).endswith(
        "has values that float16 cannot hold; train with --set keep.dtype=float32 into another "
        "--out"
    )
    assert not (tmp_path / "training.json").exists()


def scarce(monkeypatch: pytest.MonkeyPatch, most: int, kind: type[Exception], text: str) -> None:
    """Memory for so many images in a training forward pass, from the fifth pass on."""
    from timm.models.eva import Eva

    forward, calls = Eva.forward, []

    def planted(self: nn.Module, pixels: torch.Tensor) -> Any:
        calls.append(1)
        if self.training and len(calls) > 4 and len(pixels) > most:
            raise kind(text)
        return forward(self, pixels)

    monkeypatch.setattr(Eva, "forward", planted)


def test_out_of_memory_names_the_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scarce(monkeypatch, 6, torch.OutOfMemoryError, "CUDA out of memory. Tried to allocate 1 GiB")
    with pytest.raises(TrainingError) as caught:
        trained(tmp_path / "run")
    assert str(caught.value) == (
        "out of memory with 16 images in one forward pass; --halve-on-oom, or --set "
        "train.accumulate=2 into another --out"
    )
    meta = saved_meta(tmp_path / "run")
    assert meta is not None
    assert meta["step"] == 3


def test_halving_goes_on_with_the_same_updates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained(tmp_path / "roomy")
    scarce(
        monkeypatch, 6, RuntimeError, "[enforce fail] DefaultCPUAllocator: can't allocate memory"
    )
    told: list[str] = []
    record = trained(tmp_path / "scarce", told=told, halve=True)
    assert told == [
        "out of memory with 16 images per forward pass; halved",
        "goes on after step 3 of 20",
        "out of memory with 8 images per forward pass; halved",
        "goes on after step 3 of 20",
    ]
    assert record["accumulate"] == 4
    roomy, found = losses(tmp_path / "roomy"), losses(tmp_path / "scarce")
    assert max(abs(a - b) for a, b in zip(roomy, found, strict=True)) < 1e-5
    assert len(found) == 13


@pytest.mark.parametrize(
    ("changes", "images"),
    [(("train.batch=1",), "1 image"), (("train.batch=6", "augment.mixup=1.0"), "6 images")],
)
def test_what_cannot_be_halved_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: tuple[str, ...], images: str
) -> None:
    scarce(monkeypatch, 0, torch.OutOfMemoryError, "CUDA out of memory.")
    with pytest.raises(TrainingError) as caught:
        trained(tmp_path, *changes, halve=True)
    assert str(caught.value) == (
        f"out of memory with {images} in one forward pass; train with a smaller --set train.batch "
        "or model, into another --out"
    )


def test_other_errors_of_torch_are_not_taken_for_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scarce(monkeypatch, 6, RuntimeError, "shapes do not match")
    with pytest.raises(RuntimeError, match=r"^shapes do not match$"):
        trained(tmp_path, halve=True)


def full_from(monkeypatch: pytest.MonkeyPatch, file: str, after: int) -> None:
    """A disk that is full when this file is flushed for the time after `after`."""
    flush, seen = os.fsync, []

    def planted(descriptor: int) -> None:
        if file in os.readlink(f"/proc/self/fd/{descriptor}"):
            seen.append(1)
            if len(seen) > after:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        flush(descriptor)

    monkeypatch.setattr(os, "fsync", planted)


@pytest.mark.parametrize(
    ("file", "after", "step", "left"),
    [
        ("state.safetensors", 2, 6, "metrics.jsonl state.safetensors"),
        ("metrics.jsonl", 6, 6, "metrics.jsonl state.safetensors"),
        ("model.safetensors", 0, 20, "hardware.json metrics.jsonl state.safetensors"),
        (
            "training.json",
            0,
            20,
            "config.json hardware.json metrics.jsonl model.safetensors state.safetensors",
        ),
    ],
)
def test_a_full_disk_leaves_the_last_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str, after: int, step: int, left: str
) -> None:
    folder = tmp_path / "run"
    full_from(monkeypatch, file, after)
    with pytest.raises(StoreError) as caught:
        trained(folder)
    assert str(caught.value).startswith(f"cannot write {folder / file}: No space left on device; ")
    assert files(folder) == [".lock", *left.split()]
    meta = saved_meta(folder)
    assert meta is not None
    assert meta["step"] == step
    monkeypatch.undo()
    trained(folder)
    trained(tmp_path / "whole")
    for name in ("model.safetensors", "metrics.jsonl", "training.json"):
        assert (folder / name).read_bytes() == (tmp_path / "whole" / name).read_bytes(), name


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match=r"cannot write into .*/file/run: Not a directory; choose"):
        trained(tmp_path / "file" / "run")


def test_a_compiler_that_is_missing_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))
    monkeypatch.setattr("torch._inductor.config.cpp.cxx", ("no-such-compiler",))
    torch.compiler.reset()
    with pytest.raises(TrainingError) as caught:
        trained(tmp_path / "run", "train.compile=true", "train.steps=1")
    text = str(caught.value)
    assert text.startswith("torch cannot compile the network here (")
    assert text.endswith("); install a C++ compiler such as g++, or --set train.compile=false")
    assert "\n" not in text


def test_compiled_and_averaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The compiled network trains as the plain one, and its averaged copy is one of its own."""
    compiled = nn.Module.compile
    monkeypatch.setattr(nn.Module, "compile", lambda self: compiled(self, backend="aot_eager"))
    changes = (SHORT, "train.ema=0.9", "keep.dtype=float32", "keep.evaluate_every=3")
    for switch in ("true", "false"):
        trained(tmp_path / switch, *changes, f"train.compile={switch}")
    pairs = zip(losses(tmp_path / "true"), losses(tmp_path / "false"), strict=True)
    assert max(abs(a - b) for a, b in pairs) < 1e-5
    assert torch.allclose(logits(tmp_path / "true"), logits(tmp_path / "false"), atol=1e-3)
    names = weights(tmp_path / "true").keys()
    assert not [name for name in names if "_orig_mod" in name]


def test_shuffled_tokens_are_drawn_anew_for_every_image_and_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from timm.models.eva import Eva

    seen: list[torch.Tensor] = []
    forward = Eva.forward_features

    def watched(self: Any, pixels: torch.Tensor, *rest: Any, **more: Any) -> Any:
        if self.training:
            gathered: list[torch.Tensor] = []
            hook = self.patch_embed.register_forward_hook(
                lambda module, args, tokens: gathered.append(tokens.detach())
            )
            self.patch_embed(pixels)  # through the shuffle
            hook.remove()
            plain = self.patch_embed.proj(pixels).flatten(2).transpose(1, 2)
            near = torch.cdist(gathered[0], plain.detach()).argmin(2)
            seen.append(near)
        return forward(self, pixels, *rest, **more)

    monkeypatch.setattr(Eva, "forward_features", watched)
    trained(tmp_path, "train.steps=2", variant="rpt", seed=5)
    assert len(seen) == 2
    for step, found in enumerate(seen):
        rows = np.tile(np.arange(64), (16, 1))
        wanted = generator(5, "shuffle", step).permuted(rows, axis=1)
        # Blank patches are all alike, so that a few are found elsewhere.
        assert (found.numpy() == wanted).mean() > 0.5
    trained(tmp_path / "ordered", "train.steps=2", variant="ape", seed=5)
    assert (seen[-1].numpy() == np.arange(64)).mean() > 0.5


def test_the_record_says_all_that_decides_the_weights(tmp_path: Path) -> None:
    record = trained(tmp_path, SHORT, seed=7)
    assert record == json.loads((tmp_path / "training.json").read_text())
    assert record["recipe"] == tiny(SHORT).describe()
    assert record["data"] == digits().data
    assert record["seed"] == 7
    assert set(record["versions"]) >= {"probe", "torch", "timm", "numpy"}
    assert record["test"]["images"] == 275
    assert not {"seconds", "machine", "threads"} & set(record)
    hardware = json.loads((tmp_path / "hardware.json").read_text())
    assert sorted(hardware) == ["images_per_second", "machine", "seconds", "threads"]
    assert hardware["images_per_second"] > 0
