"""The training loop of one run, through accelerate.

Everything random is a function of the seed and the step (`train.draws`), so a state holds tensors
and a step, and a run that goes on from it equals one that was never stopped.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor, nn

from probe.data.preprocess import normalise
from probe.errors import TrainingError, UsageError
from probe.families.controlled import build
from train.batches import Batch, Steps, stream
from train.draws import number
from train.evaluate import count_correct
from train.metrics import Metrics
from train.mixing import Objective
from train.optimisation import averaged, optimiser, set_rate
from train.parts import Parts
from train.recipe import Recipe
from train.shuffle import PatchShuffle
from train.state import restore, save_state


@dataclass(frozen=True)
class Moment:
    """Where a run is: steps and images done so far and in all, and what was logged last.

    `loss` is the mean since the moment before that had one, `accuracy` the validation part's; None
    where none was taken.
    """

    step: int
    steps: int
    images: int
    whole: int
    loss: float | None = None
    accuracy: float | None = None


@dataclass(frozen=True)
class Options:
    """What does not change the weights.

    `workers` processes prepare batches; `cpu` keeps away from a GPU; `tracker` is one of
    accelerate's; `report` gets lines, `progress` every step.
    """

    workers: int = 0
    cpu: bool = False
    tracker: str | None = None
    report: Callable[[str], None] = lambda line: None
    progress: Callable[[Moment], None] = lambda moment: None


def accelerator_for(recipe: Recipe, folder: Path, accumulate: int, options: Options) -> Accelerator:
    """The accelerator of a run.

    Raises:
        UsageError: if the precision or the tracker is not to be had here.
    """
    try:
        made = Accelerator(
            mixed_precision=recipe.train.precision,
            gradient_accumulation_steps=accumulate,
            cpu=options.cpu,
            log_with=options.tracker,
            project_dir=folder,
        )
    except ValueError as error:
        what = f"precision {recipe.train.precision}, tracker {options.tracker}"
        raise UsageError(f"accelerate cannot run with {what}: {error}") from error
    if recipe.train.precision == "fp16" and made.device.type == "cpu":
        raise UsageError(
            "fp16 needs a GPU, and accelerate would train in full precision on the CPU; --set "
            "train.precision=bf16 or no"
        )
    if options.tracker is not None and not made.log_with:
        raise UsageError(
            f"the tracker {options.tracker} is not installed; pip install {options.tracker}"
        )
    return made


class Trainer:
    """One run: a recipe, a seed, a data set."""

    def __init__(
        self,
        recipe: Recipe,
        seed: int,
        parts: Parts,
        accelerator: Accelerator,
        options: Options,
        accumulate: int,
    ) -> None:
        """Build the network and everything that trains it.

        Raises:
            ProbeError: if recipe, data and number of processes do not fit together.
        """
        self.recipe, self.seed, self.parts = recipe, seed, parts
        self.accelerator, self.options, self.accumulate = accelerator, options, accumulate
        how = recipe.train
        self.batches = Steps(
            parts.train,
            recipe,
            seed,
            processes=accelerator.num_processes,
            rank=accelerator.process_index,
        )
        share = self.batches.rows.stop - self.batches.rows.start
        if share % accumulate:
            raise UsageError(
                f"{share} images per process cannot be cut into {accumulate} equal parts; "
                "change --set train.accumulate or train.batch"
            )
        self.steps = how.steps or (how.epochs or 0) * self.batches.per_epoch
        self.raw: nn.Module = build(recipe.network(len(parts.class_names)), recipe.variant, seed)
        self.shuffle = PatchShuffle(self.raw) if recipe.variant == "rpt" else None
        self.objective = Objective(recipe, len(parts.class_names), seed)
        self.inner = optimiser(self.raw, how)
        if how.compile:
            self.raw.compile()
        self.model, self.optimizer = accelerator.prepare(self.raw, self.inner)
        self.ema = averaged(self.raw, how.ema) if how.ema is not None else None
        self.preprocess = recipe.image.preprocess()
        self.pending: list[tuple[Tensor, Tensor]] = []
        self.loss: float | None = None  # the mean of the last logged steps
        self.seconds = 0.0  # spent on training, evaluation left out

    @property
    def learnt(self) -> nn.Module:
        """The network whose weights count: the averaged one, where there is one."""
        return self.raw if self.ema is None else self.ema.module

    def run(self, folder: Path, start: int, meta: dict[str, Any]) -> None:
        """Train from step `start` to the end; `meta` is kept with every state.

        Raises:
            TrainingError: if the loss or its gradient is not finite.
            StoreError: if a state cannot be written.
        """
        keep, size = self.recipe.keep, self.batches.size
        metrics = Metrics(folder, start) if self.accelerator.is_main_process else None
        self._start_tracker(start)
        self.optimizer.zero_grad()
        self.model.train()
        good, began = start, time.perf_counter()
        with torch.random.fork_rng():
            batches = stream(self.batches, start, self.steps, self.options.workers)
            for step, batch in enumerate(batches, start):
                rate = set_rate(self.inner, self.recipe.train, step, self.steps)
                self._update(step, batch)
                done = step + 1
                moment = Moment(done, self.steps, done * size, self.steps * size)
                last = done == self.steps
                saved = last or done % keep.save_every == 0
                judged = keep.evaluate_every and (last or done % keep.evaluate_every == 0)
                if saved or judged or done % keep.log_every == 0:
                    self.loss, norm = self._flush(done, good)
                    line: dict[str, Any] = {
                        "step": done,
                        "epoch": round(done / self.batches.per_epoch, 4),
                        "images": moment.images,
                        "loss": self.loss,
                        "lr": rate,
                        "grad_norm": norm,
                    }
                    self.seconds += time.perf_counter() - began
                    if judged:
                        line["validation_accuracy"] = self._accuracy()
                    began = time.perf_counter()
                    self._log(line, metrics)
                    if saved:
                        self._save(folder, done, meta)
                        good = done
                    accuracy = line.get("validation_accuracy")
                    moment = replace(moment, loss=self.loss, accuracy=accuracy)
                self.options.progress(moment)
        self.seconds += time.perf_counter() - began

    def resume(self, folder: Path, meta: dict[str, Any]) -> None:
        """Put back the state whose `meta` was read.

        Raises:
            CheckpointError: if it does not fit.
        """
        restore(folder, self.raw, self.inner, self.ema)
        self.loss, self.seconds = meta["loss"], meta["seconds"]
        scaler = getattr(self.accelerator, "scaler", None)
        if scaler is not None and meta.get("scaler"):
            scaler.load_state_dict(meta["scaler"])

    def _update(self, step: int, batch: Batch) -> None:
        torch.manual_seed(number(self.seed, "dropout", step, self.accelerator.process_index))
        losses, norm = [], torch.zeros(())
        device = self.accelerator.device
        for part, micro in enumerate(batch.split(self.accumulate)):
            with self.accelerator.accumulate(self.model):
                pixels = normalise(micro.pixels, self.preprocess, torch.float32, device)
                if self.shuffle is not None and micro.order is not None:
                    self.shuffle.order = micro.order.to(device)
                when = (step, self.accelerator.process_index, part)
                pixels, target = self.objective.mixed(pixels, micro.labels.to(device), when)
                loss = self.objective.loss(self.model(pixels), target)
                self.accelerator.backward(loss)
                if self.accelerator.sync_gradients:
                    limit = self.recipe.train.clip or float("inf")
                    norm = self.accelerator.clip_grad_norm_(self.model.parameters(), limit)
                self.optimizer.step()
                self.optimizer.zero_grad()
            losses.append(loss.detach())
        if self.ema is not None:
            self.ema.update_parameters(self.raw)
        self.pending.append((torch.stack(losses).mean(), norm.detach()))

    def _flush(self, done: int, good: int) -> tuple[float, float]:
        """Mean loss and gradient norm since the last flush, over all processes."""
        losses = torch.stack([loss.float() for loss, _ in self.pending])
        norms = torch.stack([norm.to(losses.device).float() for _, norm in self.pending])
        self.pending = []
        losses = self.accelerator.reduce(losses, "mean").double().cpu()
        norms = norms.double().cpu()
        # Under fp16 a gradient that overflows is skipped and the scale lowered: no fault.
        watched = losses if self.recipe.train.precision == "fp16" else losses + norms
        bad = torch.nonzero(~torch.isfinite(watched))
        if len(bad):
            step = done - len(losses) + int(bad[0]) + 1
            kept = f"the state of step {good} is kept" if good else "no state was saved yet"
            raise TrainingError(
                f"the loss or its gradient is not finite at step {step}; {kept}. Lower train.lr, "
                "or set train.clip"
            )
        finite = norms[torch.isfinite(norms)]
        return float(losses.mean()), float(finite.mean()) if len(finite) else 0.0

    def _accuracy(self) -> float:
        right = torch.zeros(1, device=self.accelerator.device)
        if self.accelerator.is_main_process:
            part = self.parts.validation
            right += count_correct(self.learnt, part, self.preprocess, self.accelerator.device)
        right = self.accelerator.reduce(right, "sum")
        self.model.train()
        return float(right) / len(self.parts.validation)

    def _log(self, line: dict[str, Any], metrics: Metrics | None) -> None:
        if metrics is None:
            return
        metrics.add(line)
        if self.options.tracker is not None:
            numbers = {key: value for key, value in line.items() if key != "step"}
            self.accelerator.log(numbers, step=line["step"])

    def _start_tracker(self, start: int) -> None:
        if self.options.tracker is not None:
            # TensorBoard forgets what an interrupted run had logged after its last state.
            given = {"tensorboard": {"purge_step": start + 1}} if start else {}
            recipe = {"variant": self.recipe.variant, "seed": self.seed}
            self.accelerator.init_trackers("probe", recipe, given)

    def _save(self, folder: Path, done: int, meta: dict[str, Any]) -> None:
        if not self.accelerator.is_main_process:
            return
        for name, value in self.raw.state_dict().items():
            if not torch.isfinite(value).all():
                raise TrainingError(
                    f"'{name}' is not finite after step {done}; what was saved before is kept. "
                    "Lower train.lr, or set train.clip"
                )
        meta = meta | {"loss": self.loss, "seconds": self.seconds}
        scaler = getattr(self.accelerator, "scaler", None)
        if scaler is not None:
            meta["scaler"] = scaler.state_dict()
        save_state(folder, done, self.raw, self.inner, self.ema, meta)
