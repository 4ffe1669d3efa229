"""The connectivity of a card: pairs per block, reach over depth, and a check by perturbation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from itertools import groupby
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from probe.audit.graph import (
    AttentionGraph,
    count_pairs,
    expected_pairs,
    noise,
    reach,
    read_graphs,
)
from probe.hooks import edit_patches, observe
from probe.types import LoadedModel, TokenSite

LEVEL = "exact algebra"
ASSUMES = (
    "windows and masks are those of a run at this image size; a masked pair counts as forbidden, "
    "though its weight is exp of a large negative number rather than 0; padding holds no image"
)
PERTURBED = (
    "a random change of one patch token after the projection, float arithmetic of this machine: "
    "tokens that cannot depend on it must stay equal bit for bit"
)


def connectivity(model: LoadedModel, seed: int = 0) -> dict[str, Any]:
    """Pairs, reach and its check, ready for JSON: the `attention` of a card.

    Raises:
        NotApplicable: if the family declares no attention.
        AnatomyError: if the run contradicts what is declared.
    """
    graphs = read_graphs(model, seed)
    held = reach(graphs, model.anatomy.merges)
    depth = [_over_patches(graph, found) for graph, found in zip(graphs, held, strict=True)]
    full = [layer for layer, share in enumerate(depth) if share == 1.0]
    return {
        "stages": _stages(model, graphs),
        "share_reached": depth,
        "blocks_until_all_reached": full[0] + 1 if full else None,
        "perturbation": perturbation(model, graphs, held, seed),
    }


def _over_patches(graph: AttentionGraph, held: NDArray[np.bool_]) -> float:
    return float(held[graph.prefix :].mean())


def _stages(model: LoadedModel, graphs: Sequence[AttentionGraph]) -> list[dict[str, Any]]:
    stages = []
    for grid, group in groupby(graphs, key=lambda graph: graph.grid):
        blocks = [_block(model, graph) for graph in group]
        stages.append({"grid": [grid.rows, grid.cols], "blocks": blocks})
    return stages


def _block(model: LoadedModel, graph: AttentionGraph) -> dict[str, Any]:
    site = model.anatomy.attention[graph.layer]
    plain, allowed = expected_pairs(graph.grid, site.window, site.shift)
    count = count_pairs(graph, site.window)
    return {
        "layer": graph.layer,
        "kind": graph.kind,
        "window": list(site.window) if site.window else None,
        "shift": list(site.shift) if site.window else None,
        **asdict(count),
        "by_formula": [plain, allowed],
        "as_expected": (count.pairs, count.allowed) == (plain, allowed),
    }


def perturbation(
    model: LoadedModel,
    graphs: Sequence[AttentionGraph],
    held: Sequence[NDArray[np.bool_]],
    seed: int = 0,
) -> list[dict[str, Any]]:
    """Change one patch token, centre then corner, and look which tokens move after every block.

    Returns:
        Per token: {"token": [row, col], "moved": per layer, "reachable": per layer, "beyond": how
        many moved that no path of the masks reaches, over all layers}. `moved` may fall short of
        `reachable`, where a path changes less than the last bit.
    """
    grid = graphs[0].grid
    image = noise(model, seed)
    clean = _outputs(model, image, None)
    found = []
    for token in (grid.tokens // 2 + (grid.cols // 2 if grid.rows % 2 == 0 else 0), 0):
        changed = _outputs(model, image, token)
        moved = [(a != b).any(dim=-1)[0].numpy() for a, b in zip(clean, changed, strict=True)]
        can = [h[g.prefix :, token] for g, h in zip(graphs, held, strict=True)]
        found.append(
            {
                "token": [token // grid.cols, token % grid.cols],
                "moved": [int(m.sum()) for m in moved],
                "reachable": [int(c.sum()) for c in can],
                "beyond": int(sum((m & ~c).sum() for m, c in zip(moved, can, strict=True))),
            }
        )
    return found


def _outputs(model: LoadedModel, image: Tensor, token: int | None) -> list[Tensor]:
    """Patch tokens after every block, (1, N, C) each; `token` of the projection is changed."""
    found: dict[int, Tensor] = {}

    def keep(site: TokenSite, tokens: Tensor) -> None:
        found[site.layer] = tokens.cpu().clone()

    def change(patches: Tensor) -> Tensor:
        new = patches.clone()
        if token is not None:
            new[:, token] = -new[:, token].roll(1, dims=-1) - 1
        return new

    with (
        torch.inference_mode(),
        edit_patches(model.module, model.anatomy.patches, change),
        observe(model.module, model.anatomy.block_out, keep),
    ):
        model.forward(image)
    return [found[layer] for layer in sorted(found)]
