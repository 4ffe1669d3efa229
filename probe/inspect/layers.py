"""The layers of an entry: what feeds each mixer, around which block, in which grid and layout."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from probe.families.trace import Step, Trace, shown
from probe.inline import matching
from probe.inspect.follow import Follower
from probe.inspect.mixers import Mixer, Place, beginning, next_mixer
from probe.inspect.moments import Watched, alike
from probe.inspect.rows import channels, is_dense, is_norm
from probe.inspect.tokens import Patches, as_pair, find_patches, grid_after, layout_of
from probe.types import Grid, Layout, Side


@dataclass(frozen=True)
class Layer:
    """One layer as an entry states it; `attn_in` is relative to the block."""

    block: str
    attn_in: str
    side: Side
    grid: Grid
    prefix: int
    layout: Layout
    block_grid: Grid
    block_layout: Layout

    def stated(self) -> dict[str, Any]:
        """An item of `blocks`, without its pattern."""
        item: dict[str, Any] = {"attn_in": self.attn_in}
        item |= {"side": self.side} if self.side == "input" else {}
        item |= {"grid": as_pair(self.grid)} | ({"prefix": self.prefix} if self.prefix else {})
        item["layout"] = self.layout
        if self.block_grid != self.grid:
            item["block_grid"] = as_pair(self.block_grid)
        if self.block_layout != self.layout:
            item["block_layout"] = self.block_layout
        return item


@dataclass
class Found:
    """Layers in order, the patches that they begin with, and what could not be decided."""

    patches: Patches | None = None
    layers: list[Layer] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    mixers: list[Mixer] = field(default_factory=list)


def find_layers(follower: Follower, seen: Trace, watched: Watched) -> Found:
    """Follow a change from the first leaf to the last mixer; each is a layer, or said."""
    found = Found()
    mixer = next_mixer(follower, beginning(follower))
    while mixer is not None:
        if any((one.name, one.first) == (mixer.name, mixer.first) for one in found.mixers):
            found.missing.append(f"which run of '{mixer.name}' is meant, as it runs again")
            break
        found.mixers.append(mixer)
        following = next_mixer(follower, mixer.after)
        read = _read(follower, seen, watched, mixer, following, found)
        mixer = following
        if isinstance(read, str):
            found.missing.append(read)
            continue
        found.layers.append(read)
        if mixer is None:  # the end, or what the mixer gives is multiplied by zero
            axis = 1 if read.block_layout == "NCHW" else -1
            place = Place(read.block, read.prefix + read.block_grid.tokens // 2, axis)
            mixer = next_mixer(follower, place)
    return found


def items(follower: Follower, layers: list[Layer]) -> list[dict[str, Any]]:
    """Items of `blocks`: one for consecutive layers that one pattern fits exactly."""
    names = list(follower.parts)
    found: list[dict[str, Any]] = []

    def key(layer: Layer) -> tuple[str, str]:
        return layer.block.rpartition(".")[0], repr(layer.stated())

    for _, group in groupby(layers, key=key):
        members = list(group)
        blocks = [layer.block for layer in members]
        parent = blocks[0].rpartition(".")[0]
        pattern = f"{parent}.*" if parent else "*"
        if len(blocks) > 1 and matching(pattern, names) == blocks:
            found.append({"pattern": pattern} | members[0].stated())
        else:
            found += [{"pattern": layer.block} | layer.stated() for layer in members]
    return found


def _read(
    follower: Follower,
    seen: Trace,
    watched: Watched,
    mixer: Mixer,
    following: Mixer | None,
    found: Found,
) -> Layer | str:
    """The layer of a mixer, or what is not clear about it."""
    others = {one.name for one in (*found.mixers, following) if one} - {mixer.name}
    fed = _fed(follower, seen, watched, mixer, others)
    own = seen.steps[mixer.name]
    if fed is None:
        return f"what feeds '{mixer.name}' ({own.kind}), which takes {shown(own.takes)}"
    block, source, side = fed
    taken = source.gives if side == "output" else source.takes
    like = found.layers[-1].layout if found.layers else None
    if is_norm(follower.parts[source.name]) and taken is not None and len(taken) == 4:
        like = "NCHW" if channels(follower.parts[source.name], taken) == 1 else "NHWC"
    if found.patches is None:
        start = find_patches(follower.raw, seen, taken, mixer.name, like)
        if start is None:
            return f"a patch projection with the grid of '{source.name}' {shown(taken)}"
        found.patches, grid, prefix = start
    elif found.layers:
        placed = grid_after(found.layers[-1].block_grid, taken, found.layers[-1].prefix, like)
        if placed is None:
            return f"the grid of '{source.name}' {shown(taken)}"
        grid, prefix = placed
    else:
        return f"the layers before '{block.name}'"
    left = grid_after(grid, block.gives, prefix, like)
    layout = layout_of(taken, grid, prefix, like)
    out = None if left is None else layout_of(block.gives, *left, like)
    if layout is None or out is None or left is None or left[1] != prefix:
        return f"the tokens of '{block.name}', which gives {shown(block.gives)}"
    inner = source.name.removeprefix(block.name).removeprefix(".")
    return Layer(block.name, inner, side, grid, prefix, layout, left[0], out)


def _fed(
    follower: Follower, seen: Trace, watched: Watched, mixer: Mixer, others: set[str]
) -> tuple[Step, Step, Side] | None:
    """(block, module, side) of what feeds a mixer: a norm's output, else what it takes itself."""
    own, first = seen.steps[mixer.name], seen.steps[mixer.first]
    inner = [n for n in seen.steps if _inside(n, own.name) and f"{mixer.last}.".startswith(f"{n}.")]
    projected = [
        step.start
        for name, step in seen.steps.items()
        if own.start < step.start < first.start and is_dense(follower.parts.get(name))
    ]
    owners = _around(mixer.name, seen, others)
    for around in owners:
        norms = [
            step
            for name, step in seen.steps.items()
            if _inside(name, around.name)
            and is_norm(follower.parts[name])
            and step.end < min(projected, default=first.start)
            and step.calls == 1
        ]
        for name in (own.name, *inner):
            for norm in reversed(norms):
                if alike(watched.gives.get(norm.name), watched.takes.get(name)):
                    return _block(norm, own, around, seen), norm, "output"
        # What mixes may be no module, as where attention is written out in the block itself.
        for norm in norms:
            if norm.name == mixer.last:
                return _block(norm, own, around, seen), norm, "output"
    # The outermost that takes the very tokens: attention itself may take windows of them.
    around = next((one for one in owners if one is not own), own)
    for name in (n for n in seen.steps if f"{own.name}.".startswith(f"{n}.")):
        inside = name == around.name or _inside(name, around.name)
        if inside and alike(watched.takes.get(name), watched.takes.get(own.name)):
            return around, seen.steps[name], "input"
    return None


def _block(norm: Step, own: Step, around: Step, seen: Trace) -> Step:
    """The innermost module around a norm and its mixer; the numbered one if it is the mixer."""
    parts = norm.name.split(".")
    names = [".".join(parts[:n]) for n in range(len(parts) - 1, 0, -1)]
    common = next(
        (n for n in names if n in seen.steps and (_inside(own.name, n) or n == own.name)), None
    )
    return around if common is None or common == own.name else seen.steps[common]


def _around(name: str, seen: Trace, others: set[str]) -> list[Step]:
    """The modules around, or itself, that have a number for a name and hold no other mixer.

    The nearest comes first. Without such a one, it is the nearest module around that ran.
    """
    parts = name.split(".")
    around = [".".join(parts[:end]) for end in range(len(parts), 0, -1)]
    ran = [owner for owner in around if owner in seen.steps]
    found = [
        seen.steps[owner]
        for owner in ran
        if owner.rpartition(".")[2].isdigit() and not any(_inside(o, owner) for o in others)
    ]
    return found or [seen.steps[owner] for owner in ran[1:2]]


def _inside(name: str, owner: str) -> bool:
    return name.startswith(f"{owner}.")
