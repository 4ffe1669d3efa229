"""How a model is wired: who attends to whom, how grids merge, how a positional signal is reached.

A family declares these once. Signals are scaled by `SwapTensors` or `EditOutput`, and moved along
with permuted tokens by `CarryTensors` or `CarryOutput`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import torch

AttentionKind = Literal["global", "window", "shifted"]


@dataclass(frozen=True)
class AttentionSite:
    """The attention of one layer.

    `module` is a dotted name; its first input holds the tokens that are compared: (B, prefix + N,
    C), or, with a `window` (rows, cols) in tokens, (B * windows, rows * cols, C), row-major over
    windows and inside them. `shift` (rows, cols) is how far the grid is rolled before it is cut.
    `mask` names the module's argument that takes an additive mask, None where there is none.
    """

    layer: int
    module: str
    window: tuple[int, int] | None = None
    shift: tuple[int, int] = (0, 0)
    mask: str | None = None

    @property
    def kind(self) -> AttentionKind:
        """Whether all tokens are compared, those of a window, or those of a shifted window."""
        if self.window is None:
            return "global"
        return "shifted" if any(self.shift) else "window"


@dataclass(frozen=True)
class Merge:
    """Before layer `before` tokens join: new (r, c) is made of `rows` x `cols` old ones.

    Their block begins at (rows * r, cols * c); what lies beyond the old grid is padding. A
    convolution wider than its stride also takes in the `overlap` tokens in front of that block,
    along both axes.
    """

    before: int
    rows: int
    cols: int
    overlap: int = 0


@dataclass(frozen=True)
class Arrangement:
    """How a module holds the tokens of a grid where it does so in none of the layouts.

    `split(output)` gives (B, prefix + N, C), row-major; `join(tokens, output)` puts such tokens
    back into the form of `output`, and is None where tokens are only read.
    """

    split: Callable[[torch.Tensor], torch.Tensor]
    join: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] | None = None


@dataclass(frozen=True)
class SwapTensors:
    """Scale a signal by putting other tensors in place of named parameters or buffers.

    `tensors(model, alpha)` returns {dotted name: replacement}; replacements have the shape, dtype
    and device of what they replace. `caches` are dotted names of dicts in which the model keeps
    what it has made of these tensors; they are empty while others are in place.
    """

    tensors: Callable[[torch.nn.Module, float], Mapping[str, torch.Tensor]]
    caches: tuple[str, ...] = ()


@dataclass(frozen=True)
class EditOutput:
    """Scale a signal by editing the output of the module named by the position site."""

    edit: Callable[[torch.Tensor, float], torch.Tensor]


@dataclass(frozen=True)
class CarryTensors:
    """Move a signal with its tokens by putting other tensors in place of named ones.

    `tensors(model, order)` returns {dotted name: replacement}, under which token i has the position
    that token order[i] had. `order` is int64, over the patch tokens of the grid, or over the slots
    of a window.
    """

    tensors: Callable[[torch.nn.Module, torch.Tensor], Mapping[str, torch.Tensor]]


@dataclass(frozen=True)
class CarryOutput:
    """Move a signal with its tokens by editing the output of `module`, which makes it."""

    module: str
    edit: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
