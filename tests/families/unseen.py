"""An architecture that no family knows, for entries with an inline anatomy."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attn = nn.MultiheadAttention(width, 2, batch_first=True)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm1(x)
        x = x + self.attn(y, y, y, need_weights=False)[0]
        return x + self.mlp(self.norm2(x))


class Net(nn.Module):
    """Patches of 8 px, by default of images of 32 x 48 px: a grid of 4 x 6; and a class token."""

    def __init__(
        self, depth: int = 2, width: int = 16, classes: int = 5, tokens: int = 24
    ) -> None:
        super().__init__()
        self.proj = nn.Conv2d(3, width, 8, 8)
        self.cls = nn.Parameter(torch.randn(1, 1, width))
        self.pos = nn.Parameter(torch.randn(1, 1 + tokens, width))
        self.unread = nn.Parameter(torch.randn(1, 1 + tokens, width))
        self.layers = nn.ModuleList(Block(width) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes)
        self.again = nn.Identity()

    def forward(self, images: Tensor) -> Tensor:
        x = self.again(self.proj(images)).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls.expand(len(x), -1, -1), x], dim=1) + self.pos
        for layer in self.layers:
            x = layer(x)
        return self.head(self.again(self.norm(x))[:, 0])


class Fields(Net):
    """Gives its logits in a field."""

    def forward(self, images: Tensor) -> Any:
        return {"embedding": images.mean((2, 3)), "logits": super().forward(images)}


class Units(nn.Module):
    """Blocks see the grid of 4 x 6 folded into units of 2 x 3 tokens: (4 B, 6, C)."""

    def __init__(self, width: int = 16, classes: int = 5) -> None:
        super().__init__()
        self.proj = nn.Conv2d(3, width, 8, 8)
        self.folded = nn.Identity()
        self.layers = nn.ModuleList(Block(width) for _ in range(2))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes)

    def forward(self, images: Tensor) -> Tensor:
        x = self.proj(images).unfold(2, 2, 2).unfold(3, 2, 2).permute(0, 4, 5, 2, 3, 1)
        x = self.folded(x.flatten(3, 4).flatten(0, 2))
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x).unflatten(0, (len(images), -1)).mean((1, 2)))


def build(depth: int = 2) -> nn.Module:
    return Net(depth)


def no_module() -> int:
    return 1
