"""What works on one model, found out by doing it: SSDC, RPI, alpha and predictions.

Each check holds the model to what its family promises, and leaves it as it was.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from probe.errors import AnatomyError, NotApplicable, ProbeError
from probe.hooks import observe
from probe.interventions import (
    permute_patches,
    rpi_permutations,
    scalable_positions,
    scale_positions,
)
from probe.metrics.ssdc import SSDCStatistic
from probe.types import LoadedModel, Permutation, TokenSite

IMAGES = 2


@dataclass(frozen=True)
class Outcome:
    """Whether something works, None where it does not apply, and what or why in a few words."""

    works: bool | None
    words: str = ""


@dataclass(frozen=True)
class Works:
    """What works on a model."""

    ssdc: Outcome
    rpi: Outcome
    alpha: Outcome
    accuracy: Outcome


@dataclass(frozen=True)
class Seen:
    """One forward pass: the patch tokens at every site, and every tensor of the raw output."""

    tokens: Mapping[TokenSite, Tensor]
    output: tuple[Tensor, ...]
    raw: Any

    def same(self, other: Seen) -> bool:
        """Whether all of it is equal, bit for bit."""
        return (
            len(self.output) == len(other.output)
            and all(map(torch.equal, self.output, other.output))
            and all(torch.equal(self.tokens[site], other.tokens[site]) for site in self.tokens)
        )


def works(model: LoadedModel) -> Works:
    """Run all checks on a model with weights that are all in use.

    Raises:
        AnatomyError: if SSDC cannot be measured: a site never runs, runs twice or out of order,
            gives other tokens than declared, or leaves a layer without a value.
    """
    generator = torch.Generator().manual_seed(3)
    images = torch.randn(IMAGES, 3, *model.anatomy.image_size, generator=generator)
    clean = run(model, images)
    with torch.inference_mode():
        bare = _tensors(model.forward(images))
    if not all(map(torch.equal, bare, clean.output)):
        raise AnatomyError("reading tokens changes what the model computes")
    _measure(clean, model.anatomy.attn_in)
    return Works(
        Outcome(True),
        _checked(_rpi, model, images, clean),
        _checked(_alpha, model, images, clean),
        _checked(_accuracy, model, images, clean),
    )


def run(model: LoadedModel, images: Tensor, *inside: AbstractContextManager[None]) -> Seen:
    """Run the model inside contexts, and keep what its sites and its output hold.

    Raises:
        AnatomyError: if a site gives no finite tokens, or sites are not reached once, in order.
    """
    anatomy, tokens = model.anatomy, dict[TokenSite, Tensor]()
    order: list[TokenSite] = []

    def keep(site: TokenSite, found: Tensor) -> None:
        order.append(site)
        tokens[site] = found.detach().clone()

    sites = [s for pair in zip(anatomy.attn_in, anatomy.block_out, strict=True) for s in pair]
    with torch.inference_mode(), ExitStack() as stack:
        for context in inside:
            stack.enter_context(context)
        stack.enter_context(observe(model.module, sites, keep))
        raw = model.forward(images)
    missed = next((site for site in sites if site not in tokens), None)
    if missed is not None:
        raise AnatomyError(f"'{missed.module}' never ran; the {model.family} family is wrong")
    if order != sites:
        wrong = next(a for a, b in zip(order, [*sites, None], strict=False) if a != b)
        raise AnatomyError(
            f"'{wrong.module}' runs out of order; the {model.family} family is wrong"
        )
    for site, found in tokens.items():
        if not torch.isfinite(found).all():
            raise AnatomyError(f"tokens at '{site.module}' are not finite")
    return Seen(tokens, tuple(_tensors(raw)), raw)


def _measure(seen: Seen, sites: tuple[TokenSite, ...]) -> None:
    """SSDC of every layer; each must have a value."""
    statistic = SSDCStatistic(
        [site.grid for site in sites], distance="l1", average="similarity", groups=1, seed=0
    )
    for site in sites:
        places = np.arange(IMAGES)
        statistic.update(site.layer, seen.tokens[site], np.zeros_like(places), places)
    for grid in {site.grid for site in sites}:
        for layer, found in statistic.measured_on(grid).items():
            if not np.isfinite(found.value):
                raise AnatomyError(f"SSDC of layer {layer} is undefined: {found.reason}")


def _checked(check: Any, model: LoadedModel, images: Tensor, clean: Seen) -> Outcome:
    """A check, and whether the model is as it was."""
    try:
        outcome: Outcome = check(model, images, clean)
    except NotApplicable as error:
        return Outcome(None, str(error))
    except ProbeError as error:
        return Outcome(False, str(error))
    if not run(model, images).same(clean):
        return Outcome(False, "something is left behind in the model")
    return outcome


def _rpi(model: LoadedModel, images: Tensor, clean: Seen) -> Outcome:
    patches = model.anatomy.patches
    where = (patches.module, patches.grid, patches.prefix, patches.layout)
    site = TokenSite(0, "attn_in", *where, arrangement=patches.arrangement)
    order = rpi_permutations(patches.grid, range(IMAGES), Permutation("image", 5))
    found: list[Tensor] = []

    def read() -> AbstractContextManager[None]:
        return observe(model.module, [site], lambda _, tokens: found.append(tokens.clone()))

    same = run(model, images, read(), permute_patches(model, torch.arange(patches.grid.tokens)))
    # The reader comes last, so that it sees what the intervention gives on.
    moved = run(model, images, permute_patches(model, order), read())
    if len(found) != 2:
        raise AnatomyError(f"'{patches.module}' runs more than once; patches are not made there")
    before, after = found
    shuffled = torch.stack([image[rows] for image, rows in zip(before, order, strict=True)])
    if not torch.equal(after, shuffled):
        raise AnatomyError(f"the patch tokens at '{patches.module}' are not permuted one by one")
    if not same.same(clean):
        raise AnatomyError("the identical permutation changes what the model computes")
    last = model.anatomy.block_out[-1]
    if torch.equal(moved.tokens[last], clean.tokens[last]):
        raise AnatomyError("permuted patches change nothing in the last layer")
    _measure(moved, model.anatomy.attn_in)
    return Outcome(True)


def _alpha(model: LoadedModel, images: Tensor, clean: Seen) -> Outcome:
    reached = scalable_positions(model.anatomy)
    if not run(model, images, scale_positions(model, 1.0)).same(clean):
        raise AnatomyError("alpha 1 changes what the model computes")
    for position in reached:
        alone = replace(model, anatomy=replace(model.anatomy, positions=(position,)))
        if run(alone, images, scale_positions(alone, 0.0)).same(clean):
            raise AnatomyError(f"scaling '{position.where}' changes nothing")
    half, none = (run(model, images, scale_positions(model, alpha)) for alpha in (0.5, 0.0))
    if half.same(clean) or half.same(none):
        raise AnatomyError("alpha 0.5 is no step between alpha 1 and 0")
    kinds = dict.fromkeys(position.kind for position in reached)
    others = dict.fromkeys(p.kind for p in model.anatomy.positions if p.kind not in kinds)
    return Outcome(True, ", ".join(kinds) + (f" (not {', '.join(others)})" if others else ""))


def _accuracy(model: LoadedModel, images: Tensor, clean: Seen) -> Outcome:
    if model.predict is None:
        return Outcome(None, "no head")
    with torch.inference_mode():
        logits = model.predict(clean.raw)
    if logits.shape != (IMAGES, model.classes) or not torch.isfinite(logits).all():
        raise AnatomyError(f"logits have shape {tuple(logits.shape)} for {model.classes} classes")
    return Outcome(True)


def _tensors(output: Any) -> list[Tensor]:
    """Every tensor of a raw output, in order."""
    if isinstance(output, Tensor):
        return [output]
    parts = list(output.values()) if isinstance(output, Mapping) else output
    return [t for part in parts for t in _tensors(part)] if isinstance(parts, list | tuple) else []
