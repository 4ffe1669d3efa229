"""The controlled variants: one ViT, timm's own, that differs in its positional signal alone.

`ape` adds a learned table to the patch tokens, `spe` a fixed 2-D sin-cos table, `rope` rotates
queries and keys in every attention (2-D, axial), `none` has no positional signal, and `rpt` is
`ape` with patch tokens that training shuffles. Tables have no row for the class token. After
arXiv 2606.00124.

All are timm's `Eva` class under other arguments, so that a trained checkpoint is a timm folder like
any other and loads without this module.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from typing import Any, Literal, get_args

import timm
import torch
from timm.layers import build_sincos2d_pos_embed
from torch import Tensor, nn

from probe.errors import UsageError, did_you_mean

Variant = Literal["ape", "spe", "rope", "none", "rpt"]
LinearInit = Literal["xavier", "torch", "timm"]
VARIANTS: tuple[Variant, ...] = get_args(Variant)
# What each variant has, in the terms of a zoo entry.
POSITION: dict[Variant, str] = {
    "ape": "absolute",
    "spe": "sinusoidal",
    "rope": "rotary",
    "none": "none",
    "rpt": "absolute",
}
# The barest Eva that timm registers: no layer scale, no extras; sizes and switches are given.
ARCHITECTURE = "eva_giant_patch14_224"
TABLE = "pos_embed"


@dataclass(frozen=True)
class Network:
    """What all variants share.

    Attributes:
        image_size: pixels, square.
        patch_size: pixels, square; divides `image_size`.
        width: channels of a token; a multiple of 4 * `heads`.
        depth: number of blocks.
        heads: attention heads.
        classes: width of the head, which reads the class token.
        mlp_ratio: hidden width of the MLPs, as a multiple of `width`.
        final_norm: whether a norm stands between the last block and the head.
        pos_init_std: standard deviation of a learned table's initial values. It decides the sign
            of delta SSDC: a small table is made smooth by training, a large one stays rough.
        linear_init: `xavier` uniform, `torch`'s default, or `timm`'s truncated normal of 0.02.
        rope_temperature: angular frequencies run geometrically from 1 radian per patch down to
            about 1 / temperature.
        dropout: of tokens after positions are added, of attention weights, of what attention and
            MLP give; in 0..1.
        drop_path: stochastic depth of the last block, rising linearly from 0.
    """

    image_size: int
    patch_size: int
    width: int
    depth: int
    heads: int
    classes: int
    mlp_ratio: float = 4.0
    final_norm: bool = True
    pos_init_std: float = 0.02
    linear_init: LinearInit = "xavier"
    rope_temperature: float = 100.0
    dropout: tuple[float, float, float] = (0.0, 0.0, 0.0)
    drop_path: float = 0.0

    def __post_init__(self) -> None:
        """Refuse sizes that do not divide."""
        if self.image_size % self.patch_size:
            raise UsageError(
                f"patches of {self.patch_size} px do not fill images of {self.image_size} px; "
                "choose a patch size that divides the image size"
            )
        if self.width % (4 * self.heads):
            raise UsageError(
                f"a width of {self.width} cannot be cut into {self.heads} heads of a multiple of 4 "
                f"channels, which 2-D rotation needs; choose a multiple of {4 * self.heads}"
            )


def model_args(network: Network, variant: Variant) -> dict[str, Any]:
    """Arguments of timm's architecture, ready for JSON; without dropout, which is training's.

    Raises:
        UsageError: if there is no such variant.
    """
    check_variant(variant)
    return {
        "img_size": network.image_size,
        "patch_size": network.patch_size,
        "embed_dim": network.width,
        "depth": network.depth,
        "num_heads": network.heads,
        "mlp_ratio": network.mlp_ratio,
        "attn_type": "rope",
        "class_token": True,
        "no_embed_class": True,
        "global_pool": "token",
        "use_fc_norm": False,
        "use_post_transformer_norm": network.final_norm,
        "use_abs_pos_emb": variant in ("ape", "spe", "rpt"),
        "use_rot_pos_emb": variant == "rope",
        "rope_type": "cat",
        "rope_grid_indexing": "ij",
        "rope_temperature": network.rope_temperature,
    }


def build(network: Network, variant: Variant, seed: int) -> nn.Module:
    """The untrained network, in training mode, with dropout.

    Every parameter is drawn from a generator of its own, seeded by `seed` and the parameter's name,
    so that variants of one seed agree wherever they have the same parameter. The table of `spe` is
    fixed. The global generator is left as it was.

    Raises:
        UsageError: if there is no such variant, or timm cannot build the network.
    """
    embedding, attention, projection = network.dropout
    with torch.random.fork_rng(devices=[]):
        model: Any = timm.create_model(
            ARCHITECTURE,
            num_classes=network.classes,
            pos_drop_rate=embedding,
            attn_drop_rate=attention,
            proj_drop_rate=projection,
            drop_path_rate=network.drop_path,
            **model_args(network, variant),
        )
    owners = dict(model.named_modules())
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            owner, _, _ = name.rpartition(".")
            parameter.copy_(_initial(name, parameter, owners[owner], network, seed))
    if variant == "spe":
        rows, columns = model.patch_embed.grid_size
        table = build_sincos2d_pos_embed([rows, columns], network.width)
        model.pos_embed.data.copy_(table[None])
        model.pos_embed.requires_grad_(False)
    return model.train()


def check_variant(variant: str) -> None:
    """Refuse an unknown variant.

    Raises:
        UsageError: with the nearest names.
    """
    if variant not in VARIANTS:
        raise UsageError(
            f"unknown variant '{variant}'.{did_you_mean(variant, VARIANTS)} "
            f"Variants: {', '.join(VARIANTS)}"
        )


def _initial(name: str, parameter: Tensor, owner: nn.Module, network: Network, seed: int) -> Tensor:
    """The initial value of one parameter, decided by its name, its kind and `seed`."""
    generator = torch.Generator().manual_seed(_seed_of(seed, name))
    new = torch.empty(parameter.shape)
    if name == TABLE:
        return new.normal_(0, network.pos_init_std, generator=generator)
    if name == "cls_token":
        return new.normal_(0, 0.02, generator=generator)
    if isinstance(owner, nn.LayerNorm):
        return new.fill_(1.0 if name.endswith("weight") else 0.0)
    if not isinstance(owner, nn.Linear | nn.Conv2d):
        raise UsageError(f"timm's parameter '{name}' has no rule for its initial value")
    fan_in = owner.weight[0].numel()
    default = isinstance(owner, nn.Conv2d) or network.linear_init == "torch"
    if default:
        bound = 1 / math.sqrt(fan_in)
        return new.uniform_(-bound, bound, generator=generator)
    if name.endswith("bias"):
        return new.zero_()
    if network.linear_init == "timm":
        return nn.init.trunc_normal_(new, std=0.02, generator=generator)
    return nn.init.xavier_uniform_(new, generator=generator)


def _seed_of(seed: int, name: str) -> int:
    return int.from_bytes(hashlib.sha256(f"{seed}/{name}".encode()).digest()[:7], "big")
