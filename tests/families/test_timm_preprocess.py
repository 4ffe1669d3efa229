"""Preprocessing against timm's own evaluation transform."""

from __future__ import annotations

from typing import Any

import pytest
from timm.data import create_transform, resolve_model_data_config
from torch import nn
from torchvision import transforms

from probe.families.timm_build import blueprint
from probe.families.timm_preprocess import checkpoint_preprocess


def timm_geometry(module: nn.Module, size: tuple[int, int]) -> dict[str, Any]:
    """Sizes, interpolation and normalisation out of timm's own evaluation transform."""
    config = resolve_model_data_config(module) | {"input_size": (3, *size)}
    steps = {type(step): step for step in create_transform(**config, is_training=False).transforms}
    resize, crop = steps[transforms.Resize], steps[transforms.CenterCrop]
    normalize = steps[transforms.Normalize]
    return {
        "resize": resize.size,
        "crop": tuple(crop.size),
        "interpolation": resize.interpolation.value,
        "mean": tuple(normalize.mean.tolist()),
        "std": tuple(normalize.std.tolist()),
    }


@pytest.mark.parametrize("size", [None, (160, 160)])
@pytest.mark.parametrize(
    "name",
    [
        "deit_small_patch16_224.fb_in1k",
        "vit_base_patch16_224.augreg_in21k_ft_in1k",
        "vit_base_patch16_clip_224.openai",
        "vit_base_patch16_clip_384.laion2b_ft_in1k",
        "vit_base_patch16_siglip_224.webli",
        "vit_base_patch16_224_miil.in21k",
        "beit_base_patch16_384.in22k_ft_in22k_in1k",
        "swinv2_tiny_window8_256.ms_in1k",
        "vit_small_patch16_dinov3.lvd1689m",
        "vit_base_patch16_siglip_384.webli",
    ],
)
def test_preprocessing_is_timms_own(name: str, size: tuple[int, int] | None) -> None:
    module = blueprint(name, {})
    size = size or tuple(module.pretrained_cfg["input_size"][-2:])
    found, reason = checkpoint_preprocess(module, size)
    assert reason is None
    assert found is not None
    expected = timm_geometry(module, size)
    assert found.resize is not None
    resize = found.resize[1]
    assert resize == (
        tuple(expected["resize"]) if found.resize[0] == "squash" else expected["resize"]
    )
    assert (found.crop or found.size) == expected["crop"]
    assert found.interpolation == expected["interpolation"]
    assert found.mean == pytest.approx(expected["mean"], abs=1e-7)
    assert found.std == pytest.approx(expected["std"], abs=1e-7)


def test_squash_and_rectangles() -> None:
    module = blueprint("deit_small_patch16_224.fb_in1k", {})
    module.pretrained_cfg = dict(module.pretrained_cfg, crop_mode="squash", crop_pct=1.0)
    found, _ = checkpoint_preprocess(module, (64, 96))
    assert found is not None
    assert (found.resize, found.crop) == (("squash", (64, 96)), None)
    module.pretrained_cfg["crop_pct"] = 0.9
    found, _ = checkpoint_preprocess(module, (64, 96))
    assert found is not None
    assert (found.resize, found.crop) == (("squash", (71, 106)), (64, 96))
    module.pretrained_cfg["crop_mode"] = "center"
    found, _ = checkpoint_preprocess(module, (64, 96))
    assert found is not None
    assert (found.resize, found.crop) == (("short", 106), (64, 96))


def test_preprocessing_that_cannot_be_taken_over_says_why() -> None:
    module = blueprint("deit_small_patch16_224.fb_in1k", {})
    module.pretrained_cfg = dict(module.pretrained_cfg, crop_mode="border")
    assert checkpoint_preprocess(module, (224, 224)) == (
        None,
        "the checkpoint asks for crop mode 'border' with bicubic interpolation, which is not "
        "available here",
    )
