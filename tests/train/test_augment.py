"""What training does to images, against loops over pixels."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from timm.data import auto_augment

from probe.errors import UsageError
from tests.train.tiny_data import picture, small_recipe
from train.augment import Augmentation, shift
from train.draws import generator, number, seeded_globals

WHOLE = slice(0, 8)


def augmentation(*changes: str, seed: int = 3, size: int = 8) -> Augmentation:
    fitted = ["augment.flip=false", "augment.shift=0", "train.batch=8", f"image.size={size}"]
    return Augmentation(small_recipe("x", *fitted, *changes), seed)


def pictures(count: int = 8, side: int = 8) -> np.ndarray:
    return np.stack([picture(number, side) for number in range(count)])


@given(
    st.integers(1, 6).flatmap(
        lambda count: st.tuples(
            st.just(count),
            st.lists(st.integers(-9, 9), min_size=count, max_size=count),
            st.lists(st.integers(-9, 9), min_size=count, max_size=count),
        )
    ),
    st.integers(1, 7),
)
def test_shift_against_a_loop(by: tuple[int, list[int], list[int]], side: int) -> None:
    count, down, right = by
    images = pictures(count, side)
    expected = np.zeros_like(images)
    for image in range(count):
        for row in range(side):
            for column in range(side):
                source = (row - down[image], column - right[image])
                if 0 <= source[0] < side and 0 <= source[1] < side:
                    expected[image, row, column] = images[image][source]
    assert np.array_equal(shift(images, np.array([down, right])), expected)


def test_nothing_is_done_where_nothing_is_asked_for() -> None:
    images = pictures()
    assert np.array_equal(augmentation()(images, 0, WHOLE), images)


def test_flip_mirrors_about_half_of_the_images() -> None:
    augment, images = augmentation("augment.flip=true"), pictures()
    flipped = 0
    for step in range(100):
        found = augment(images, step, WHOLE)
        for before, after in zip(images, found, strict=True):
            mirrored = np.array_equal(after, before[:, ::-1])
            assert mirrored or np.array_equal(after, before)
            flipped += mirrored
    # 800 fair coins: four standard deviations.
    assert abs(flipped - 400) < 4 * math.sqrt(200)


def test_shifts_reach_every_offset_equally() -> None:
    augment, images = augmentation("augment.shift=2"), pictures()
    counts = np.zeros((5, 5), dtype=int)
    for step in range(125):
        for before, after in zip(images, augment(images, step, WHOLE), strict=True):
            fits = [
                (down, right)
                for down in range(5)
                for right in range(5)
                if np.array_equal(
                    after, shift(before[None], np.array([[down - 2], [right - 2]]))[0]
                )
            ]
            assert len(fits) == 1
            counts[fits[0]] += 1
    # 1,000 draws of 25 offsets: 40 each, with a standard deviation of about 6.
    assert counts.min() > 15
    assert counts.max() < 65


def test_flip_comes_before_shift() -> None:
    augment, images = augmentation("augment.flip=true", "augment.shift=2"), pictures()
    for step in range(10):
        for before, after in zip(images, augment(images, step, WHOLE), strict=True):
            offsets = [np.array([[d], [r]]) for d in range(-2, 3) for r in range(-2, 3)]
            assert any(
                np.array_equal(after, shift(image[None], by)[0])
                for image in (before, before[:, ::-1])
                for by in offsets
            )


def test_resized_crop_takes_a_share_of_the_area() -> None:
    """Of an image whose values are its coordinates, a crop shows where it was taken."""
    side = 240
    rows, columns = np.mgrid[:side, :side]
    ramp = np.stack([rows, columns, np.zeros_like(rows)], axis=-1).astype(np.uint8)
    augment = augmentation("augment.resized_crop=[0.1, 0.5]", "augment.stored=240", size=60)
    areas, ratios, places = [], [], []
    for step in range(60):
        for crop in augment(np.stack([ramp] * 8), step, WHOLE).astype(float):
            assert crop.shape == (60, 60, 3)
            # The middles of the outer pixels are 59/60 of the box apart.
            tall = (crop[-1, 30, 0] - crop[0, 30, 0]) * 60 / 59
            wide = (crop[30, -1, 1] - crop[30, 0, 1]) * 60 / 59
            areas.append(tall * wide / side**2)
            ratios.append(wide / tall)
            top, left = crop[0, 30, 0] - tall / 120, crop[30, 0, 1] - wide / 120
            places.append((top / (side - tall), left / (side - wide)))
    assert 0.09 < min(areas) < 0.13
    assert 0.47 < max(areas) < 0.52
    assert np.mean(areas) == pytest.approx(0.3, abs=0.02)
    assert 0.72 < min(ratios) < 0.79
    assert 1.26 < max(ratios) < 1.38
    assert np.mean(np.log(ratios)) == pytest.approx(0, abs=0.03)
    # Boxes lie anywhere in the image.
    assert np.max(np.min(places, axis=0)) < 0.03
    assert np.min(np.max(places, axis=0)) > 0.97
    assert np.mean(places, axis=0) == pytest.approx([0.5, 0.5], abs=0.06)
    assert abs(np.corrcoef(np.transpose(places))[0, 1]) < 0.2


def test_a_crop_of_the_whole_is_a_resized_image() -> None:
    images = pictures(side=16)
    augment = augmentation("augment.stored=16")
    expected = [
        np.asarray(Image.fromarray(image).resize((8, 8), Image.Resampling.BILINEAR))
        for image in images
    ]
    assert np.array_equal(augment(images, 0, WHOLE), np.stack(expected))


def test_rand_augment_is_timms(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    real = auto_augment.rand_augment_transform

    def watched(text: str, settings: dict[str, Any]) -> Any:
        asked.append((text, dict(settings)))
        return real(text, settings)

    monkeypatch.setattr("train.augment.rand_augment_transform", watched)
    augment = augmentation("augment.rand_augment=rand-m9-mstd0.5-inc1", seed=4)
    # timm's own pipeline moves by up to 45 % of the side and fills with the mean.
    expected = {"translate_const": 3, "img_mean": (125, 123, 114)}
    assert asked == [("rand-m9-mstd0.5-inc1", expected)]
    images = pictures()
    found = augment(images, 7, WHOLE)
    alone = real("rand-m9-mstd0.5-inc1", expected)
    for row in range(8):
        with seeded_globals(number(4, "image", 7, row)):
            assert np.array_equal(found[row], np.asarray(alone(Image.fromarray(images[row]))))
    assert not np.array_equal(found, images)


@pytest.mark.parametrize("text", ["rando", "augmix-m3", "rand-m9-q4"])
def test_rand_augment_that_timm_does_not_know(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        augmentation(f"augment.rand_augment={text}")
    assert str(caught.value) == (
        f"timm knows no rand_augment '{text}'; write it like rand-m9-mstd0.5-inc1"
    )


@pytest.mark.parametrize(
    "changes",
    [
        ["augment.flip=true"],
        ["augment.shift=3"],
        ["augment.resized_crop=[0.2, 1]"],
        ["augment.rand_augment=rand-m9-mstd0.5-inc1"],
        [
            "augment.flip=true",
            "augment.shift=3",
            "augment.resized_crop=[0.2, 1]",
            "augment.rand_augment=rand-m9-mstd0.5-inc1",
        ],
    ],
)
def test_a_function_of_seed_and_step_whatever_the_rows(changes: list[str]) -> None:
    images = pictures()
    one = augmentation(*changes)
    whole = [one(images, step, WHOLE) for step in range(4)]
    # In another order, by another object, in shares.
    other = augmentation(*changes)
    for step in (3, 0, 2, 1):
        for shares in (1, 2, 4, 8):
            size = 8 // shares
            parts = [
                other(images[at : at + size], step, slice(at, at + size))
                for at in range(0, 8, size)
            ]
            assert np.array_equal(np.concatenate(parts), whole[step])
    assert not np.array_equal(whole[0], whole[1])
    different = augmentation(*changes, seed=5)
    assert not np.array_equal(
        np.stack([different(images, step, WHOLE) for step in range(4)]), np.stack(whole)
    )


def test_draws_are_apart_by_use_and_time() -> None:
    uses: list[Any] = ["order", "augment", "image", "shuffle", "dropout", "mix"]
    found = {number(seed, use, *when) for seed in (0, 1) for use in uses for when in ((0,), (1,))}
    assert len(found) == 24
    assert all(0 <= value < 2**32 for value in found)
    first = generator(2, "order", 5).random(3)
    assert np.array_equal(generator(2, "order", 5).random(3), first)
    expected = np.random.Generator(np.random.PCG64(np.random.SeedSequence([2, 0, 5]))).random(3)
    assert np.array_equal(first, expected)
