"""One traced forward pass: which modules ran, in which order, and the shapes that they saw."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

BATCH = 2  # so that a batch of windows is told from one of images

Shape = tuple[int, ...]


@dataclass
class Step:
    """One module that ran: `start` and `end` count module starts and ends in the pass.

    `takes` and `gives` are the shapes of its first input and first output tensor, None where
    there is none. They are those of the first of its `calls`. `mark` changes with what it gives.
    """

    name: str
    kind: str
    start: int
    end: int = -1
    calls: int = 1
    takes: Shape | None = None
    gives: Shape | None = None
    mark: str = ""


@dataclass(frozen=True)
class Trace:
    """A forward pass of `BATCH` random images of `image_size` (height, width) in pixels.

    `steps` are the modules by name, in order of their start; `output` is what the model gave.
    """

    image_size: tuple[int, int]
    steps: Mapping[str, Step]
    output: Any = field(repr=False)


def trace(
    module: nn.Module, forward: Callable[[Tensor], Any], image_size: tuple[int, int]
) -> Trace:
    """Run `forward` once under hooks; the module is left as it was, also on an exception.

    Images are seeded standard normal values, in the module's own precision and place.
    """
    steps: dict[str, Step] = {}
    clock = iter(range(10**9))

    def enter(name: str, part: nn.Module) -> Callable[..., None]:
        def hook(_module: nn.Module, args: Any, kwargs: Any) -> None:
            if name in steps:
                steps[name].calls += 1
                return
            first = args[0] if args else next(iter(kwargs.values()), None)
            steps[name] = Step(name, type(part).__name__, next(clock), takes=shape_of(first))

        return hook

    def leave(name: str) -> Callable[..., None]:
        def hook(_module: nn.Module, _args: Any, output: Any) -> None:
            step = steps[name]
            if step.end < 0:
                step.end, step.gives = next(clock), shape_of(output)
                sums = (
                    t.sum(dtype=torch.float64) for t in tensors(output) if t.is_floating_point()
                )
                step.mark = " ".join(float(total).hex() for total in sums)

        return hook

    with ExitStack() as stack:
        for name, part in module.named_modules():
            stack.callback(
                part.register_forward_pre_hook(enter(name, part), with_kwargs=True).remove
            )
            stack.callback(part.register_forward_hook(leave(name)).remove)
        with torch.no_grad():
            output = forward(sample(module, image_size))
    return Trace(image_size, steps, output)


def sample(module: nn.Module, image_size: tuple[int, int]) -> Tensor:
    """The images of a traced pass: (BATCH, 3, height, width)."""
    like = next(module.parameters(), torch.zeros(0))
    images = torch.randn(BATCH, 3, *image_size, generator=torch.Generator().manual_seed(0))
    return images.to(like)


def shape_of(value: Any) -> Shape | None:
    """The shape of the tensor, or of the first element of a tuple or list, None without one."""
    head = value[0] if isinstance(value, tuple | list) and value else value
    return tuple(head.shape) if isinstance(head, Tensor) else None


def tensors(value: Any) -> Iterator[Tensor]:
    """Every tensor of a raw output, in order."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for part in value.values():
            yield from tensors(part)
    elif isinstance(value, tuple | list):
        for part in value:
            yield from tensors(part)


def shown(shape: Shape | None) -> str:
    """A shape as `(B, 65, 32)`, the batch as B; `no tensor` for None."""
    if shape is None:
        return "no tensor"
    sides = ["B" if not i and side == BATCH else str(side) for i, side in enumerate(shape)]
    return f"({', '.join(sides)}{',' if len(sides) == 1 else ''})"
