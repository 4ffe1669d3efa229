"""Whether two places of a forward pass see the same values, in whatever order and padding."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn

from probe.families.base import RawModel
from probe.families.trace import sample
from probe.hooks import submodule

Moments = tuple[float, float, float]


class Watched:
    """Sums over what modules take and give in one pass: of x, of its size, of its cube.

    Windows, rolls, transpositions and padding with zeros leave them as they are; norms of equal
    mean and spread still differ in the others.
    """

    def __init__(self, raw: RawModel, names: Iterable[str]) -> None:
        """Run the model once; the module is left as it was, also on an exception."""
        self.takes: dict[str, Moments] = {}
        self.gives: dict[str, Moments] = {}
        with ExitStack() as stack:
            for name in dict.fromkeys(names):
                part = submodule(raw.module, name)
                before = part.register_forward_pre_hook(self._enter(name), with_kwargs=True)
                stack.callback(before.remove)
                stack.callback(part.register_forward_hook(self._leave(name)).remove)
            with torch.no_grad():
                raw.forward(sample(raw.module, raw.image_size))

    def _enter(self, name: str) -> Callable[..., None]:
        def hook(_module: nn.Module, args: Any, kwargs: Any) -> None:
            _keep(self.takes, name, args[0] if args else next(iter(kwargs.values()), None))

        return hook

    def _leave(self, name: str) -> Callable[..., None]:
        def hook(_module: nn.Module, _args: Any, output: Any) -> None:
            _keep(self.gives, name, output)

        return hook


def alike(one: Moments | None, other: Moments | None) -> bool:
    """Whether both are known and equal, up to the order in which they were summed."""
    if one is None or other is None:
        return False
    most = 1e-6 * max(one[1], one[2], 1e-30)
    return all(abs(a - b) <= most for a, b in zip(one, other, strict=True))


def _keep(found: dict[str, Moments], name: str, value: Any) -> None:
    head = value[0] if isinstance(value, tuple | list) and value else value
    if isinstance(head, Tensor) and head.is_floating_point():
        x = head.double()
        found.setdefault(name, (float(x.sum()), float(x.abs().sum()), float((x**3).sum())))
