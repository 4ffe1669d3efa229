"""`probe ssdc` as a user meets it: which numbers it gives, and which of them are its own."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch

from tests.cli.command import FILES, TINY, as_json, passes_run, probe, refused
from tests.families import tiny_hf

SCALAR = {"value", "low", "high", "reason"}


def test_the_json_has_the_promised_keys() -> None:
    envelope = as_json(*TINY, "--limit", "6")
    assert set(envelope) == {"schema", "results", "failures"}
    assert (envelope["schema"], envelope["failures"]) == (1, [])
    (result,) = envelope["results"]
    assert set(result) >= {
        "model", "resolved", "family", "images", "settings", "layers", "delta_ssdc_rpi",
        "anchoring", "anchoring_by_grid", "final", "peak",
    }  # fmt: skip
    assert result["model"] == "timm:test_vit"
    assert result["resolved"] == "timm:test_vit.r160_in1k"
    assert (result["family"], result["images"], len(result["layers"])) == ("timm_vit", 6, 6)
    for number, layer in enumerate(result["layers"]):
        assert set(layer) == {"layer", "grid", "clean", "rpi", "ratio"}
        assert (layer["layer"], layer["grid"]) == (number, [4, 4])
        assert set(layer["ratio"]) == SCALAR
        for condition in ("clean", "rpi"):
            point = layer[condition]
            assert set(point) == SCALAR | {"null_low", "null_high"}
            assert point["low"] <= point["value"] <= point["high"]
            assert -1 <= point["null_low"] < 0 < point["null_high"] <= 1
            assert point["reason"] is None
    for name in ("delta_ssdc_rpi", "anchoring", "final"):
        assert set(result[name]) == SCALAR
        assert result[name]["low"] <= result[name]["value"] <= result[name]["high"]
    curve = [layer["rpi"]["value"] for layer in result["layers"]]
    assert result["delta_ssdc_rpi"]["value"] == pytest.approx(curve[1] - curve[0])
    assert result["anchoring"]["value"] == pytest.approx(np.mean(curve))
    assert result["final"]["value"] == curve[-1]
    assert result["peak"]["value"] == max(curve)
    assert result["peak"]["layer"] == int(np.argmax(curve))
    (by_grid,) = result["anchoring_by_grid"]
    assert set(by_grid) == SCALAR | {"grid"}
    assert {k: by_grid[k] for k in SCALAR} == result["anchoring"]


def test_every_setting_is_recorded() -> None:
    (result,) = as_json(*TINY, "--limit", "5", "--seed", "3", "--distance", "l2")["results"]
    settings = result["settings"]
    assert set(settings) == {
        "resolved", "revision", "weights", "family", "options", "image_size", "preprocess", "data",
        "site", "distance", "average", "seed", "dtype", "device", "interval", "versions", "rpi",
        "machine", "alpha", "corruption", "groups", "configuration",
    }  # fmt: skip
    assert (settings["alpha"], settings["corruption"], settings["groups"]) == (1.0, None, 5)
    assert settings["configuration"].startswith("sha256:")
    assert settings["weights"] == "random:3"
    assert settings["image_size"] == settings["preprocess"]["size"] == [64, 64]
    assert settings["data"]["name"] == "digits"
    assert settings["data"]["taken"] == 5
    assert settings["data"]["fingerprint"].startswith("blake2b:")
    assert (settings["site"], settings["distance"]) == ("attn_in", "l2")
    assert (settings["average"], settings["seed"]) == ("similarity", 3)
    assert (settings["dtype"], settings["rpi"]) == ("float32", ["rpi(mode=image,seed=3,draw=0)"])
    assert settings["machine"] == {"batch_size": 32, "workers": 0}
    assert settings["interval"] == (
        "95 %, delete-a-group jackknife over images, group = position mod 5"
    )
    assert set(settings["versions"]) >= {"probe", "torch", "timm", "transformers", "numpy"}


def test_stored_passes_are_reused(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran = passes_run(monkeypatch)
    command = [*TINY, "--limit", "4", "--out", "out"]
    assert probe(*command).exit_code == 0
    first = {name: (here / "out" / name).read_bytes() for name in FILES}
    assert ran == [2]
    assert probe(*command).exit_code == 0
    assert ran == [2]
    assert probe(*command, "--batch-size", "1").exit_code == 0
    assert ran == [2]
    assert {name: (here / "out" / name).read_bytes() for name in FILES} == first
    assert probe(*command, "--rpi-draws", "2").exit_code == 0
    assert ran == [2, 1]
    assert probe(*command, "--limit", "3").exit_code == 0
    assert ran == [2, 1, 2]
    assert probe(*command, "--fresh").exit_code == 0
    assert ran == [2, 1, 2, 2]
    assert {name: (here / "out" / name).read_bytes() for name in FILES} == first


def test_rpi_off() -> None:
    (result,) = as_json(*TINY, "--limit", "4", "--rpi", "off")["results"]
    for layer in result["layers"]:
        assert layer["clean"]["value"] is not None
        assert (layer["rpi"]["value"], layer["rpi"]["reason"]) == (None, "RPI is off")
    assert result["anchoring"] == {"value": None, "low": None, "high": None, "reason": "RPI is off"}
    assert result["settings"]["rpi"] == []
    found = probe(*TINY, "--limit", "4", "--rpi", "off")
    assert found.exit_code == 0
    assert "SSDC clean" in found.stdout


def test_draws_are_averaged() -> None:
    def curve(*arguments: str) -> list[float]:
        (result,) = as_json(*TINY, "--limit", "4", *arguments)["results"]
        return [layer["rpi"]["value"] for layer in result["layers"]]

    one = curve()
    (three,) = as_json(*TINY, "--limit", "4", "--rpi-draws", "3")["results"]
    assert three["settings"]["rpi"] == [f"rpi(mode=image,seed=0,draw={d})" for d in range(3)]
    assert all(sd > 0 for sd in three["rpi_draw_sd"])
    values = [layer["rpi"]["value"] for layer in three["layers"]]
    assert values != pytest.approx(one, abs=1e-3)
    assert curve("--rpi", "shared") != pytest.approx(one, abs=1e-3)


def test_protocol_paper() -> None:
    (result,) = as_json(*TINY, "--limit", "6", "--protocol", "paper", "--batch-size", "4")[
        "results"
    ]
    settings = result["settings"]
    assert settings["rpi"] == ["rpi(mode=batch,seed=0,draw=0)"]
    assert settings["machine"]["batch_size"] == 4
    preprocess = settings["preprocess"]
    assert preprocess["resize"] == ["squash", [64, 64]]
    assert (preprocess["crop"], preprocess["interpolation"]) == (None, "bilinear")
    assert preprocess["source"] == "protocol paper"
    message = refused(2, *TINY, "--protocol", "paper", "--rpi", "off")
    assert message == "--protocol paper shuffles once per batch; leave out --rpi"


def test_p_values() -> None:
    (result,) = as_json(*TINY, "--limit", "4", "--p-values")["results"]
    for layer in result["layers"]:
        for condition in ("clean", "rpi"):
            assert 1 / 1000 <= layer[condition]["p"] <= 1


def test_other_sites_and_sizes() -> None:
    (result,) = as_json(
        "timm:test_vit", "--random-init", "--data", "digits", "--limit", "3",
        "--image-size", "64x96", "--site", "block_out", "--average", "image",
        "--dtype", "bfloat16", "--preprocess", "half",
    )["results"]  # fmt: skip
    assert [layer["grid"] for layer in result["layers"]] == [[4, 6]] * 6
    assert (
        result["delta_ssdc_rpi"]["reason"] == "delta SSDC is defined at attn_in, not at block_out"
    )
    assert result["settings"]["dtype"] == "bfloat16"
    assert result["settings"]["preprocess"]["source"] == "half"


def test_one_image_has_no_interval() -> None:
    (result,) = as_json(*TINY, "--limit", "1")["results"]
    assert result["images"] == 1
    for scalar in (result["anchoring"], result["layers"][0]["clean"]):
        assert scalar["value"] is not None
        assert (scalar["low"], scalar["reason"]) == (None, "no interval from one image")
    assert probe(*TINY, "--limit", "1").exit_code == 0


def test_photos_are_the_default() -> None:
    (result,) = as_json("timm:test_vit", "--random-init", "--image-size", "64", "--limit", "3")[
        "results"
    ]
    assert result["settings"]["data"]["name"] == "photos"
    assert result["settings"]["data"]["total"] >= 48
    assert result["images"] == 3


def test_the_batch_size_of_the_paper_is_that_of_the_draws(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the clean pass, which no batch size changes, is another run's."""
    ran = passes_run(monkeypatch)
    command = [*TINY, "--limit", "6", "--protocol", "paper", "--runs", "runs"]
    (first,) = as_json(*command, "--batch-size", "3")["results"]
    assert (ran, first["settings"]["batch_size"]) == ([2], 3)
    (second,) = as_json(*command, "--batch-size", "2")["results"]
    assert (ran, second["settings"]["batch_size"]) == ([2, 1], 2)
    for one, other in zip(first["layers"], second["layers"], strict=True):
        assert one["clean"] == other["clean"]
        assert one["rpi"]["value"] != pytest.approx(other["rpi"]["value"], abs=1e-3)
    (plain,) = as_json(*TINY, "--limit", "6", "--batch-size", "2")["results"]
    assert "batch_size" not in plain["settings"]


def test_what_was_ranked_and_how_often_it_was_relabelled() -> None:
    (small,) = as_json(*TINY, "--limit", "2", "--rpi", "off")["results"]
    assert small["ranked"] == [{"grid": [4, 4], "pairs": 120, "tokens": 16, "relabellings": 999}]
    (large,) = as_json(*TINY, "--limit", "1", "--rpi", "off", "--image-size", "528")["results"]
    tokens = 33 * 33
    assert large["ranked"] == [
        {
            "grid": [33, 33],
            "pairs": tokens * (tokens - 1) // 2,
            "tokens": tokens,
            "relabellings": 99,
        }
    ]


def sharpened(module: torch.nn.Module) -> Any:
    """The module with larger matrices, so that untrained attention is not uniform."""
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.ndim == 2:
                parameter.mul_(8)
    return module


def hf_folder(folder: Path) -> Callable[[int], None]:
    """A folder of transformers, and what gives its config.json another number of heads."""
    tiny_hf.save(sharpened(tiny_hf.networks()["vit"]()), folder)

    def rewrite(heads: int) -> None:
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | {"num_attention_heads": heads}))

    return rewrite


def timm_folder(folder: Path) -> Callable[[int], None]:
    """The same of timm."""
    options = {"img_size": 32, "num_classes": 3}
    module = sharpened(timm.create_model("test_vit", **options))
    timm.models.save_for_hf(module, folder, model_args=options, safe_serialization=True)

    def rewrite(heads: int) -> None:
        config = json.loads((folder / "config.json").read_text())
        config["model_args"] = options | {"num_heads": heads}
        (folder / "config.json").write_text(json.dumps(config))

    return rewrite


@pytest.mark.parametrize("make", [hf_folder, timm_folder])
def test_equal_weights_under_another_configuration_are_another_model(
    here: Path, monkeypatch: pytest.MonkeyPatch, make: Callable[[Path], Callable[[int], None]]
) -> None:
    """Splitting attention into other heads fits the same weights, and gives other numbers."""
    ran = passes_run(monkeypatch)
    rewrite = make(here / "mine")

    def measured(heads: int) -> dict[str, Any]:
        rewrite(heads)
        command = ["mine", "--data", "digits", "--limit", "4", "--preprocess", "half"]
        (result,) = as_json(*command, "--image-size", "32")["results"]
        return dict(result)

    two, four, again = measured(2), measured(4), measured(2)
    assert ran == [2, 2]
    assert again == two
    assert two["settings"]["weights"] == four["settings"]["weights"]
    assert two["settings"]["configuration"] != four["settings"]["configuration"]
    assert {name for name, value in two["settings"].items() if value != four["settings"][name]} == {
        "configuration"
    }
    last = [result["layers"][-1]["clean"]["value"] for result in (two, four)]
    assert abs(last[0] - last[1]) > 1e-3
