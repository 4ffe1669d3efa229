"""The anatomy that a zoo entry states itself: what may stand there, and how names are matched.

Nothing here imports torch.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from probe.types import Layout, PositionKind, Side

_STRICT = ConfigDict(extra="forbid", strict=True)

Name = Annotated[str, Field(min_length=1)]
Count = Annotated[int, Field(ge=1, le=16384)]
Rows = Annotated[int, Field(ge=0, le=16384)]
Pair = Annotated[list[Count], Field(min_length=2, max_length=2)]


class InlinePatches(BaseModel):
    """The patch projection: the output of `module` holds the patch tokens, where RPI shuffles."""

    model_config = _STRICT
    module: Name
    grid: Pair
    prefix: Rows = 0
    layout: Layout


class InlineBlocks(BaseModel):
    """Blocks of one grid, in order of execution.

    `pattern` names them, `*` standing for one part of a dotted name. `attn_in` and `block_out` are
    names inside a block, "" the block itself; `side` says whether the output of `attn_in` is read
    or its input. `block_layout` and `block_grid` are those of `block_out`, where they are others.
    """

    model_config = _STRICT
    pattern: Name
    attn_in: str
    side: Side = "output"
    block_out: str = ""
    grid: Pair
    prefix: Rows = 0
    layout: Layout
    block_layout: Layout | None = None
    block_grid: Pair | None = None

    @model_validator(mode="after")
    def _readable(self) -> Self:
        if not self.attn_in and self.side == "output":
            raise ValueError(
                'attn_in "" is the block itself, and what it gives is no attention input; add '
                "side: input to read what it takes, or name the norm before its attention"
            )
        return self


class InlinePosition(BaseModel):
    """One positional signal, or one per module where `where` has a `*`.

    `where` names a parameter or buffer (a table, or frequencies that rotary angles are
    proportional to), or a module whose output is the bias. `prefix` counts the rows of an added
    table that belong to prefix tokens; `grid` is what the table was made for, where that is not
    the grid of the patches. `through: sigmoid` marks a bias that passes a sigmoid after the
    module. `scaled: false` declares a signal that alpha shall not reach.
    """

    model_config = _STRICT
    kind: PositionKind
    where: Name
    prefix: Rows = 0
    grid: Pair | None = None
    through: Literal["sigmoid"] | None = None
    scaled: bool = True

    @model_validator(mode="after")
    def _reachable(self) -> Self:
        if self.kind == "convolutional" and self.scaled:
            raise ValueError("alpha does not reach convolutions; add scaled: false")
        if self.through is not None and self.kind != "relative_bias":
            raise ValueError("through is for the kind relative_bias alone; leave it out")
        if self.kind not in ("absolute", "sinusoidal") and (self.prefix or self.grid is not None):
            raise ValueError("prefix and grid are for added tables; leave them out")
        return self


class InlineFeatures(BaseModel):
    """The last tokens before the head, for readouts; grid and prefix are those of the last block.

    `class_index` is the place of the class token among the prefix tokens, left out without one.
    """

    model_config = _STRICT
    module: Name
    layout: Layout
    class_index: Rows | None = None


class InlineAnatomy(BaseModel):
    """A whole inline anatomy, at one image size (height, width) in pixels.

    `head` says what the model gives: `none` (no logits), `tensor` (the logits themselves), or the
    name of the field that holds them.
    """

    model_config = _STRICT
    image_size: Pair
    patches: InlinePatches
    blocks: Annotated[list[InlineBlocks], Field(min_length=1)]
    positions: list[InlinePosition] = []
    features: InlineFeatures | None = None
    head: Name = "none"


def matching(pattern: str, names: Iterable[str]) -> list[str]:
    """Those of `names`, in their order, that fit `pattern`; `*` stands for one part of a name."""
    parts = ["[^.]+" if part == "*" else re.escape(part) for part in pattern.split(".")]
    fits = re.compile(r"\.".join(parts))
    return [name for name in names if fits.fullmatch(name)]
