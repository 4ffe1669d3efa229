"""Real weights on real images, against numbers that were computed without this project."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import probe
from probe.api import Curves
from probe.data.open import open_data
from probe.engine import run_passes
from probe.plan import Settings, make_passes
from probe.types import Condition, LoadedModel, Permutation, Task

CLEAN = [.612, .659, .695, .652, .689, .735, .751, .787, .784, .813, .704, .685]  # fmt: skip
RPI = [.21, .32, .48, .60, .66, .78, .82, .86, .85, .85, .79, .76]  # fmt: skip
DRAWS = 8

pytestmark = [pytest.mark.assets, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def folder(assets: Path) -> str:
    return str(assets / "data" / "imagenet_sample_256")


@pytest.fixture(scope="module")
def model(assets: Path) -> LoadedModel:
    checkpoint = assets / "checkpoints" / "dinov2-small-backbone"
    return probe.load(str(checkpoint), image_size=224, preprocess="imagenet")


@pytest.fixture(scope="module")
def curves(model: LoadedModel, folder: str) -> Curves:
    return probe.ssdc(model, folder, limit=64)


def test_clean(curves: Curves) -> None:
    np.testing.assert_allclose([p.value for p in curves.clean], CLEAN, rtol=0, atol=0.002)


def test_rpi(curves: Curves) -> None:
    np.testing.assert_allclose([p.value for p in curves.rpi], RPI, rtol=0, atol=0.03)


def test_what_follows_and_what_is_recorded(curves: Curves) -> None:
    rpi = [point.value for point in curves.rpi]
    assert curves.anchoring.value == pytest.approx(np.mean(RPI), abs=0.03)
    assert curves.delta_ssdc_rpi.value == pytest.approx(rpi[1] - rpi[0])
    result = curves.result
    assert result["images"] == 64
    assert {tuple(layer["grid"]) for layer in result["layers"]} == {(16, 16)}
    assert result["settings"]["weights"].startswith("sha256:")
    assert result["settings"]["preprocess"]["source"] == "imagenet"
    for point in (*curves.clean, *curves.rpi):
        assert point.low is not None
        assert point.high is not None
        assert 0.005 < point.high - point.low < 0.4
    for layer in result["layers"]:
        assert -0.06 < layer["rpi"]["null_low"] < 0 < layer["rpi"]["null_high"] < 0.06


@pytest.mark.slow
def test_without_its_table_nothing_is_left_under_rpi(model: LoadedModel, folder: str) -> None:
    conditions = [Condition(Permutation("image", 0, draw), alpha=0.0) for draw in range(DRAWS)]
    settings = Settings()
    passes = make_passes([Task(c) for c in conditions], settings, {"resolved": "dinov2"})
    records = run_passes(model, open_data(folder, limit=64), passes, settings)
    values = np.array([[layer.value for layer in record.layers] for record in records])
    assert values.shape == (DRAWS, 12)
    np.testing.assert_allclose(values[0], 0, atol=0.06)
    np.testing.assert_allclose(values.mean(axis=0), 0, atol=0.03)
