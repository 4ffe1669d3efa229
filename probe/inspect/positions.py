"""The positional signals of an entry: by name and shape, or by being the same for every image."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from math import isqrt
from typing import Any

import torch
from torch import Tensor, nn

from probe.errors import AnatomyError
from probe.families.base import RawModel
from probe.families.declared_positions import declared_positions
from probe.families.timm_rotary import rotary_angles
from probe.families.trace import Trace, sample, shown, trace
from probe.hooks import edit_output
from probe.inline import InlineAnatomy
from probe.types import Grid

# What both libraries call tables of offsets, and embeddings of places.
_BIAS = re.compile(r"relative_position_bias_table$|\.rel_pos_[hw]$|attention_biases$|rel_bias$")
_PLACES = re.compile(r"pos(ition)?(al)?_(emb|enc)", re.IGNORECASE)
_POSITION = re.compile(r"pos(_|ition|$)", re.IGNORECASE)
_ROTATES = re.compile(r"rotary|rope", re.IGNORECASE)


def find_positions(
    raw: RawModel, anatomy: dict[str, Any], seen: Trace, mixers: Iterable[str]
) -> tuple[list[dict[str, Any]], list[str]]:
    """The signals that have an effect in the pass, and a line on each that could not be decided.

    Args:
        raw: the model.
        anatomy: an entry's, without positions.
        seen: a pass of it.
        mixers: the modules that mix tokens; what is the same for every image in these is a bias.
    """
    kept: list[dict[str, Any]] = []
    missing: list[str] = []
    prefix = anatomy["blocks"][0].get("prefix", 0)
    stated = [
        *_tables(raw.module, Grid(*anatomy["patches"]["grid"]), prefix, _width(seen, anatomy)),
        *_folded(name for name, _ in raw.module.named_parameters() if _BIAS.search(name)),
        *_rotations(raw.module, missing),
    ]
    stated += _computed(raw, seen, tuple(mixers), stated, missing)
    for position in stated:
        inline = InlineAnatomy.model_validate(anatomy | {"positions": [position]})
        try:
            declared_positions(raw, inline, seen, "model")
        except AnatomyError as error:
            if position["kind"] == "absolute" and not _POSITION.search(position["where"]):
                continue  # of that shape by chance
            missing.append(f"a {position['kind']} signal in {str(error).partition(': ')[2]}")
        else:
            kept.append(position)
    told = " ".join([*missing, *(position["where"] for position in stated)])
    for name, table in raw.module.named_parameters():
        if _PLACES.search(name) and _is_table(raw.module, name) and name not in told:
            missing.append(f"how '{name}' {shown(tuple(table.shape))} holds positions of the grid")
    if not stated and not missing:
        missing.append("a positional signal")
    return kept, missing


def _is_table(module: nn.Module, name: str) -> bool:
    owner = module.get_submodule(name.rpartition(".")[0])
    kind = type(owner).__name__.lower()
    return not isinstance(owner, nn.Linear | nn.Conv2d) and "norm" not in kind


def _width(seen: Trace, anatomy: dict[str, Any]) -> int:
    """The channels of the patch tokens."""
    shape = seen.steps[anatomy["patches"]["module"]].gives
    assert shape is not None
    return shape[1] if anatomy["patches"]["layout"] == "NCHW" else shape[-1]


def _tables(module: nn.Module, grid: Grid, prefix: int, width: int) -> Iterator[dict[str, Any]]:
    """Added tables by shape: a row per token, or the grid as two axes; by name of another grid."""
    buffers = dict(module.named_buffers())
    for name, tensor in (dict(module.named_parameters()) | buffers).items():
        if _BIAS.search(name) or not tensor.is_floating_point() or not _is_table(module, name):
            continue
        kind = "sinusoidal" if name in buffers else "absolute"
        rows = _rows(tensor, grid, prefix) if width in tensor.shape else None
        # A table of zeros acts on nothing, and a square one may be any weight: by name alone, then.
        square = tensor.ndim > 1 and tensor.shape[-1] == tensor.shape[-2]
        vouched = not square and bool(tensor.any())
        if rows is not None and (vouched or _POSITION.search(name)):
            yield {"kind": kind, "where": name} | ({"prefix": rows} if rows else {})
        elif rows is None and _PLACES.search(name):
            own = _other_grid(tuple(tensor.shape), prefix)
            if own is not None:
                item = {"kind": kind, "where": name} | ({"prefix": own[1]} if own[1] else {})
                yield item | {"grid": list(own[0])}


def _rows(tensor: Tensor, grid: Grid, prefix: int) -> int | None:
    """How many rows of a table are of prefix tokens, None if it is no table of the grid."""
    shape = tuple(tensor.shape)
    sides = [grid.rows, grid.cols]
    if len(shape) == 4 and shape[0] == 1 and sides in (list(shape[1:3]), list(shape[2:])):
        return 0
    if len(shape) == 3 and shape[0] == 1:
        shape = shape[1:]
    more = shape[0] - grid.tokens if len(shape) == 2 else -1
    return more if 0 <= more <= prefix else None


def _other_grid(shape: tuple[int, ...], prefix: int) -> tuple[tuple[int, int], int] | None:
    """The grid that a table was made for and its prefix rows: a map as it is, else a square."""
    if len(shape) == 4 and shape[0] == 1:
        return ((shape[1], shape[2]) if shape[3] == max(shape) else (shape[2], shape[3])), 0
    if len(shape) == 3 and shape[0] == 1:
        shape = shape[1:]
    if len(shape) != 2:
        return None
    sides = {more: isqrt(max(shape[0] - more, 0)) for more in range(prefix + 1)}
    squares = [(side, m) for m, side in sides.items() if side > 1 and side**2 == shape[0] - m]
    return ((squares[0][0], squares[0][0]), squares[0][1]) if len(squares) == 1 else None


def _folded(names: Iterable[str]) -> Iterator[dict[str, Any]]:
    """Names that differ in numbers alone as one item, with `*` for these."""
    for pattern in dict.fromkeys(map(_numberless, names)):
        yield {"kind": "relative_bias", "where": pattern}


def _rotations(module: nn.Module, missing: list[str]) -> Iterator[dict[str, Any]]:
    frequencies = [n for n, _ in module.named_buffers() if n.rpartition(".")[2] == "inv_freq"]
    owners = [name.rpartition(".")[0] for name in frequencies]
    for name, part in module.named_modules():
        if not name or not _ROTATES.search(type(part).__name__) or name in owners:
            continue
        try:
            rotary_angles(module, name)
        except AnatomyError as error:
            inner = any(one.startswith(f"{name}.") for one in owners)
            attends = re.search("attn|attention|block", type(part).__name__, re.IGNORECASE)
            if not inner and attends is None:
                missing.append(f"how to scale '{name}': {error}")
        else:
            yield {"kind": "rotary", "where": name}
    for name in frequencies:
        yield {"kind": "rotary", "where": name}


def _computed(
    raw: RawModel,
    seen: Trace,
    mixers: tuple[str, ...],
    stated: list[dict[str, Any]],
    missing: list[str],
) -> Iterator[dict[str, Any]]:
    """Modules that give the same for every image.

    In a mixer, what is made of pairs of offsets is a bias; elsewhere it is unclear how it is used.
    """
    other = trace(raw.module, lambda x: raw.forward(x.flip(-1) * 0.5), raw.image_size)
    fixed = [n for n, s in seen.steps.items() if n and s.mark and s.mark == other.steps[n].mark]
    known = {position["where"] for position in stated}
    after: set[str] = set()  # what is made of a signal that was found before
    folded: dict[tuple[str, bool], None] = {}
    for name in fixed:
        held = (f"{name}.{n}" for n, _ in raw.module.get_submodule(name).named_parameters())
        covered = name in known or any(_numberless(one) in known for one in held)
        covered |= any(where.startswith(f"{name}.") for where in known)
        inner = any(name.startswith(f"{outer}.") for outer in fixed)
        if covered or inner or name in after:
            continue
        reached = _reached(raw, seen, name)
        after |= reached & set(fixed)
        mixer = next((one for one in mixers if name.startswith(f"{one}.")), None)
        takes = seen.steps[name].takes
        if not reached:
            continue
        if mixer is not None and takes is not None and takes[-1] == 2:
            folded[_numberless(name), _bends(raw, name, mixer)] = None
        else:
            missing.append(f"how to scale '{name}', which gives the same for every image")
    for where, bent in folded:
        item = {"kind": "relative_bias", "where": where}
        yield item | ({"through": "sigmoid"} if bent else {})


def _numberless(name: str) -> str:
    return re.sub(r"\.\d+(?=\.)", ".*", name)


def _reached(raw: RawModel, seen: Trace, name: str) -> set[str]:
    """What gives something else if a module gives half, but for itself and what is around it."""
    with edit_output(raw.module, name, lambda value: value * 0.5):
        halved = trace(raw.module, raw.forward, raw.image_size)
    return {
        other
        for other, step in seen.steps.items()
        if step.mark != halved.steps[other].mark
        and not f"{name}.".startswith(f"{other}.")
        and not other.startswith(f"{name}.")
        and other
    }


def _bends(raw: RawModel, name: str, mixer: str) -> bool:
    """Whether a constant more changes a mixer: a softmax loses it, unless it was bent before."""

    def given(more: float) -> Tensor:
        found: list[Tensor] = []

        def keep(value: Tensor) -> Tensor:
            found.append(value.clone())
            return value

        # Of some spread, as an untrained one would be bent nowhere.
        with (
            edit_output(raw.module, name, lambda v: v * (2 / v.std().clamp_min(1e-12)) + more),
            edit_output(raw.module, mixer, keep),
            torch.no_grad(),
        ):
            raw.forward(sample(raw.module, raw.image_size))
        return found[0]

    before, after = given(0.0), given(3.0)
    return float((after - before).norm()) > 1e-4 * float(before.norm())
