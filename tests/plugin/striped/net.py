"""An architecture that timm does not have, registered with timm, and its family."""

from __future__ import annotations

from typing import Any

import torch
from timm.models import build_model_with_cfg, generate_default_cfgs, register_model
from torch import Tensor, nn

from probe.families.base import Family
from probe.families.positions import scaled_table
from probe.families.timm_head import predict
from probe.types import Anatomy, Grid, PatchSite, PositionSite, TokenSite

default_cfgs = generate_default_cfgs(
    {
        "striped_net.untrained": {
            "url": "",
            "num_classes": 10,
            "label_names": tuple("0123456789"),
            "input_size": (3, 32, 32),
            "crop_pct": 1.0,
            "interpolation": "bicubic",
            "mean": (0.5, 0.5, 0.5),
            "std": (0.5, 0.5, 0.5),
            "first_conv": "project",
            "classifier": "head",
        }
    }
)


class Block(nn.Module):
    """Every token gets the mean of its row."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.mix = nn.Linear(width, width)

    def forward(self, tokens: Tensor, rows: int) -> Tensor:
        found = self.norm(tokens)
        by_row = found.unflatten(1, (rows, -1)).mean(dim=2, keepdim=True)
        spread = by_row.expand(-1, -1, tokens.shape[1] // rows, -1).flatten(1, 2)
        return tokens + self.mix(found + spread)


class StripedNet(nn.Module):
    """Patches, a table of positions, blocks that mix rows, a head on the mean."""

    def __init__(
        self, num_classes: int = 10, in_chans: int = 3, global_pool: str = "avg", depth: int = 2
    ) -> None:
        super().__init__()
        self.num_classes, self.global_pool = num_classes, global_pool
        self.project = nn.Conv2d(in_chans, 16, 8, 8)
        self.table = nn.Parameter(torch.randn(1, 16, 16))
        self.blocks = nn.ModuleList(Block(16) for _ in range(depth))
        self.head = nn.Linear(16, num_classes)

    def get_classifier(self) -> nn.Module:
        return self.head

    def forward(self, images: Tensor) -> Tensor:
        patches = self.project(images)
        tokens = patches.flatten(2).transpose(1, 2) + self.table
        for block in self.blocks:
            tokens = block(tokens, patches.shape[2])
        return self.head(tokens.mean(dim=1))


@register_model
def striped_net(pretrained: bool = False, **kwargs: Any) -> StripedNet:
    return build_model_with_cfg(StripedNet, "striped_net", pretrained, **kwargs)


def _anatomy(module: nn.Module, image_size: tuple[int, int]) -> Anatomy:
    grid = Grid(image_size[0] // 8, image_size[1] // 8)
    layers = range(len(module.blocks))
    return Anatomy(
        image_size=image_size,
        patches=PatchSite("project", grid, 0, "NCHW"),
        attn_in=tuple(TokenSite(i, "attn_in", f"blocks.{i}.norm", grid, 0, "NLC") for i in layers),
        block_out=tuple(TokenSite(i, "block_out", f"blocks.{i}", grid, 0, "NLC") for i in layers),
        positions=(PositionSite("absolute", "table", rescale=scaled_table("table"), grid=grid),),
    )


FAMILY = Family("striped", "timm", lambda module: isinstance(module, StripedNet), _anatomy, predict)
