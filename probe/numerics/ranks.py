"""Spearman rank correlation where one side never changes.

The distances of a grid are the same for every layer, image and replicate, so they are ranked once.
What is left per similarity matrix is one sort.
"""

from __future__ import annotations

import math

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
        found = distances[self.upper]
        counts = np.bincount(found)[::-1]  # the farthest pairs have the lowest rank
        present = np.flatnonzero(counts)
        if len(present) > 1 << 16:
            raise ValueError(f"{len(present)} distinct distances do not fit into 16 bits")
        codes, counts = (np.cumsum(counts > 0) - 1)[::-1][found], counts[present]
        self.pairs = len(codes)
        self.codes = codes.astype(np.int64)
        ends = np.cumsum(counts)
        average = ends - (counts - 1) / 2  # average rank of each level, 1-based
        self._level_ranks = average - (self.pairs + 1) / 2
        self._pair_ranks = self._level_ranks[codes]
        self._norm = float(np.sqrt(np.sum(counts * self._level_ranks**2)))
        self.degenerate = len(present) < 2
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
        tied, averages, spread = self._ties(ordered)
        ranks = np.empty(self.pairs)
        ranks[order] = self._places
        ranks[order[tied]] = averages
        ranks -= (self.pairs + 1) / 2
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
            keys = _ordered_bits(similarity)
            keys <<= 16
            keys |= self.codes
            keys.sort()
            codes = keys & 0xFFFF
            keys >>= 16
            return keys, codes
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

    def _ties(
        self, ordered: NDArray[np.generic]
    ) -> tuple[NDArray[np.int64], NDArray[np.float64], float]:
        """Of a sorted sequence: where it is tied, the average ranks there, the ranks' length.

        The length is that of all centred ranks; ranks are 1-based.
        """
        same = np.flatnonzero(ordered[1:] == ordered[:-1])
        edge = np.flatnonzero(np.diff(same) != 1)
        first = same[np.append(0, edge + 1)] if len(same) else same
        last = same[np.append(edge, -1)] + 1 if len(same) else same
        counts = last - first + 1  # of each run of equal values
        before = np.cumsum(counts) - counts
        tied = np.repeat(first - before, counts) + np.arange(counts.sum())
        averages = np.repeat((first + last) / 2 + 1, counts)
        lost = float(np.sum(counts.astype(np.float64) ** 3 - counts))
        return tied, averages, math.sqrt((float(self.pairs) ** 3 - self.pairs - lost) / 12)

    def _correlate(self, ordered: NDArray[np.generic], codes: NDArray[np.int64]) -> float:
        if self.degenerate or _is_constant(ordered):
            return float("nan")
        tied, averages, spread = self._ties(ordered)
        # Sums of ranks per distance level are exact. Level ranks are centred, so these need not be.
        levels = len(self._level_ranks)
        sums = np.zeros(levels)
        sums += np.bincount(codes, self._places, levels)
        sums += np.bincount(codes[tied], averages - self._places[tied], levels)
        return _dot(sums, self._level_ranks) / (spread * self._norm)


def _dot(left: NDArray[np.float64], right: NDArray[np.float64]) -> float:
    """Sum of products, not by BLAS: its threads would wait for torch's, which spin meanwhile."""
    return float(np.sum(left * right))


def _ordered_bits(values: NDArray[np.floating]) -> NDArray[np.int64]:
    """Integers that sort as the float32 values do; both zeros become one."""
    bits = (values + np.float32(0)).view(np.int32)
    negative = bits >> 31  # all ones where the sign is set
    negative &= np.int32(0x7FFFFFFF)
    bits ^= negative
    return bits.astype(np.int64)


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
