"""Tiny models that are ready to run, pictures in memory, and SSDC computed the long way round."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np
import torch
from numpy.random import PCG64, Generator, SeedSequence
from scipy.stats import spearmanr
from torch import Tensor

from probe.data.labels import LabelMap
from probe.data.memory import InMemory
from probe.data.source import Item
from probe.engine import run_passes
from probe.plan import Settings, make_passes
from probe.records import PassRecord
from probe.store import Store
from probe.types import Condition, Grid, LoadedModel, Pass, Preprocess, Task
from tests.families.tiny_timm import tiny_models

MODELS = tiny_models()


def ready(name: str = "vit") -> LoadedModel:
    """A tiny timm model with a preprocessing that leaves pictures of its size as they are."""
    return prepared(MODELS[f"timm_{name}"]())


def prepared(model: LoadedModel) -> LoadedModel:
    """The model, taking pictures of its size as they are."""
    size, half = model.anatomy.image_size, (0.5, 0.5, 0.5)
    preprocess = Preprocess(size, ("squash", size), None, "bilinear", half, half, "test")
    return replace(model, preprocess=preprocess)


def strong(model: LoadedModel, factor: float = 4.0) -> LoadedModel:
    """The model with larger matrices and tables, so that what acts inside attention shows."""
    with torch.no_grad():
        for parameter in model.module.parameters():
            if parameter.ndim == 2:
                parameter.mul_(factor)
    return model


def undecided(model: LoadedModel, images: Sequence[np.ndarray]) -> LoadedModel:
    """The model, each head's mean logits over `images` made equal, so that answers differ."""
    heads = [m for m in model.module.modules() if isinstance(m, torch.nn.Linear)]
    for head in heads:
        if head.out_features != model.classes:
            continue
        found: list[Tensor] = []
        hook = head.register_forward_hook(lambda _m, _a, logits, to=found: to.append(logits))
        with torch.no_grad():
            for image in images:
                pixels = torch.from_numpy(image).permute(2, 0, 1)[None].float()
                model.forward((pixels / 255 - 0.5) / 0.5)
            head.bias.sub_(torch.cat(found).mean(dim=0))
        hook.remove()
    return model


def pictures(count: int, size: tuple[int, int] = (32, 32), seed: int = 0) -> list[np.ndarray]:
    """Blobs of colour under noise, so that neighbouring patches look alike."""
    rng = np.random.default_rng(seed)
    made = []
    for _ in range(count):
        coarse = rng.integers(0, 200, (3, 3, 3))
        rows = np.arange(size[0]) * 3 // size[0]
        cols = np.arange(size[1]) * 3 // size[1]
        noise = rng.integers(0, 56, (*size, 3))
        made.append((coarse[rows][:, cols] + noise).astype(np.uint8))
    return made


class Counted(InMemory):
    """Pictures in memory that count how often one was read."""

    reads = 0

    def read(self, position: int) -> Item:
        self.reads += 1
        return super().read(position)


def counting(model: LoadedModel) -> tuple[LoadedModel, list[int]]:
    """The model, and a list that gets the size of every batch it runs."""
    sizes: list[int] = []

    def forward(images: Tensor) -> Any:
        sizes.append(len(images))
        return model.forward(images)

    return replace(model, forward=forward), sizes


def passes_of(work: Sequence[Condition | Task], settings: Settings) -> list[Pass]:
    """Passes of a model called tiny; a condition alone measures SSDC."""
    tasks = [one if isinstance(one, Task) else Task(one) for one in work]
    return make_passes(tasks, settings, {"resolved": "tiny", "site": settings.site})


def run(
    model: LoadedModel,
    source: Any,
    work: Sequence[Condition | Task],
    settings: Settings = Settings(batch_size=4),  # noqa: B008
    store: Store | None = None,
    progress: Callable[[int], None] = lambda images: None,
    labels: LabelMap | None = None,
) -> list[PassRecord]:
    """One record per condition or task; `source` is a source, or pictures."""
    images = InMemory(source) if isinstance(source, list) else source
    passes = passes_of(work, settings)
    return run_passes(
        model, images, passes, settings, labels=labels, store=store, progress=progress
    )


def top1(*conditions: Condition) -> list[Task]:
    """Predictions alone, under each condition."""
    return [Task(condition, ssdc=False, top1=True) for condition in conditions]


def permutation(seed: int, draw: int, index: int, tokens: int) -> np.ndarray:
    return Generator(PCG64(SeedSequence([seed, draw, index]))).permutation(tokens)


def tokens_by_hand(
    model: LoadedModel,
    images: Sequence[np.ndarray],
    orders: Sequence[np.ndarray] | None = None,
    point: str = "attn_in",
) -> list[np.ndarray]:
    """Patch tokens (images, N, C) of every layer, one image at a time and without a hook."""
    staged = hasattr(model.module, "layers")
    through = _swin if staged else _vit
    layers: list[list[np.ndarray]] = []
    with torch.no_grad():
        for number, image in enumerate(images):
            pixels = torch.from_numpy(image.astype(np.float32) / 255 - 0.5) / 0.5
            order = None if orders is None else torch.from_numpy(orders[number])
            found = through(model.module, pixels.permute(2, 0, 1)[None], order, point)
            layers.append([t.double().numpy()[0] for t in found])
    return [np.stack(one) for one in zip(*layers, strict=True)]


def _vit(module: Any, image: Tensor, order: Tensor | None, point: str) -> list[Tensor]:
    tokens = module.patch_embed(image)
    tokens = tokens if order is None else tokens[:, order]
    tokens = torch.cat([module.cls_token, tokens], dim=1) + module.pos_embed
    found = []
    for block in module.blocks:
        before, tokens = block.norm1(tokens), block(tokens)
        found.append((before if point == "attn_in" else tokens)[:, 1:])
    return found


def _swin(module: Any, image: Tensor, order: Tensor | None, point: str) -> list[Tensor]:
    tokens = module.patch_embed(image)
    if order is not None:
        tokens = tokens.flatten(1, 2)[:, order].view_as(tokens)
    found = []
    for stage in module.layers:
        tokens = stage.downsample(tokens)
        for block in stage.blocks:
            before, tokens = block.norm1(tokens), block(tokens)
            found.append((before if point == "attn_in" else tokens).flatten(1, 2))
    return found


def ssdc_by_hand(
    tokens: np.ndarray, grid: Grid, average: str = "similarity", distance: str = "l1"
) -> float:
    """SSDC of patch tokens (images, N, C) from its definition, by SciPy."""
    cells = [(row, col) for row in range(grid.rows) for col in range(grid.cols)]
    steps = np.array([np.subtract(a, b) for a, b in combinations(cells, 2)])
    far = np.abs(steps).sum(1) if distance == "l1" else np.sqrt((steps**2).sum(1))
    unit = tokens / np.linalg.norm(tokens, axis=-1, keepdims=True)
    upper = np.triu_indices(grid.tokens, 1)
    matrices = [(one @ one.T)[upper] for one in unit]
    if average == "similarity":
        matrices = [np.mean(matrices, axis=0)]
    return float(np.mean([spearmanr(matrix, -far).statistic for matrix in matrices]))
