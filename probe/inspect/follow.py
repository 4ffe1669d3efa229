"""Where a change of one token goes: the model runs again with one row changed somewhere.

Convolutions, strided pooling and norms pass a change on to one row alone here, so that what
spreads further is mixing of another kind.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor, nn

from probe.families.base import RawModel
from probe.families.trace import sample
from probe.hooks import StopForward, with_first
from probe.inspect.rows import (
    CONVOLUTIONS,
    POOLS,
    Marks,
    Shape,
    alone,
    changed,
    channels,
    confined,
    disturbed,
    is_leaf,
    is_norm,
    marks,
    usable,
)

Key = tuple[str, int]  # a module's name, and which of its calls


@dataclass(frozen=True)
class Change:
    """One call of a module that a change has reached, and the rows of its input and output.

    `leaf` is a module whose channels are on a known axis; `size` counts the rows of its input.
    """

    name: str
    leaf: bool
    takes: Shape
    gives: Shape
    size: int

    @property
    def spread(self) -> bool:
        """Whether it has reached more rows of a leaf than the token itself and a class token."""
        return self.leaf and max(len(self.takes), len(self.gives)) > 2


class Follower:
    """A model, and what every module of it saw in an undisturbed pass of `BATCH` images."""

    def __init__(self, raw: RawModel) -> None:
        """Run the model once."""
        self.raw = raw
        self.parts = {name: part for name, part in raw.module.named_modules() if name}
        self.start = ""  # the first convolution or linear layer to run
        self.middle = 0  # the row in the middle of what it gives of the first image
        self._takes: dict[Key, Marks] = {}
        self._gives: dict[Key, Marks] = {}
        self._taken: dict[Key, Shape] = {}
        self.output: Any = None  # of the last pass
        self.gates: dict[str, Tensor] = {}  # leaves behind a gate of channels, and what they take
        self._kept: dict[Key, Tensor] = {}  # what must not spread gives this, but for one row
        self._run(self._note_takes, self._note_gives)

    def rows(self, name: str) -> int:
        """How many rows a leaf gives."""
        return len(self._gives[name, 0][0])

    def follow(
        self, name: str, row: int, axis: int | None = None, times: float = 1
    ) -> list[Change]:
        """What changes with one row of what a module gives, in the order of the modules' start.

        The pass ends behind the leaf in which the change spreads. `axis` is that of the channels; a
        leaf has its own. The change is so many `times` the spread of values.
        """
        takes: dict[Key, Shape] = {}
        gives: dict[Key, Shape] = {}

        def before(key: Key, value: Tensor | None) -> Tensor | None:
            new = None if value is None else self._gated(key, value)
            value = value if new is None else new
            takes[key] = () if value is None else self._changed(self._takes, key, value)
            return new

        def after(key: Key, value: Tensor) -> Tensor | None:
            if key[0] == name:
                return self._disturbed(name, value, row, axis, times)
            new = self._confined(key, value, takes[key])
            gives[key] = self._changed(self._gives, key, value if new is None else new)
            if self._change(key, takes[key], gives[key]).spread:
                raise StopForward
            return new

        self._run(before, after)
        return [
            self._change(key, found, gives.get(key, ()))
            for key, found in takes.items()
            if found or gives.get(key)
        ]

    def taken(
        self, leaf: str, name: str, row: int, axis: int | None = None
    ) -> tuple[Tensor, Tensor]:
        """What a leaf takes: undisturbed, and with that row of what `name` gives far away."""
        seen: list[Tensor] = []

        def hook(_part: nn.Module, args: Any, kwargs: Any) -> None:
            value = usable(args[0] if args else next(iter(kwargs.values()), None))
            if value is not None:
                seen.append(value.clone())
            raise StopForward

        handle = self.parts[leaf].register_forward_pre_hook(hook, with_kwargs=True)
        try:
            self._run(lambda _key, _value: None, lambda _key, _value: None)
            self.follow(name, row, axis, times=1000)
        finally:
            handle.remove()
        return seen[0], seen[-1]  # the same twice if the far change spreads before

    def watch(self, name: str, row: int, axis: int, inside: AbstractContextManager[None]) -> None:
        """Run with one row of what a module gives changed, in a context that sees what becomes."""
        taken: dict[Key, Shape] = {}

        def before(key: Key, value: Tensor | None) -> Tensor | None:
            new = None if value is None else self._gated(key, value)
            value = value if new is None else new
            if key in self._kept and value is not None:
                taken[key] = self._changed(self._takes, key, value)
            return new

        def after(key: Key, value: Tensor) -> Tensor | None:
            if key[0] == name:
                return self._disturbed(name, value, row, axis, 1)
            return self._confined(key, value, taken.get(key, ()))

        self._run(before, after, inside)

    def _changed(self, clean: dict[Key, Marks], key: Key, value: Tensor) -> Shape:
        return changed(clean.get(key), marks(self.parts[key[0]], value))

    def _change(self, key: Key, takes: Shape, gives: Shape) -> Change:
        return Change(key[0], is_leaf(self.parts[key[0]]), takes, gives, self._size(key))

    def _gated(self, key: Key, value: Tensor) -> Tensor | None:
        if key[1] or key[0] not in self.gates:
            return None
        return alone(value, self.gates[key[0]], channels(self.parts[key[0]], tuple(value.shape)))

    def _confined(self, key: Key, value: Tensor, takes: Shape) -> Tensor | None:
        if len(takes) != 1 or key not in self._kept:
            return None
        axis = channels(self.parts[key[0]], tuple(value.shape))
        return confined(value, self._kept[key], axis, takes[0], self._taken[key])

    def _disturbed(
        self, name: str, value: Tensor, row: int, axis: int | None, times: float
    ) -> Tensor:
        own = channels(self.parts[name], tuple(value.shape)) if axis is None else axis
        return disturbed(value, own, row, times)

    def _size(self, key: Key) -> int:
        found = self._takes.get(key)
        return len(found[0]) if found else 0

    def _note_takes(self, key: Key, value: Tensor | None) -> None:
        part = self.parts[key[0]]
        if not self.start and isinstance(part, (*CONVOLUTIONS, nn.Linear)):
            self.start = key[0]
        if value is not None:
            self._takes[key], self._taken[key] = marks(part, value), tuple(value.shape)

    def _note_gives(self, key: Key, value: Tensor) -> None:
        part = self.parts[key[0]]
        self._gives[key] = marks(part, value)
        if key == (self.start, 0):
            inside = value.movedim(channels(part, tuple(value.shape)), -1).shape[1:-1]
            # A corner of what strided pooling cuts off, so that this does not pass it by.
            self.middle = sum(side // 2 * prod(inside[n + 1 :]) for n, side in enumerate(inside))
        spreads = is_norm(part) or (isinstance(part, CONVOLUTIONS) and set(part.kernel_size) != {1})
        # Of stride 1, pooling mixes tokens.
        shrinks = isinstance(part, POOLS) and self._size(key) > len(self._gives[key][0])
        if spreads or shrinks:
            self._kept[key] = value.clone()

    def _run(
        self,
        before: Callable[[Key, Tensor | None], Tensor | None],
        after: Callable[[Key, Tensor], Tensor | None],
        inside: AbstractContextManager[None] | None = None,
    ) -> None:
        """One pass, in which both may give another value. Nothing is left in the module."""
        calls: dict[str, int] = {}

        def enter(name: str) -> Callable[..., None]:
            def hook(_part: nn.Module, args: Any, kwargs: Any) -> Any:
                calls[name] = calls.get(name, -1) + 1
                value = args[0] if args else next(iter(kwargs.values()), None)
                new = before((name, calls[name]), usable(value))
                if new is None:
                    return None
                if args:
                    return (new, *args[1:]), kwargs
                return args, kwargs | {next(iter(kwargs)): new}

            return hook

        def leave(name: str) -> Callable[..., Any]:
            def hook(_part: nn.Module, _args: Any, output: Any) -> Any:
                value = usable(output)
                new = None if value is None else after((name, calls[name]), value)
                return None if new is None else with_first(output, new)

            return hook

        with ExitStack() as stack:
            for name, part in self.parts.items():
                handle = part.register_forward_pre_hook(enter(name), with_kwargs=True)
                stack.callback(handle.remove)
                stack.callback(part.register_forward_hook(leave(name)).remove)
            if inside is not None:
                stack.enter_context(inside)
            with torch.no_grad(), suppress(StopForward):
                images = sample(self.raw.module, self.raw.image_size)
                self.output = self.raw.forward(images)
