"""Loading timm models: names, options, files, folders, the hub's cache, and every refusal."""

from __future__ import annotations

from typing import Any

import pytest
import timm
import torch

from probe.errors import AnatomyError, UnknownModel, UsageError
from probe.families.base import family_of
from probe.types import ModelSpec
from tests.families.timm_specs import (
    ARCH,
    SMALL,
    equal_states,
    hub_spec,
    images,
    refusal,
    untrained,
)


def test_untrained_weights_are_timms_own_and_seeded() -> None:
    torch.manual_seed(4)
    own = timm.create_model(ARCH, **SMALL)
    state = torch.get_rng_state()
    raw = untrained(hub_spec(), seed=4)
    assert equal_states(raw.module, own)
    assert torch.equal(torch.get_rng_state(), state)
    assert not equal_states(raw.module, untrained(hub_spec(), seed=5).module)
    assert raw.identity.weights == "random:4"
    assert raw.identity.resolved == "timm:deit_tiny_patch16_224.fb_in1k"
    assert raw.identity.revision is None
    assert not raw.module.training
    assert not any(p.requires_grad for p in raw.module.parameters())
    assert (raw.image_size, raw.classes, raw.notes) == ((224, 224), 1000, ())
    assert raw.preprocess is not None
    assert raw.preprocess.source == "checkpoint"


def test_untrained_models_are_built_at_the_size_that_is_asked_for() -> None:
    raw = untrained(hub_spec(), (32, 64))
    assert raw.image_size == (32, 64)
    assert raw.module.pos_embed.shape == (1, 2 * 4 + 1, 32)
    # Drawn at this size, not resampled from another: the library's initialisation as it is.
    torch.manual_seed(0)
    assert equal_states(raw.module, timm.create_model(ARCH, img_size=(32, 64), **SMALL))
    assert raw.notes == ()
    assert raw.preprocess is not None
    assert raw.preprocess.size == (32, 64)


def test_options_reach_the_constructor() -> None:
    raw = untrained(
        hub_spec(img_size=[32, 48], class_token=False, global_pool="avg", num_classes=5)
    )
    assert raw.image_size == (32, 48)
    assert raw.classes == 5
    assert raw.module.cls_token is None
    assert raw.forward(images((32, 48))).shape == (2, 5)


def test_any_size_model_takes_any_size() -> None:
    raw = untrained(ModelSpec("cnn", "timm:mobilenetv3_small_050"), (96, 64))
    assert raw.image_size == (96, 64)
    assert "no family reads the architecture timm.models.mobilenetv3.MobileNetV3" in refusal(
        AnatomyError, lambda: family_of(raw.module, "timm")
    )


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("deit_tiny", "timm has no model 'deit_tiny'. Did you mean deit_tiny_patch16_224"),
        (
            "vit_smol_patch16_224",
            "timm has no model 'vit_smol_patch16_224'. Did you mean vit_small_",
        ),
        ("timm/deit_tiny_patch16_224", "timm has no model 'timm/deit_tiny_patch16_224'."),
        (
            "deit_tiny_patch16_224.fb_in22k",
            "no weights called 'deit_tiny_patch16_224.fb_in22k'. Did you mean "
            "deit_tiny_patch16_224.fb_in1k?",
        ),
        ("vit_base_patch16_224.zzz", "no weights called 'vit_base_patch16_224.zzz'."),
    ],
)
def test_unknown_names_suggest_the_nearest(name: str, text: str) -> None:
    assert text in refusal(UnknownModel, lambda: untrained(ModelSpec("x", f"timm:{name}")))


def test_a_renamed_model_resolves_to_its_name_of_today() -> None:
    raw = untrained(hub_spec("vit_tiny_patch16_224_in21k"))
    assert raw.identity.resolved == "timm:vit_tiny_patch16_224.augreg_in21k"
    assert raw.classes == 21843


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"clas_token": False}, "takes no option 'clas_token'. Did you mean class_token"),
        ({"xyzzy": 1}, "takes no option 'xyzzy'."),
        ({"pretrained": True}, "option 'pretrained' cannot be given"),
        ({"features_only": True}, "option 'features_only' cannot be given"),
        (
            {"in_chans": 1},
            "option 'in_chans' cannot be given to deit_tiny_patch16_224.fb_in1k: images",
        ),
        ({"num_heads": 5}, "timm cannot build deit_tiny_patch16_224.fb_in1k with"),
        ({"global_pool": "mode"}, "timm cannot build deit_tiny_patch16_224.fb_in1k with"),
    ],
)
def test_options_that_do_not_fit_are_refused(options: dict[str, Any], text: str) -> None:
    assert text in refusal(UsageError, lambda: untrained(hub_spec(**options)))


@pytest.mark.parametrize(
    ("size", "nearest"), [((230, 224), "224 x 224"), ((64, 72), "64 x 64"), ((8, 8), "16 x 16")]
)
def test_a_size_that_patches_do_not_fill_is_refused(size: tuple[int, int], nearest: str) -> None:
    text = refusal(UsageError, lambda: untrained(hub_spec(), size))
    assert "cuts patches of 16 x 16 px" in text
    assert f"the nearest size is {nearest}" in text
