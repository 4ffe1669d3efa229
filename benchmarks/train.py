"""Step time of training as a ratio to a bare forward and backward pass, in one run.

    python -m benchmarks.train [--steps 60] [--rounds 5] [--out benchmarks/results]

Ours is the whole loop of `probe train`: images out of the memory map, augmentation, accelerate,
optimiser, metrics and a state. The baseline is the same network forward and backward on batches
that lie in memory, without an optimiser. Cost: about five minutes on two cores. Expected: every row
holds.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from benchmarks.measure import paired_ratio, report
from probe.data.preprocess import normalise
from probe.families.controlled import build
from train.batches import Steps
from train.loop import Options, Trainer, accelerator_for
from train.parts import Part, Parts, load_parts
from train.recipe import Recipe, load_recipe

LIMIT = 1.15


def stand_in(folder: Path, size: int, count: int = 5000, classes: int = 10) -> Parts:
    """Noise of the size of a recipe's images, in a memory map: CIFAR-10 without its files."""
    path = folder / "images.u8"
    generator = np.random.default_rng(0)
    path.write_bytes(generator.integers(0, 256, (count, size, size, 3), dtype=np.uint8).tobytes())
    images = np.memmap(path, dtype=np.uint8, mode="r", shape=(count, size, size, 3))
    part = Part(images, np.arange(count), generator.integers(0, classes, count))
    return Parts(part, part, part, tuple(map(str, range(classes))), {})


def whole_loop(recipe: Recipe, parts: Parts, folder: Path) -> Callable[[], None]:
    folder.mkdir()
    options = Options()
    accelerator = accelerator_for(recipe, folder, 1, options)
    trainer = Trainer(recipe, 0, parts, accelerator, options, 1)
    return lambda: trainer.run(folder, 0, {})


def bare_loop(recipe: Recipe, parts: Parts) -> Callable[[], None]:
    model = build(recipe.network(len(parts.class_names)), recipe.variant, 0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model.to(device)
    steps, preprocess = Steps(parts.train, recipe, 0), recipe.image.preprocess()
    batches = [steps[step] for step in range(min(8, steps.per_epoch))]
    ready = [
        (normalise(batch.pixels, preprocess, torch.float32, device), batch.labels.to(device))
        for batch in batches
    ]

    def run() -> None:
        for step in range(recipe.train.steps or 0):
            pixels, labels = ready[step % len(ready)]
            cross_entropy(model(pixels), labels).backward()
            model.zero_grad()
        if device.type == "cuda":
            torch.cuda.synchronize()

    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    given = parser.parse_args()
    rows = []
    for name in ("digits", "cifar10"):
        changes = [f"train.steps={given.steps}", "train.epochs=", "keep.evaluate_every="]
        recipe = load_recipe(name, "ape", changes)
        with TemporaryDirectory() as kept:
            folder = Path(kept)
            if name == "digits":
                parts = load_parts(recipe, folder / "cache")
            else:
                parts = stand_in(folder, recipe.image.size)
            ours, baseline = whole_loop(recipe, parts, folder / "run"), bare_loop(recipe, parts)
            ours(), baseline()  # warm up
            timing = paired_ratio(ours, baseline, given.rounds)
        ratio = timing.pop("ratio")
        what = f"a training step of {name} over a bare forward and backward pass"
        step = 1000 * timing["seconds"] / given.steps
        print(f"{what}: {ratio:.3f} ({step:.1f} ms per step)", flush=True)
        rows.append({"what": what, "value": ratio, "limit": LIMIT, "at_most": True} | timing)
    report("train", rows, given.out)


if __name__ == "__main__":
    main()
