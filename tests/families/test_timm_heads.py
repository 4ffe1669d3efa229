"""Which heads are classifiers, and what they give."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from timm.models.beit import Beit

from probe.errors import AnatomyError
from probe.families.timm_build import blueprint
from probe.families.timm_head import class_count, predict
from tests.families.tiny import fresh, images_for
from tests.families.tiny_timm import FLAT


@pytest.mark.parametrize(
    ("name", "classes"),
    [
        ("deit_small_patch16_224.fb_in1k", 1000),
        ("deit_small_distilled_patch16_224.fb_in1k", 1000),
        ("vit_base_patch16_224.augreg_in21k", 21843),
        ("vit_base_patch16_224_miil.in21k", 11221),
        ("vit_base_patch16_clip_224.openai_ft_in12k", 11821),
        ("vit_base_patch16_clip_224.openai_ft_in1k", 1000),
        ("beit_base_patch16_224.in22k_ft_in22k", 21841),
        ("swin_tiny_patch4_window7_224.ms_in22k", 21841),
        ("swinv2_tiny_window8_256.ms_in1k", 1000),
        ("eva02_tiny_patch14_336.mim_in22k_ft_in1k", 1000),
        # Embedding projections of image towers, and trunks without a head.
        ("vit_base_patch16_clip_224.openai", None),
        ("vit_large_patch14_clip_224.laion2b", None),
        ("eva02_base_patch16_clip_224.merged2b", None),
        ("vit_base_patch16_siglip_224.webli", None),
        ("vit_base_patch16_224.mae", None),
        ("vit_small_patch16_224.dino", None),
        ("vit_small_patch16_dinov3.lvd1689m", None),
    ],
)
def test_classes_of_registered_heads(name: str, classes: int | None) -> None:
    module = blueprint(name, {"num_classes": 1000} if "eva02_tiny" in name else {})
    assert class_count(module) == classes
    assert (predict(module) is None) == (classes is None)


@pytest.mark.parametrize(
    ("name", "options", "classes"),
    [
        ("vit_base_patch16_clip_224.openai", {"num_classes": 10}, 10),
        ("deit_small_patch16_224", {"num_classes": 10}, 10),
        ("deit_small_patch16_224", {"num_classes": 0}, None),
        ("deit_small_patch16_224", {"global_pool": ""}, None),
        ("swin_tiny_patch4_window7_224", {"num_classes": 0}, None),
    ],
)
def test_classes_of_the_callers_own_heads(
    name: str, options: dict[str, Any], classes: int | None
) -> None:
    assert class_count(blueprint(name, options)) == classes


def test_labels_in_the_configuration_make_a_classifier() -> None:
    module = blueprint("vit_base_patch16_clip_224.openai", {})
    module.pretrained_cfg = dict(module.pretrained_cfg, label_names=["cat"] * 512)
    assert class_count(module) == 512


def test_distilled_deit_gives_the_mean_of_both_heads() -> None:
    model = fresh("timm_vit_distilled")
    module, images = model.module, images_for(model)
    assert model.predict is not None
    with torch.no_grad():
        tokens = module.forward_features(images)
        one, other = module.head(tokens[:, 0]), module.head_dist(tokens[:, 1])
        logits = model.predict(model.forward(images))
    assert (one - other).abs().max() > 0.1
    torch.testing.assert_close(logits, (one + other) / 2)


def test_logits_of_another_shape_are_refused() -> None:
    logits = predict(Beit(32, **FLAT))
    assert logits is not None
    assert logits(torch.zeros(2, 7)).shape == (2, 7)
    with pytest.raises(AnatomyError, match=r"should give logits \(B, 7\), but gave \(2, 17, 7\)"):
        logits(torch.zeros(2, 17, 7))
