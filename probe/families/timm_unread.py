"""Architectures of timm that have tokens on a grid and are refused, each with its reason."""

from __future__ import annotations

from collections.abc import Mapping

from timm.models.hiera import Hiera
from timm.models.maxxvit import MaxxVit
from timm.models.mvitv2 import MultiScaleVit
from timm.models.nest import Nest
from timm.models.tiny_vit import TinyVit
from timm.models.tnt import TNT
from torch import nn

UNREAD: Mapping[type[nn.Module], str] = {
    Hiera: (
        "it keeps its tokens in the order of mask units, not of the grid, and pools queries inside "
        "blocks"
    ),
    MaxxVit: (
        "between its stem and its first attention convolutions shrink the grid, so that no grid of "
        "patch tokens can be permuted before position acts"
    ),
    MultiScaleVit: (
        "it pools queries inside blocks, so that a block's input and its output stand on "
        "different grids"
    ),
    Nest: "its blocks hold tokens cut into blocks of the image, not in the order of the grid",
    TinyVit: (
        "its norms see windows, not the grid, and its attention keeps the bias in a cache that is "
        "no tensor of the model, where alpha would not reach it"
    ),
    TNT: (
        "every patch is two streams of tokens, its own and its pixels', which the blocks join "
        "again by index: permuting one alone would be no permutation of patches"
    ),
}
