from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from torchvision import transforms
from torchvision.transforms import InterpolationMode

from probe.data.preprocess import (
    as_is,
    at_size,
    describe,
    named_preprocess,
    normalise,
    paper_preprocess,
    to_model_size,
)
from probe.errors import DataError, UsageError
from probe.types import Preprocess

IMAGENET = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}


def noise(height: int, width: int, seed: int = 0) -> Image.Image:
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


def settings(**changes: object) -> Preprocess:
    base = {
        "size": (32, 32),
        "resize": ("short", 36),
        "crop": (32, 32),
        "interpolation": "bicubic",
        "source": "checkpoint",
        **IMAGENET,
    }
    return Preprocess(**(base | changes))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("size", "short"), [(224, 256), (384, 439), (518, 592), (32, 37), (8, 9), (256, 293)]
)
def test_named_short_side_is_rounded_256_over_224(size: int, short: int) -> None:
    for name, mean, std in [
        ("imagenet", IMAGENET["mean"], IMAGENET["std"]),
        ("half", (0.5, 0.5, 0.5), (0.5, 0.5, 0.5)),
    ]:
        assert named_preprocess(name, (size, size)) == Preprocess(
            (size, size), ("short", short), (size, size), "bicubic", mean, std, name
        )


@pytest.mark.parametrize("shape", [(50, 70), (71, 43), (36, 36), (20, 33), (201, 40), (37, 36)])
@pytest.mark.parametrize("interpolation", ["nearest", "bilinear", "bicubic", "lanczos"])
def test_square_crop_equals_torchvision(shape: tuple[int, int], interpolation: str) -> None:
    image = noise(*shape)
    reference = transforms.Compose(
        [
            transforms.Resize(36, InterpolationMode(interpolation)),
            transforms.CenterCrop(32),
        ]
    )
    got = to_model_size(image, settings(interpolation=interpolation))
    assert got.dtype == np.uint8
    np.testing.assert_array_equal(got, np.asarray(reference(image)))


@given(st.integers(30, 90), st.integers(30, 90), st.integers(30, 36))
def test_short_always_gives_the_size(height: int, width: int, short: int) -> None:
    preprocess = settings(size=(30, 30), crop=(30, 30), resize=("short", short))
    assert to_model_size(noise(height, width), preprocess).shape == (30, 30, 3)


@given(st.integers(5, 200), st.integers(5, 200), st.integers(8, 40), st.integers(8, 40))
def test_rectangle_covers_the_crop(height: int, width: int, rows: int, cols: int) -> None:
    preprocess = named_preprocess("imagenet", (rows, cols))
    assert to_model_size(noise(height, width), preprocess).shape == (rows, cols, 3)


def test_rectangle_is_resized_until_the_image_just_covers_the_enlarged_crop() -> None:
    # Crop 32 x 64, enlarged by 256/224 to 37 x 74; an 80 x 100 image becomes 59 x 74.
    image = noise(80, 100)
    resized = image.resize((74, 59), Image.Resampling.BICUBIC)
    expected = np.asarray(resized)[14 : 14 + 32, 5 : 5 + 64]
    got = to_model_size(image, named_preprocess("imagenet", (32, 64)))
    np.testing.assert_array_equal(got, expected)


def test_squash_goes_to_the_size_whatever_the_ratio() -> None:
    image = noise(20, 60)
    preprocess = settings(resize=("squash", (32, 16)), crop=None, size=(32, 16))
    expected = np.asarray(image.resize((16, 32), Image.Resampling.BICUBIC))
    np.testing.assert_array_equal(to_model_size(image, preprocess), expected)


def test_crop_larger_than_the_image_is_refused_not_padded() -> None:
    preprocess = settings(resize=None)
    with pytest.raises(DataError, match=r"20x40 after resizing, smaller than the crop 32x32; ch"):
        to_model_size(noise(20, 40), preprocess)


def test_result_of_another_size_is_refused() -> None:
    with pytest.raises(DataError, match=r"gives 36x36, but the model takes 32x32"):
        to_model_size(noise(40, 40), settings(crop=None))


def test_sliver_is_refused_before_it_fills_the_memory() -> None:
    with pytest.raises(DataError, match="leave such slivers out"):
        to_model_size(Image.new("RGB", (10000, 1)), named_preprocess("imagenet", (224, 224)))


def test_as_is_takes_ready_pixels_unchanged() -> None:
    image = noise(32, 32)
    ready = as_is(settings())
    np.testing.assert_array_equal(to_model_size(image, ready), np.asarray(image))
    with pytest.raises(DataError, match="gives 31x32, but the model takes 32x32"):
        to_model_size(noise(31, 32), ready)


def test_normalise_equals_torchvision() -> None:
    pixels = np.random.default_rng(1).integers(0, 256, (2, 5, 7, 3), dtype=np.uint8)
    reference = transforms.Compose([transforms.ToTensor(), transforms.Normalize(**IMAGENET)])
    expected = torch.stack([reference(p) for p in pixels])
    before = pixels.copy()
    got = normalise(torch.from_numpy(pixels), settings(), torch.float32, "cpu")
    assert got.is_contiguous()
    assert torch.equal(got, expected)
    np.testing.assert_array_equal(pixels, before)
    half = normalise(torch.from_numpy(pixels), settings(), torch.bfloat16, "cpu")
    assert torch.equal(half, expected.to(torch.bfloat16))


def test_paper_protocol_squashes_bilinear_and_keeps_mean_and_std() -> None:
    half = named_preprocess("half", (224, 224))
    assert paper_preprocess(half, (32, 48)) == Preprocess(
        (32, 48), ("squash", (32, 48)), None, "bilinear", half.mean, half.std, "protocol paper"
    )


def test_at_size_keeps_the_ratio() -> None:
    assert at_size(settings(), (32, 32)) == settings()
    assert at_size(settings(), (64, 64)) == settings(
        size=(64, 64), resize=("short", 72), crop=(64, 64)
    )
    # 36 * 48 / 32 = 54 for the short side of a rectangle.
    assert at_size(settings(), (48, 96)) == settings(
        size=(48, 96), resize=("short", 54), crop=(48, 96)
    )
    squash = settings(resize=("squash", (36, 40)))
    assert at_size(squash, (64, 64)) == settings(
        size=(64, 64), resize=("squash", (72, 80)), crop=(64, 64)
    )
    plain = settings(resize=("squash", (32, 32)), crop=None)
    assert at_size(plain, (20, 24)) == settings(
        size=(20, 24), resize=("squash", (20, 24)), crop=None
    )


FILE = """\
resize: [short, 256]
crop: [224, 224]
interpolation: bicubic
mean: [0.5, 5e-1, 1]
std: [0.5, 0.25, 1]
"""


def test_file_is_read_and_rescaled(tmp_path: Path) -> None:
    path = tmp_path / "p.yaml"
    path.write_text(FILE)
    expected = Preprocess(
        (224, 224),
        ("short", 256),
        (224, 224),
        "bicubic",
        (0.5, 0.5, 1.0),
        (0.5, 0.25, 1.0),
        str(path),
    )
    assert named_preprocess(str(path), (224, 224)) == expected
    assert named_preprocess(str(path), (112, 112)) == at_size(expected, (112, 112))


def test_description_without_source_is_a_file(tmp_path: Path) -> None:
    for preprocess in (settings(), settings(resize=("squash", (32, 32)), crop=None)):
        fields = json.loads(json.dumps(describe(preprocess)))
        assert fields.pop("source") == "checkpoint"
        path = tmp_path / "p.json"
        path.write_text(json.dumps(fields))
        again = named_preprocess(str(path), (32, 32))
        assert describe(again) == fields | {"source": str(path)}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (FILE + "men: 1\n", r"unknown field 'men'. Did you mean mean"),
        (FILE + "crop: [224, 224]\n", r'line 6: found duplicate key "crop"'),
        (FILE.replace("bicubic", "cubic"), "field 'interpolation': Input should be 'nearest'"),
        (FILE.replace("std: [0.5, 0.25, 1]\n", ""), "field 'std' is missing"),
        (FILE.replace("0.25", "0"), "field 'std': Input should be greater than 0"),
        (FILE.replace("0.25", "'0.25'"), "field 'std': Input should be a valid number"),
        (FILE.replace("[short, 256]", "[shirt, 256]"), r"must be \[short, PIXELS\], \[squash"),
        (FILE.replace("[short, 256]", "[short, 200]"), "crop is larger than the resized short"),
        (FILE.replace("crop: [224, 224]", "crop: null"), r"\[short, PIXELS\] needs a crop"),
        (FILE + "size: [224, 225]\n", "size differs from what resize and crop give"),
        ("crop: [1,\n", "line 2: "),
        ("", "Input should be an object"),
    ],
)
def test_bad_file_is_one_line(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "p.yaml"
    path.write_text(text)
    with pytest.raises(UsageError, match=message) as error:
        named_preprocess(str(path), (224, 224))
    assert "\n" not in str(error.value)


def test_duplicate_json_field_and_unknown_name(tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    path.write_text('{"crop": null, "crop": null}')
    with pytest.raises(UsageError, match="field 'crop' stands there twice"):
        named_preprocess(str(path), (224, 224))
    with pytest.raises(UsageError, match=r"'imagnet' is neither .* a file. Did you mean imagenet"):
        named_preprocess("imagnet", (224, 224))
