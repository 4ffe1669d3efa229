"""An inline anatomy on a loaded module: checked against one traced pass, then as a family's.

Every fault is told with what the model really has there.
"""

from __future__ import annotations

import difflib
import hashlib
import json
from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import torch
from pydantic import ValidationError
from torch import Tensor, nn

from probe.errors import AnatomyError, UsageError, is_out_of_memory
from probe.families.base import Family, RawModel
from probe.families.declared_positions import declared_positions
from probe.families.trace import BATCH, Shape, Trace, shown, trace
from probe.hooks import split_tokens
from probe.inline import InlineAnatomy, InlineBlocks, matching
from probe.plugins import first_line
from probe.types import (
    Anatomy,
    FeatureSite,
    Grid,
    Layout,
    ModelSpec,
    PatchSite,
    Point,
    Side,
    TokenSite,
)


def inline_anatomy(spec: ModelSpec) -> InlineAnatomy | None:
    """The anatomy that a spec states itself, None where its family has to know it.

    Raises:
        UsageError: if it is no inline anatomy.
    """
    if spec.anatomy is None:
        return None
    try:
        return InlineAnatomy.model_validate(dict(spec.anatomy))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise UsageError(f"{spec.name}: anatomy: '{where}': {first['msg']}") from error


def stated_size(
    inline: InlineAnatomy, image_size: tuple[int, int] | None, name: str
) -> tuple[int, int]:
    """The image size (height, width) of an inline anatomy, which holds at no other.

    Raises:
        UsageError: if another one is asked for.
    """
    height, width = inline.image_size
    if image_size not in (None, (height, width)):
        raise UsageError(
            f"{name} states its anatomy at {height} x {width} px, so it cannot run at "
            f"{image_size[0]} x {image_size[1]}; leave --image-size out, or add an entry for it"
        )
    return height, width


def declare(raw: RawModel, inline: InlineAnatomy, name: str) -> tuple[RawModel, Family]:
    """A family of one: the model as its inline anatomy states it.

    The raw model comes back with the anatomy in its configuration, so that numbers of two
    anatomies never mix, and with the classes of the head that is stated.

    Raises:
        AnatomyError: if the model does not run at that size, or is not as stated; it says what the
            model has instead.
    """
    seen = traced(raw, name)
    anatomy = _anatomy(raw, inline, seen, name)
    predict = _predict(inline.head)
    classes = None if predict is None else _classes(predict, seen, inline.head, name)
    stated = json.dumps([raw.identity.configuration, inline.model_dump()], sort_keys=True)
    configuration = f"sha256:{hashlib.sha256(stated.encode()).hexdigest()}"
    raw = replace(raw, identity=replace(raw.identity, configuration=configuration), classes=classes)
    return raw, Family(
        "inline", raw.library, lambda _m: True, lambda _m, _size: anatomy, lambda _m: predict
    )


def traced(raw: RawModel, name: str) -> Trace:
    """One traced pass of a network that is not known yet.

    Raises:
        AnatomyError: if its own code fails.
    """
    try:
        return trace(raw.module, raw.forward, raw.image_size)
    except Exception as error:  # the network's own code may fail in any way
        if is_out_of_memory(error):
            raise
        height, width = raw.image_size
        raise AnatomyError(
            f"{name}: forward failed at {height} x {width} px: {first_line(error)}; check "
            "the image size"
        ) from error


def _anatomy(raw: RawModel, inline: InlineAnatomy, seen: Trace, name: str) -> Anatomy:
    own = inline.patches
    at = f"{name}: anatomy.patches"
    _check_tokens(seen, own.module, own.grid, own.prefix, own.layout, at)
    patches = PatchSite(own.module, Grid(*own.grid), own.prefix, own.layout)
    attn_in: list[TokenSite] = []
    block_out: list[TokenSite] = []
    for number, blocks in enumerate(inline.blocks):
        at = f"{name}: anatomy.blocks[{number}]"
        for block in _blocks(raw.module, blocks, seen, at):
            layer = len(attn_in)
            attn_in.append(_site(seen, blocks, block, layer, "attn_in", at))
            block_out.append(_site(seen, blocks, block, layer, "block_out", at))
    _check_order(seen, own.module, attn_in, name)
    features = None
    if inline.features is not None:
        end, stated = block_out[-1], inline.features
        grid, at = [end.grid.rows, end.grid.cols], f"{name}: anatomy.features"
        _check_tokens(seen, stated.module, grid, end.prefix, stated.layout, at)
        if stated.class_index is not None and stated.class_index >= end.prefix:
            raise AnatomyError(
                f"{at}: class_index {stated.class_index} is none of the {end.prefix} prefix tokens"
            )
        features = FeatureSite(
            stated.module, end.grid, end.prefix, stated.layout, stated.class_index
        )
    return Anatomy(
        image_size=raw.image_size,
        patches=patches,
        attn_in=tuple(attn_in),
        block_out=tuple(block_out),
        positions=declared_positions(raw, inline, seen, name),
        features=features,
    )


def _blocks(module: nn.Module, blocks: InlineBlocks, seen: Trace, at: str) -> list[str]:
    found = matching(blocks.pattern, (name for name, _ in module.named_modules()))
    if not found:
        raise AnatomyError(
            f"{at}: the pattern '{blocks.pattern}' fits no module. "
            f"{nearest(blocks.pattern.replace('*', '0'), seen, seen.steps)}"
        )
    return found


def _site(
    seen: Trace, blocks: InlineBlocks, block: str, layer: int, point: Point, at: str
) -> TokenSite:
    inner = blocks.attn_in if point == "attn_in" else blocks.block_out
    side: Side = blocks.side if point == "attn_in" else "output"
    layout = blocks.layout if point == "attn_in" else blocks.block_layout or blocks.layout
    grid = blocks.grid if point == "attn_in" else blocks.block_grid or blocks.grid
    where = f"{block}.{inner}" if inner else block
    _check_tokens(seen, where, grid, blocks.prefix, layout, f"{at}.{point}", side, block)
    return TokenSite(layer, point, where, Grid(*grid), blocks.prefix, layout, side)


def _check_tokens(
    seen: Trace,
    where: str,
    grid: list[int],
    prefix: int,
    layout: Layout,
    at: str,
    side: Side = "output",
    inside: str = "",
) -> None:
    """Refuse a module that did not run once, or that saw other tokens than stated."""
    step = seen.steps.get(where)
    height, width = seen.image_size
    if step is None:
        among = [name for name in seen.steps if name.startswith(f"{inside}.") or not inside]
        raise AnatomyError(
            f"{at}: no module '{where}' ran in a forward pass at {height} x {width} px. "
            f"{nearest(where, seen, among)}"
        )
    if step.calls > 1:
        raise AnatomyError(
            f"{at}: '{where}' ran {step.calls} times in one forward pass, so which of them is "
            "meant is not clear; name a module that runs once"
        )
    shape = step.gives if side == "output" else step.takes
    verb = "gives" if side == "output" else "takes"
    if fits(shape, Grid(*grid), prefix, layout):
        return
    if shape and shape[0] != BATCH:
        raise AnatomyError(
            f"{at}: '{where}' {verb} {shown(shape)}, {shape[0]} rows for {BATCH} images: windows "
            "or units come first there, not images; name a module outside of them"
        )
    raise AnatomyError(
        f"{at}: '{where}' {verb} {shown(shape)}, but {layout} with grid {list(grid)} and prefix "
        f"{prefix} is stated. {_instead(shape, Grid(*grid), prefix)}"
    )


def fits(shape: Shape | None, grid: Grid, prefix: int, layout: Layout) -> bool:
    """Whether a tensor of that shape, from a traced pass, holds exactly those tokens per image."""
    if not shape or shape[0] != BATCH:
        return False
    try:
        split_tokens(torch.empty(shape, device="meta"), grid, prefix, layout, "")
    except AnatomyError:
        return False
    return True


def _instead(shape: Shape | None, grid: Grid, prefix: int) -> str:
    """What the shape could be, as a hint."""
    if shape is None:
        return "Name a module that gives a tensor, or a tuple that begins with one"
    layouts: tuple[Layout, ...] = ("NLC", "NHWC", "NCHW")
    other = [layout for layout in layouts if fits(shape, grid, prefix, layout)]
    if other:
        return f"As layout {other[0]} it fits"
    if len(shape) == 3 and shape[1] >= grid.tokens:
        return f"prefix {shape[1] - grid.tokens} would fit that grid"
    if len(shape) == 3:
        return f"That is NLC with {shape[1]} tokens, prefix tokens included"
    if len(shape) == 4:
        return (
            f"That is NCHW with grid [{shape[2]}, {shape[3]}], or NHWC with grid "
            f"[{shape[1]}, {shape[2]}]"
        )
    return "Tokens are (B, L, C), (B, H, W, C) or (B, C, H, W)"


def nearest(name: str, seen: Trace, among: Iterable[str], count: int = 3) -> str:
    """The names nearest to `name` of modules that ran, with what they give."""
    known = [other for other in among if other]
    near = difflib.get_close_matches(name, known, n=count, cutoff=0.0)
    listed = [
        f"{other} ({seen.steps[other].kind}) gives {shown(seen.steps[other].gives)}"
        for other in near
    ]
    return f"Nearest: {'; '.join(listed)}" if listed else "Nothing ran inside it"


def _check_order(seen: Trace, patches: str, attn_in: list[TokenSite], name: str) -> None:
    """Layers count in order of execution, after the patch projection."""
    for before, after in pairwise(attn_in):
        if seen.steps[before.module].start >= seen.steps[after.module].start:
            raise AnatomyError(
                f"{name}: anatomy.blocks: '{after.module}' runs before '{before.module}'; list the "
                "blocks in order of execution"
            )
    if seen.steps[patches].end > seen.steps[attn_in[0].module].end:
        raise AnatomyError(
            f"{name}: anatomy.patches: '{patches}' runs after '{attn_in[0].module}', so it is not "
            "the patch projection"
        )


def _predict(head: str) -> Callable[[Any], Tensor] | None:
    if head == "none":
        return None
    if head == "tensor":
        return lambda output: output
    return lambda output: output[head] if isinstance(output, dict) else getattr(output, head)


def _classes(predict: Callable[[Any], Tensor], seen: Trace, head: str, name: str) -> int:
    at = f"{name}: anatomy.head"
    try:
        logits = predict(seen.output)
    except (AttributeError, KeyError):
        fields = list(seen.output) if isinstance(seen.output, dict) else []
        raise AnatomyError(
            f"{at}: the model gives a {type(seen.output).__name__} without '{head}'"
            + (f"; it has {', '.join(map(str, fields))}" if fields else "")
            + "; state `tensor`, a field, or leave head out"
        ) from None
    if not isinstance(logits, Tensor) or logits.ndim != 2 or len(logits) != BATCH:
        what = shown(tuple(logits.shape)) if isinstance(logits, Tensor) else type(logits).__name__
        raise AnatomyError(f"{at}: '{head}' is {what}, not logits (B, classes); leave head out")
    return logits.shape[1]
