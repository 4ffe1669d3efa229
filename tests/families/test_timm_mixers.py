"""Where blocks of each class take the tokens that they mix, against what their mixers are given."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
import timm
import torch
from torch import Tensor, nn

from probe.families.base import family_of
from probe.hooks import observe
from probe.types import TokenSite

# Of each block class: an architecture that has it, an image size, and the part of the block whose
# first input is what is mixed.
TAKEN: list[tuple[str, tuple[int, int], str]] = [
    ("botnet26t_256", (256, 256), "self_attn"),
    ("cpubone_nano", (96, 128), "total.0.0.main.1"),
    ("csatv2", (256, 256), "attn"),
    ("coat_lite_tiny", (224, 224), "factoratt_crpe"),
    ("edgenext_xx_small", (96, 128), "xca"),
    ("efficientformer_l1", (224, 224), "token_mixer"),
    ("efficientformerv2_s0", (224, 224), "token_mixer"),
    ("efficientformerv2_s0", (224, 224), "attn"),
    ("efficientvim_m1", (224, 224), "mixer"),
    ("efficientvit_b0", (96, 128), "context_module.main"),
    ("efficientvit_m0", (224, 224), "mixer.m"),
    ("fastvit_sa12", (128, 128), "token_mixer"),
    ("sam2_hiera_tiny", (224, 224), "attn"),
    ("iformer_t", (96, 128), "mixer.module"),
    ("levit_128s", (224, 224), "attn"),
    ("lowformer_b0", (96, 128), "attn.main.1"),
    ("test_maxvit", (160, 160), "attn"),
    ("poolformerv2_s12", (96, 128), "token_mixer"),
    ("gmlp_ti16_224", (224, 224), "mlp_channels.gate.proj"),
    ("mixer_s32_224", (224, 224), "mlp_tokens"),
    ("mobilenetv4_hybrid_medium", (128, 128), "attn"),
    ("mvitv2_tiny", (224, 224), "attn"),
    ("nextvit_small", (96, 128), "e_mhsa"),
    ("sequencer2d_s", (224, 224), "rnn_tokens"),
    ("shvit_s1", (224, 224), "mixer.m.qkv"),
    ("swiftformer_xs", (224, 224), "attn"),
    ("test_vit_relpos", (160, 160), "attn"),
    ("tnt_s_legacy_patch16_224", (224, 224), "attn_out"),
    ("visformer_tiny", (224, 224), "attn"),
]


@contextmanager
def inputs_of(module: nn.Module, names: list[str], found: dict[str, Tensor]) -> Iterator[None]:
    def keep(name: str) -> Any:
        return lambda _module, args: found.__setitem__(name, args[0])

    with ExitStack() as stack:
        for name in names:
            part = module.get_submodule(name)
            stack.callback(part.register_forward_pre_hook(keep(name)).remove)
        yield


@pytest.mark.slow
@pytest.mark.parametrize(("name", "size", "part"), TAKEN)
def test_what_is_read_is_what_is_mixed(name: str, size: tuple[int, int], part: str) -> None:
    """Whatever the shape that it is mixed in: channels and tokens hold the same numbers."""
    module: Any = timm.create_model(name, num_classes=0).eval()
    anatomy = family_of(module, "timm").anatomy(module, size)
    parts = dict(module.named_modules())
    sites = [
        (inside.module, outside.module)
        for inside, outside in zip(anatomy.attn_in, anatomy.block_out, strict=True)
        if f"{outside.module}.{part}" in parts
    ]
    assert sites, "no block has that part"
    taken: dict[str, Tensor] = {}
    read: dict[str, Tensor] = {}

    def keep(site: TokenSite, tokens: Tensor) -> None:
        read[site.module] = tokens

    images = torch.randn(1, 3, *size, generator=torch.Generator().manual_seed(0))
    names = [f"{block}.{part}" for _, block in sites]
    with (
        torch.no_grad(),
        inputs_of(module, names, taken),
        observe(module, anatomy.attn_in, keep),
    ):
        module(images)
    prefix = anatomy.attn_in[0].prefix
    for (feed, _), mixed in zip(sites, names, strict=True):
        given = taken[mixed][:, prefix:] if prefix else taken[mixed]
        tokens, same = read[feed].flatten().sort().values, given.flatten().sort().values
        torch.testing.assert_close(tokens, same)
