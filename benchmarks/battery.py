"""Speed of the paper's battery for one ViT-S-sized model, as ratios in one run.

    python -m benchmarks.battery [--images 256] [--rounds 1] [--out benchmarks/results]

The battery: SSDC clean and under RPI; accuracy clean, under JPEG and under blur; delta SSDC and
JPEG FS at ten alphas. Three ways to get it:

* ours: one reading of the files, every condition served from it, passes stopped where the rest is
  not needed;
* naive: what a user would write, one pass with its own decode per number, 35 passes, float32;
* floor: bare forward passes of the battery (stopped ones count by their share of blocks), plus one
  decode and one of each corruption per image.

Cost: about 20 minutes on two cores with 256 images. Expected: every row holds.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from scipy.stats import spearmanr

from benchmarks.measure import report, seconds
from probe.corruptions import parse
from probe.data.labels import LabelMap
from probe.data.loader import batches
from probe.data.open import open_data
from probe.data.preprocess import normalise
from probe.data.source import Source
from probe.interventions import permute_patches, rpi_permutations, scale_positions
from probe.loading import load_model, required_preprocess
from probe.plan import Settings, dose_tasks, ssdc_conditions
from probe.session import measure_loaded
from probe.types import Condition, DType, LoadedModel, ModelSpec, Permutation, Task

BATCH = 32
ALPHAS = [1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1]
JPEG, BLUR = "jpeg(quality=5)", "gaussian_blur(sigma=2.5,kernel=5)"


def write_images(folder: Path, count: int) -> None:
    """JPEG files of 256 x 256 px with some structure, in two class folders."""
    generator = np.random.default_rng(0)
    for index in range(count):
        coarse = generator.integers(0, 256, (16, 16, 3), dtype=np.uint8)
        image = Image.fromarray(coarse).resize((256, 256), Image.Resampling.BICUBIC)
        place = folder / ("n01440764", "n01443537")[index % 2]
        place.mkdir(exist_ok=True)
        image.save(place / f"{index:05d}.jpg", quality=92)


def random_model(dtype: DType) -> LoadedModel:
    spec = ModelSpec("deit_small", "timm:deit_small_patch16_224.fb_in1k")
    return load_model(spec, random_init=True, dtype=dtype)


def battery_tasks() -> list[Task]:
    """Every pass once: at alpha 1 the table shares its passes with the rest."""
    clean, rpi = ssdc_conditions("image", 1, 0)
    tasks = [
        Task(clean, top1=True),
        Task(rpi),
        Task(Condition(corruption=JPEG), ssdc=False, top1=True),
        Task(Condition(corruption=BLUR), ssdc=False, top1=True),
    ]
    for alpha in ALPHAS[1:]:
        tasks += dose_tasks(alpha, {"delta", "fs"}, [JPEG], "image", 1, 0, None)
    return tasks


def labels() -> LabelMap:
    return LabelMap("wnid", {"n01440764": 0, "n01443537": 1}, "", 1000, ("n01440764", "n01443537"))


def ours(model: LoadedModel, source: Source, dtype: DType) -> None:
    settings = Settings(batch_size=BATCH, dtype=dtype)
    measure_loaded(model, source, battery_tasks(), settings, labels=labels())


def bare_share(model: LoadedModel) -> float:
    """Forward passes that the battery needs, stopped ones by their share of blocks."""
    blocks = len(model.anatomy.attn_in)
    return sum(
        1.0 if task.last_layer is None else task.last_layer / blocks for task in battery_tasks()
    )


def floor(model: LoadedModel, source: Source) -> None:
    """Decode once, corrupt once, and run bare passes of the unmodified module."""
    preprocess = required_preprocess(model)
    parameter = next(model.module.parameters())
    passes = bare_share(model)
    whole = int(passes)
    rest = passes - whole
    with torch.inference_mode():
        for batch in batches(source, preprocess, BATCH):
            for name in (JPEG, BLUR):
                parse(name).apply_batch(
                    batch.images.numpy(), 0, batch.indices, threads=torch.get_num_threads()
                )
            images = normalise(batch.images, preprocess, parameter.dtype, parameter.device)
            for _ in range(whole):
                model.module(images)
            model.module(images[: round(rest * len(images))])


def naive(model: LoadedModel, source: Source) -> None:
    """One pass with its own decode per number: 2 SSDC, 3 accuracies, 10 deltas, 20 for JPEG FS."""
    for permute in (False, True):
        naive_ssdc(model, source, permute, 1.0, range(12))
    for corruption in (None, JPEG, BLUR):
        naive_accuracy(model, source, corruption, 1.0)
    for alpha in ALPHAS:
        naive_ssdc(model, source, True, alpha, range(2))
        for corruption in (None, JPEG):
            naive_accuracy(model, source, corruption, alpha)


def naive_batches(model: LoadedModel, source: Source, corruption: str | None) -> Any:
    preprocess = required_preprocess(model)
    parameter = next(model.module.parameters())
    for batch in batches(source, preprocess, BATCH):
        images = batch.images
        if corruption is not None:
            changed, _ = parse(corruption).apply_batch(images.numpy(), 0, batch.indices)
            images = torch.from_numpy(changed)
        yield batch, normalise(images, preprocess, parameter.dtype, parameter.device)


def naive_ssdc(
    model: LoadedModel, source: Source, permute: bool, alpha: float, layers: range
) -> list[float]:
    sums = [torch.zeros(196, 196) for _ in layers]
    kept: dict[int, torch.Tensor] = {}

    def keep(layer: int) -> Callable[..., None]:
        def hook(_module: Any, _args: Any, output: torch.Tensor) -> None:
            kept[layer] = output[:, 1:].float()

        return hook

    handles = [model.module.blocks[i].norm1.register_forward_hook(keep(i)) for i in layers]  # type: ignore[union-attr, index]
    with torch.inference_mode(), scale_positions(model, alpha):
        for batch, images in naive_batches(model, source, None):
            rows = rpi_permutations(
                model.anatomy.patches.grid, batch.indices.tolist(), Permutation("image", 0)
            )
            identity = torch.arange(196).expand(len(images), -1)
            with permute_patches(model, rows if permute else identity):
                model.module(images)
            for layer in layers:
                unit = torch.nn.functional.normalize(kept[layer], dim=-1)
                sums[layer] += (unit @ unit.transpose(1, 2)).sum(0)
    for handle in handles:
        handle.remove()
    place = torch.arange(196)
    rows_, cols = place // 14, place % 14
    distance = (rows_[:, None] - rows_).abs() + (cols[:, None] - cols).abs()
    upper = torch.triu_indices(196, 196, 1)
    return [
        float(spearmanr(s[upper[0], upper[1]], -distance[upper[0], upper[1]]).statistic)
        for s in sums
    ]


def naive_accuracy(
    model: LoadedModel, source: Source, corruption: str | None, alpha: float
) -> float:
    right = count = 0
    with torch.inference_mode(), scale_positions(model, alpha):
        for batch, images in naive_batches(model, source, corruption):
            predicted = model.module(images).argmax(1)
            wanted = torch.tensor([int(label or 0) for label in batch.labels])
            right += int((predicted == wanted).sum())
            count += len(images)
    return right / count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []

    with tempfile.TemporaryDirectory() as name:
        write_images(Path(name), options.images)
        source = open_data(name)
        full, half = random_model("float32"), random_model("bfloat16")
        for warm in (full, half):
            floor(warm, open_data(name, limit=BATCH))
        runs: dict[str, Callable[[], None]] = {
            "ours": lambda: ours(full, source, "float32"),
            "floor": lambda: floor(full, source),
            "naive": lambda: naive(full, source),
            "ours in bfloat16": lambda: ours(half, source, "bfloat16"),
        }
        rounds = [{what: seconds(run) for what, run in runs.items()} for _ in range(options.rounds)]

    def row(what: str, over: str, under: str, limit: float, at_most: bool) -> None:
        value = statistics.median(one[over] / one[under] for one in rounds)
        figure = {"what": what, "value": value, "limit": limit, "at_most": at_most}
        rows.append(figure | {"images": options.images, "seconds": rounds})

    bare = f"{bare_share(full):.2f} bare passes"
    row(f"battery over its floor of {bare}", "ours", "floor", 1.08, True)
    row("battery, times faster than naive, float32", "naive", "ours", 1.45, False)
    row("in bfloat16, times faster than naive in float32", "naive", "ours in bfloat16", 2.5, False)
    report("battery", rows, options.out)


if __name__ == "__main__":
    main()
