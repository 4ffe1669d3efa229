"""Preprocessing read from a checkpoint's image processor, held against that processor."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers as hf
from PIL import Image

from probe.data.preprocess import normalise, to_model_size
from probe.errors import CheckpointError
from probe.families.hf_loader import load_hf
from probe.families.hf_preprocess import checkpoint_preprocess
from probe.families.hf_quiet import quiet
from probe.types import Preprocess
from tests.families import tiny_hf


def photo(height: int, width: int) -> Image.Image:
    """Smooth noise, as photos are: resampling filters differ at hard edges alone."""
    draws = np.random.Generator(np.random.PCG64(5)).integers(0, 256, (9, 7, 3), dtype=np.uint8)
    return Image.fromarray(draws).resize((width, height), Image.Resampling.BICUBIC)


def write(folder: Path, **settings: Any) -> Path:
    settings = {"image_processor_type": "ViTImageProcessor"} | settings
    (folder / "preprocessor_config.json").write_text(json.dumps(settings))
    return folder


def read(folder: Path) -> Preprocess:
    return checkpoint_preprocess(folder, "hf:owner/name")


IMAGENET = {"image_mean": [0.485, 0.456, 0.406], "image_std": [0.229, 0.224, 0.225]}
CASES: dict[str, tuple[dict[str, Any], Any, Any, str]] = {
    "vit, all defaults": ({}, ("squash", (224, 224)), None, "bilinear"),
    "vit, old style": (
        {"feature_extractor_type": "ViTFeatureExtractor", "size": 96, "resample": 3},
        ("squash", (96, 96)), None, "bicubic",
    ),
    "deit": (
        {"image_processor_type": "DeiTImageProcessor", **IMAGENET},
        ("squash", (256, 256)), (224, 224), "bicubic",
    ),
    "clip": ({"image_processor_type": "CLIPImageProcessor"}, ("short", 224), (224, 224), "bicubic"),
    "dinov2": (
        {"image_processor_type": "BitImageProcessor", "size": {"shortest_edge": 256}, **IMAGENET},
        ("short", 256), (224, 224), "bicubic",
    ),
    "siglip": (
        {"image_processor_type": "SiglipImageProcessor", "size": {"height": 64, "width": 96}},
        ("squash", (64, 96)), None, "bicubic",
    ),
    "beit": (
        {"image_processor_type": "BeitImageProcessor", "do_center_crop": True,
         "size": {"height": 48, "width": 48}, "crop_size": 32},
        ("squash", (48, 48)), (32, 32), "bicubic",
    ),
    "lanczos": ({"resample": 1, "size": 40}, ("squash", (40, 40)), None, "lanczos"),
    "nearest": ({"resample": 0, "size": 40}, ("squash", (40, 40)), None, "nearest"),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_settings_are_those_of_the_file(tmp_path: Path, case: str) -> None:
    settings, resize, crop, interpolation = CASES[case]
    found = read(write(tmp_path, **settings))
    assert (found.resize, found.crop, found.interpolation) == (resize, crop, interpolation)
    assert found.size == (crop or resize[1])
    assert found.source == "checkpoint"
    if "image_mean" in settings:
        assert found.mean == tuple(settings["image_mean"])


@pytest.mark.parametrize("backend", ["pil", "torchvision"])
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("shape", [(300, 500), (260, 260), (200, 100)])
def test_pixels_are_those_of_the_processor(
    tmp_path: Path, case: str, shape: tuple[int, int], backend: str
) -> None:
    """At most two grey levels apart, before the division by std."""
    folder, image = write(tmp_path, **CASES[case][0]), photo(*shape)
    preprocess = read(folder)
    with quiet():
        processor = hf.AutoImageProcessor.from_pretrained(folder, backend=backend)
        expected = processor(images=image, return_tensors="pt")["pixel_values"]
    pixels = torch.from_numpy(to_model_size(image, preprocess).copy())[None]
    got = normalise(pixels, preprocess, torch.float32, "cpu")
    assert got.shape == expected.shape == (1, 3, *preprocess.size)
    levels = (got - expected).abs() * torch.tensor(preprocess.std).view(3, 1, 1) * 255
    # Nearest neighbours are picked by other rules in each backend.
    assert levels.max() <= (2.01 if preprocess.interpolation != "nearest" else 40)
    assert levels.mean() < 1


def test_without_normalisation_values_stay_in_0_to_1(tmp_path: Path) -> None:
    found = read(write(tmp_path, do_normalize=False))
    assert (found.mean, found.std) == ((0.0, 0.0, 0.0), (1.0, 1.0, 1.0))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"do_rescale": False}, "does not bring pixels to 0..1"),
        ({"rescale_factor": 1 / 127.5}, "does not bring pixels to 0..1"),
        ({"resample": 4}, "resamples with Pillow's filter 4"),
        ({"size": {"shortest_edge": 32}}, "does not bring images to one size"),
        ({"do_resize": False}, "does not bring images to one size"),
        ({"size": {"shortest_edge": 32, "longest_edge": 64}}, "resizes to {"),
        ({"size": {"max_height": 32, "max_width": 64}}, "resizes to {"),
        ({"do_pad": True}, "also sets do_pad"),
        ({"image_mean": [0.5], "image_std": [0.5]}, "does not normalise three channels"),
        (
            {"image_processor_type": "CLIPImageProcessor", "size": {"shortest_edge": 100}},
            "pads images of 100 x 100 to a crop of 224 x 224",
        ),
        (
            {"image_processor_type": "CLIPImageProcessor", "crop_size": {"height": 9, "width": 8}},
            "crops 9 x 8 from an image resized by its short side",
        ),
        (
            {"image_processor_type": "ConvNextImageProcessor"},
            "ProcessorPil) has its own way",
        ),
        ({"image_processor_type": "NoSuchProcessor"}, "image processor cannot be read"),
    ],
)
def test_what_cannot_be_said_is_refused(
    tmp_path: Path, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(CheckpointError) as caught:
        read(write(tmp_path, **settings))
    text = str(caught.value)
    assert message in text
    assert text.startswith("hf:owner/name: ")
    assert "--preprocess imagenet, half or a FILE" in text
    assert "\n" not in text


def test_the_processors_size_is_the_default_and_noted(tmp_path: Path) -> None:
    """As in DINOv2's checkpoints, whose configuration says 518 and whose processor crops to 224."""
    folder = write(
        tiny_hf.save(tiny_hf.networks()["dinov2"](), tmp_path),
        image_processor_type="BitImageProcessor",
        size={"shortest_edge": 24},
        crop_size=21,
    )
    raw = load_hf(tiny_hf.spec(folder), image_size=None, random_init=False, seed=0)
    assert raw.image_size == (21, 21)
    assert raw.preprocess is not None
    assert raw.preprocess.size == (21, 21)
    assert raw.notes[0] == (
        "run at 21 x 21 px, to which the checkpoint's image processor brings images; its "
        "configuration says 28 x 28"
    )
    asked = load_hf(tiny_hf.spec(folder), image_size=(28, 28), random_init=False, seed=0)
    assert (asked.image_size, asked.notes) == ((28, 28), ())
    model = tiny_hf.load_model(tiny_hf.spec(folder), image_size=(42, 42), device="cpu")
    assert model.preprocess is not None
    assert (model.preprocess.resize, model.preprocess.crop) == (("short", 48), (42, 42))


def test_a_processor_that_cannot_be_said_is_left_out_with_its_reason(tmp_path: Path) -> None:
    folder = write(tiny_hf.save(tiny_hf.networks()["vit"](), tmp_path), do_rescale=False)
    raw = load_hf(tiny_hf.spec(folder), image_size=None, random_init=False, seed=0)
    assert (raw.preprocess, raw.image_size) == (None, (32, 32))
    assert "the image processor does not bring pixels to 0..1" in raw.notes[0]


def test_a_nested_processor_file_is_read(tmp_path: Path) -> None:
    """As processors of two modalities save theirs since transformers 5."""
    folder = tiny_hf.save(tiny_hf.networks()["siglip"](), tmp_path)
    nested = {"image_processor_type": "SiglipImageProcessor", "size": {"height": 24, "width": 24}}
    (folder / "processor_config.json").write_text(
        json.dumps({"processor_class": "SiglipProcessor", "image_processor": nested})
    )
    raw = load_hf(tiny_hf.spec(folder), image_size=None, random_init=False, seed=0)
    assert raw.preprocess is not None
    assert raw.preprocess.resize == ("squash", (24, 24))
