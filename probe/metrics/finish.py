"""From running sums to numbers, for all conditions of one reading at once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from probe.metrics.ssdc import LayerSSDC, SSDCStatistic


def finalise_together(statistics: Sequence[SSDCStatistic]) -> list[list[LayerSSDC]]:
    """SSDC of every layer of every statistic; those of one draw are relabelled in one go.

    The numbers are those that each gives by itself, bit for bit.
    """
    found: list[dict[int, LayerSSDC]] = [{} for _ in statistics]
    for key in dict.fromkeys(one.relabelled_alike for one in statistics):
        members = [i for i, one in enumerate(statistics) if one.relabelled_alike == key]
        for grid in dict.fromkeys(grid for i in members for grid in statistics[i].grids):
            measured = {i: statistics[i].measured_on(grid) for i in members}
            ranked = {
                i: {layer: m.ranks for layer, m in own.items() if m.ranks is not None}
                for i, own in measured.items()
            }
            parts = {i: np.stack(list(ranks.values())) for i, ranks in ranked.items() if ranks}
            values = statistics[members[0]].null_on(grid, list(parts.values())) if parts else []
            null = {
                (i, layer): row
                for i, rows in zip(parts, values, strict=True)
                for layer, row in zip(ranked[i], rows, strict=True)
            }
            for i, own in measured.items():
                for layer, one in own.items():
                    empty = np.empty(0)
                    found[i][layer] = statistics[i].layer(layer, one, null.get((i, layer), empty))
    return [[layers[i] for i in range(len(layers))] for layers in found]
