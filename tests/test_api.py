"""The same from Python, in three lines."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import probe
from probe.data.memory import InMemory
from probe.errors import CheckpointError, UnknownModel, UsageError
from probe.types import LoadedModel, Scalar
from tests.small_runs import Counted, pictures, ready, ssdc_by_hand, tokens_by_hand


@pytest.fixture(scope="module")
def model() -> LoadedModel:
    return probe.load("timm:test_vit", random_init=True, image_size=64, preprocess="half")


def test_three_lines() -> None:
    model = probe.load("timm:test_vit", random_init=True, image_size=64)
    curves = probe.ssdc(model, "digits", limit=5)
    assert len(curves.clean) == len(curves.rpi) == 6
    for point in (*curves.clean, *curves.rpi, curves.delta_ssdc_rpi, curves.anchoring):
        assert isinstance(point, Scalar)
        assert point.value is not None
        assert point.low is not None
        assert point.high is not None
        assert point.low <= point.value <= point.high
    rpi = [point.value for point in curves.rpi]
    assert curves.anchoring.value == pytest.approx(np.mean(rpi))
    assert curves.delta_ssdc_rpi.value == pytest.approx(rpi[1] - rpi[0])
    assert curves.result["settings"]["data"]["name"] == "digits"
    assert [layer["rpi"]["value"] for layer in curves.result["layers"]] == rpi
    json.dumps(curves.result, allow_nan=False)


def test_it_equals_the_command(tmp_path: Path, model: LoadedModel) -> None:
    from typer.testing import CliRunner

    from probe.cli.app import app

    command = ["ssdc", "timm:test_vit", "--random-init", "--image-size", "64", "--preprocess",
               "half", "--data", "digits", "--limit", "5", "--runs", str(tmp_path), "--json", "-",
               "--rpi-draws", "2", "--distance", "l2"]  # fmt: skip
    found = CliRunner().invoke(app, command)
    (expected,) = json.loads(found.stdout)["results"]
    assert probe.ssdc(model, "digits", limit=5, rpi_draws=2, distance="l2").result == expected


def test_images_of_any_kind_give_the_same_numbers() -> None:
    model, images = ready(), pictures(4)
    expected = [ssdc_by_hand(x, model.anatomy.patches.grid) for x in tokens_by_hand(model, images)]
    kinds: list[Any] = [
        images,
        np.stack(images),
        [Image.fromarray(image) for image in images],
        InMemory(images),
    ]
    for kind in kinds:
        curves = probe.ssdc(model, kind, rpi="off")
        assert [p.value for p in curves.clean] == pytest.approx(expected, abs=2e-4)
        assert curves.rpi == ()
        assert curves.anchoring == Scalar(None, reason="RPI is off")
        assert curves.delta_ssdc_rpi == Scalar(None, reason="RPI is off")


def test_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    probe.ssdc(ready(), pictures(3))
    assert list(tmp_path.iterdir()) == []


def test_precision_is_the_models(model: LoadedModel) -> None:
    half = probe.load(
        "timm:test_vit", random_init=True, image_size=64, preprocess="half", dtype="bfloat16"
    )
    result = probe.ssdc(half, "digits", limit=3).result
    assert result["settings"]["dtype"] == "bfloat16"
    assert probe.ssdc(model, "digits", limit=3).result["settings"]["dtype"] == "float32"


def test_interventions_stand_alone() -> None:
    import torch

    model = ready()
    images = torch.zeros(2, 3, 32, 32)
    rows = probe.rpi_permutations(
        model.anatomy.patches.grid, [0, 1], probe.Permutation("image", seed=0)
    )
    bare = model.forward(images)
    with probe.permute_patches(model, rows), probe.scale_positions(model, 0.0):
        inside = model.forward(images)
    # A black image has equal patches: only positions can tell tokens apart, and they are gone.
    assert not torch.equal(inside, bare)
    assert torch.equal(model.forward(images), bare)


def test_what_goes_wrong_says_so(model: LoadedModel) -> None:
    with pytest.raises(UnknownModel, match=r"unknown model 'deit_smal'\. Did you mean deit_small"):
        probe.load("deit_smal")
    with pytest.raises(UsageError, match="--limit must be at least 1, got 0"):
        probe.ssdc(model, "digits", limit=0)
    with pytest.raises(UsageError, match="unknown data 'zork'"):
        probe.ssdc(model, "zork")
    with pytest.raises(CheckpointError, match="carries no preprocessing; choose --preprocess"):
        probe.ssdc(replace(model, preprocess=None), "digits", limit=2)
    with pytest.raises(AttributeError, match="module 'probe' has no attribute 'ssdcs'"):
        _ = probe.ssdcs


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ({"distance": "L1"}, "distance must be one of l1, l2; got 'L1'. Did you mean l1?"),
        ({"site": "attn-in"}, "site must be one of attn_in, block_out; got 'attn-in'. Did you "),
        ({"rpi": "none"}, "rpi must be image, shared, batch or off; got 'none'."),
        ({"rpi": None}, "rpi must be image, shared, batch or off; got 'None'."),
        ({"average": "images"}, "average must be one of similarity, image; got 'images'. Did you"),
    ],
)
def test_a_choice_that_there_is_not_is_refused(
    model: LoadedModel, choice: dict[str, Any], message: str
) -> None:
    source = Counted(pictures(3))
    with pytest.raises(UsageError) as error:
        probe.ssdc(model, source, **choice)
    assert str(error.value).startswith(message)
    assert source.reads == 0


@pytest.mark.parametrize(
    ("dtype", "near"), [("int8", ""), ("bfloat", " Did you mean bfloat16, float64, float32?")]
)
def test_a_precision_that_there_is_not_is_refused(dtype: Any, near: str) -> None:
    with pytest.raises(UsageError) as error:
        probe.load("timm:test_vit", random_init=True, dtype=dtype)
    known = "float32, bfloat16, float16, float64"
    assert str(error.value) == f"dtype must be one of {known}; got '{dtype}'.{near}"


def test_the_names_of_the_package_are_lazy_and_listed() -> None:
    assert dir(probe) == sorted(
        ["load", "ssdc", "permute_patches", "scale_positions", "rpi_permutations", "Permutation"]
    )
    code = (
        "import sys, probe; print(probe.__version__, 'torch' in sys.modules); "
        "from probe import *; print(load.__module__, 'torch' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=Path(__file__).parent.parent,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == [probe.__version__, "False", "probe.api", "True"]
