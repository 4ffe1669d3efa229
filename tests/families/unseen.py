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

    def __init__(self, depth: int = 2, width: int = 16, classes: int = 5, tokens: int = 24) -> None:
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


class Turned(Net):
    """Rotates pairs of channels; the angles are made anew in every pass, from two frequencies."""

    def __init__(self) -> None:
        super().__init__(depth=1)
        rows, cols = torch.meshgrid(torch.arange(4.0), torch.arange(6.0), indexing="ij")
        self.register_buffer("places", torch.stack([rows.flatten(), cols.flatten()], dim=1))
        self.register_buffer("inv_freq", 100 ** -(torch.arange(2) / 2.0))  # 1, 0.1
        self.freqs = nn.Parameter(torch.linspace(-1, 1, 12).reshape(2, 6))
        angles = self.angles()
        sin, cos = angles.sin().detach(), angles.cos().detach()
        for name, table in {
            "sin": sin,
            "cos": cos[None],
            "both": torch.cat([sin, cos], dim=1),
            "woven": torch.stack([sin, cos], dim=2).flatten(1),
            "stacked": torch.stack([sin, cos]),
            "coarse": torch.cat([cos, sin], dim=1).bfloat16(),
        }.items():
            self.register_buffer(name, table)

    def angles(self) -> Tensor:
        places: Any = self.places
        return torch.cat([places[:, :1] * self.inv_freq, places @ self.freqs], dim=1)

    def forward(self, images: Tensor) -> Tensor:
        x, angles = self.proj(images).flatten(2).transpose(1, 2), self.angles()
        one, other = x.chunk(2, dim=-1)
        sin, cos = angles.sin(), angles.cos()
        x = torch.cat([one * cos - other * sin, one * sin + other * cos], dim=-1)
        x = torch.cat([self.cls.expand(len(x), -1, -1), x], dim=1)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x)[:, 0])


def build(depth: int = 2) -> nn.Module:
    return Net(depth)


def no_module() -> int:
    return 1
