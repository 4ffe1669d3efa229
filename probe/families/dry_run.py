"""What shapes a module's parts take and give at one image size, found without computing a value."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from probe.errors import AnatomyError
from probe.hooks import submodule

CACHE = "attention_bias_cache"  # timm's: a dict from device to the bias made of a table


@dataclass(frozen=True)
class Seen:
    """One part as it ran: shapes of the first tensor that it took and that it gave."""

    name: str
    taken: tuple[int, ...]
    given: tuple[int, ...]


def dry_run(
    module: nn.Module, image_size: tuple[int, int], names: Iterable[str], element: int = 0
) -> dict[str, Seen]:
    """The named parts in order of execution, from one run on shapes alone, of one image.

    Args:
        module: the whole model.
        image_size: (height, width) in pixels.
        names: dotted names of parts; those that did not run are left out.
        element: which tensor of what a part gives is meant, where it gives several.

    Raises:
        AnatomyError: if the model does not run at that size, or a part runs twice.
    """
    found: dict[str, Seen] = {}

    def keep(name: str, _module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        if name in found:
            raise AnatomyError(f"'{name}' runs more than once, so it is no layer of its own")
        taken = _shape([*args, *kwargs.values()])
        several = element and isinstance(output, list | tuple)
        found[name] = Seen(name, taken, _shape(output[element] if several else output))

    weight = next(module.parameters())
    with ExitStack() as stack:
        for name in names:
            part = submodule(module, name)
            handle = part.register_forward_hook(partial(keep, name), with_kwargs=True)
            stack.callback(handle.remove)
        stack.enter_context(_kept_caches(module))
        stack.enter_context(_unlogged())
        stack.enter_context(torch.no_grad())
        stack.enter_context(FakeTensorMode(allow_non_fake_inputs=True))
        images = torch.zeros(1, 3, *image_size, dtype=weight.dtype, device=weight.device)
        try:
            module(images)
        except (ArithmeticError, AssertionError, LookupError, RuntimeError, ValueError) as error:
            reason = str(error).partition("\n")[0] or type(error).__name__
            raise AnatomyError(
                f"the model does not run on images of {image_size[0]} x {image_size[1]} px: "
                f"{reason}; use its own size"
            ) from error
    return found


def _shape(value: Any) -> tuple[int, ...]:
    if isinstance(value, Tensor):
        return tuple(int(side) for side in value.shape)
    parts = value if isinstance(value, list | tuple) else ()
    return next((shape for shape in map(_shape, parts) if shape), ())


@contextmanager
def _unlogged() -> Iterator[None]:
    """Torch logs what fails on shapes with a whole stack; the error itself says it in a line."""
    logger = logging.getLogger("torch._subclasses.fake_tensor")
    before, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = before


@contextmanager
def _kept_caches(module: nn.Module) -> Iterator[None]:
    """What the run leaves in caches goes; what stood there returns."""
    with ExitStack() as stack:
        for part in module.modules():
            if isinstance(getattr(part, CACHE, None), dict):
                stack.callback(setattr, part, CACHE, getattr(part, CACHE))
                setattr(part, CACHE, {})
        yield
