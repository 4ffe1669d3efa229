"""The demo model: what it learns from, what it writes, and when it trains again."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from probe.loading import load_model
from probe.zoo import Zoo
from train import digits_demo
from train.digits_demo import Settings

TINY = Settings(steps=4, batch=16, width=16, depth=2)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    folder = tmp_path_factory.mktemp("demo") / "digits-vit"
    told: list[str] = []
    digits_demo.make(folder, TINY, told.append)
    return folder, told


def test_writes_a_checkpoint_that_loads_by_path(trained: tuple[Path, list[str]]) -> None:
    folder, told = trained
    assert told[0].startswith("step 4 of 4: loss ")
    assert sorted(path.name for path in folder.iterdir()) == [
        "config.json",
        "model.safetensors",
        "training.json",
    ]
    model = load_model(Zoo({}).resolve(str(folder)), device="cpu")
    assert (model.family, model.classes) == ("timm_vit", 10)
    assert model.anatomy.patches.grid.tokens == 64
    assert model.preprocess == digits_demo.PREPROCESS
    record = json.loads((folder / "training.json").read_text())
    assert model.identity.weights == record["weights"]
    pixels, labels = digits_demo.images_of("test")
    assert model.predict is not None
    with torch.inference_mode():
        logits = model.predict(model.forward(digits_demo.normalised(pixels)))
    assert int((logits.argmax(1).numpy() == labels).sum()) == record["test"]["correct"]
    assert record["test"]["images"] == len(labels)


def test_training_is_seeded_and_leaves_the_global_generator(
    trained: tuple[Path, list[str]], tmp_path: Path
) -> None:
    before = torch.random.get_rng_state()
    digits_demo.make(tmp_path / "again", TINY, [].append)
    assert torch.equal(torch.random.get_rng_state(), before)
    again = (tmp_path / "again" / "model.safetensors").read_bytes()
    assert again == (trained[0] / "model.safetensors").read_bytes()


def test_trains_again_only_when_something_differs(tmp_path: Path) -> None:
    folder = tmp_path / "digits-vit"
    settings = replace(TINY, steps=1, depth=1)
    digits_demo.make(folder, settings, [].append)
    weights = (folder / "model.safetensors").read_bytes()

    def lines(settings: Settings) -> list[str]:
        told: list[str] = []
        digits_demo.make(folder, settings, told.append)
        return told

    assert lines(settings) == [f"{folder} holds this model already; remove it to train again"]
    assert lines(replace(settings, seed=1))[0].startswith("step 1 of 1")
    assert (folder / "model.safetensors").read_bytes() != weights
    assert lines(settings)[0].startswith("step 1 of 1")
    assert (folder / "model.safetensors").read_bytes() == weights
    (folder / "model.safetensors").write_bytes(weights[:-1] + b"\xff")
    assert lines(settings)[0].startswith("step 1 of 1")
    (folder / "training.json").unlink()
    assert lines(settings)[0].startswith("step 1 of 1")


def test_it_learns() -> None:
    settings = Settings(steps=60, batch=32, width=32, depth=2, shift=0)
    model = digits_demo.train(settings, [].append)
    right, images = digits_demo.correct(model, "validation")
    assert right / images > 0.6
    table = model.get_parameter("pos_embed")
    assert float(table.detach().std()) > 0.04


def test_shift_moves_as_a_loop_would() -> None:
    rng = np.random.default_rng(0)
    pixels = rng.integers(1, 255, (5, 8, 8, 3), dtype=np.uint8)
    by = np.array([[0, 3, -2, 1, -3], [0, -1, 2, 3, -3]])
    expected = np.zeros_like(pixels)
    for image, (down, right) in enumerate(by.T):
        for row in range(8):
            for col in range(8):
                if 0 <= row - down < 8 and 0 <= col - right < 8:
                    expected[image, row, col] = pixels[image, row - down, col - right]
    np.testing.assert_array_equal(digits_demo.shift(pixels, by), expected)
    still = np.zeros((2, 5), dtype=np.int64)
    np.testing.assert_array_equal(digits_demo.shift(pixels, still), pixels)


def test_batches_cover_an_epoch_before_they_repeat() -> None:
    settings = replace(TINY, steps=7, batch=4)
    drawn = list(digits_demo.batches(14, settings, np.random.default_rng(0)))
    assert [len(rows) for rows in drawn] == [4] * 7
    assert len(set(np.concatenate(drawn[:3]))) == len(set(np.concatenate(drawn[3:6]))) == 12


def test_learning_rates() -> None:
    settings = replace(TINY, steps=40, warmup=0.1)
    model = digits_demo.build(settings)
    optimiser, schedule = digits_demo.optimisation(model, settings)
    groups = optimiser.param_groups
    assert [group["weight_decay"] for group in groups] == [0.05, 0.0, 0.0]
    assert [p.shape for p in groups[2]["params"]] == [model.get_parameter("pos_embed").shape]
    assert sum(p.numel() for group in groups for p in group["params"]) == sum(
        p.numel() for p in model.parameters()
    )
    rates = []
    for _ in range(settings.steps):
        rates.append([group["lr"] for group in groups])
        optimiser.step()
        schedule.step()
    assert max(rates) == rates[3] == rates[4]
    assert rates[4] == pytest.approx([2e-3, 2e-3, 1.6e-2])
    assert rates[0][0] == pytest.approx(2e-3 / 4)
    assert groups[0]["lr"] == pytest.approx(0, abs=1e-9)


def test_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(digits_demo, "Settings", lambda: replace(TINY, steps=1, depth=1))
    assert digits_demo.main(["--out", str(tmp_path)]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith(f"{tmp_path / 'digits-vit'}: ")
    assert " of 275 test images right (" in last
    (tmp_path / "file").touch()
    assert digits_demo.main(["--out", str(tmp_path / "file")]) == 1
    said = capsys.readouterr().err
    assert said.startswith("error: ")
    assert str(tmp_path / "file") in said
    assert said.count("\n") == 1
