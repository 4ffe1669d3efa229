"""What SSDC is by chance: the same matrix with its tokens relabelled (Mantel's null).

Pairs of tokens are not independent samples, so the p-value of an ordinary Spearman test means
nothing here; relabelling whole tokens keeps the dependence between pairs.

Source: Mantel, "The detection of disease clustering and a generalized regression approach",
Cancer Research 27 (1967).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from probe.numerics.ranks import PairRanker
from probe.numerics.similarity import HalfMatrix

RELABELLINGS = 999
LARGE_RELABELLINGS = 99
LARGE_TOKENS = 1024
MOST_VALUES = 2**26  # of relabelled distances in memory at once
_NULL_STREAM = 0x6E756C6C  # keeps these draws apart from the permutations of RPI


def relabelling_count(tokens: int) -> int:
    """999 up to 1,024 tokens, 99 above."""
    return RELABELLINGS if tokens <= LARGE_TOKENS else LARGE_RELABELLINGS


def generator(seed: int, *key: int) -> np.random.Generator:
    """The generator of the relabellings named by `key`."""
    sequence = np.random.SeedSequence([_NULL_STREAM, seed, *key])
    return np.random.Generator(np.random.PCG64(sequence))


def null_values(
    ranker: PairRanker, parts: Sequence[NDArray[np.float32]], seed: int, draw: int = 0
) -> list[NDArray[np.float64]]:
    """SSDC of relabelled matrices: (M, R) per part, R = `relabelling_count(tokens)`.

    Args:
        ranker: the grid's ranked distances.
        parts: each (M, pairs), unit ranks of M similarity matrices, as `PairRanker.ranks` gives
            them, or means of such over images. The same R relabellings serve all, so their null
            values are paired; a part's do not depend on what other parts there are.
        seed: with `draw`, names the relabellings.
        draw: number of the permutation draw whose matrices these are.
    """
    tokens = ranker.tokens
    count, half = relabelling_count(tokens), HalfMatrix(tokens)
    permutations = generator(seed, draw, tokens)
    distances = ranker.distance_matrix()
    flat = []
    for ranks in parts:
        matrices = torch.zeros(len(ranks), half.size)  # each pair counts once
        matrices[:, half.pairs] = torch.from_numpy(np.ascontiguousarray(ranks))
        flat.append(matrices)
    found = [np.empty((len(ranks), count)) for ranks in parts]
    step = max(1, min(64, MOST_VALUES // half.size))
    relabelled = torch.empty(step, half.size)
    for start in range(0, count, step):
        some = relabelled[: min(step, count - start)]
        for row in some:
            order = permutations.permutation(tokens)
            moved = distances[order]
            for first, end, offset in half.blocks:
                block = half.block(row, first, end, offset).numpy()
                np.take(moved[first:end], order[first:], axis=1, out=block, mode="clip")
        for values, matrix in zip(found, flat, strict=True):
            values[:, start : start + len(some)] = (matrix @ some.T).numpy()
    return found


class ImageRelabelling:
    """Means over images of relabelled ranks, for `average="image"`, in memory that does not grow.

    Draw r relabels image b by the composition of b's own permutation with the r-th shared one. For
    each r these are independent and uniform over images, as a null draw asks, yet the shared part
    can wait until the images are summed: one gather per image instead of R.
    """

    def __init__(self, ranker: PairRanker, seed: int, draw: int) -> None:
        """Name the relabellings of one draw on one grid."""
        self._key = (seed, draw, ranker.tokens)
        self._pair = np.zeros((ranker.tokens, ranker.tokens), dtype=np.int64)
        self._pair[ranker.upper] = np.arange(ranker.pairs)
        self._pair += self._pair.T
        self._upper = ranker.upper

    def gather(self, index: int) -> NDArray[np.int64]:
        """For image `index`: the pair (pairs,) that each pair's rank is taken from."""
        seed, draw, tokens = self._key
        order = generator(seed, draw, tokens, index).permutation(tokens)
        relabelled: NDArray[np.int64] = self._pair[order][:, order][self._upper]
        return relabelled
