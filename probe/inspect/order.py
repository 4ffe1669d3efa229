"""Whether tokens stand where an anatomy says: one is changed, and looked for in the next layer."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from probe.families.trace import sample
from probe.hooks import StopForward, observe
from probe.inspect.follow import Follower
from probe.inspect.mixers import Place
from probe.inspect.rows import ROUNDING
from probe.types import Anatomy, Grid, PatchSite, TokenSite

Tokens = dict[TokenSite, Tensor]


def misplaced(follower: Follower, anatomy: Anatomy) -> Iterator[str]:
    """A line on every layer that a patch token reaches elsewhere than at its place of the grid.

    From the patch projection to the first layer, and from each block to what feeds the next, a
    token may move with its grid alone, and stays one.
    """
    clean = _tokens(follower, anatomy, None)
    sources: list[PatchSite | TokenSite] = [anatomy.patches, *anatomy.block_out]
    for source, site in zip(sources, anatomy.attn_in, strict=False):
        verdicts = [
            _arrives(follower, anatomy, clean, source, site, row, col)
            for row, col in _corners(source.grid)
        ]
        told = next((one for one in verdicts if one), None)
        if told is not None or all(one is None for one in verdicts):
            yield told or f"whether tokens of '{source.module}' reach '{site.module}'"


def _arrives(
    follower: Follower,
    anatomy: Anatomy,
    clean: Tokens,
    source: PatchSite | TokenSite,
    site: TokenSite,
    row: int,
    col: int,
) -> str | None:
    """None if a change reaches nothing, "" if its own place, else what it does reach."""
    now = _tokens(follower, anatomy, _place(source, row, col), site)[site]
    apart = (now - clean[site]).abs().amax(-1)
    found = (apart > ROUNDING * apart.max()).nonzero()
    reached = sorted({token for _, token in found.tolist()})
    if not reached:
        return None
    grid, own = source.grid, site.grid
    wanted = (row * own.rows // grid.rows) * own.cols + col * own.cols // grid.cols
    if reached == [wanted]:
        return ""
    where = f"token {reached[0]}" if len(reached) == 1 else f"{len(reached)} tokens"
    return (
        f"an order of tokens: token ({row}, {col}) of '{source.module}' reaches {where} of "
        f"'{site.module}', not token {wanted}"
    )


def _place(source: PatchSite | TokenSite, row: int, col: int) -> Place:
    """The token in the first image."""
    if source.layout == "NCHW":
        return Place(source.module, row * source.grid.cols + col, 1)
    return Place(source.module, source.prefix + row * source.grid.cols + col, -1)


def _corners(grid: Grid) -> set[tuple[int, int]]:
    """Places of which no transposition, order by windows or scan to and fro keeps all."""
    return {(grid.rows - 1, 0), (0, grid.cols - 1), (min(1, grid.rows - 1), 0)}


def _tokens(
    follower: Follower, anatomy: Anatomy, place: Place | None, last: TokenSite | None = None
) -> Tokens:
    found: Tokens = {}

    def read(site: TokenSite, tokens: Tensor) -> None:
        found[site] = tokens.clone()
        if site is last:
            raise StopForward

    reading = observe(follower.raw.module, anatomy.attn_in, read)
    if place is None:
        with reading, torch.no_grad():
            follower.raw.forward(sample(follower.raw.module, follower.raw.image_size))
    else:
        follower.watch(place.name, place.row, place.axis or -1, reading)
    return found
