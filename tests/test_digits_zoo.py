"""The trained zoo that ships: what it is made from, that it still does what its records say."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open

from probe.data.loader import batches
from probe.data.open import open_data
from probe.data.preprocess import normalise
from probe.families.controlled import POSITION, TABLE, VARIANTS
from probe.loading import load_model
from probe.zoo import load_zoo
from train.export import finished
from train.parts import load_parts
from train.recipe import load_recipe
from train.runs import Run

ROOT = Path(__file__).resolve().parent.parent
SHIPPED = ROOT / "probe" / "weights" / "digits"
SEEDS = (0, 1, 2)
RUNS = [f"{variant}-s{seed}" for variant in VARIANTS for seed in SEEDS]


@cache
def record(run: str) -> dict[str, Any]:
    found = finished(SHIPPED / run)
    assert found is not None, f"{run}: the weights are not those that were recorded"
    return found


def test_the_whole_set_is_there_and_small() -> None:
    assert sorted(path.name for path in SHIPPED.iterdir()) == sorted(RUNS)
    files = [path for path in SHIPPED.rglob("*") if path.is_file()]
    assert {path.name for path in files} == {"config.json", "model.safetensors", "training.json"}
    assert sum(path.stat().st_size for path in files) < 12e6


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("stored")


@pytest.mark.parametrize("run", RUNS)
def test_it_carries_the_recipe_as_it_stands(run: str, stored: Path) -> None:
    variant, seed = run.split("-s")
    recipe = load_recipe("digits", variant)
    made = record(run)
    assert made["recipe"] == recipe.describe()
    assert (made["variant"], made["seed"], made["untrained"]) == (variant, int(seed), False)
    parts = load_parts(recipe, stored)
    assert made["data"] == parts.data
    assert made["fingerprint"] == Run(recipe, int(seed), stored).fingerprint(parts)


@pytest.mark.parametrize("run", RUNS)
def test_it_reaches_its_recorded_accuracy(run: str) -> None:
    """Read through the zoo and the data loader of `probe`, which share no code with training's."""
    spec = load_zoo()[f"digits_{run.replace('-', '_')}"]
    assert (spec.source, spec.data) == (f"package:weights/digits/{run}", "digits")
    model = load_model(spec, device="cpu")
    assert model.preprocess is not None
    assert model.predict is not None
    for part in ("validation", "test"):
        right = count = 0
        for batch in batches(open_data("digits", split=part), model.preprocess, 300):
            pixels = normalise(batch.images, model.preprocess, torch.float32, "cpu")
            with torch.inference_mode():
                found = model.predict(model.forward(pixels)).argmax(1).numpy()
            right += int((found == np.array(batch.labels)).sum())
            count += len(found)
        assert {"correct": right, "images": count} == record(run)[part]


@pytest.mark.parametrize("run", RUNS)
def test_its_positions_are_what_the_zoo_says(run: str) -> None:
    spec = load_zoo()[f"digits_{run.replace('-', '_')}"]
    kinds = "+".join(site.kind for site in load_model(spec, device="cpu").anatomy.positions)
    assert (kinds or "none") == spec.position == POSITION[run.split("-")[0]]  # type: ignore[index]


def test_seeds_and_variants_have_weights_of_their_own() -> None:
    assert len({record(run)["weights"] for run in RUNS}) == len(RUNS)


@pytest.mark.parametrize("run", RUNS)
def test_weights_are_half_precision_and_finite(run: str) -> None:
    with safe_open(SHIPPED / run / "model.safetensors", "pt") as file:
        names = list(file.keys())
        assert (TABLE in names) == (run.split("-")[0] in ("ape", "spe", "rpt"))
        for name in names:
            tensor = file.get_tensor(name)
            assert tensor.dtype == torch.float16
            assert torch.isfinite(tensor).all()


def test_no_path_of_a_machine_is_in_the_records() -> None:
    for run in RUNS:
        text = json.dumps(record(run))
        assert "/home" not in text
        assert "/tmp" not in text
        assert str(ROOT) not in text
