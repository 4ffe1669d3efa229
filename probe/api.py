"""The library's front door: load a model, give it images, get curves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from probe.data.open import open_data
from probe.data.source import IndexedSource, Source, StreamSource
from probe.derive.ssdc import ssdc_result
from probe.loading import load_model
from probe.plan import Settings, ssdc_conditions
from probe.session import measure_loaded
from probe.types import (
    Average,
    DType,
    LoadedModel,
    Metric,
    ModelSpec,
    PermutationMode,
    Point,
    Scalar,
    Task,
)
from probe.zoo import load_zoo

if TYPE_CHECKING:
    import numpy as np
    from PIL.Image import Image


@dataclass(frozen=True)
class Curves:
    """SSDC of every layer, clean and under RPI, with what follows from them.

    `clean` and `rpi` hold one `Scalar` (value, low, high, reason) per layer; `rpi` is empty when
    RPI is off. `result` is the model's entry of `probe ssdc --json`, with settings and null bands.
    """

    clean: tuple[Scalar, ...]
    rpi: tuple[Scalar, ...]
    delta_ssdc_rpi: Scalar
    anchoring: Scalar
    result: dict[str, Any]


def load(
    model: str,
    *,
    image_size: int | tuple[int, int] | None = None,
    preprocess: str | None = None,
    random_init: bool = False,
    seed: int = 0,
    dtype: DType = "float32",
    device: str = "auto",
    arch: str | None = None,
    zoo: str | Path | None = None,
) -> LoadedModel:
    """Load a model by zoo name, `timm:NAME`, `hf:ID` or path.

    Args:
        model: as on the command line.
        image_size: pixels, or (height, width); None for the checkpoint's own.
        preprocess: `imagenet`, `half` or a file; None for the checkpoint's own.
        random_init: the untrained model; no weights are fetched (an `hf:` id needs its config).
        seed: seed of that initialisation.
        dtype: precision of the model.
        device: `auto`, `cpu`, `cuda`, `mps`.
        arch: timm architecture of a state-dict file.
        zoo: a zoo file of your own.

    Raises:
        ProbeError: if the model cannot be found, fetched or read; the message says what to do.
    """
    spec: ModelSpec = load_zoo(Path(zoo) if zoo else None).resolve(model, arch=arch)
    size = (image_size, image_size) if isinstance(image_size, int) else image_size
    return load_model(
        spec,
        image_size=size,
        preprocess=preprocess,
        random_init=random_init,
        seed=seed,
        dtype=dtype,
        device=device,
    )


def ssdc(
    model: LoadedModel,
    images: str | Path | Source | Sequence[Image | np.ndarray],
    *,
    limit: int | None = None,
    split: str | None = None,
    rpi: PermutationMode | Literal["off"] = "image",
    rpi_draws: int = 1,
    site: Point = "attn_in",
    distance: Metric = "l1",
    average: Average = "similarity",
    seed: int = 0,
    batch_size: int = 32,
    workers: int = 0,
    metrics: Sequence[str] = (),
) -> Curves:
    """SSDC of every layer, clean and under RPI.

    Args:
        model: a loaded model that carries a preprocessing.
        images: what `--data` takes, or a list of PIL images or uint8 arrays (H, W, 3).
        limit: take this many, evenly spread.
        split: split of a data set.
        rpi: one permutation per image, one `shared`, one per `batch`, or `off`.
        rpi_draws: permutation draws to average.
        site: where tokens are read.
        distance: distance on the grid.
        average: rank the cosines averaged over images, or each image's own.
        seed: seed of permutations and relabellings.
        batch_size: images per forward pass.
        workers: processes that decode images.
        metrics: names of metrics that installed packages add; they stand in `result`.

    Raises:
        ProbeError: if the images or the model cannot be used; the message says what to do.
    """
    if isinstance(images, str | Path):
        source = open_data(str(images), split=split, limit=limit)
    elif isinstance(images, IndexedSource | StreamSource):
        source = images
    else:
        from probe.data.memory import InMemory

        source = InMemory(images, limit=limit)
    precision = _dtype_of(model)
    settings = Settings(
        site, distance, average, seed, precision, batch_size, workers, tuple(metrics)
    )
    tasks = [Task(condition) for condition in ssdc_conditions(rpi, rpi_draws, seed)]
    measured = measure_loaded(model, source, tasks, settings)
    clean, *draws = measured.records
    result = ssdc_result(model.spec.name, clean, draws, notes=model.notes)

    def column(name: str) -> tuple[Scalar, ...]:
        return tuple(_scalar(layer[name]) for layer in result["layers"])

    return Curves(
        clean=column("clean"),
        rpi=column("rpi") if draws else (),
        delta_ssdc_rpi=_scalar(result["delta_ssdc_rpi"]),
        anchoring=_scalar(result["anchoring"]),
        result=result,
    )


def _scalar(entry: dict[str, Any]) -> Scalar:
    return Scalar(entry["value"], entry["low"], entry["high"], entry["reason"])


def _dtype_of(model: LoadedModel) -> DType:
    name = str(next(model.module.parameters()).dtype).removeprefix("torch.")
    return cast(DType, name)
