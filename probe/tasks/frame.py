"""The canvas that a model looks at: its image size and the patch grid that lies on it."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from torch import nn

from probe.errors import AnatomyError
from probe.hooks import submodule
from probe.types import LoadedModel


@dataclass(frozen=True)
class Frame:
    """An image cut into whole patches; pairs are (height, width), in pixels, and (rows, cols).

    `grid` times `patch` is `size`.
    """

    size: tuple[int, int]
    patch: tuple[int, int]
    grid: tuple[int, int]

    @property
    def unit(self) -> int:
        """The shorter side of a patch in pixels, by which sizes of objects are counted."""
        return min(self.patch)

    @property
    def side(self) -> int:
        """Patches along the shorter side of the grid."""
        return min(self.grid)


def frame_of(model: LoadedModel) -> Frame:
    """The model's own image size, and the grid of its patch projection.

    Raises:
        AnatomyError: if the image is no whole number of patches, so that scenes cannot be aligned,
            or the model has none.
    """
    (height, width), site = model.anatomy.image_size, model.anatomy.patches
    rows, cols = site.grid.rows, site.grid.cols
    if site.refusal is not None:
        raise AnatomyError(f"scenes are aligned to patches, but {site.refusal}")
    patch = (height // rows, width // cols)
    parts = submodule(model.module, site.module).modules()
    strides = [part.stride for part in parts if isinstance(part, nn.Conv2d)]
    whole = (prod(s[0] for s in strides), prod(s[1] for s in strides))  # of a stem of several
    if height % rows or width % cols or (strides and patch not in (*strides, whole)):
        raise AnatomyError(
            f"an image of {height}x{width} px is no whole number of patches on a grid of "
            f"{rows}x{cols}, so scenes cannot be aligned to it; choose another --image-size"
        )
    return Frame((height, width), patch, (rows, cols))
