"""timm's staged trunks, most of them part convolution, part attention: one reading for all.

Layers are the blocks that mix tokens by something else than a convolution (attention, pooling,
a state space, a recurrence); what convolutions do between them counts as merging. Grids are those
of a run on shapes alone.
"""

from __future__ import annotations

from typing import Any

from timm.models.mobilevit import MobileVitBlock, MobileVitV2Block
from torch import nn

from probe.errors import AnatomyError
from probe.families.base import Family
from probe.families.dry_run import Seen, dry_run
from probe.families.timm_head import predict
from probe.families.timm_layers import stem_site
from probe.families.timm_mixers import UNFOLDED, Mixer, mixer_of
from probe.families.timm_signals import (
    added_tables,
    convolutions,
    fourier_codes,
    index_mixers,
    relative_biases,
    rotations,
)
from probe.families.timm_trunks import Trunk, trunk_of
from probe.hooks import submodule
from probe.types import Anatomy, Grid, Layout, PatchSite, TokenSite


def _mixers(module: nn.Module, inside: str) -> dict[str, Mixer]:
    """The layers of a trunk: dotted names of blocks, and how each mixes its tokens."""
    found: dict[str, Mixer] = {}
    for name, part in module.named_modules():
        mixer = mixer_of(part)
        if mixer is not None and inside in name:
            found.setdefault(name, mixer)
        if isinstance(part, MobileVitBlock | MobileVitV2Block):
            found |= {f"{name}.transformer.{i}": UNFOLDED for i in range(len(part.transformer))}
    return found


def _claims(module: nn.Module) -> bool:
    trunk = trunk_of(module)
    return trunk is not None and bool(_mixers(module, trunk.inside))


def _anatomy(module: nn.Module, image_size: tuple[int, int]) -> Anatomy:
    trunk = trunk_of(module)
    mixers = {} if trunk is None else _mixers(module, trunk.inside)
    if trunk is None or not mixers:
        raise AnatomyError(
            f"this family reads trunks with blocks that it knows, and the model is a "
            f"{type(module).__name__} without; leave the family out"
        )
    unread = trunk.unread(module)
    if unread is not None:
        raise AnatomyError(f"the model cannot be read: {unread}")
    prefix = int(getattr(module, "num_prefix_tokens", trunk.prefix))
    feeds = {name: f"{name}.{mixer.feed}".rstrip(".") for name, mixer in mixers.items()}
    owners = {name: name.rpartition(".transformer.")[0] for name in mixers}
    parts = dict.fromkeys([trunk.stem, *mixers, *feeds.values(), *filter(None, owners.values())])
    seen = dry_run(module, image_size, parts, trunk.element)
    patches = _patches(module, trunk, seen[trunk.stem], image_size)
    grid = patches.grid
    attn_in: list[TokenSite] = []
    block_out: list[TokenSite] = []
    for name in (name for name in seen if name in mixers):
        mixer, ran, fed, unlike = mixers[name], seen[name], seen[feeds[name]], None
        if mixer.arrange is None:
            shape = fed.taken if mixer.side == "input" else fed.given
            layout, grid = _placed(name, shape, mixer.layout, prefix, grid)
            arranged = None
        else:
            owner = owners[name] or name
            grid = _placed(owner, seen[owner].taken, mixer.out, prefix, grid)[1]
            arranged, layout = mixer.arrange(module.get_submodule(owner), grid), "NLC"
            unlike = arranged if owners[name] else None
        layer = len(attn_in)
        attn_in.append(
            TokenSite(layer, "attn_in", fed.name, grid, prefix, layout, mixer.side, arranged)
        )
        if unlike is None:
            layout, grid = _placed(name, ran.given, mixer.out, prefix, grid)
        block_out.append(
            TokenSite(
                layer, "block_out", name, grid, prefix, layout, "output", unlike, trunk.element
            )
        )
    signals = [*added_tables(module, prefix, patches.grid, trunk.maps), *fourier_codes(module)]
    signals += [*rotations(module), *relative_biases(module), *index_mixers(module)]
    for part in trunk.parts:
        signals.extend(convolutions(module, part))
    return Anatomy(
        image_size=image_size,
        patches=patches,
        attn_in=tuple(attn_in),
        block_out=tuple(block_out),
        positions=tuple(signals),
    )


def _patches(module: nn.Module, trunk: Trunk, ran: Seen, image_size: tuple[int, int]) -> PatchSite:
    stem = submodule(module, trunk.stem)
    if len(ran.given) == 4:
        layout, grid = _placed(trunk.stem, ran.given, trunk.layout, 0, Grid(1, 1))
    else:
        layout, grid = "NLC", _flattened(module, trunk.stem, stem, image_size)
    arranged = None if trunk.arrange is None else trunk.arrange(grid)
    return PatchSite(trunk.stem, grid, 0, layout, arranged, trunk.refusal)


def _flattened(module: nn.Module, name: str, stem: Any, image_size: tuple[int, int]) -> Grid:
    """The grid of a stem that gives a sequence."""
    if hasattr(stem, "grid_size"):
        return Grid(*stem.grid_size)
    if not isinstance(stem, nn.Linear):
        return stem_site(module, name, getattr(stem, "img_size", image_size), "NLC").grid
    owner: Any = submodule(module, name.rpartition(".")[0])
    rows, cols = owner.patch_size
    return Grid(image_size[0] // rows, image_size[1] // cols)


def _placed(
    name: str, shape: tuple[int, ...], layout: Layout, prefix: int, near: Grid
) -> tuple[Layout, Grid]:
    """Layout and grid of a tensor; a sequence lies on `near`, or on what halving it leaves.

    Sides are halved as often as it takes, rounded up.

    Raises:
        AnatomyError: if no such grid has as many tokens.
    """
    if len(shape) == 4:
        return layout, Grid(*(shape[1:3] if layout == "NHWC" else shape[2:]))
    grid = near
    while len(shape) == 3 and prefix + grid.tokens >= shape[1]:
        if shape[1] == prefix + grid.tokens:
            return "NLC", grid
        if grid.tokens == 1:
            break
        grid = Grid(-(-grid.rows // 2), -(-grid.cols // 2))
    raise AnatomyError(
        f"'{name}' works on a tensor of shape {shape}, which is no grid after one of "
        f"{near.rows} x {near.cols} tokens"
    )


FAMILY = Family("timm_generic", "timm", _claims, _anatomy, predict)
