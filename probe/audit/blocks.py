"""Permutation defects block by block, of models that cut their grid into windows or merge it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from probe.audit.graph import call_of, noise
from probe.audit.symmetry import (
    Context,
    Defects,
    defect,
    moved,
    orders_of,
    permuted_call,
    silenced,
    why_never_carried,
    why_never_silent,
)
from probe.hooks import first_tensor, split_tokens, submodule
from probe.types import LoadedModel, TokenSite
from probe.wiring import AttentionSite


@dataclass(frozen=True, eq=False)
class _Call:
    """How a module was called, and what it gave."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    output: Any


def block_defects(model: LoadedModel, seed: int, permutations: int) -> list[Defects]:
    """Every block by itself: its input is permuted, its output compared.

    Args:
        model: the loaded model.
        seed: of the noise image and the permutations.
        permutations: how many; the largest defect is kept.
    """
    image, never, stays = noise(model, seed), why_never_silent(model), why_never_carried(model)
    sites = model.anatomy.block_out
    attention = {site.layer: site for site in model.anatomy.attention}
    names = {f"block {site.layer}": site.module for site in sites}
    names |= {f"attention {layer}": site.module for layer, site in attention.items()}
    clean = _calls(model, image, names, nullcontext)
    bare = clean if never else _calls(model, image, names, partial(silenced, model))
    found = []
    for site in sites:
        layer, own = site.layer, attention.get(site.layer)
        orders = orders_of(site.grid.tokens, seed, permutations)
        block = f"block {layer}"
        silent = partial(silenced, model, site.module)
        joint = within = None
        if own is not None and own.window is not None:
            slots = orders_of(own.window[0] * own.window[1], seed, permutations)
            call = f"attention {layer}"
            if stays is None:
                joint = _inside_windows(model, own, clean[call], slots, carried=True)
            if never is None:
                within = _inside_windows(model, own, bare[call], slots, carried=False)
        reasons = "; ".join(reason for reason in (never, stays) if reason)
        found.append(
            Defects(
                block=layer,
                scope="block",
                defect_without_position=(
                    None if never else _permuted(model, site, bare[block], orders, silent)
                ),
                defect_with_position=_permuted(model, site, clean[block], orders, nullcontext),
                defect_joint=joint,
                defect_within_windows=within,
                remains=None if never and own is None else _remains(own, site),
                reason=reasons or None,
            )
        )
    return found


def _remains(attention: AttentionSite | None, site: TokenSite) -> str | None:
    """What keeps place when every signal is silent."""
    if attention is None:
        return "who attends to whom, which the family does not declare"
    if attention.window in (None, (site.grid.rows, site.grid.cols)):
        return None
    return "window partition"


def _calls(
    model: LoadedModel, image: Tensor, names: Mapping[str, str], context: Context
) -> dict[str, _Call]:
    found: dict[str, _Call] = {}

    def keep(key: str, _module: Any, args: Any, kwargs: Any, output: Any) -> None:
        found[key] = _Call(args, kwargs, output)

    with ExitStack() as stack:
        for key, name in names.items():
            module = submodule(model.module, name)
            handle = module.register_forward_hook(partial(keep, key), with_kwargs=True)
            stack.callback(handle.remove)
        stack.enter_context(torch.inference_mode())
        stack.enter_context(context())
        model.forward(image)
    return found


def _permuted(
    model: LoadedModel, site: TokenSite, call: _Call, orders: Sequence[Tensor], context: Context
) -> float:
    place = (site.grid, site.prefix, site.layout, site.module)
    before = split_tokens(first_tensor(call.output, site.module), *place)
    block, worst = submodule(model.module, site.module), 0.0
    with torch.inference_mode(), context():
        for order in orders:
            args, kwargs = permuted_call(call.args, call.kwargs, site, order)
            after = split_tokens(first_tensor(block(*args, **kwargs), site.module), *place)
            worst = max(worst, defect(after, before[:, order]))
    return worst


def _inside_windows(
    model: LoadedModel, site: AttentionSite, call: _Call, slots: Sequence[Tensor], *, carried: bool
) -> float:
    """Defect of an attention when the slots of every window are permuted alike, mask included.

    The bias moves along (`carried`), or is silent.
    """
    module = submodule(model.module, site.module)
    tokens, mask = call_of(site, module, call.args, call.kwargs)
    before, worst = first_tensor(call.output, site.module), 0.0
    for order in slots:
        context: AbstractContextManager[None] = (
            moved(model, order, site.module) if carried else silenced(model, site.module)
        )
        given = {} if mask is None else {str(site.mask): mask[:, order][:, :, order]}
        with torch.inference_mode(), context:
            after = first_tensor(module(tokens[:, order], **given), site.module)
        worst = max(worst, defect(after, before[:, order]))
    return worst
