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
from accelerate import Accelerator
from accelerate.utils.memory import should_reduce_batch_size
from filelock import FileLock, Timeout

from probe.errors import CheckpointError, StoreError, TrainingError, UsageError
from probe.families.controlled import build
from probe.plan import versions
from probe.store import check_writable, write_atomically
from train.evaluate import count_correct
from train.export import CONFIG, RECORD, WEIGHTS, finished, rounded, write_run
from train.loop import Options, Trainer, accelerator_for
from train.metrics import NAME as METRICS
from train.parts import Parts
from train.recipe import Recipe, differing
from train.state import NAME as STATE
from train.state import saved_meta

LOCK, HARDWARE = ".lock", "hardware.json"


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
        CheckpointError: if what a run left in the folder is damaged.
    """
    accumulate = run.recipe.train.accumulate
    accelerator = accelerator_for(run.recipe, run.folder, accumulate, options)
    main = accelerator.is_main_process
    if halve and accelerator.num_processes > 1:
        raise UsageError(
            "--halve-on-oom is for one process, since the others would wait for the one that ran "
            "out of memory; leave it out, and --set train.accumulate"
        )
    if main:
        check_writable(run.folder)
    accelerator.wait_for_everyone()
    with _locked(run.folder, main):
        if main:
            _clear(run.folder, everything=fresh)
        accelerator.wait_for_everyone()
        record = _finished(run, parts)
        state = _state(run, parts) if record is None else {"step": -1}
        _agree(accelerator, run.folder, 0 if state is None else int(state["step"]))
        if record is not None:
            if main:
                (run.folder / STATE).unlink(missing_ok=True)
            options.report(f"{run.folder} holds this run already; --fresh trains it again")
        elif run.untrained:
            record = _keep(run, parts, None, {}, accelerator)
        else:
            trainer = None
            while trainer is None:
                try:
                    trainer = _trained(run, parts, options, accelerator, accumulate)
                except RuntimeError as error:
                    _explain(error, run, accelerator.num_processes, accumulate, halve)
                if trainer is None:  # outside of the handler, whose traceback holds on to tensors
                    share = run.recipe.train.batch // accumulate
                    options.report(f"out of memory with {share} images per forward pass; halved")
                    accumulate *= 2
                    accelerator.free_memory()
                    accelerator = accelerator_for(run.recipe, run.folder, accumulate, options)
            more = {"loss": trainer.loss, "accumulate": accumulate}
            record = _keep(run, parts, trainer, more, accelerator)
            for tracker in accelerator.trackers:
                tracker.finish()
        accelerator.free_memory()
        accelerator.wait_for_everyone()
        return record


def _trained(
    run: Run, parts: Parts, options: Options, accelerator: Accelerator, accumulate: int
) -> Trainer:
    """Train to the end, from the last state where there is one."""
    trainer = Trainer(run.recipe, run.seed, parts, accelerator, options, accumulate)
    found, start = _state(run, parts), 0
    if found is not None:
        start = int(found["step"])
        trainer.resume(run.folder, found)
        options.report(f"goes on after step {start} of {trainer.steps}")
        if found["versions"] != versions():
            options.report("note: the run was begun with other versions of the libraries")
    meta = run.meta(parts) | {"fingerprint": run.fingerprint(parts), "versions": versions()}
    trainer.run(run.folder, start, meta)
    return trainer


def _explain(error: RuntimeError, run: Run, processes: int, accumulate: int, halve: bool) -> None:
    """Return if the run can go on with half as many images per forward pass; else raise."""
    from torch._dynamo.exc import TorchDynamoException

    if isinstance(error, TorchDynamoException):
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise TrainingError(
            f"torch cannot compile the network here ({reason}); install a C++ compiler such as "
            "g++, or --set train.compile=false"
        ) from error
    if not (isinstance(error, torch.OutOfMemoryError) or should_reduce_batch_size(error)):
        raise error
    share = run.recipe.train.batch // (processes * accumulate)
    paired = run.recipe.augment.mixup or run.recipe.augment.cutmix
    if share % (4 if paired else 2):
        advice = "train with a smaller --set train.batch or model, into another --out"
    elif not halve:
        advice = f"--halve-on-oom, or --set train.accumulate={2 * accumulate} into another --out"
    else:
        return
    images = "1 image" if share == 1 else f"{share} images"
    raise TrainingError(f"out of memory with {images} in one forward pass; {advice}") from error


def _keep(
    run: Run, parts: Parts, trainer: Trainer | None, more: dict[str, Any], accelerator: Accelerator
) -> dict[str, Any]:
    """Export the network, judged as it is stored; the record, written on the main process alone."""
    if not accelerator.is_main_process:
        return {}
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
    if trainer is not None:
        images = trainer.steps * run.recipe.train.batch
        hardware = {
            "seconds": round(trainer.seconds, 1),
            "images_per_second": round(images / trainer.seconds, 1),
            "machine": platform.processor() or platform.machine(),
            "threads": torch.get_num_threads(),
        }
        write_atomically(run.folder / HARDWARE, json.dumps(hardware, indent=2) + "\n")
    record = write_run(run.folder, weights, run.recipe, parts, record)
    (run.folder / STATE).unlink(missing_ok=True)
    return record


def _clear(folder: Path, *, everything: bool) -> None:
    """Remove what a killed process left half-written; everything of a run, if it starts anew."""
    for path in folder.glob(".*.new"):
        path.unlink(missing_ok=True)
    if everything:
        for name in (RECORD, WEIGHTS, CONFIG, HARDWARE, STATE, METRICS):
            (folder / name).unlink(missing_ok=True)


def _finished(run: Run, parts: Parts) -> dict[str, Any] | None:
    record = finished(run.folder)
    if record is None:
        if (run.folder / RECORD).exists():
            raise CheckpointError(
                f"{run.folder} holds a finished run with damaged files; --fresh trains it again"
            )
        return None
    if record.get("fingerprint") != run.fingerprint(parts):
        raise _other(run, parts, record)
    return record


def _state(run: Run, parts: Parts) -> dict[str, Any] | None:
    """What is said with the saved state of this run, None where there is none."""
    found = saved_meta(run.folder)
    if found is not None and found["fingerprint"] != run.fingerprint(parts):
        raise _other(run, parts, found)
    return found


def _agree(accelerator: Accelerator, folder: Path, step: int) -> None:
    """Refuse processes that would go on from different steps (-1: finished)."""
    steps = accelerator.gather(torch.tensor([step], device=accelerator.device))
    if len(set(steps.tolist())) > 1:
        raise StoreError(
            f"the processes see different files in {folder}; several machines need a shared folder"
        )


def _other(run: Run, parts: Parts, found: dict[str, Any]) -> UsageError:
    """The error for a folder that holds another run, with what differs."""
    here = run.meta(parts)
    keys = [key for key in ("seed", "untrained") if here[key] != found.get(key)]
    keys += differing(here["recipe"], found.get("recipe") or {})
    if not keys:
        keys = [f"the images ({', '.join(differing(here['data'], found.get('data') or {}))})"]
    more = f" and {len(keys) - 4} more" if len(keys) > 4 else ""
    return UsageError(
        f"{run.folder} holds another run, which differs in {', '.join(keys[:4])}{more}; choose "
        "another --out, or --fresh to replace it"
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
