"""At alpha 0 the engine's logits are those of a model whose positional signal is gone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from probe.types import Condition, LoadedModel
from tests.families.tiny import MAKERS
from tests.small_runs import pictures, prepared, run, strong, top1

CLEAN = Condition()


def logits_of(model: LoadedModel, condition: Condition, images: list[np.ndarray]) -> Tensor:
    """The logits that the engine's passes see."""
    found: list[Tensor] = []
    predict = model.predict
    assert predict is not None

    def watched(output: Any) -> Tensor:
        found.append(predict(output).clone())
        return found[-1]

    run(replace(model, predict=watched), images, top1(condition))
    return torch.cat(found)


def without_table(module: Any) -> None:
    module.pos_embed.zero_()


def without_rotation(module: Any) -> None:
    """Identity rotation: no block is given any."""
    module.rope = None


def without_bias(module: Any) -> None:
    for name, parameter in module.named_parameters():
        if "relative_position_bias_table" in name:
            parameter.zero_()


def without_swin_v2_bias(module: Any) -> None:
    for stage in module.layers:
        for block in stage.blocks:
            # 16 sigmoid(z) is the bias, and 0 where z is very negative.
            block.attn.cpb_mlp.register_forward_hook(lambda _m, _a, z: torch.full_like(z, -1e4))


@pytest.mark.parametrize(
    ("name", "removed"),
    [
        ("timm_vit", without_table),
        ("timm_vit_sincos", without_table),
        ("timm_eva_rope", without_rotation),
        ("timm_eva_dinov3", without_rotation),
        ("timm_swin", without_bias),
        ("timm_beit", without_bias),
        ("hf_beit", without_bias),
        ("hf_swin", without_bias),
        ("timm_swin_v2", without_swin_v2_bias),
    ],
)
def test_alpha_zero_removes_the_signal(name: str, removed: Any) -> None:
    model, other = (strong(prepared(MAKERS[name]())) for _ in range(2))
    images = pictures(4, model.anatomy.image_size)
    with torch.no_grad():
        removed(other.module)
    scaled = logits_of(model, Condition(alpha=0.0), images)
    torch.testing.assert_close(scaled, logits_of(other, CLEAN, images), rtol=1e-5, atol=1e-5)
    assert (scaled - logits_of(model, CLEAN, images)).abs().max() > 1e-3
