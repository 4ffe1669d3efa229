"""Who attends to whom, read from a run of the model: windows, masks, padding, merging.

Nothing is derived from names. A run on noise shows which token lies in which slot of which window,
because no two tokens are equal there, and which mask the attention was given.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from math import ceil
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from probe.errors import AnatomyError, NotApplicable
from probe.hooks import first_tensor, observe, submodule
from probe.types import Grid, LoadedModel, TokenSite
from probe.wiring import AttentionKind, AttentionSite, Merge

PADDING = -1
FORBIDDEN = -50.0  # additive masks are 0, or so low that a softmax gives nothing


@dataclass(frozen=True, eq=False)
class AttentionGraph:
    """The attention of one layer.

    Tokens are numbered: prefix tokens first, then the grid, row-major. `slots` (W, S) holds the
    token in each slot of each window, -1 for padding; global attention is one window. `allowed`
    (W, S, S), or (1, S, S) for all windows alike, says whether the query of the second axis may
    attend to the key of the third.
    """

    layer: int
    kind: AttentionKind
    grid: Grid
    prefix: int
    slots: NDArray[np.int64]
    allowed: NDArray[np.bool_]


@dataclass(frozen=True)
class PairCount:
    """Ordered (query, key) pairs of one layer, per image and head.

    `pairs` are those of two patch tokens in one window, `allowed` those that no mask forbids;
    `wrapped` are allowed ones between opposite edges of a rolled grid. `prefix` are allowed ones
    with a prefix token on either side, `padding` allowed ones with padding on either side.
    """

    pairs: int
    allowed: int
    wrapped: int
    prefix: int
    padding: int


def read_graphs(model: LoadedModel, seed: int = 0) -> list[AttentionGraph]:
    """The attention graph of every layer, from one run on a noise image.

    Raises:
        NotApplicable: if the family declares no attention for this architecture.
        AnatomyError: if the run shows other tokens, windows or masks than are declared.
    """
    sites = model.anatomy.attention
    if not sites:
        raise NotApplicable(f"family {model.family} does not say which tokens attend to which")
    inputs = {site.layer: site for site in model.anatomy.attn_in}
    tokens: dict[int, Tensor] = {}
    calls: dict[int, tuple[Tensor, Tensor | None]] = {}

    def keep_tokens(site: TokenSite, found: Tensor) -> None:
        tokens[site.layer] = found[0].clone()

    def keep_call(site: AttentionSite, module: Any, args: Any, kwargs: Any) -> None:
        calls[site.layer] = call_of(site, module, args, kwargs)

    handles = [
        submodule(model.module, site.module).register_forward_pre_hook(
            partial(keep_call, site), with_kwargs=True
        )
        for site in sites
    ]
    try:
        with torch.inference_mode(), observe(model.module, list(inputs.values()), keep_tokens):
            model.forward(noise(model, seed))
    finally:
        for handle in handles:
            handle.remove()
    missing = [site.module for site in sites if site.layer not in calls]
    if missing:
        raise AnatomyError(f"the attention '{missing[0]}' never ran; check the anatomy")
    return [
        _graph(site, inputs[site.layer], tokens[site.layer], *calls[site.layer]) for site in sites
    ]


def noise(model: LoadedModel, seed: int, images: int = 1) -> Tensor:
    """Normal noise (images, 3, height, width) at the model's size, seeded, without repetition."""
    parameter = next(model.module.parameters())
    generator = torch.Generator().manual_seed(seed)
    shape = (images, 3, *model.anatomy.image_size)
    return torch.randn(shape, generator=generator).to(parameter.device, parameter.dtype)


def call_of(
    site: AttentionSite, module: torch.nn.Module, args: Any, kwargs: Any
) -> tuple[Tensor, Tensor | None]:
    """The tokens and the mask that an attention module is called with.

    Raises:
        AnatomyError: if the module has no argument of the mask's name.
    """
    signature = inspect.signature(module.forward)
    given = signature.bind(*args, **kwargs).arguments
    tokens = first_tensor(next(iter(given.values()), None), site.module)
    if site.mask is None:
        return tokens, None
    if site.mask not in signature.parameters:
        raise AnatomyError(f"'{site.module}' takes no argument '{site.mask}'; check the anatomy")
    return tokens, given.get(site.mask)


def _graph(
    site: AttentionSite, read: TokenSite, tokens: Tensor, given: Tensor, mask: Tensor | None
) -> AttentionGraph:
    grid, prefix = read.grid, read.prefix
    if site.window is None:
        whole = prefix + grid.tokens
        if tuple(given.shape[:2]) != (1, whole):
            raise AnatomyError(
                f"'{site.module}' compares {tuple(given.shape)}, not all {whole} tokens of one "
                "image; check the anatomy"
            )
        slots = np.arange(whole)[None]
    else:
        slots = _slots(site, tokens, given)
    allowed = _allowed(site, slots, mask)
    return AttentionGraph(site.layer, site.kind, grid, prefix, slots, allowed)


def _slots(site: AttentionSite, tokens: Tensor, given: Tensor) -> NDArray[np.int64]:
    """Which token lies in which slot: attention gets copies of the tokens, bit for bit."""
    rows = {row.tobytes(): index for index, row in enumerate(_as_bytes(tokens))}
    if len(rows) != len(tokens):
        raise AnatomyError(f"some tokens that feed '{site.module}' are equal on noise")
    found = [rows.get(row.tobytes(), PADDING) for row in _as_bytes(given.flatten(0, 1))]
    slots = np.array(found, dtype=np.int64).reshape(given.shape[:2])
    area = site.window[0] * site.window[1] if site.window else 0
    held = np.sort(slots[slots != PADDING])
    if slots.shape[1] != area or not np.array_equal(held, np.arange(len(tokens))):
        raise AnatomyError(
            f"'{site.module}' does not hold every token once in windows of {site.window}; check "
            "the anatomy"
        )
    return slots


def _as_bytes(tokens: Tensor) -> NDArray[Any]:
    return tokens.cpu().contiguous().view(torch.uint8).numpy()


def _allowed(
    site: AttentionSite, slots: NDArray[np.int64], mask: Tensor | None
) -> NDArray[np.bool_]:
    windows, size = slots.shape
    if mask is None:
        return np.ones((1, size, size), dtype=bool)
    values = mask.float().cpu().numpy()
    if values.shape != (windows, size, size):
        raise AnatomyError(f"'{site.module}' is masked by {values.shape}; check the anatomy")
    if not np.all((values == 0) | (values <= FORBIDDEN)):
        raise AnatomyError(f"the mask of '{site.module}' grades pairs instead of forbidding them")
    allowed: NDArray[np.bool_] = values == 0
    return allowed


def count_pairs(graph: AttentionGraph, window: tuple[int, int] | None = None) -> PairCount:
    """Count the pairs of one layer, window by window.

    Args:
        graph: the layer.
        window: its window (rows, cols); tokens of one window that lie further apart than that came
            together by rolling the grid.
    """
    pairs = allowed = wrapped = prefix = padding = 0
    for slots, may in _windows(graph):
        patch = slots >= graph.prefix
        pad = slots == PADDING
        both = patch[:, None] & patch
        pairs += int(both.sum())
        allowed += int((both & may).sum())
        padding += int(((pad[:, None] | pad) & may).sum())
        lead = ~patch & ~pad
        prefix += int(((lead[:, None] | lead) & may).sum())
        if window is not None:
            rows, cols = np.divmod(slots - graph.prefix, graph.grid.cols)
            far = np.abs(rows[:, None] - rows) >= window[0]
            far |= np.abs(cols[:, None] - cols) >= window[1]
            wrapped += int((both & may & far).sum())
    return PairCount(pairs, allowed, wrapped, prefix, padding)


def _windows(graph: AttentionGraph) -> list[tuple[NDArray[np.int64], NDArray[np.bool_]]]:
    alike = len(graph.allowed) == 1
    return [(slots, graph.allowed[0 if alike else w]) for w, slots in enumerate(graph.slots)]


def expected_pairs(
    grid: Grid, window: tuple[int, int] | None = None, shift: tuple[int, int] = (0, 0)
) -> tuple[int, int]:
    """Ordered patch pairs (plain, allowed) of one layer, per image and head, by formula.

    A window that is rolled over an edge holds tokens of both edges; plain pairs join them, allowed
    ones do not. Grids are padded to whole windows before they are rolled, as in the Swin paper
    (arXiv 2103.14030); padding is not counted.

    Args:
        grid: the token grid.
        window: (rows, cols) in tokens; None compares all tokens.
        shift: how far the padded grid is rolled, (rows, cols).
    """
    if window is None:
        return grid.tokens**2, grid.tokens**2
    plain = allowed = 1
    for side, cut, roll in zip((grid.rows, grid.cols), window, shift, strict=True):
        edges = [*range(roll, ceil(side / cut) * cut + 1, cut)]
        ends = [0, *edges, ceil(side / cut) * cut] if roll else edges
        parts = [min(b, side) - min(a, side) for a, b in pairwise(ends)]
        allowed *= sum(part**2 for part in parts)
        # The first and the last part are rolled into one window.
        joined = [*parts[1:-1], parts[0] + parts[-1]] if roll else parts
        plain *= sum(part**2 for part in joined)
    return plain, allowed


def reach(graphs: Sequence[AttentionGraph], merges: Sequence[Merge]) -> list[NDArray[np.bool_]]:
    """What each token can depend on after every layer: (prefix + N, first grid's tokens) each.

    Boolean products of the masks, with each token's own path through the residual. Prefix tokens
    hold no patch at first, and carry what they have seen. Merged tokens hold what their parts held.
    """
    joins = {merge.before: merge for merge in merges}
    first = graphs[0]
    held = np.zeros((first.prefix + first.grid.tokens, first.grid.tokens), dtype=bool)
    held[first.prefix :] = np.eye(first.grid.tokens, dtype=bool)
    found, grid = [], first.grid
    for graph in graphs:
        if graph.layer in joins:
            held = _merged(held, grid, joins[graph.layer], graph)
        elif graph.grid != grid:
            raise AnatomyError(f"the grid changes before layer {graph.layer}, but not by a merge")
        late = graph.prefix + graph.grid.tokens - len(held)  # prefix tokens that join here
        held = np.concatenate([np.zeros((late, held.shape[1]), dtype=bool), held])
        grid, held = graph.grid, _attended(held, graph)
        found.append(held)
    return found


def _attended(held: NDArray[np.bool_], graph: AttentionGraph) -> NDArray[np.bool_]:
    new = held.copy()
    for slots, may in _windows(graph):
        inside = slots != PADDING
        tokens = slots[inside]
        if may.all():
            new[tokens] |= held[tokens].any(axis=0)
        else:
            paths = may[inside][:, inside].astype(np.float32) @ held[tokens].astype(np.float32)
            new[tokens] |= paths > 0
    return new


def _merged(
    held: NDArray[np.bool_], grid: Grid, merge: Merge, graph: AttentionGraph
) -> NDArray[np.bool_]:
    """What the tokens of `graph` hold before it runs; prefix tokens stay what they are."""
    to = graph.grid
    prefix = len(held) - grid.tokens
    lead, held = held[:prefix], held[prefix:]
    rows, cols = ceil(grid.rows / merge.rows), ceil(grid.cols / merge.cols)
    if (rows, cols) != (to.rows, to.cols):
        raise AnatomyError(f"merging gives {rows} x {cols} tokens before layer {merge.before}")
    old = np.arange(grid.tokens).reshape(grid.rows, grid.cols)
    new = np.zeros((to.tokens, held.shape[1]), dtype=bool)
    into = np.arange(to.tokens).reshape(rows, cols)
    for r in range(-merge.overlap, merge.rows):
        for c in range(-merge.overlap, merge.cols):
            down, across = np.arange(rows) * merge.rows + r, np.arange(cols) * merge.cols + c
            i, j = (down >= 0) & (down < grid.rows), (across >= 0) & (across < grid.cols)
            new[into[i][:, j].ravel()] |= held[old[down[i]][:, across[j]].ravel()]
    return np.concatenate([lead, new])
