"""Runs in folders: one run per variant and seed, each finished, resumed or started."""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from accelerate.utils.memory import should_reduce_batch_size
from filelock import FileLock, Timeout

from probe.errors import StoreError, TrainingError, UsageError
from probe.families.controlled import build
from probe.plan import versions
from probe.store import check_writable, write_atomically
from train.evaluate import count_correct
from train.export import finished, rounded, write_run
from train.loop import Options, Trainer, accelerator_for, finish_trackers
from train.metrics import NAME as METRICS
from train.parts import Parts
from train.recipe import Recipe, differing
from train.state import NAME as STATE
from train.state import saved_meta

LOCK = ".lock"


@dataclass(frozen=True)
class Run:
    """What is trained into `folder`; an untrained run is the network as it starts."""

    recipe: Recipe
    seed: int
    folder: Path
    untrained: bool = False

    def meta(self, parts: Parts) -> dict[str, Any]:
        """What decides the weights, ready for JSON."""
        return {
            "schema": 1,
            "variant": self.recipe.variant,
            "seed": self.seed,
            "untrained": self.untrained,
            "recipe": self.recipe.describe(),
            "data": parts.data,
        }

    def fingerprint(self, parts: Parts) -> str:
        """Hash of what decides the weights but the libraries' versions."""
        meta = self.meta(parts)
        text = json.dumps(
            [meta["seed"], meta["untrained"], self.recipe.digest(), parts.data["fingerprint"]]
        )
        return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


def train(
    run: Run, parts: Parts, options: Options, *, fresh: bool = False, halve: bool = False
) -> dict[str, Any]:
    """Train one run, or take it as it is if it is finished; the content of `training.json`.

    A run that was killed goes on from its last state. With `halve`, a batch that does not fit into
    memory is cut into more, smaller forward passes; the update stays that of the whole batch.

    Raises:
        UsageError: if the folder holds another run, or the recipe does not fit.
        TrainingError: if the loss is not finite, or memory is too small.
        StoreError: if the folder cannot be written, or another process trains into it.
    """
    accumulate = run.recipe.train.accumulate
    accelerator = accelerator_for(run.recipe, run.folder, accumulate, options)
    main = accelerator.is_main_process
    if main:
        check_writable(run.folder)
    accelerator.wait_for_everyone()
    with _locked(run.folder, main):
        record = None if fresh else _finished(run, parts)
        accelerator.wait_for_everyone()
        if record is not None:
            options.report(f"{run.folder} holds this run already; --fresh trains it again")
            return record
        if fresh and main:
            for name in (STATE, METRICS, "training.json"):
                (run.folder / name).unlink(missing_ok=True)
        accelerator.wait_for_everyone()
        if run.untrained:
            return _keep(run, parts, None, {}, accelerator) or {}
        while True:
            try:
                trainer = Trainer(run.recipe, run.seed, parts, accelerator, options, accumulate)
                loss = _go_on(trainer, run, parts, options)
                break
            except RuntimeError as error:
                if not (
                    should_reduce_batch_size(error) or isinstance(error, torch.OutOfMemoryError)
                ):
                    raise
                share = run.recipe.train.batch // (accelerator.num_processes * accumulate)
                if not halve or share % 2:
                    raise TrainingError(
                        f"out of memory with {share} images in one forward pass; "
                        f"--set train.accumulate={2 * accumulate}, or --halve-on-oom"
                    ) from error
            options.report(f"out of memory with {share} images per forward pass; halved")
            accumulate *= 2
            accelerator.free_memory()
            accelerator = accelerator_for(run.recipe, run.folder, accumulate, options)
        done = _keep(run, parts, trainer, {"loss": loss, "accumulate": accumulate}, accelerator)
        if options.tracker is not None:
            finish_trackers(accelerator.trackers)
        accelerator.free_memory()
        accelerator.wait_for_everyone()
        return done or {}


def _go_on(trainer: Trainer, run: Run, parts: Parts, options: Options) -> float | None:
    found, start = saved_meta(run.folder), 0
    fingerprint = run.fingerprint(parts)
    if found is not None:
        if found.get("fingerprint") != fingerprint:
            raise _other(run, parts, found)
        start = int(found["step"])
        trainer.resume(run.folder, found)
        options.report(f"goes on after step {start} of {trainer.steps}")
        if found.get("versions") != versions():
            options.report("note: the run was begun with other versions of the libraries")
    meta = run.meta(parts) | {"fingerprint": fingerprint, "versions": versions()}
    return trainer.run(run.folder, start, meta)


def _keep(
    run: Run, parts: Parts, trainer: Trainer | None, more: dict[str, Any], accelerator: Any
) -> dict[str, Any] | None:
    """Export the network, judged as it is stored; on the main process."""
    if not accelerator.is_main_process:
        return None
    network = run.recipe.network(len(parts.class_names))
    model = build(network, run.recipe.variant, run.seed)
    weights = rounded(model if trainer is None else trainer.learnt, run.recipe)
    model.load_state_dict(weights)
    model.to(accelerator.device)
    preprocess = run.recipe.image.preprocess()
    record = run.meta(parts) | {"fingerprint": run.fingerprint(parts)} | more
    record["steps"] = 0 if trainer is None else trainer.steps
    record["processes"] = accelerator.num_processes
    record["device"] = accelerator.device.type
    for name, part in (("validation", parts.validation), ("test", parts.test)):
        right = count_correct(model, part, preprocess, accelerator.device)
        record[name] = {"correct": right, "images": len(part)}
    record = write_run(run.folder, weights, run.recipe, parts, record)
    if trainer is not None and trainer.seconds:
        images = record["steps"] * run.recipe.train.batch
        hardware = {
            "seconds": round(trainer.seconds, 1),
            "images_per_second": round(images / trainer.seconds, 1),
            "machine": platform.processor() or platform.machine(),
            "threads": torch.get_num_threads(),
        }
        write_atomically(run.folder / "hardware.json", json.dumps(hardware, indent=2) + "\n")
    (run.folder / STATE).unlink(missing_ok=True)
    return record


def _finished(run: Run, parts: Parts) -> dict[str, Any] | None:
    record = finished(run.folder)
    if record is None:
        return None
    if record.get("fingerprint") != run.fingerprint(parts):
        raise _other(run, parts, record)
    return record


def _other(run: Run, parts: Parts, found: dict[str, Any]) -> UsageError:
    """The error for a folder that holds another run, with what differs."""
    here = run.meta(parts)
    keys = differing(
        {key: here.get(key) for key in ("seed", "untrained", "recipe", "data")},
        {key: found.get(key) for key in ("seed", "untrained", "recipe", "data")},
    )
    return UsageError(
        f"{run.folder} holds another run, which differs in {', '.join(keys[:4])}; choose another "
        "--out, or --fresh to replace it"
    )


@contextmanager
def _locked(folder: Path, main: bool) -> Iterator[None]:
    """Hold the folder against other runs; the operating system lets go when the process ends."""
    if not main:
        yield
        return
    lock = FileLock(folder / LOCK)
    try:
        lock.acquire(timeout=0)
    except Timeout as error:
        raise StoreError(
            f"another process trains into {folder}; wait for it, or choose another --out"
        ) from error
    try:
        yield
    finally:
        lock.release()
