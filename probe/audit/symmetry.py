"""Permutation symmetry: does permuting tokens permute what comes out, with and without position.

Without any positional signal, global attention and token-wise layers commute with permutations of
the patch tokens. What does not is where the model keeps place.

A model with one grid is permuted right after its patch projection and read after every block
(`scope` network), so that a table added in between counts. A model that cuts its grid into windows
or merges it is permuted at every block's own input (`scope` block).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from probe.audit.graph import noise
from probe.errors import NotApplicable
from probe.hooks import (
    edit_output,
    first_tensor,
    join_tokens,
    observe,
    split_tokens,
    submodule,
    swap_tensors,
)
from probe.interventions import permute_patches
from probe.types import LoadedModel, PositionSite, TokenSite
from probe.wiring import CarryOutput, CarryTensors, EditOutput, SwapTensors

LEVEL = "exact algebra"
ASSUMES = (
    "relative L2 distance over patch tokens on a noise image, the largest over the permutations; "
    "0 up to the rounding of the dtype where the block commutes with them"
)
ROUNDING = 32  # units of the dtype's eps per block: far above what is seen, far below a defect
PERMUTATIONS = 3
Context = Callable[[], AbstractContextManager[None]]


@dataclass(frozen=True)
class Defects:
    """One block; a defect that cannot be given is None, with the reason in `reason`.

    `defect_joint` moves content and position together; of windowed attention it permutes slots,
    bias and mask inside every window alike. `defect_within_windows` does so without position:
    what is left of `defect_without_position` comes from what `remains`.
    """

    block: int
    scope: str
    defect_without_position: float | None
    defect_with_position: float | None
    defect_joint: float | None
    defect_within_windows: float | None = None
    remains: str | None = None
    reason: str | None = None

    def entry(self) -> dict[str, Any]:
        """Ready for JSON."""
        return asdict(self)


def tolerance(model: LoadedModel, block: int) -> float:
    """Below it a defect is rounding: 32 eps of the dtype for every block that has run."""
    eps = torch.finfo(next(model.module.parameters()).dtype).eps
    return ROUNDING * float(eps) * (block + 1)


def symmetry(model: LoadedModel, seed: int = 0, permutations: int = PERMUTATIONS) -> list[Defects]:
    """The defects of every block under random permutations.

    Args:
        model: the loaded model.
        seed: of the noise image and the permutations.
        permutations: how many; the largest defect is kept.

    Raises:
        NotApplicable: if a block gives out other tokens than it takes.
    """
    for taken, given in zip(model.anatomy.attn_in, model.anatomy.block_out, strict=True):
        if taken.grid != given.grid or taken.arrangement or given.arrangement or given.element:
            raise NotApplicable(
                f"'{given.module}' does not hold one grid of tokens in row-major order from its "
                "input to its output, so its tokens cannot be permuted alike on both sides"
            )
    windowed = any(site.window is not None for site in model.anatomy.attention)
    if windowed or len({site.grid for site in model.anatomy.block_out}) > 1:
        from probe.audit.blocks import block_defects

        return block_defects(model, seed, permutations)
    image = noise(model, seed)
    never = why_never_silent(model)
    clean = _outputs(model, image)
    bare = clean if never else _outputs(model, image, partial(silenced, model))
    worst: dict[str, list[float]] = {}
    stays = why_never_carried(model)
    for order in orders_of(model.anatomy.patches.grid.tokens, seed, permutations):
        shuffled = partial(permute_patches, model, order)
        runs = {"with": (clean, _outputs(model, image, shuffled))}
        if never is None:
            runs["without"] = bare, _outputs(model, image, shuffled, partial(silenced, model))
        if stays is None:
            runs["joint"] = clean, _outputs(model, image, partial(_carried, model, order))
        for name, (before, after) in runs.items():
            found = [defect(a, b[:, order]) for a, b in zip(after, before, strict=True)]
            worst[name] = [max(pair) for pair in zip(worst.get(name, found), found, strict=True)]
    reasons = "; ".join(reason for reason in (never, stays) if reason)
    return [
        Defects(
            block=layer,
            scope="network",
            defect_without_position=None if never else worst["without"][layer],
            defect_with_position=worst["with"][layer],
            defect_joint=None if stays else worst["joint"][layer],
            reason=reasons or None,
        )
        for layer in range(len(clean))
    ]


def why_never_silent(model: LoadedModel) -> str | None:
    """Why the positional signal cannot be taken away; None where it can, or there is none."""
    kinds = sorted({site.kind for site in model.anatomy.positions if site.rescale is None})
    if not kinds:
        return None
    return f"position comes from {', '.join(kinds)} layers, which cannot be silenced"


def why_never_carried(model: LoadedModel) -> str | None:
    """Why the signals cannot be permuted with their tokens; None where they can."""
    kinds = sorted({site.kind for site in _behind_tables(model) if site.carry is None})
    if not kinds:
        return None
    if kinds == ["rotary"]:
        return "the rotation is made anew in every run, so it cannot be permuted with the tokens"
    return f"position comes from {', '.join(kinds)} layers, which no permutation moves"


def _behind_tables(model: LoadedModel) -> list[PositionSite]:
    """Signals that act inside blocks; tables are in the tokens when the first block gets them."""
    return [s for s in model.anatomy.positions if s.kind not in ("absolute", "sinusoidal")]


@contextmanager
def silenced(model: LoadedModel, within: str | None = None) -> Iterator[None]:
    """Every positional signal at zero, as with alpha 0, also where a table is zero anyway.

    Args:
        model: the loaded model.
        within: only this module will run; signals that are made elsewhere by a module are left.
    """
    with ExitStack() as stack:
        for site in model.anatomy.positions:
            rule = site.rescale
            if isinstance(rule, SwapTensors):
                new = rule.tensors(model.module, 0.0)
                stack.enter_context(swap_tensors(model.module, new, rule.caches))
            elif isinstance(rule, EditOutput) and inside(site.where, within):
                edit = partial(_at_zero, rule)
                stack.enter_context(edit_output(model.module, site.where, edit))
        yield


def _at_zero(rule: EditOutput, value: Tensor) -> Tensor:
    return rule.edit(value, 0.0)


def inside(name: str, module: str | None) -> bool:
    """Whether a dotted name lies in `module`; everything lies in None."""
    return module is None or name.startswith(f"{module}.")


@contextmanager
def moved(model: LoadedModel, order: Tensor, within: str | None = None) -> Iterator[None]:
    """Signals inside blocks permuted by `order`, of `module` within alone where one is named."""
    with ExitStack() as stack:
        for site in _behind_tables(model):
            rule = site.carry
            if not inside(site.where, within):
                continue
            if isinstance(rule, CarryTensors):
                new = rule.tensors(model.module, order)
                stack.enter_context(swap_tensors(model.module, new))
            elif isinstance(rule, CarryOutput):
                edit = partial(_by_order, rule, order)
                stack.enter_context(edit_output(model.module, rule.module, edit))
        yield


def _by_order(rule: CarryOutput, order: Tensor, value: Tensor) -> Tensor:
    return rule.edit(value, order)


@contextmanager
def _carried(model: LoadedModel, order: Tensor) -> Iterator[None]:
    """Permute what the first block gets, tables included, and all signals behind it."""
    first = model.anatomy.block_out[0]

    def hook(_module: nn.Module, args: Any, kwargs: Any) -> Any:
        return permuted_call(args, kwargs, first, order)

    module = submodule(model.module, first.module)
    handle = module.register_forward_pre_hook(hook, with_kwargs=True)
    try:
        with moved(model, order):
            yield
    finally:
        handle.remove()


def permuted_call(
    args: tuple[Any, ...], kwargs: dict[str, Any], site: TokenSite, order: Tensor
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """A block's arguments with the patch tokens of the first one permuted."""
    place = (site.grid, site.prefix, site.layout)
    key = None if args else next(iter(kwargs))
    tokens = first_tensor(args[0] if key is None else kwargs[key], site.module)
    patches = split_tokens(tokens, *place, site.module)[:, order]
    new = join_tokens(patches, tokens, *place).contiguous()
    return ((new, *args[1:]), kwargs) if key is None else (args, {**kwargs, key: new})


def defect(found: Tensor, wanted: Tensor) -> float:
    """Relative L2 distance."""
    return float((found.double() - wanted.double()).norm() / wanted.double().norm())


def orders_of(tokens: int, seed: int, count: int) -> list[Tensor]:
    """Seeded random permutations of `tokens`."""
    generator = np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, 0x73796D])))
    return [torch.from_numpy(generator.permutation(tokens)) for _ in range(count)]


def _outputs(model: LoadedModel, image: Tensor, *contexts: Context) -> list[Tensor]:
    """Patch tokens (1, N, C) after every block."""
    found: dict[int, Tensor] = {}

    def keep(site: TokenSite, tokens: Tensor) -> None:
        found[site.layer] = tokens.cpu().clone()

    with ExitStack() as stack:
        stack.enter_context(torch.inference_mode())
        stack.enter_context(observe(model.module, model.anatomy.block_out, keep))
        for context in contexts:
            stack.enter_context(context())
        model.forward(image)
    return [found[layer] for layer in sorted(found)]
