"""Shifts of the view: whole patches are exact at the projection, parts of one are not."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from probe.audit import translation as module
from probe.audit.translation import (
    default_shifts,
    moved_change,
    patch_side,
    translation,
    with_margin,
)
from probe.data.preprocess import to_model_size
from probe.errors import DataError, NotApplicable
from probe.numerics.proportions import wilson
from probe.types import LoadedModel, Preprocess
from tests.families.tiny import fresh

HALF = (0.5, 0.5, 0.5)


def preprocess(size: tuple[int, int], **changes: Any) -> Preprocess:
    fields: dict[str, Any] = {
        "size": size, "resize": None, "crop": None, "interpolation": "bicubic",
        "mean": HALF, "std": HALF, "source": "half",
    }  # fmt: skip
    return Preprocess(**(fields | changes))


def ready(name: str) -> LoadedModel:
    model = fresh(name)
    return replace(model, preprocess=preprocess(model.anatomy.image_size))


def photos(model: LoadedModel, margin: int, count: int = 3) -> Tensor:
    """Images that change smoothly, in colours of their own, as large as the view may move."""
    height, width = (side + margin for side in model.anatomy.image_size)
    generator = torch.Generator().manual_seed(8)
    coarse = torch.rand(count, 3, height // 4 + 1, width // 4 + 1, generator=generator)
    fine = nn.functional.interpolate(coarse, (height, width), mode="bilinear")
    return (255 * fine).to(torch.uint8).permute(0, 2, 3, 1).contiguous()


def periodic(model: LoadedModel, margin: int) -> Tensor:
    """Images in which what leaves the view on one side enters on the other."""
    view = photos(model, 0)
    height, width = (side + margin for side in model.anatomy.image_size)
    return torch.cat([torch.cat([view, view], 1)] * 2, 2)[:, :height, :width].contiguous()


def values(found: dict[str, Any], name: str) -> list[Any]:
    return [shift[name]["value"] for shift in found["shifts"]]


@pytest.mark.parametrize(
    ("name", "patch", "last"),
    [
        ("timm_vit_no_pe", 8, 8),
        ("timm_vit_dynamic", 8, 8),
        ("timm_eva_dinov3", 8, 8),
        ("timm_swin_padded", 4, 8),
        ("hf_clip_40x24", 8, 8),
        ("hf_dinov2_registers_35x49", 7, 7),
        ("hf_swin_v2_35x44", 2, 4),
    ],
)
def test_whole_patches_are_exact_at_the_projection_and_parts_are_not(
    name: str, patch: int, last: int
) -> None:
    model = ready(name)
    found = translation(model, photos(model, 2 * patch))
    json.dumps(found, allow_nan=False)
    assert (found["patch"], found["strides"]) == (patch, {"patch": patch, "last": last})
    shifts = [shift["pixels"] for shift in found["shifts"]]
    assert shifts == [*range(patch + 1), 2 * patch]
    for shift in found["shifts"]:
        change = shift["token_change_patch"]["value"]
        assert shift["whole_patches"] is (shift["pixels"] in (0, patch, 2 * patch))
        assert change < 1e-6 if shift["whole_patches"] else change > 0.01
        assert shift["images"] == found["images"] == 3
    assert found["exact"]["holds"] is True
    assert found["exact"]["largest"] < found["exact"]["tolerance"] < 1e-5
    assert found["exact"]["level"] == "exact algebra"
    assert found["level"] == "measured on images"
    unmoved = found["shifts"][0]
    assert unmoved["token_change_patch"]["value"] == unmoved["token_change_last"]["value"] == 0


def test_a_shift_that_is_one_pixel_off_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    model = ready("timm_vit_no_pe")
    images = photos(model, 17)
    right = module.crop_at
    monkeypatch.setattr(
        module, "crop_at", lambda images, offset, size: right(images, offset + (offset > 0), size)
    )
    found = translation(model, images, [0, 8, 16])
    assert found["exact"]["holds"] is False
    assert found["exact"]["largest"] > 0.01
    assert found["shifts"][0]["token_change_patch"]["value"] == 0


def test_tokens_moved_by_a_wrong_number_of_patches_are_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = ready("timm_vit_no_pe")
    monkeypatch.setattr(module, "moved_change", lambda a, b, k: moved_change(a, b, max(k - 1, 0)))
    found = translation(model, photos(model, 16), [0, 8, 16])
    assert found["exact"]["holds"] is False
    assert found["exact"]["largest"] > 0.1


def test_without_position_whole_patches_of_a_periodic_image_change_nothing() -> None:
    """Then a shift is a permutation of the tokens, and all layers commute with it."""
    bare, placed = ready("timm_vit_no_pe"), ready("timm_vit_wide")
    for model, same in ((bare, True), (placed, False)):
        found = translation(model, periodic(model, 16), [8, 16])
        for shift in found["shifts"]:
            assert shift["token_change_patch"]["value"] < 1e-6
            change = shift["token_change_last"]["value"]
            assert change < 1e-5 if same else change > 1e-3
            if same:
                assert shift["prediction_change"]["value"] == 0


def test_predictions_and_tokens_against_a_run_by_hand() -> None:
    model = ready("timm_vit_wide")
    images = photos(model, 16, count=6)
    found = translation(model, images, [0, 3, 8])
    views = [images[:, s : s + 32, s : s + 48].permute(0, 3, 1, 2) / 255 for s in (0, 3, 8)]
    kept: list[Tensor] = []
    handle = model.module.blocks[-1].norm1.register_forward_hook(
        lambda _module, _args, output: kept.append(output[:, 1:].unflatten(1, (4, 6)))
    )
    with torch.no_grad():
        top1 = [model.forward((view - 0.5) / 0.5).argmax(dim=1) for view in views]
    handle.remove()
    for place, moved in ((1, 0), (2, 1)):
        changed = int((top1[place] != top1[0]).sum())
        entry = found["shifts"][place]
        low, high = wilson(changed, 6)
        assert entry["prediction_change"] == {
            "value": changed / 6, "low": pytest.approx(low), "high": pytest.approx(high),
            "reason": None,
        }  # fmt: skip
        old = kept[0][:, moved:, moved:].flatten(1)
        new = kept[place][:, : 4 - moved, : 6 - moved].flatten(1)
        expected = ((new - old).norm(dim=1) / old.norm(dim=1)).mean()
        assert entry["token_change_last"]["value"] == pytest.approx(float(expected), rel=1e-4)
        change = entry["token_change_last"]
        assert change["low"] < change["value"] < change["high"]


def test_batches_change_nothing() -> None:
    model = ready("timm_vit_wide")
    images = photos(model, 16, count=5)
    whole, single = (translation(model, images, [0, 5, 8], batch_size=b) for b in (16, 2))
    for name in ("token_change_patch", "token_change_last", "prediction_change"):
        assert values(whole, name) == pytest.approx(values(single, name), rel=1e-4, abs=1e-6)


@pytest.mark.parametrize(
    ("patch", "room", "shifts"),
    [
        (16, 32, [0, 1, 2, 4, 6, 8, 10, 12, 14, 16, 32]),
        (14, 28, [0, 1, 2, 4, 6, 8, 10, 12, 14, 28]),
        (32, 50, [0, 1, 4, 8, 12, 16, 20, 24, 28, 32]),
        (30, 90, [0, 1, 4, 8, 12, 16, 20, 24, 28, 30, 60]),
        (2, 4, [0, 1, 2, 4]),
    ],
)
def test_default_shifts(patch: int, room: int, shifts: list[int]) -> None:
    assert default_shifts(patch, room) == shifts


def test_a_margin_of_one_patch_leaves_the_second_out() -> None:
    model = ready("timm_swin")
    found = translation(model, photos(model, 7))
    assert [shift["pixels"] for shift in found["shifts"]] == [0, 1, 2, 3, 4]


def test_a_model_without_head_has_no_predictions() -> None:
    model = ready("timm_vit_features")
    found = translation(model, photos(model, 8), [4, 8])
    assert values(found, "prediction_change") == [None, None]
    reason = found["shifts"][0]["prediction_change"]["reason"]
    assert reason == "the model has no head to predict with"
    assert values(found, "token_change_last")[0] > 0


def test_one_image_has_no_interval() -> None:
    model = ready("timm_vit")
    (entry,) = translation(model, photos(model, 8, count=1), [4])["shifts"]
    change = entry["token_change_patch"]
    assert (change["low"], change["reason"]) == (None, "no interval from one image")
    assert change["value"] > 0


def test_no_whole_patch_shift_means_no_verdict() -> None:
    model = ready("timm_vit")
    found = translation(model, photos(model, 8), [0, 4])
    assert (found["exact"]["holds"], found["exact"]["largest"]) == (None, None)


def test_zero_tokens_are_undefined() -> None:
    model = ready("timm_vit_no_pe")
    with torch.no_grad():
        model.module.patch_embed.proj.weight.zero_()
        model.module.patch_embed.proj.bias.zero_()
    found = translation(model, photos(model, 8), [8])
    change = found["shifts"][0]["token_change_patch"]
    assert change["value"] is None
    assert change["reason"] == "no token is whole in both views, or one is zero or not finite"
    assert found["exact"]["holds"] is False


def test_moved_change_by_a_loop() -> None:
    generator = torch.Generator().manual_seed(1)
    before, after = (torch.randn(2, 4, 5, 3, generator=generator) for _ in range(2))
    for tokens in range(4):
        for image in range(2):
            apart = size = 0.0
            for r in range(4 - tokens):
                for c in range(5 - tokens):
                    old = before[image, r + tokens, c + tokens].double()
                    apart += float((after[image, r, c].double() - old).square().sum())
                    size += float(old.square().sum())
            found = moved_change(before, after, tokens)[image]
            assert float(found) == pytest.approx(math.sqrt(apart / size))
    assert moved_change(before, after, 4).isnan().all()


@pytest.mark.parametrize(
    ("images", "text"),
    [
        (torch.zeros(2, 39, 80, 3, dtype=torch.uint8), "of at least 40 x 56 px, .* have 39 x 80;"),
        (torch.zeros(0, 48, 64, 3, dtype=torch.uint8), r"at least one image, .* \(0, 48, 64, 3\)"),
        (torch.zeros(2, 48, 64, 3), "at least one image, uint8 .* got torch.float32"),
    ],
)
def test_images_that_do_not_do(images: Tensor, text: str) -> None:
    with pytest.raises(DataError, match=text):
        translation(ready("timm_vit_no_pe"), images)


@pytest.mark.parametrize("pixels", [[17], [-1], []])
def test_shifts_that_the_images_have_no_room_for(pixels: list[int]) -> None:
    model = ready("timm_vit")
    with pytest.raises(DataError, match="room for shifts of 0 to 16 px, not"):
        translation(model, photos(model, 16), pixels)


@pytest.mark.parametrize(("kernel", "stride"), [((8, 8), (4, 4)), ((8, 4), (8, 4))])
def test_patches_that_are_no_disjoint_squares(
    kernel: tuple[int, int], stride: tuple[int, int]
) -> None:
    model = fresh("timm_vit")
    model.module.patch_embed.proj = nn.Conv2d(3, 32, kernel, stride)
    with pytest.raises(NotApplicable, match=f"patches of {kernel[0]} x {kernel[1]} px every "):
        patch_side(model)


class TestMargin:
    def image(self) -> Image.Image:
        noise = np.random.default_rng(3).integers(0, 256, (70, 90, 3), dtype=np.uint8)
        return Image.fromarray(noise).resize((320, 280), Image.Resampling.BICUBIC)

    def test_the_scale_stays_where_the_resize_leaves_room(self) -> None:
        own = preprocess((224, 224), resize=("short", 256), crop=(224, 224))
        wide = with_margin(own, 16)
        assert (wide.size, wide.crop, wide.resize) == ((256, 256), (256, 256), ("short", 256))
        assert wide.source == "half"
        small, large = (to_model_size(self.image(), one) for one in (own, wide))
        assert np.array_equal(large[16:-16, 16:-16], small)

    def test_a_tight_resize_becomes_just_large_enough(self) -> None:
        own = preprocess((224, 224), resize=("short", 248), crop=(224, 224))
        wide = with_margin(own, 16)
        assert (wide.size, wide.resize) == ((256, 256), ("short", 256))
        assert wide.source == "half, resized 1.032 times as large for the margin"
        assert to_model_size(self.image(), wide).shape == (256, 256, 3)

    def test_a_squashed_image_becomes_larger_by_edge(self) -> None:
        own = preprocess((224, 256), resize=("squash", (224, 300)), crop=(224, 256))
        wide = with_margin(own, 14)
        assert (wide.size, wide.resize) == ((252, 284), ("squash", (252, 300)))
        assert "1.125 times" in wide.source
        assert to_model_size(self.image(), wide).shape == (252, 284, 3)
        whole = preprocess((224, 224), resize=("squash", (224, 224)))
        assert with_margin(whole, 16).crop == (256, 256)

    def test_a_rectangular_crop(self) -> None:
        own = preprocess((112, 448), resize=("short", 128), crop=(112, 448))
        wide = with_margin(own, 16)
        assert wide.size == (144, 480)
        assert to_model_size(self.image(), wide).shape == (144, 480, 3)

    def test_images_that_are_not_resized_are_cropped_larger(self) -> None:
        own = preprocess((224, 224), crop=(224, 224))
        wide = with_margin(own, 16)
        assert (wide.resize, wide.crop) == (None, (256, 256))
        assert to_model_size(self.image(), wide).shape == (256, 256, 3)
