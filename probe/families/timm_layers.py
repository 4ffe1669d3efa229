"""Anatomies put together block by block: other stems, late prefix tokens, grids that shrink."""

from __future__ import annotations

from typing import Any

from torch import nn

from probe.errors import AnatomyError
from probe.hooks import submodule
from probe.types import (
    Anatomy,
    FeatureSite,
    Grid,
    Layout,
    PatchSite,
    PositionSite,
    Side,
    TokenSite,
)
from probe.wiring import AttentionSite, Merge

SLIDES = "none needed: a convolution slides over a grid of any size"


def stem_site(
    module: nn.Module, name: str, image_size: tuple[int, int], layout: Layout
) -> PatchSite:
    """Where a stem of one or more convolutions gives its tokens, before any positional signal.

    Its grid is what its convolutions, one after another, leave of an image (height, width).

    Raises:
        AnatomyError: if nothing is left of the image.
    """
    grid = Grid(*image_size)
    for conv in submodule(module, name).modules():
        if isinstance(conv, nn.Conv2d):
            grid = convolved(conv, grid)
    if min(grid.rows, grid.cols) < 1:
        raise AnatomyError(f"an image of {image_size[0]} x {image_size[1]} px holds no patch")
    return PatchSite(name, grid, prefix=0, layout=layout)


def convolved(conv: Any, grid: Grid) -> Grid:
    """The grid that a convolution makes of another."""
    sides = zip(
        (grid.rows, grid.cols),
        conv.kernel_size,
        conv.stride,
        conv.padding,
        conv.dilation,
        strict=True,
    )
    return Grid(
        *((n + 2 * pad - gap * (size - 1) - 1) // step + 1 for n, size, step, pad, gap in sides)
    )


class Layers:
    """Blocks in order of execution, each with the grid that it works on."""

    def __init__(self, patches: PatchSite) -> None:
        """Begin on the grid of the patch projection."""
        self.patches, self.grid = patches, patches.grid
        self._attn_in: list[TokenSite] = []
        self._block_out: list[TokenSite] = []
        self._attention: list[AttentionSite] = []
        self._merges: list[Merge] = []

    def block(
        self,
        name: str,
        *,
        norm: str | None = "norm1",
        prefix: int = 0,
        layout: Layout = "NLC",
        norm_layout: Layout | None = None,
        attention: str | None = None,
    ) -> None:
        """Declare the next block.

        Args:
            name: its dotted name.
            norm: the module in it that feeds what mixes its tokens, None where its input does.
            prefix: its prefix tokens.
            layout: of its output, and of the norm's unless `norm_layout` says otherwise.
            norm_layout: of the norm's output.
            attention: the module in it that compares all its tokens with one another, None where
                no module does.
        """
        layer, fed_by = len(self._attn_in), name if norm is None else f"{name}.{norm}"
        side: Side = "input" if norm is None else "output"
        self._attn_in.append(
            TokenSite(layer, "attn_in", fed_by, self.grid, prefix, norm_layout or layout, side)
        )
        self._block_out.append(TokenSite(layer, "block_out", name, self.grid, prefix, layout))
        if attention is not None:
            self._attention.append(AttentionSite(layer, f"{name}.{attention}"))

    def merge(self, conv: Any, *, filled: bool = False) -> None:
        """Between blocks, a convolution joins tokens.

        Args:
            conv: the convolution.
            filled: whether the grid is padded to whole strides first.
        """
        sides = zip((self.grid.rows, self.grid.cols), conv.stride, strict=True)
        whole = Grid(*(-(-side // step) * step for side, step in sides)) if filled else self.grid
        self.grid = convolved(conv, whole)
        rows, cols = conv.stride
        self._merges.append(Merge(len(self._attn_in), rows, cols, overlap=conv.padding[0]))

    def last(
        self, block: str, norm: str | None, prefix: int = 0, layout: Layout = "NLC"
    ) -> FeatureSite:
        """The last tokens: of the norm behind the last block, else of that block itself."""
        where, class_index = norm or block, 0 if prefix else None
        return FeatureSite(where, self.grid, prefix, layout, class_index)

    def anatomy(
        self,
        image_size: tuple[int, int],
        positions: tuple[PositionSite, ...],
        features: FeatureSite,
    ) -> Anatomy:
        """All that was declared, with the positional signals and the last tokens."""
        return Anatomy(
            image_size=image_size,
            patches=self.patches,
            attn_in=tuple(self._attn_in),
            block_out=tuple(self._block_out),
            positions=positions,
            features=features,
            attention=tuple(self._attention),
            merges=tuple(self._merges),
        )


def from_convolutions(where: str) -> PositionSite:
    """Position that a layer of convolutions knows from its neighbours and from padding."""
    return PositionSite("convolutional", where, resampling=SLIDES)
