"""Spearman rank correlation where one side never changes.

The distances of a grid are the same for every layer, image and replicate, so they are ranked once.
What is left per similarity matrix is one sort.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

# A smaller range counts as constant: cosines of equal tokens differ by a few roundings.
CONSTANT_RANGE = {np.dtype(np.float32): 1e-6, np.dtype(np.float64): 1e-12}


class PairRanker:
    """Ranks of the negated distances of all pairs, ready to be correlated with similarities.

    Args:
        distances: integer distances (N, N), symmetric; see `probe.numerics.distance`.

    Attributes:
        tokens: N.
        pairs: number of pairs, N (N - 1) / 2.
        degenerate: True when all distances are equal (fewer than three tokens, say), so that no
            correlation exists.
    """

    def __init__(self, distances: NDArray[np.int64]) -> None:
        """Rank the distances once."""
        self.tokens = len(distances)
        self.upper = np.triu_indices(self.tokens, k=1)
        levels, codes, counts = np.unique(
            -distances[self.upper], return_inverse=True, return_counts=True
        )
        if len(levels) > 1 << 16:
            raise ValueError(f"{len(levels)} distinct distances do not fit into 16 bits")
        self.pairs = len(codes)
        self.codes = codes.astype(np.int64)
        ends = np.cumsum(counts)
        average = ends - (counts - 1) / 2  # average rank of each level, 1-based
        self._level_ranks = average - (self.pairs + 1) / 2
        self._pair_ranks = self._level_ranks[codes]
        self._norm = float(np.sqrt(np.sum(counts * self._level_ranks**2)))
        self.degenerate = len(levels) < 2
        self._places = np.arange(1, self.pairs + 1, dtype=np.float64)

    def correlation(self, similarity: NDArray[np.floating]) -> float:
        """Spearman correlation between `similarity` (pairs,) and the negated distances.

        Ties get average ranks. Equal to `scipy.stats.spearmanr(similarity, -distances).statistic`
        to 1e-9. NaN where it is undefined: a NaN among the similarities, or a constant side. A
        range of at most 1e-6 (float64: 1e-12) counts as constant, since cosines cannot tell it
        from rounding.

        Args:
            similarity: float32 or float64 (pairs,).
        """
        return self._correlate(*self._sorted_codes(similarity))

    def ranks(self, similarity: NDArray[np.floating]) -> tuple[float, NDArray[np.float32]]:
        """The correlation, and the centred average ranks (pairs,) scaled to unit length.

        The ranks are all NaN where the correlation is.
        """
        ordered, order = self._sort_with_index(similarity)
        if self.degenerate or _is_constant(ordered):
            return float("nan"), np.full(self.pairs, np.nan, dtype=np.float32)
        places, spread = self._average_places(ordered)
        ranks = np.empty(self.pairs)
        ranks[order] = places - (self.pairs + 1) / 2
        value = _dot(ranks, self._pair_ranks) / (spread * self._norm)
        return value, (ranks / spread).astype(np.float32)

    def distance_matrix(self) -> NDArray[np.float32]:
        """Centred ranks of the negated distances, of unit length over pairs: symmetric (N, N)."""
        full = np.zeros((self.tokens, self.tokens), dtype=np.float32)
        full[self.upper] = self._pair_ranks / self._norm
        return full + full.T

    def _sorted_codes(
        self, similarity: NDArray[np.floating]
    ) -> tuple[NDArray[np.generic], NDArray[np.int64]]:
        if similarity.dtype == np.float32:
            # Similarity above, distance level below, in one integer: sorting needs no index.
            keys = (_ordered_bits(similarity) << 16) | self.codes
            keys.sort()
            return keys >> 16, keys & 0xFFFF
        order = np.argsort(similarity)
        return similarity[order], self.codes[order]

    def _sort_with_index(
        self, similarity: NDArray[np.floating]
    ) -> tuple[NDArray[np.generic], NDArray[np.int64]]:
        if similarity.dtype == np.float32 and self.pairs < 1 << 31:
            keys = (_ordered_bits(similarity) << 32) | np.arange(self.pairs)
            keys.sort()
            return keys >> 32, keys & 0xFFFFFFFF
        order = np.argsort(similarity)
        return similarity[order], order

    def _average_places(self, ordered: NDArray[np.generic]) -> tuple[NDArray[np.float64], float]:
        """Average 1-based ranks of a sorted sequence, and the length of the centred ranks."""
        new = ordered[1:] != ordered[:-1]
        if new.all():
            return self._places, float(np.sqrt((float(self.pairs) ** 3 - self.pairs) / 12))
        starts = np.concatenate(([0], np.flatnonzero(new) + 1))
        counts = np.diff(np.append(starts, self.pairs))
        places = np.repeat(starts + (counts + 1) / 2, counts)
        return places, float(np.sqrt(np.sum((places - (self.pairs + 1) / 2) ** 2)))

    def _correlate(self, ordered: NDArray[np.generic], codes: NDArray[np.int64]) -> float:
        if self.degenerate or _is_constant(ordered):
            return float("nan")
        places, spread = self._average_places(ordered)
        # The level ranks are centred, so the places need not be.
        return _dot(places, self._level_ranks[codes]) / (spread * self._norm)


def _dot(left: NDArray[np.float64], right: NDArray[np.float64]) -> float:
    """Sum of products, not by BLAS: its threads would wait for torch's, which spin meanwhile."""
    return float(np.sum(left * right))


def _ordered_bits(values: NDArray[np.floating]) -> NDArray[np.int64]:
    """Integers that sort as the float32 values do; both zeros become one."""
    bits = (values + np.float32(0)).view(np.int32)
    return np.where(bits < 0, bits ^ np.int32(0x7FFFFFFF), bits).astype(np.int64)


def _ordered_values(bits: NDArray[np.generic]) -> NDArray[np.float32]:
    signed = bits.astype(np.int32)
    return (
        np.where(signed < 0, signed ^ np.int32(0x7FFFFFFF), signed)
        .astype(np.int32)
        .view(np.float32)
    )


def _is_constant(ordered: NDArray[np.generic]) -> bool:
    """True when a sorted sequence has no usable spread, or holds a NaN (which sorts to an end)."""
    ends = ordered[[0, -1]]
    low, high = ends = ends if ends.dtype.kind == "f" else _ordered_values(ends)
    return not high - low > CONSTANT_RANGE[ends.dtype]
