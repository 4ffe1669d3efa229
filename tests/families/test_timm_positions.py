"""Alpha against models built without the signal, and against the angle identities of rotations."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from probe.errors import AnatomyError
from probe.families.positions import (
    bounded_bias,
    rotary_bands,
    rotary_periods,
    scaled_table,
    table_kind,
)
from probe.interventions import scale_positions
from probe.types import LoadedModel
from probe.wiring import SwapTensors
from tests.families.tiny import fresh
from tests.families.tiny_timm import sincos_vit

ROTARY = [
    "timm_eva_02", "timm_eva_rope", "timm_eva_rope_registers", "timm_eva_rope_dynamic",
    "timm_eva_rope_mixed", "timm_eva_rope_mixed_ape", "timm_eva_mrope", "timm_eva_dinov3",
    "timm_eva_dinov3_dynamic",
]  # fmt: skip


def images_for(model: LoadedModel) -> Tensor:
    return torch.randn(2, 3, *model.anatomy.image_size, generator=torch.Generator().manual_seed(9))


def at_alpha(model: LoadedModel, alpha: float, **only: Any) -> Tensor:
    with torch.no_grad(), scale_positions(model, alpha, **only):
        return model.forward(images_for(model))


def rope_table(model: LoadedModel) -> Tensor:
    """The sines and cosines that the blocks get in this forward pass."""
    seen: list[Tensor] = []

    def keep(_module: nn.Module, _args: Any, kwargs: dict[str, Any]) -> None:
        seen.append(kwargs["rope"])

    handle = model.module.blocks[0].register_forward_pre_hook(keep, with_kwargs=True)
    with torch.no_grad():
        model.forward(images_for(model))
    handle.remove()
    return seen[0].clone()


class IdentityRotation(nn.Module):
    """A rope whose every sine is 0 and every cosine 1, in the shape of the one it stands for."""

    feat_shape = None

    def __init__(self, rope: nn.Module) -> None:
        super().__init__()
        self.rope = rope

    def get_embed(self, *args: Any, **kwargs: Any) -> Tensor:
        sine, cosine = self.rope.get_embed(*args, **kwargs).chunk(2, dim=-1)
        return torch.cat([torch.zeros_like(sine), torch.ones_like(cosine)], dim=-1)


def without_rotation(module: nn.Module) -> nn.Module:
    bare = copy.deepcopy(module)
    inner = bare.rope
    bare.rope = IdentityRotation(inner)
    if not hasattr(inner, "feat_shape"):
        del IdentityRotation.feat_shape
    return bare


def zeroed(module: nn.Module, *names: str) -> nn.Module:
    bare = copy.deepcopy(module)
    with torch.no_grad():
        for name in names:
            bare.get_parameter(name).zero_()
    return bare


@pytest.mark.parametrize(
    "name",
    ["timm_vit", "timm_vit_distilled", "timm_vit_deit3", "timm_vit_sincos", "timm_vit_dynamic"],
)
def test_alpha_zero_is_a_zeroed_table(name: str) -> None:
    model = fresh(name)
    with torch.no_grad():
        expected = zeroed(model.module, "pos_embed")(images_for(model))
    assert torch.equal(at_alpha(model, 0.0), expected)


@pytest.mark.parametrize("alpha", [0.0, 0.3, 1.7])
def test_an_absolute_table_is_scaled_whole(alpha: float) -> None:
    model = fresh("timm_vit_registers_embedded")
    assert model.anatomy.positions[0].prefix == 4
    scaled = copy.deepcopy(model.module)
    with torch.no_grad():
        scaled.pos_embed.mul_(alpha)
        expected = scaled(images_for(model))
    assert torch.equal(at_alpha(model, alpha), expected)


@pytest.mark.parametrize(
    ("name", "tables"),
    [
        ("timm_beit", 3), ("timm_beit_shared", 1), ("timm_beit_both", 3), ("timm_swin", 4),
        ("timm_swin_padded", 4),
    ],
)  # fmt: skip
def test_alpha_zero_is_a_zero_bias(name: str, tables: int) -> None:
    model = fresh(name)
    biases = [p.where for p in model.anatomy.positions if p.kind == "relative_bias"]
    assert len(biases) == tables
    with torch.no_grad():
        expected = zeroed(model.module, *biases)(images_for(model))
    assert torch.equal(at_alpha(model, 0.0, signal="relative_bias"), expected)


def test_beit_bias_is_scaled_for_the_class_token_too() -> None:
    model = fresh("timm_beit")
    attention = model.module.blocks[1].attn
    full = attention._get_rel_pos_bias().clone()
    with scale_positions(model, 0.25):
        scaled = attention._get_rel_pos_bias()
    assert full[0, :, 0].abs().min() > 0
    torch.testing.assert_close(scaled, full * 0.25, rtol=1e-6, atol=0)


def swin_v2_bias(model: LoadedModel) -> Tensor:
    """16 sigmoid of what the bias MLP of block 1 gives in a forward pass."""
    seen: list[Tensor] = []
    mlp = model.module.layers[0].blocks[1].attn.cpb_mlp
    handle = mlp.register_forward_hook(lambda _m, _a, out: seen.append(16 * out.sigmoid()))
    with torch.no_grad():
        model.forward(images_for(model))
    handle.remove()
    return seen[0]


@pytest.mark.parametrize("alpha", [0.0, 0.1, 0.5, 0.999])
def test_swin_v2_bias_is_scaled_after_its_sigmoid(alpha: float) -> None:
    model = fresh("timm_swin_v2")
    with torch.no_grad():  # far into both tails of the sigmoid
        model.module.layers[0].blocks[1].attn.cpb_mlp[2].weight.mul_(1500)
    full = swin_v2_bias(model)
    assert full.min() < 1e-3
    assert full.max() > 15.999
    with scale_positions(model, alpha):
        scaled = swin_v2_bias(model)
    torch.testing.assert_close(scaled, alpha * full, rtol=2e-6, atol=2e-6)
    assert alpha or (scaled == 0).all()


def test_swin_v2_at_alpha_zero_has_no_bias() -> None:
    """A constant bias leaves a softmax as it is: MLPs that give 0 everywhere are no bias either."""
    model = fresh("timm_swin_v2_wide")
    with torch.no_grad():
        for position in model.anatomy.positions:
            model.module.get_parameter(f"{position.where}.2.weight").mul_(100)
    constant = zeroed(model.module, *(f"{p.where}.2.weight" for p in model.anatomy.positions))
    images = images_for(model)
    with torch.no_grad():
        expected, biased = constant(images), model.forward(images)
    torch.testing.assert_close(at_alpha(model, 0.0), expected, rtol=0, atol=2e-6)
    assert (biased - expected).abs().max() > 1e-4


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_bounded_bias_keeps_precision_and_dtype(dtype: torch.dtype) -> None:
    z = torch.tensor([-60.0, -8.0, 0.0, 8.0, 30.0], dtype=dtype)
    scaled = bounded_bias().edit(z, 0.5)
    assert scaled.dtype == dtype
    exact = torch.logit(0.5 * torch.sigmoid(z.double()))
    torch.testing.assert_close(scaled, exact.to(dtype), rtol=1e-6, atol=1e-6)
    assert (bounded_bias().edit(z, 0.0) == -torch.inf).all()


@pytest.mark.parametrize("name", ROTARY)
def test_alpha_zero_is_the_identity_rotation(name: str) -> None:
    model = fresh(name)
    with torch.no_grad():
        expected = without_rotation(model.module)(images_for(model))
        rotated = model.forward(images_for(model))
    still = at_alpha(model, 0.0, signal="rotary")
    assert torch.equal(still, expected)
    assert not torch.equal(still, rotated)


@pytest.mark.parametrize("name", ROTARY)
def test_alpha_two_doubles_every_angle(name: str) -> None:
    model = fresh(name)
    sine, cosine = rope_table(model).chunk(2, dim=-1)
    with scale_positions(model, 2.0, "rotary"):
        doubled = rope_table(model)
    expected = torch.cat([2 * sine * cosine, cosine**2 - sine**2], dim=-1)
    torch.testing.assert_close(doubled, expected, rtol=0, atol=5e-6)
    assert (doubled[..., : sine.shape[-1]] - sine).abs().max() > 0.1


@pytest.mark.parametrize(
    ("name", "rule", "rebuilt"),
    [
        ("timm_eva_02", rotary_bands, {"rope.bands", "rope.pos_embed"}),
        ("timm_eva_rope_registers", rotary_bands, {"rope.bands", "rope.pos_embed"}),
        ("timm_eva_rope_dynamic", rotary_bands, {"rope.bands"}),
        ("timm_eva_dinov3", rotary_periods, {"rope.periods", "rope.pos_embed_cached"}),
        ("timm_eva_dinov3_dynamic", rotary_periods, {"rope.periods"}),
    ],
)
def test_a_rebuilt_cache_equals_the_one_it_replaces(
    name: str, rule: Any, rebuilt: set[str]
) -> None:
    model = fresh(name)
    made: SwapTensors = rule("rope")
    new = made.tensors(model.module, 1.0)
    assert set(new) == rebuilt
    for key, tensor in new.items():
        assert torch.equal(tensor, model.module.get_buffer(key)), key


@pytest.mark.parametrize("name", ["timm_eva_02", "timm_eva_dinov3", "timm_eva_rope_mixed"])
def test_rotary_rules_follow_the_model_into_half_precision(name: str) -> None:
    model = fresh(name)
    model.module.bfloat16()
    images = images_for(model).bfloat16()
    with torch.no_grad():
        rotated = model.forward(images)
        with scale_positions(model, 0.0, "rotary"):
            still = model.forward(images)
    assert still.dtype == torch.bfloat16
    assert torch.isfinite(still).all()
    assert not torch.equal(still, rotated)


def test_table_kind_is_told_from_the_values() -> None:
    vit = sincos_vit((32, 48))
    assert table_kind(vit.pos_embed, 1) == "sinusoidal"
    shuffled = vit.pos_embed[..., torch.randperm(32)]
    assert table_kind(shuffled, 1) == "sinusoidal"
    assert table_kind(vit.pos_embed * 1.01, 1) == "absolute"
    assert table_kind(vit.pos_embed, 0) == "absolute"  # the class row is no sine
    assert table_kind(torch.randn(1, 25, 32), 1) == "absolute"


def test_a_rule_for_a_missing_tensor_says_so() -> None:
    with pytest.raises(AnatomyError, match="no tensor 'bias'; check the anatomy"):
        scaled_table("bias").tensors(nn.Linear(2, 2, bias=False), 0.5)
