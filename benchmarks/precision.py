"""What precision, batch size and device do to the numbers, against float32 on the CPU.

    python -m benchmarks.precision MODEL ... [--data photos] [--limit 64] [--image-size 224]
        [--preprocess imagenet] [--out benchmarks/results]

Each model is measured in float32 on the CPU in batches of 64, then in float64, bfloat16 and
float16, and in float32 in batches of 1 and on every other device there is. A row holds the largest
difference over layers of SSDC (clean and under RPI), the difference of anchoring, and how many
top-1 predictions differ, among them those whose two largest logits were 1e-4 or more apart.

Cost: some 10 forward passes per image and model; half a minute for the networks that ship.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.measure import machine
from probe.api import load
from probe.data.loader import batches
from probe.data.open import open_data
from probe.data.preprocess import normalise
from probe.data.source import IndexedSource
from probe.derive.ssdc import ssdc_result
from probe.loading import required_preprocess
from probe.plan import Settings, ssdc_conditions
from probe.session import measure_loaded
from probe.types import DType, LoadedModel, Task

MARGIN = 1e-4
"""Where the two largest logits are nearer than this, rounding may exchange them."""


@dataclass(frozen=True)
class Way:
    """One way to run a model; the first is what the others are compared with."""

    dtype: DType = "float32"
    batch_size: int = 64
    device: str = "cpu"

    def __str__(self) -> str:
        """As the table names it."""
        return f"{self.dtype}, batches of {self.batch_size}, {self.device}"


@dataclass(frozen=True)
class Numbers:
    """What a model gave: SSDC (conditions, layers), anchoring, top-1 and margins (images)."""

    curves: np.ndarray
    anchoring: float
    top1: np.ndarray | None
    margins: np.ndarray | None


def ways() -> list[Way]:
    """float32 on the CPU, then each other precision, batches of one image, each other device."""
    first = Way()
    others = [replace(first, dtype=dtype) for dtype in ("float64", "bfloat16", "float16")]
    devices = [name for name in ("cuda", "mps") if getattr(torch, name).is_available()]
    return [
        first, replace(first, batch_size=1), *others,
        *(replace(first, device=device) for device in devices),
        *(replace(first, device=device, dtype="bfloat16") for device in devices),
    ]  # fmt: skip


def measure(name: str, source: IndexedSource, way: Way, options: dict[str, Any]) -> Numbers:
    """Run a model in one way."""
    model = load(name, dtype=way.dtype, device=way.device, **options)
    settings = Settings(dtype=way.dtype, batch_size=way.batch_size)
    tasks = [Task(condition) for condition in ssdc_conditions("image", 1, 0)]
    records = list(measure_loaded(model, source, tasks, settings).records)
    result = ssdc_result(name, records[0], records[1:])
    top1 = margins = None
    if model.predict is not None:
        logits = _logits(model, source, way)
        largest = logits.topk(2, dim=1)
        top1 = largest.indices[:, 0].numpy()
        margins = (largest.values[:, 0] - largest.values[:, 1]).numpy()
    curves = [[layer.value for layer in record.layers] for record in records]
    return Numbers(np.array(curves, float), result["anchoring"]["value"], top1, margins)


def compared(base: Numbers, other: Numbers) -> dict[str, Any]:
    """How far `other` is from `base`."""
    row: dict[str, Any] = {
        "ssdc": float(np.abs(other.curves - base.curves).max()),
        "anchoring": abs(other.anchoring - base.anchoring),
    }
    if base.top1 is not None and base.margins is not None and other.top1 is not None:
        differ = base.top1 != other.top1
        row |= {
            "predictions": len(differ),
            "differ": int(differ.sum()),
            "differ_beyond_margin": int((differ & (base.margins >= MARGIN)).sum()),
            "within_margin": int((base.margins < MARGIN).sum()),
        }
    return row


def rows(name: str, source: IndexedSource, options: dict[str, Any]) -> list[dict[str, Any]]:
    """Every way of one model, against the first; `options` are those of `load`."""
    first, *others = ways()
    base = measure(name, source, first, options)
    found = []
    for way in others:
        row = compared(base, measure(name, source, way, options))
        found.append({"way": str(way), "layers": base.curves.shape[1], **row})
    return found


def table(models: dict[str, Any]) -> str:
    """The record's models as Markdown: those on the same images together, by their largest row."""
    groups: dict[tuple[str, int], list[str]] = {}
    for name, one in models.items():
        groups.setdefault((one["data"], one["images"]), []).append(name)
    lines = ["| models | run | SSDC | anchoring | top-1 that differ |", "|---|---|---|---|---|"]
    for (data, images), names in groups.items():
        for number, first in enumerate(models[names[0]]["rows"]):
            found = [models[name]["rows"][number] for name in names]
            ssdc, anchoring = (max(one[key] for one in found) for key in ("ssdc", "anchoring"))
            top1 = "no head"
            if "differ" in first:
                counts = (sum(one[key] for one in found) for key in ("differ", "predictions"))
                top1 = " of ".join(f"{count:,}" for count in counts)
            cells = (", ".join(names), first["way"], f"{ssdc:.1e}", f"{anchoring:.1e}", top1)
            label = f"{cells[0]}; {images} of {data}" if number == 0 else ""
            lines.append(f"| {' | '.join((label, *cells[1:]))} |")
    return "\n".join(lines) + "\n"


def _logits(model: LoadedModel, source: IndexedSource, way: Way) -> torch.Tensor:
    preprocess = required_preprocess(model)
    kind, place = getattr(torch, way.dtype), torch.device(way.device)
    found = []
    assert model.predict is not None
    with torch.inference_mode():
        for batch in batches(source, preprocess, way.batch_size):
            images = normalise(batch.images, preprocess, kind, place)
            found.append(model.predict(model.forward(images)).double().cpu())
    return torch.cat(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="+")
    parser.add_argument("--data", default="photos")
    parser.add_argument("--limit", type=int, default=64)
    parser.add_argument("--image-size", type=int)
    parser.add_argument("--preprocess")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    given = parser.parse_args()
    source = open_data(given.data, limit=given.limit)
    if not isinstance(source, IndexedSource):
        raise SystemExit("--data must be photos, digits, a folder or a parquet file")
    options = {"image_size": given.image_size, "preprocess": given.preprocess}
    path = given.out / "precision.json"
    before = json.loads(path.read_text()) if path.exists() else {"models": {}}
    for name in given.models:
        found = rows(name, source, options)
        measured = {"data": Path(source.name).name, "images": len(source), **options, "rows": found}
        before["models"][Path(name).name] = measured
    given.out.mkdir(parents=True, exist_ok=True)
    content = {"benchmark": "precision", "machine": machine(), "models": before["models"]}
    path.write_text(json.dumps(content, indent=2) + "\n")
    print(table(content["models"]))


if __name__ == "__main__":
    main()
