"""Cost of `probe report`: over the bare passes of its models, and of a large zoo's second run.

    python -m benchmarks.report [--images 256] [--part passes] [--out benchmarks/results]

First, random networks on image files: planning, loading, decoding, corrupting, measuring and
rendering over the forward passes of the unmodified modules on ready batches, which are timed in
between. Then 60 names over twelve architectures: the command again with nothing new, rendering
alone, and the page's size. Cost: about 50 minutes on two cores, 17 for three models at 128 images.
Expected: the rows of the second part hold. Those of the first do not yet: 1.14 at 128 images, by a
Swin's sums, of which a gigabyte is ranked at the end and saved once a minute.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from benchmarks.battery import write_images
from benchmarks.measure import report, seconds
from probe.cli.report_batch import Batch as Report
from probe.cli.report_batch import Request, measure_missing, planned
from probe.cli.report_files import write_report
from probe.corruptions import suite
from probe.data.loader import Batch
from probe.engine import _Reading
from probe.plan import ReportChoices, Settings
from probe.running import RunningPass
from probe.session import LoadOptions
from probe.zoo import load_zoo

BATCH = 32
EVERY = 4
run_batch = _Reading._run
MODELS = ("deit_small", "vit_base", "swin_tiny")
# A Swin's 56 x 56 grids have 4.9 million pairs to rank, however few the images, and their pair sums
# are 9 % of its passes however many.
STAGED = ("swin_tiny",)
NAMES = 60
ARCHITECTURES = (
    "deit_tiny_patch16_224",
    "deit_tiny_distilled_patch16_224",
    "vit_tiny_patch16_224",
    "vit_small_patch32_224",
    "vit_base_patch32_224",
    "vit_small_patch16_rope_224",
    "flexivit_small",
    "eva02_tiny_patch14_224",
    "swin_tiny_patch4_window7_224",
    "swinv2_tiny_window8_256",
    "eva02_small_patch14_224",
    "beit_base_patch16_224",
)


def request(models: tuple[str, ...], data: str, folder: Path) -> Request:
    """The default report of `models` with random weights."""
    zoo = load_zoo(None)
    corruptions = tuple(str(one) for one in suite("default"))
    return Request(
        specs=tuple(zoo.resolve(name) for name in models),
        name="benchmark",
        title="benchmark",
        protocol="default",
        against=None,
        data=data,
        split=None,
        limit=None,
        choices=ReportChoices(corruptions=corruptions, dosed=corruptions[:1]),
        settings=Settings(batch_size=BATCH),
        options=LoadOptions(random_init=True),
        runs=folder / "runs",
        fresh=False,
        out=folder / "out",
        hardware=False,
    )


def whole(wanted: Request) -> Report:
    batch = planned(wanted)
    measure_missing(batch)
    if write_report(batch, None, None):
        raise SystemExit("a model failed; its report says why")
    return batch


class Bare:
    """Times the unmodified module between the passes of a report, on the very same batches.

    Every fourth batch is given to the module once more, without hooks or interventions, so that a
    machine whose speed drifts slows both sides alike. Its seconds are taken off the report's.
    """

    def __init__(self) -> None:
        """Nothing timed yet."""
        self.calls: Counter[str] = Counter()
        self.timed: Counter[str] = Counter()
        self.spent: dict[str, float] = {}

    def run(self, reading: _Reading, one: RunningPass, batch: Batch, images: Tensor) -> None:
        """In place of `_Reading._run`."""
        run_batch(reading, one, batch, images)
        name = reading.model.spec.name
        self.calls[name] += 1
        if self.calls[name] % EVERY == 1:
            with torch.inference_mode():
                took = seconds(lambda: reading.model.module(images))
            self.timed[name] += 1
            self.spent[name] = self.spent.get(name, 0.0) + took

    def passes(self) -> dict[str, float]:
        """Seconds of the bare passes of every model."""
        return {name: self.spent[name] / self.timed[name] * n for name, n in self.calls.items()}


def over_bare(models: tuple[str, ...], data: str, folder: Path) -> dict[str, Any]:
    """The whole report over the sum of the bare passes of its models."""
    kept: list[Report] = []
    bare = Bare()
    with patch.object(_Reading, "_run", lambda *given: bare.run(*given)):
        ours = seconds(lambda: kept.append(whole(request(models, data, folder))))
    passes = [entry.passes for entry in kept[0].entries]
    if any(one.task.last_layer is not None for part in passes for one in part):
        raise SystemExit("a pass stops early, so a bare pass is no measure of it")
    ours -= sum(bare.spent.values())
    times = bare.passes()
    return {
        "ratio": ours / sum(times.values()),
        "passes": [len(part) for part in passes],
        "seconds": ours,
        "baseline_seconds": times,
    }


def large_zoo(folder: Path) -> tuple[float, float, float]:
    """(seconds of a second run, seconds of rendering, megabytes of the page) of 60 names."""
    zoo = folder / "zoo.yaml"
    lines = [
        f"  m{number:02}_{ARCHITECTURES[number % len(ARCHITECTURES)]}: "
        f"{{source: 'timm:{ARCHITECTURES[number % len(ARCHITECTURES)]}'}}"
        for number in range(NAMES)
    ]
    zoo.write_text("schema: 1\nmodels:\n" + "\n".join(lines) + "\n")
    names = [line.split(":")[0].strip() for line in lines]
    out = folder / "large"
    command = [sys.executable, "-m", "probe", "report", *names, "--zoo", str(zoo)]
    command += ["--random-init", "--limit", "4", "--runs", str(folder / "many"), "--out", str(out)]

    def run(*more: str) -> float:
        return seconds(lambda: subprocess.run(more, check=True, capture_output=True))

    run(*command)
    again = min(run(*command) for _ in range(3))
    render = [*command[:4], "--render-only", str(folder / "many"), "--out", str(out)]
    rendered = min(run(*render) for _ in range(2))
    return again, rendered, (out / "index.html").stat().st_size / 1e6


def passes(images: int, out: Path) -> None:
    """Reports over the bare passes of their models."""
    rows = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "images").mkdir()
        write_images(folder / "images", images)
        for models in (MODELS, STAGED):
            timing = over_bare(models, str(folder / "images"), folder / models[0])
            what = f"a report of {', '.join(models)} over the sum of their bare passes"
            row = {"what": what, "value": timing.pop("ratio"), "limit": 1.10, "at_most": True}
            rows.append(row | {"images": images} | timing)
            report("report", rows, out)


def names(out: Path) -> None:
    """A second run, a rendering and the page of many names."""
    with tempfile.TemporaryDirectory() as name:
        again, rendered, size = large_zoo(Path(name))
    figures = (
        (f"a second run of {NAMES} models, seconds", again, 5),
        (f"rendering {NAMES} models, seconds", rendered, 10),
        (f"the page of {NAMES} models, MB", size, 8),
    )
    rows = [{"what": w, "value": v, "limit": most, "at_most": True} for w, v, most in figures]
    report("report_zoo", rows, out)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=256)
    parser.add_argument("--part", choices=("passes", "names"), help="one of the two; else both")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    options = parser.parse_args()
    if options.part != "names":
        passes(options.images, options.out)
    if options.part != "passes":
        names(options.out)


if __name__ == "__main__":
    main()
