"""Grids and layouts of traced shapes, and the projection that the first grid comes from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from probe.families.base import RawModel
from probe.families.declared import fits
from probe.families.trace import BATCH, Shape, Step, Trace, sample, tensors
from probe.hooks import edit_output
from probe.types import Grid, Layout

LAYOUTS: tuple[Layout, ...] = ("NLC", "NHWC", "NCHW")
MOST_PREFIX = 32  # class and register tokens; more are rather another grid


@dataclass(frozen=True)
class Patches:
    """The patch projection with its grid and layout."""

    module: str
    grid: Grid
    layout: Layout

    def stated(self) -> dict[str, Any]:
        """As a zoo entry states it."""
        return {"module": self.module, "grid": as_pair(self.grid), "layout": self.layout}


def as_pair(grid: Grid) -> list[int]:
    """The grid as [rows, cols]."""
    return [grid.rows, grid.cols]


def layout_of(
    shape: Shape | None, grid: Grid, prefix: int, like: Layout | None = None
) -> Layout | None:
    """The only layout in which the shape holds these tokens of `BATCH` images, else None.

    Of two, as for a grid with as many channels as rows and columns, it is `like`.
    """
    if shape is None or shape[0] != BATCH:
        return None
    found = [layout for layout in LAYOUTS if fits(shape, grid, prefix, layout)]
    if like in found:
        return like
    return found[0] if len(found) == 1 else None


def find_patches(
    raw: RawModel, seen: Trace, tokens: Shape | None, mixer: str, like: Layout | None
) -> tuple[Patches, Grid, int] | None:
    """The patch projection, and the grid and prefix of the tokens that feed the first mixer.

    It is the last projection to a grid before the numbered modules that the mixer is in begin, or
    others of their class; where all projections are in these, the last before the mixer that has
    its grid. Where an image has other ways past it, as in a stem of parallel branches, it is the
    module around these.
    """
    parts = mixer.split(".")
    number = next((n for n, part in enumerate(parts) if part.isdigit()), len(parts))
    listed = ".".join([*parts[:number], ""])
    owner = ".".join(parts[: max((n + 1 for n, p in enumerate(parts) if p.isdigit()), default=0)])
    kind = seen.steps[owner].kind if owner in seen.steps else ""
    own = [s for s in seen.steps.values() if s.name.startswith(listed or " ") or s.kind == kind]
    starts = [min((s.start for s in own), default=0), seen.steps[mixer].start]
    for start, exact in zip(starts, (False, True), strict=True):
        for step in sorted(seen.steps.values(), key=lambda step: step.end, reverse=True):
            if step.end >= start or step.calls > 1 or not step.name:
                continue
            for grid, layout in _grids(raw.module.get_submodule(step.name), step, seen.image_size):
                placed = _placed(tokens, grid, exact, like)
                around = None if placed is None else _only_way(raw, seen, step, grid, layout, start)
                if placed is not None and around is not None:
                    return Patches(around, grid, layout), *placed
    return None


def _only_way(
    raw: RawModel, seen: Trace, step: Step, grid: Grid, layout: Layout, start: int
) -> str | None:
    """The innermost of a module and those around it through which all of an image goes."""
    parts = step.name.split(".")
    for end in range(len(parts), 0, -1):
        owner = seen.steps.get(".".join(parts[:end]))
        if owner is None or owner.end >= start or owner.calls > 1:
            continue
        if fits(owner.gives, grid, 0, layout) and decides(raw, owner.name):
            return owner.name
    return None


def decides(raw: RawModel, name: str) -> bool:
    """Whether what a module gives decides the output: of other images, it gives theirs."""
    given: list[Tensor] = []
    images = sample(raw.module, raw.image_size)

    def keep(tokens: Tensor) -> Tensor:
        given.append(tokens.clone())
        return tokens

    with torch.no_grad():
        with edit_output(raw.module, name, keep):
            wanted = [t.clone() for t in tensors(raw.forward(images.flip(-1) * 0.5))]
        with edit_output(raw.module, name, lambda tokens: given[0].reshape(tokens.shape)):
            found = list(tensors(raw.forward(images)))
    return all(map(torch.equal, wanted, found))


def _placed(
    tokens: Shape | None, grid: Grid, exact: bool, like: Layout | None
) -> tuple[Grid, int] | None:
    """The grid, or what halving leaves of it unless it shall be `exact`, and the prefix."""
    while grid.tokens >= 2:
        prefix = _prefix(tokens, grid, like)
        if prefix is not None:
            return grid, prefix
        if exact:
            return None
        grid = _halved(grid)
    return None


def _halved(grid: Grid) -> Grid:
    return Grid(-(-grid.rows // 2), -(-grid.cols // 2))


def _grids(part: nn.Module, step: Step, image_size: tuple[int, int]) -> list[tuple[Grid, Layout]]:
    """The grid that a projection gives; a depthwise convolution projects nothing."""
    shape = step.gives
    if shape is None or shape[0] != BATCH:
        return []
    if isinstance(part, nn.Conv2d) and len(shape) == 4 and part.groups == 1:
        return [(Grid(shape[2], shape[3]), "NCHW")]
    if isinstance(part, nn.Linear) and len(shape) == 4:
        return [(Grid(shape[1], shape[2]), "NHWC")]
    if isinstance(part, nn.Linear) and len(shape) == 3:
        return [(grid, "NLC") for grid in _of_pixels(part.in_features, shape[1], image_size)]
    return []


def _of_pixels(values: int, tokens: int, image_size: tuple[int, int]) -> list[Grid]:
    """The grid of square patches, given as RGB pixels, that tile the image exactly."""
    height, width = image_size
    return [
        Grid(height // side, width // side)
        for side in range(1, min(image_size) + 1)
        if 3 * side * side == values
        and height % side == width % side == 0
        and (height // side) * (width // side) == tokens
    ]


def _prefix(shape: Shape | None, grid: Grid, like: Layout | None) -> int | None:
    if shape is None or grid.tokens < 2:
        return None
    if len(shape) == 4:
        return 0 if layout_of(shape, grid, 0, like) else None
    more = shape[1] - grid.tokens
    return more if 0 <= more <= min(MOST_PREFIX, grid.tokens - 1) else None


def grid_after(
    before: Grid, shape: Shape | None, prefix: int, like: Layout | None
) -> tuple[Grid, int] | None:
    """`before`, or what halving its sides leaves (rounded up), that the shape holds exactly.

    Class tokens may leave, or join in front.
    """
    halves = [before]
    while halves[-1].tokens > 2:
        halves.append(_halved(halves[-1]))
    halves = [grid for grid in halves if grid.tokens >= 2]
    for own in dict.fromkeys((prefix, 0)):
        for grid in halves:
            if layout_of(shape, grid, own, like):
                return grid, own
    for grid in halves:
        more = shape[1] - grid.tokens if shape is not None and len(shape) == 3 else 0
        if prefix < more <= min(MOST_PREFIX, grid.tokens - 1):
            return grid, more
    return None
