"""The two interventions, as context managers that compose: RPI and positional scaling.

Both act on the unmodified model and leave it as it was, also on an exception.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

import numpy as np
import torch
from torch import Tensor

from probe.errors import NoEffect, NotApplicable, UsageError
from probe.hooks import edit_output, edit_patches, submodule, swap_tensors
from probe.types import (
    Anatomy,
    Grid,
    LoadedModel,
    Permutation,
    PositionKind,
    PositionSite,
)
from probe.wiring import EditOutput


def rpi_permutations(grid: Grid, indices: Sequence[int], permutation: Permutation) -> Tensor:
    """Permutations of the patch tokens, one per image: int64 (B, N).

    Each is `Generator(PCG64(SeedSequence([seed, draw, index]))).permutation(N)`, where `index` is
    the image's place in the full sorted data set (`image`), 0 (`shared`), or the number of its
    batch (`batch`; pass that number for every image). Batch size and order change nothing.
    """
    seeds = [0] * len(indices) if permutation.mode == "shared" else list(indices)
    drawn: dict[int, np.ndarray] = {}
    for index in seeds:
        if index not in drawn:
            sequence = np.random.SeedSequence([permutation.seed, permutation.draw, index])
            drawn[index] = np.random.Generator(np.random.PCG64(sequence)).permutation(grid.tokens)
    return torch.from_numpy(np.stack([drawn[index] for index in seeds]).astype(np.int64))


@contextmanager
def permute_patches(model: LoadedModel, permutations: Tensor) -> Iterator[None]:
    """RPI: shuffle the patch tokens right after the patch projection; positions stay on the index.

    Token i of the shuffled grid is token `permutations[b, i]` of image b's own grid.

    Args:
        model: a loaded model.
        permutations: int64 (B, N), one permutation per image of the batch that will be run, or
            (N,) for the same one everywhere. See `rpi_permutations`.

    Raises:
        UsageError: if a row is not a permutation of 0..N-1, or B is not the batch's size.
        NotApplicable: if the model has no patch projection that could be permuted, with the reason.
        NoEffect: on a clean exit, if the model never ran inside the context.
    """
    site = model.anatomy.patches
    if site.refusal is not None:
        raise NotApplicable(f"RPI does not apply: {site.refusal}")
    tokens = site.grid.tokens
    rows = permutations if permutations.ndim == 2 else permutations[None]
    whole = not (permutations.is_floating_point() or permutations.is_complex())
    identity = torch.arange(tokens).expand(len(rows), -1)
    if not whole or rows.ndim != 2 or not torch.equal(rows.sort(dim=1).values.cpu(), identity):
        raise UsageError(
            f"permutations must be integers of shape (B, {tokens}) or ({tokens},), each row a "
            f"permutation of 0..{tokens - 1}; got {permutations.dtype} {tuple(permutations.shape)}"
        )

    def shuffle(patches: Tensor) -> Tensor:
        if permutations.ndim == 2 and len(rows) != len(patches):
            raise UsageError(f"{len(rows)} permutations were given for {len(patches)} images")
        index = rows.to(patches.device, torch.int64)[:, :, None].expand(
            len(patches), -1, patches.shape[2]
        )
        # In the memory layout of the original, so that later kernels compute the same bits.
        return torch.empty_like(patches).copy_(patches.gather(1, index))

    with edit_patches(model.module, site, shuffle):
        yield


def scalable_positions(anatomy: Anatomy, signal: PositionKind | None = None) -> list[PositionSite]:
    """The positional signals that alpha reaches, of the chosen kind or of all kinds.

    Raises:
        NotApplicable: if there is none, with what the model has instead.
    """
    chosen = [p for p in anatomy.positions if signal is None or p.kind == signal]
    if not anatomy.positions:
        raise NotApplicable("the model has no positional signal, so there is nothing to scale")
    if not chosen:
        kinds = ", ".join(sorted({p.kind for p in anatomy.positions}))
        raise NotApplicable(f"the model has no {signal} signal (it has: {kinds})")
    reached = [p for p in chosen if p.rescale is not None]
    if not reached:
        kinds = ", ".join(sorted({p.kind for p in chosen}))
        raise NotApplicable(f"positions come from {kinds} layers, which alpha does not scale")
    return reached


@contextmanager
def scale_positions(
    model: LoadedModel, alpha: float, signal: PositionKind | None = None
) -> Iterator[None]:
    """Multiply the model's positional signals by `alpha` at inference.

    Absolute and sinusoidal tables are multiplied whole, prefix rows too; relative biases after any
    MLP or sigmoid; for rotary positions the rotation angles are multiplied (an extension of the
    paper's definition). `alpha` 1 changes nothing, bit for bit.

    Args:
        model: a loaded model.
        alpha: factor in [0, 2]; at most 1 where a bounded bias is scaled (Swin V2).
        signal: scale only this kind of signal; None scales all that can be scaled.

    Raises:
        UsageError: if alpha is out of range.
        NotApplicable: if the model has no such signal, or its tables are still zero.
        NoEffect: if nothing changed.
    """
    if not (math.isfinite(alpha) and 0 <= alpha <= 2):
        raise UsageError(f"alpha must lie in [0, 2], got {alpha!r}")
    sites = scalable_positions(model.anatomy, signal)
    for site in sites:
        if alpha > site.max_alpha:
            raise UsageError(
                f"alpha must not exceed {site.max_alpha:g} for '{site.where}', whose bias is "
                f"bounded; got {alpha!r}"
            )
    if alpha == 1:
        yield
        return
    with ExitStack() as stack:
        changed = False
        for site in sites:
            if isinstance(site.rescale, EditOutput):
                changed |= _enter_edit(stack, model, site, site.rescale, alpha)
            elif site.rescale is not None:
                new = site.rescale.tensors(model.module, alpha)
                old = dict(model.module.named_parameters()) | dict(model.module.named_buffers())
                changed |= any(not torch.equal(old[name], t) for name, t in new.items())
                stack.enter_context(swap_tensors(model.module, new, site.rescale.caches))
        if not changed:
            raise NotApplicable(
                "the positional tables are all zero (untrained), so alpha cannot act on them"
            )
        yield


def _enter_edit(
    stack: ExitStack, model: LoadedModel, site: PositionSite, rule: EditOutput, alpha: float
) -> bool:
    submodule(model.module, site.where)

    def edit(value: Tensor) -> Tensor:
        new = rule.edit(value, alpha)
        if torch.equal(new, value):
            raise NoEffect(f"scaling '{site.where}' by {alpha!r} changed nothing")
        return new

    stack.enter_context(edit_output(model.module, site.where, edit))
    return True
