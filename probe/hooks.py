"""Context managers over PyTorch forward hooks; nothing is left behind, also on an exception.

`observe` reads the patch tokens of given sites; `edit_output` replaces what a module returns;
`swap_tensors` puts other parameters or buffers in place. All three nest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from probe.errors import AnatomyError, NoEffect
from probe.types import Grid, Layout, PatchSite, TokenSite


class StopForward(Exception):
    """Raised by a reader to end a forward pass early; the caller of the model catches it."""


def split_tokens(tokens: Tensor, grid: Grid, prefix: int, layout: Layout, where: str) -> Tensor:
    """The patch tokens (B, N, C), row-major and without prefix tokens, as a view if possible.

    Raises:
        AnatomyError: if the tensor does not hold exactly `prefix + rows * cols` tokens in `layout`.
    """
    shape = tuple(tokens.shape)
    if layout == "NLC":
        if tokens.ndim == 3 and shape[1] == prefix + grid.tokens:
            return tokens[:, prefix:]
        expected = f"(B, {prefix} + {grid.rows}*{grid.cols}, C)"
    elif layout == "NHWC":
        if tokens.ndim == 4 and prefix == 0 and shape[1:3] == (grid.rows, grid.cols):
            return tokens.flatten(1, 2)
        expected = f"(B, {grid.rows}, {grid.cols}, C) without prefix tokens"
    else:
        if tokens.ndim == 4 and prefix == 0 and shape[2:] == (grid.rows, grid.cols):
            return tokens.flatten(2).transpose(1, 2)
        expected = f"(B, C, {grid.rows}, {grid.cols}) without prefix tokens"
    raise AnatomyError(
        f"tokens at '{where}' have shape {shape}, but {layout} {expected} was declared; "
        "the image size or the model's anatomy does not fit"
    )


def join_tokens(patches: Tensor, tokens: Tensor, grid: Grid, prefix: int, layout: Layout) -> Tensor:
    """Put patch tokens (B, N, C) back into the layout of the `tokens` they were split from."""
    if layout == "NLC":
        return torch.cat([tokens[:, :prefix], patches], dim=1) if prefix else patches
    if layout == "NHWC":
        return patches.unflatten(1, (grid.rows, grid.cols))
    return patches.transpose(1, 2).unflatten(2, (grid.rows, grid.cols))


def first_tensor(value: Any, where: str) -> Tensor:
    """The tensor itself, or the first element of a tuple or list.

    Raises:
        AnatomyError: if there is no tensor there.
    """
    head = value[0] if isinstance(value, tuple | list) and value else value
    if not isinstance(head, Tensor):
        raise AnatomyError(
            f"'{where}' gives a {type(value).__name__}, not tokens; check the anatomy"
        )
    return head


def with_first(value: Any, tensor: Tensor) -> Any:
    """`value` with its (first) tensor replaced by `tensor`."""
    if isinstance(value, Tensor):
        return tensor
    rest = list(value[1:])
    return type(value)([tensor, *rest]) if isinstance(value, list) else (tensor, *rest)


def submodule(model: nn.Module, name: str) -> nn.Module:
    """The submodule called `name`.

    Raises:
        AnatomyError: if there is none.
    """
    try:
        return model.get_submodule(name)
    except AttributeError as error:
        raise AnatomyError(f"the model has no module '{name}'; check the anatomy") from error


@contextmanager
def observe(
    model: nn.Module, sites: Sequence[TokenSite], read: Callable[[TokenSite, Tensor], None]
) -> Iterator[None]:
    """Call `read(site, patch tokens (B, N, C))` whenever a forward pass reaches a site.

    What `read` gets is the model's own tensor or a view of it: read it, do not write to it.

    Raises:
        AnatomyError: if a site's module does not exist or gives other tokens than declared.
    """

    def reader(site: TokenSite) -> Callable[..., None]:
        def take(value: Any) -> None:
            several = site.element and isinstance(value, list | tuple)
            tokens = first_tensor(value[site.element] if several else value, site.module)
            if site.arrangement is not None:
                tokens = site.arrangement.split(tokens)
            read(site, split_tokens(tokens, site.grid, site.prefix, site.layout, site.module))

        def on_output(_module: nn.Module, _args: Any, _kwargs: Any, output: Any) -> None:
            take(output)

        def on_input(_module: nn.Module, args: Any, kwargs: Any) -> None:
            take(args[0] if args else next(iter(kwargs.values()), None))

        return on_output if site.side == "output" else on_input

    with ExitStack() as stack:
        for site in sites:
            module, hook = submodule(model, site.module), reader(site)
            handle = (
                module.register_forward_hook(hook, with_kwargs=True)
                if site.side == "output"
                else module.register_forward_pre_hook(hook, with_kwargs=True)
            )
            stack.callback(handle.remove)
        yield


@contextmanager
def edit_output(model: nn.Module, name: str, edit: Callable[[Tensor], Tensor]) -> Iterator[None]:
    """Replace the (first) tensor that module `name` returns by `edit(tensor)`.

    Raises:
        AnatomyError: if there is no such module, or it returns no tensor.
        NoEffect: on a clean exit, if the module never ran inside the context.
    """
    fired = False

    def hook(_module: nn.Module, _args: Any, output: Any) -> Any:
        nonlocal fired
        fired = True
        return with_first(output, edit(first_tensor(output, name)))

    handle = submodule(model, name).register_forward_hook(hook)
    try:
        yield
    finally:
        handle.remove()
    if not fired:
        raise NoEffect(
            f"module '{name}' never ran inside the context, so nothing was changed; "
            "run the model inside it, or check the anatomy"
        )


@contextmanager
def edit_patches(
    model: nn.Module, site: PatchSite, edit: Callable[[Tensor], Tensor]
) -> Iterator[None]:
    """Replace the patch tokens (B, N, C) of the patch projection by `edit(tokens)`.

    Raises:
        AnatomyError: if the projection gives other tokens than declared.
        NoEffect: on a clean exit, if the projection never ran inside the context.
    """

    def change(output: Tensor) -> Tensor:
        own, where = site.arrangement, (site.grid, site.prefix, site.layout)
        tokens = output if own is None else own.split(output)
        patches = split_tokens(tokens, *where, site.module)
        new = join_tokens(edit(patches), tokens, *where)
        return new if own is None or own.join is None else own.join(new, output)

    with edit_output(model, site.module, change):
        yield


@contextmanager
def swap_tensors(
    model: nn.Module, tensors: Mapping[str, Tensor], caches: Sequence[str] = ()
) -> Iterator[None]:
    """Put `tensors` in place of the parameters or buffers of those dotted names, and back after.

    The original objects return, so nothing is rounded and optimisers keep their references. The
    dicts called `caches`, which hold what the model has made of them, are set aside meanwhile.

    Raises:
        AnatomyError: if a name is neither a parameter nor a buffer, or a shape differs.
    """
    with ExitStack() as stack:
        for name, new in tensors.items():
            owner_name, _, key = name.rpartition(".")
            owner = submodule(model, owner_name)
            slots: dict[str, Any] = (
                owner._parameters if key in owner._parameters else owner._buffers
            )
            old = slots.get(key)
            if old is None:
                raise AnatomyError(f"the model has no tensor '{name}'; check the anatomy")
            if old.shape != new.shape:
                raise AnatomyError(
                    f"'{name}' has shape {tuple(old.shape)}, its replacement {tuple(new.shape)}"
                )
            is_parameter = slots is owner._parameters
            slots[key] = nn.Parameter(new, requires_grad=False) if is_parameter else new
            stack.callback(slots.__setitem__, key, old)
        for name in caches:
            owner_name, _, key = name.rpartition(".")
            owner = submodule(model, owner_name)
            stack.callback(setattr, owner, key, getattr(owner, key))
            setattr(owner, key, {})
        yield
