"""Positional signals of an inline anatomy: found by name, shown to act before they count."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from torch import Tensor, nn

from probe.errors import AnatomyError
from probe.families.base import RawModel
from probe.families.positions import bounded_bias, scaled_output, scaled_table
from probe.families.timm_rotary import rotary_angles
from probe.families.trace import Trace, shown, trace
from probe.hooks import edit_output, swap_tensors
from probe.inline import InlineAnatomy, InlinePosition, matching
from probe.types import Grid, PositionSite
from probe.wiring import EditOutput, SwapTensors

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

# sin^2 + cos^2 of tables that were stored in half precision.
_CIRCLE_TOLERANCE = 0.02


def declared_positions(
    raw: RawModel, inline: InlineAnatomy, seen: Trace, name: str
) -> tuple[PositionSite, ...]:
    """Every signal that is stated, each one shown to change what the model gives.

    Raises:
        AnatomyError: if nothing has that name, a table does not fit its grid or holds sines for
            frequencies, or scaling it changes nothing.
    """
    sites: list[PositionSite] = []
    for number, stated in enumerate(inline.positions):
        at = f"{name}: anatomy.positions[{number}]"
        found = [_site(raw.module, stated, inline, where, at) for where in _names(raw, stated, at)]
        if stated.scaled:
            _check_effect(raw, found, seen, at)
        sites += found
    return tuple(sites)


def _names(raw: RawModel, stated: InlinePosition, at: str) -> list[str]:
    held = _tensors(raw.module)
    modules = [name for name, _ in raw.module.named_modules() if name]
    found = matching(stated.where, held) or matching(stated.where, modules)
    if found:
        return found
    near = difflib.get_close_matches(stated.where, [*held, *modules], n=3, cutoff=0.3)
    listed = [f"{n} {shown(tuple(held[n].shape))}" if n in held else n for n in near]
    raise AnatomyError(
        f"{at}: the model has no tensor or module '{stated.where}'. Nearest: "
        f"{'; '.join(listed) or 'none'}"
    )


def _site(
    module: nn.Module, stated: InlinePosition, inline: InlineAnatomy, where: str, at: str
) -> PositionSite:
    table = _tensors(module).get(where)
    grid = Grid(*(stated.grid or inline.patches.grid))
    added = stated.kind in ("absolute", "sinusoidal")
    if added:
        if table is None:
            raise AnatomyError(
                f"{at}: '{where}' is a module; an added table is a parameter or a buffer, such as "
                f"{where}.weight"
            )
        _check_table(table, grid, stated.prefix, where, at)
    rescale: SwapTensors | EditOutput | None = None
    if stated.scaled:
        if table is not None:
            if stated.kind == "rotary":
                _check_angles(where, _tensors(module), at)
            rescale = SwapTensors(scaled_table(where).tensors, _caches(module, where))
        elif stated.kind == "rotary":
            rescale = rotary_angles(module, where)
        else:
            rescale = bounded_bias() if stated.through == "sigmoid" else scaled_output()
    return PositionSite(
        stated.kind,
        where,
        stated.prefix,
        rescale,
        max_alpha=1.0 if stated.through == "sigmoid" else 2.0,
        grid=grid if added else None,
        resampling="not stated" if added else "",
    )


def _caches(module: nn.Module, where: str) -> tuple[str, ...]:
    """Dicts beside a tensor in which its module keeps what it has made of it."""
    owner = where.rpartition(".")[0]
    held = vars(module.get_submodule(owner)).items()
    return tuple(
        f"{owner}.{key}" if owner else key
        for key, value in held
        if isinstance(value, dict) and key.endswith("cache")
    )


def _check_table(table: Tensor, grid: Grid, prefix: int, where: str, at: str) -> None:
    """An added table has one row per token, or the grid as two axes; its channels are free."""
    sides = [side for side in table.shape if side != 1]
    rows = prefix + grid.tokens
    two = [grid.rows, grid.cols]
    flat = len(sides) <= 2 and rows in table.shape
    if flat or (prefix == 0 and (sides[:2] == two or sides[-2:] == two)):
        return
    raise AnatomyError(
        f"{at}: '{where}' has shape {tuple(table.shape)}, which does not hold prefix {prefix} + "
        f"{grid.rows} x {grid.cols} = {rows} rows; state its prefix, or its grid"
    )


def _check_angles(where: str, held: Mapping[str, Tensor], at: str) -> None:
    """Refuse a table of sines or cosines: a rotation by alpha times the angle has other ones.

    Known by what it stands beside, not by its range: learned frequencies lie in [-1, 1] too.
    """
    for one, other in _pairs(where, held):
        both = one.double().square() + other.double().square()
        circle = bool(((both - 1).abs() < _CIRCLE_TOLERANCE).all())
        if circle and bool((one < 0).any() or (other < 0).any()):  # two frequencies may be 1, 0.01
            raise AnatomyError(
                f"{at}: '{where}' holds sines or cosines, and scaling them does not scale the "
                "angles; state the frequencies that the angles are made from, or add scaled: false"
            )


def _pairs(where: str, held: Mapping[str, Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
    """What may be sine and cosine: a table with another one, or its own parts."""
    table = held[where]
    for name, other in held.items():
        if name != where and other.numel() == table.numel() > 0:
            yield table.flatten(), other.flatten()
    for axis, size in enumerate(table.shape):
        if size and size % 2 == 0:
            first, second = table.chunk(2, axis)
            yield first, second
    if table.ndim and table.shape[-1] and table.shape[-1] % 2 == 0:
        yield table[..., ::2], table[..., 1::2]


def _check_effect(raw: RawModel, sites: list[PositionSite], seen: Trace, at: str) -> None:
    """Scaling must change the output: a table that is not read in the pass is no signal."""
    held = _tensors(raw.module)
    if all(site.where in held and not held[site.where].any() for site in sites):
        return  # untrained tables; alpha refuses them by name
    for site in sites:
        with _scaled(raw.module, site):
            after = trace(raw.module, raw.forward, seen.image_size)
        # Not the output alone: an untrained model may multiply a whole branch by zero.
        if not any(
            step.mark != seen.steps[name].mark
            for name, step in after.steps.items()
            if name != site.where
        ):
            raise AnatomyError(
                f"{at}: halving '{site.where}' changes nothing in a forward pass: it is not "
                "read there, or only a copy made of it is. State what is read, or add "
                "scaled: false"
            )


def _scaled(module: nn.Module, site: PositionSite) -> AbstractContextManager[None]:
    rule = site.rescale
    if isinstance(rule, EditOutput):
        return edit_output(module, site.where, lambda value: rule.edit(value, 0.5))
    assert rule is not None
    return swap_tensors(module, rule.tensors(module, 0.5), rule.caches)


def _tensors(module: nn.Module) -> dict[str, Tensor]:
    """Floating parameters and buffers by dotted name."""
    held = dict(module.named_parameters()) | dict(module.named_buffers())
    return {name: tensor for name, tensor in held.items() if tensor.is_floating_point()}
