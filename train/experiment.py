"""Trained variants compared over seeds: accuracy, fragility, SSDC and what alpha does to them.

    python -m train.experiment RUNS --data digits --split test --out docs/digits

Measures every finished run in RUNS (folders VARIANT-sSEED), stores the passes in RUNS/passes, and
writes `experiment.json`, `experiment.md`, `experiment.svg` and `experiment.png`. Intervals are over
seeds: t with n - 1 degrees of freedom. They say how far another training would differ, not another
set of images.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from probe.corruptions import suite
from probe.data.labels import map_labels
from probe.data.open import open_data
from probe.data.source import Source
from probe.derive.fragility import fragility_result
from probe.derive.scale import Dose, scale_result
from probe.derive.ssdc import ssdc_result
from probe.errors import DataError, ProbeError
from probe.families.controlled import POSITION, VARIANTS
from probe.loading import load_model
from probe.plan import Settings, dose_tasks
from probe.session import measure_loaded
from probe.store import write_atomically
from probe.types import Condition, Task
from probe.zoo import Zoo
from train.claims import judged, over_seeds
from train.export import finished

ALPHAS = (1.0, 0.75, 0.5, 0.25, 0.0)


def measure_run(
    folder: Path,
    source: Source,
    *,
    draws: int,
    alphas: Sequence[float] = ALPHAS,
    seed: int = 0,
    runs: Path | None = None,
) -> dict[str, Any]:
    """One run's numbers: `variant`, `seed`, `ssdc`, `fragility`, and `scale` where it has a signal.

    Args:
        folder: a finished run.
        source: the images, with labels.
        draws: permutation draws to average.
        alphas: factors on the positional signal, 1 the first.
        seed: seed of everything that is drawn.
        runs: where passes are stored; None keeps nothing.

    Raises:
        DataError: if the folder holds no finished run.
        ProbeError: if it cannot be measured on these images.
    """
    record = finished(folder)
    if record is None:
        raise DataError(f"{folder} holds no finished run; run the same `probe train` again")
    spec = Zoo({}).resolve(str(folder))
    model = load_model(spec)
    labels = map_labels(source, None, model.classes or 0, model.class_names, None)
    corruptions = suite("default")
    jpeg = [one for one in corruptions if one.name == "jpeg"]
    alphas = alphas[:1] if POSITION[record["variant"]] == "none" else alphas
    first, names = Condition(), [str(one) for one in jpeg]
    measures = {"delta", "anchoring", "accuracy", "fs"}
    planned = {
        alpha: dose_tasks(alpha, measures, names, "image", draws, seed, None) for alpha in alphas
    }
    shifted = {
        one: Task(Condition(corruption=str(one)), ssdc=False, top1=True) for one in corruptions
    }
    tasks = [Task(first), *(task for dose in planned.values() for task in dose), *shifted.values()]
    tasks = list(dict.fromkeys(tasks))
    settings = Settings(seed=seed, batch_size=64)
    measured = measure_loaded(model, source, tasks, settings, labels=labels, runs=runs)
    found = dict(zip(tasks, measured.records, strict=True))

    def dose(alpha: float) -> Dose:
        *shuffled, clean, under_jpeg = (found[task] for task in planned[alpha])
        return Dose(alpha, tuple(shuffled), clean, ((jpeg[0], under_jpeg),))

    doses = [dose(alpha) for alpha in alphas]
    whole = doses[0]
    assert whole.clean is not None
    return {
        "variant": record["variant"],
        "seed": record["seed"],
        "untrained": record["untrained"],
        "ssdc": ssdc_result(folder.name, found[tasks[0]], whole.rpi),
        "fragility": fragility_result(
            folder.name, whole.clean, [(one, found[task]) for one, task in shifted.items()]
        ),
        "scale": scale_result(folder.name, doses) if len(alphas) > 1 else None,
    }


def summarise(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Everything over seeds, by variant, as JSON values."""
    table: dict[str, Any] = {}
    for variant in VARIANTS:
        mine = [run for run in runs if run["variant"] == variant]
        if not mine:
            continue
        layers = range(len(mine[0]["ssdc"]["layers"]))
        shifted = [one["corruption"] for one in mine[0]["fragility"]["corruptions"]]
        table[variant] = {
            "seeds": [run["seed"] for run in mine],
            "accuracy": over_seeds([run["fragility"]["accuracy"]["value"] for run in mine]),
            "fs": {
                name: over_seeds(
                    [run["fragility"]["corruptions"][place]["fs"]["value"] for run in mine]
                )
                for place, name in enumerate(shifted)
            },
            "anchoring": over_seeds([run["ssdc"]["anchoring"]["value"] for run in mine]),
            "delta_ssdc_rpi": over_seeds([run["ssdc"]["delta_ssdc_rpi"]["value"] for run in mine]),
            # The widest over layers and seeds.
            "null": [
                min(run["ssdc"]["layers"][i]["rpi"]["null_low"] for run in mine for i in layers),
                max(run["ssdc"]["layers"][i]["rpi"]["null_high"] for run in mine for i in layers),
            ],
            "layers": [
                {
                    kind: over_seeds([run["ssdc"]["layers"][layer][kind]["value"] for run in mine])
                    for kind in ("clean", "rpi")
                }
                for layer in layers
            ],
            "alphas": _over_alphas(mine),
        }
    first = runs[0]["fragility"]
    return {
        "schema": 1,
        # Without its name, which may be a path of this machine.
        "data": {k: v for k, v in first["settings"]["data"].items() if k != "name"},
        "images": first["images"],
        "versions": first["settings"]["versions"],
        "rpi": runs[0]["ssdc"]["settings"]["rpi"],
        "untrained": all(run["untrained"] for run in runs),
        "variants": table,
        "claims": [] if all(run["untrained"] for run in runs) else judged(runs),
    }


def _over_alphas(runs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    if runs[0]["scale"] is None:
        return []
    found = []
    for place, row in enumerate(runs[0]["scale"]["alphas"]):
        rows = [run["scale"]["alphas"][place] for run in runs]
        values: dict[str, Any] = {"alpha": row["alpha"]}
        for name in ("delta_ssdc_rpi", "anchoring", "accuracy"):
            values[name] = over_seeds([one[name]["value"] for one in rows])
        values["fs"] = {
            name: over_seeds([one["fs"][name]["value"] for one in rows]) for name in row["fs"]
        }
        found.append(values)
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; returns the exit code."""
    from train.experiment_report import experiment_figure, experiment_markdown

    parser = argparse.ArgumentParser(
        prog="python -m train.experiment", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("runs", type=Path, metavar="RUNS", help="folder of finished runs")
    parser.add_argument("--data", required=True, help="as for `probe ssdc`")
    parser.add_argument("--split", default=None)
    parser.add_argument("--limit", type=int, default=None)
    parser.add_argument("--draws", type=int, default=4, help="permutation draws to average")
    parser.add_argument("--untrained", action="store_true", help="the untrained runs")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args(arguments)
    try:
        suffix = "-untrained" if given.untrained else ""
        folders = [
            folder
            for variant in VARIANTS
            for folder in sorted(given.runs.glob(f"{variant}-s*"))
            if folder.name.endswith("-untrained") == given.untrained
        ]
        if not folders:
            raise DataError(f"{given.runs} holds no folder VARIANT-sSEED{suffix}; train some first")
        source = open_data(given.data, split=given.split, limit=given.limit)
        found = []
        for folder in folders:
            found.append(measure_run(folder, source, draws=given.draws, runs=given.runs))
            print(f"measured {folder.name}", flush=True)
        result = summarise(found)
        text = json.dumps(result, indent=1, allow_nan=False) + "\n"
        write_atomically(given.out / "experiment.json", text)
        write_atomically(given.out / "experiment.md", experiment_markdown(result))
        for name, content in experiment_figure(result).items():
            write_atomically(given.out / name, content)
    except ProbeError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
