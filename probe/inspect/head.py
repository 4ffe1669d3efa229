"""What an entry says of the head: the logits, and the last tokens that they are made of."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from probe.families.trace import Trace, tensors
from probe.inspect.follow import Follower
from probe.inspect.layers import Layer
from probe.inspect.rows import is_norm
from probe.inspect.tokens import layout_of


def find_head(seen: Trace) -> str | None:
    """How an entry states the head: a matrix that is called logits, or that a last layer gives."""
    output = seen.output
    if isinstance(output, Mapping):
        logits = output.get("logits")
        return "logits" if isinstance(logits, Tensor) and logits.ndim == 2 else None
    if not isinstance(output, Tensor) or output.ndim != 2:
        return None
    marks = {step.mark for name, step in seen.steps.items() if name and step.kind == "Linear"}
    return "tensor" if seen.steps[""].mark in marks else None


def find_features(follower: Follower, seen: Trace, last: Layer) -> dict[str, Any] | None:
    """The last norm that gives all tokens, else the last block, if either decides the output.

    The class token is the one prefix token that the output depends on where it depends on no
    patch token. None where that leaves the choice open.
    """
    start = seen.steps[last.block].end
    after = [s for s in seen.steps.values() if s.start > start and s.name and s.calls == 1]
    held = last.grid, last.prefix
    norms = [s for s in after if is_norm(follower.parts[s.name]) and layout_of(s.gives, *held)]
    step = norms[-1] if norms else seen.steps[last.block]
    layout = layout_of(step.gives, *held, last.block_layout)
    if layout is None:
        return None
    axis = 1 if layout == "NCHW" else -1
    rows = range(last.prefix + 1)  # the prefix tokens and the first patch token
    before = [t.clone() for t in tensors(seen.output)]

    def matters(row: int) -> bool:
        follower.watch(step.name, row, axis, nullcontext())
        return not all(map(torch.equal, tensors(follower.output), before))

    found = [row for row in rows if matters(row)]
    stated = {"module": step.name, "layout": layout}
    if found == [last.prefix]:
        return stated
    return stated | {"class_index": found[0]} if len(found) == 1 else None
