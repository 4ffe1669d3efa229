"""SSDC of every layer under one condition: an additive statistic over images, then numbers."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from probe.metrics.grids import GridRanks, check_rows
from probe.numerics.distance import landmarks
from probe.numerics.ranks import PairRanker
from probe.numerics.relabel import ImageRelabelling, null_values
from probe.numerics.similarity import add_similarities, image_similarities
from probe.types import Average, Grid, Metric

CONSTANT = "all token pairs are equally similar, or a token is zero or not finite"


@dataclass(frozen=True)
class LayerSSDC:
    """SSDC of one layer under one condition.

    Attributes:
        grid: the token grid of the layer.
        value: SSDC over all images; NaN where it is undefined.
        leave_one_out: (G,) the value without each jackknife group.
        null: (R,) values over relabelled tokens; empty where the value is undefined.
        pairs: number of token pairs that were ranked.
        subset: number of tokens they were taken from, None for all tokens of the grid.
        reason: why the value is undefined, else None.
        maps: uint8 (3, grid tokens), the averaged similarity of the grid's landmarks to all tokens
            as round((cosine + 1) / 2 * 255); None where cosines are not averaged, not defined, or
            only a subset of tokens was compared.
    """

    grid: Grid
    value: float
    leave_one_out: NDArray[np.float64]
    null: NDArray[np.float64]
    pairs: int
    subset: int | None
    reason: str | None
    maps: NDArray[np.uint8] | None = None


class SSDCStatistic:
    """Running sums from which SSDC, its replicates and its null values follow.

    Definition: arXiv 2606.00124. SSDC is the Spearman correlation, over token pairs i < j, between
    cosine similarity and negated grid distance. `average="similarity"` ranks the cosines averaged
    over images; `average="image"` ranks each image's own and averages the correlations. The two
    are different numbers: averaging first removes what differs between images.

    A high SSDC under clean images does not show that position is used: neighbouring patches show
    similar things. Only its value under RPI separates the two.

    Args:
        grids: the grid of every layer.
        distance: "l1" or "l2".
        average: "similarity" or "image".
        groups: number of jackknife groups.
        seed: names the relabellings of the null, and the token subset of very large grids.
        draw: number of the permutation draw; draws have their own relabellings.
        shared: ranked grids made before, so that statistics of several conditions share them.
    """

    def __init__(
        self,
        grids: Sequence[Grid],
        *,
        distance: Metric,
        average: Average,
        groups: int,
        seed: int,
        draw: int = 0,
        shared: dict[Grid, GridRanks] | None = None,
    ) -> None:
        """Start with no image."""
        known = {} if shared is None else shared
        for grid in grids:
            if grid not in known:
                known[grid] = GridRanks(grid, distance, seed)
        self.grids = tuple(grids)
        self.average = average
        self.groups = groups
        self._ranks = known
        self._seed, self._draw = seed, draw
        self._counts = np.zeros((len(grids), groups), dtype=np.int64)
        self._similarity: list[Tensor | None] = [None] * len(grids)
        self._image_sums = np.zeros((len(grids), groups))
        self._undefined = np.zeros(len(grids), dtype=np.int64)
        self._null_ranks: list[NDArray[np.float32] | None] = [None] * len(grids)
        self._gathers: dict[tuple[Grid, int], NDArray[np.int64]] = {}
        self._pool = ThreadPoolExecutor(torch.get_num_threads())  # starts a thread when needed

    def update(
        self, layer: int, tokens: Tensor, groups: NDArray[np.int64], indices: NDArray[np.int64]
    ) -> None:
        """Add a batch.

        Args:
            layer: which layer.
            tokens: its patch tokens (B, N, C), row-major, in any floating dtype.
            groups: (B,) the jackknife group of every image.
            indices: (B,) the place of every image in its data set.

        Raises:
            AnatomyError: if the tokens are not of B images.
        """
        check_rows(layer, tokens, len(groups))
        shared = self._ranks[self.grids[layer]]
        unit = shared.unit(tokens.detach())
        if self.average == "similarity":
            self._add_similarities(layer, shared, unit, groups)
        else:
            self._add_images(layer, shared, unit, groups, indices)
        np.add.at(self._counts[layer], groups, 1)

    def _add_similarities(
        self, layer: int, shared: GridRanks, unit: Tensor, groups: NDArray[np.int64]
    ) -> None:
        sums = self._similarity[layer]
        if sums is None:
            sums = unit.new_zeros(self.groups, shared.half.size)
            self._similarity[layer] = sums
        add_similarities(shared.half, sums, unit, groups)

    def _add_images(
        self,
        layer: int,
        shared: GridRanks,
        unit: Tensor,
        groups: NDArray[np.int64],
        indices: NDArray[np.int64],
    ) -> None:
        null = self._null_ranks[layer]
        if null is None:
            null = np.zeros(shared.ranker.pairs, dtype=np.float32)
            self._null_ranks[layer] = null
        step = max(1, 2**24 // shared.half.size)
        for start in range(0, len(unit), step):
            block = image_similarities(shared.half, unit[start : start + step])
            ranked = self._pool.map(shared.ranker.ranks, block)  # NumPy sorts without the lock
            for (value, ranks), group, index in zip(
                ranked, groups[start:], indices[start:], strict=False
            ):
                if np.isnan(value):
                    self._undefined[layer] += 1
                    continue
                self._image_sums[layer, group] += value
                null += ranks[self._gather(shared, int(index))]

    def _gather(self, shared: GridRanks, index: int) -> NDArray[np.int64]:
        """The relabelling of one image, kept while its layers pass by."""
        key = (shared.grid, index)
        if key not in self._gathers:
            if len(self._gathers) > 256 or shared.ranker.pairs > 2**18:
                self._gathers.clear()
            relabelling = ImageRelabelling(shared.ranker, self._seed, self._draw)
            self._gathers[key] = relabelling.gather(index)
        return self._gathers[key]

    def state(self) -> dict[str, NDArray[np.generic]]:
        """The running sums as arrays, to be saved and given to `restore` or `merge`."""
        arrays: dict[str, NDArray[np.generic]] = {
            "counts": self._counts,
            "image_sums": self._image_sums,
            "undefined": self._undefined,
        }
        for layer, sums in enumerate(self._similarity):
            if sums is not None:
                arrays[f"similarity{layer}"] = sums.cpu().numpy()
        for layer, ranks in enumerate(self._null_ranks):
            if ranks is not None:
                arrays[f"null{layer}"] = ranks
        return arrays

    def merge(self, state: dict[str, NDArray[np.generic]], device: torch.device) -> None:
        """Add the running sums of other images; `device` is where tokens will come from."""
        self._counts += state["counts"].astype(np.int64)
        self._image_sums += state["image_sums"].astype(np.float64)
        self._undefined += state["undefined"].astype(np.int64)
        for layer in range(len(self.grids)):
            if f"similarity{layer}" in state:
                new = torch.from_numpy(np.array(state[f"similarity{layer}"])).to(device)
                old = self._similarity[layer]
                self._similarity[layer] = new if old is None else old + new
            if f"null{layer}" in state:
                ranks = np.array(state[f"null{layer}"], dtype=np.float32)
                earlier = self._null_ranks[layer]
                self._null_ranks[layer] = ranks if earlier is None else earlier + ranks

    @property
    def relabelled_alike(self) -> tuple[int, int, int]:
        """Equal where relabellings and ranked grids are shared."""
        return self._seed, self._draw, id(self._ranks)

    def measured_on(self, grid: Grid) -> dict[int, Measured]:
        """The layers with this grid, before their null values."""
        layers = [layer for layer, own in enumerate(self.grids) if own == grid]
        return {layer: self._measure(layer, self._ranks[grid].ranker) for layer in layers}

    def null_on(self, grid: Grid, ranks: list[NDArray[np.float32]]) -> list[NDArray[np.float64]]:
        """Null values (M, R) of sets of unit ranks (M, pairs) of layers with this grid."""
        return null_values(self._ranks[grid].ranker, ranks, self._seed, self._draw)

    def layer(self, index: int, measured: Measured, null: NDArray[np.float64]) -> LayerSSDC:
        """One finished layer."""
        grid = self.grids[index]
        shared = self._ranks[grid]
        return LayerSSDC(
            grid=grid,
            value=measured.value,
            leave_one_out=measured.replicates,
            null=null,
            pairs=shared.ranker.pairs,
            subset=None if shared.subset is None else len(shared.subset),
            reason=measured.reason,
            maps=None if measured.ranks is None else self._maps(index, shared),
        )

    def _maps(self, layer: int, shared: GridRanks) -> NDArray[np.uint8] | None:
        sums = self._similarity[layer]
        if sums is None or shared.subset is not None:
            return None
        tokens = [row * shared.grid.cols + col for row, col in landmarks(shared.grid)]
        places = torch.cat([shared.half.row(token) for token in tokens]).to(sums.device)
        by_group = sums.index_select(1, places).cpu().numpy().astype(np.float64)
        cosines = by_group.sum(0) / self._counts[layer].sum()
        grey: NDArray[np.uint8] = np.rint((np.clip(cosines, -1, 1) + 1) / 2 * 255).astype(np.uint8)
        return grey.reshape(len(tokens), -1)

    def _measure(self, layer: int, ranker: PairRanker) -> Measured:
        used = np.flatnonzero(self._counts[layer])
        images = int(self._counts[layer].sum())
        if ranker.degenerate:
            return _undefined(f"{ranker.tokens} tokens have no two different distances")
        if images == 0:
            return _undefined("no image was read")
        if self.average == "image":
            return self._measure_images(layer, images, used)
        return self._measure_similarity(layer, images, used, ranker)

    def _measure_images(self, layer: int, images: int, used: NDArray[np.int64]) -> Measured:
        lost = int(self._undefined[layer])
        if lost:
            return _undefined(f"undefined for {lost} of {images} images: {CONSTANT}")
        sums, ranks = self._image_sums[layer], self._null_ranks[layer]
        assert ranks is not None
        total, rest = sums.sum(), images - self._counts[layer, used]
        with np.errstate(invalid="ignore", divide="ignore"):
            replicates = (total - sums[used]) / rest  # one group alone: 0 / 0, no replicate
        return Measured(float(total / images), replicates, ranks / np.float32(images), None)

    def _measure_similarity(
        self, layer: int, images: int, used: NDArray[np.int64], ranker: PairRanker
    ) -> Measured:
        sums = self._similarity[layer]
        assert sums is not None
        pairs = self._ranks[self.grids[layer]].half.pairs.to(sums.device)
        by_group = sums.index_select(1, pairs).cpu().numpy()
        whole = np.add.reduce(by_group, axis=0, dtype=np.float64)
        value, ranks = ranker.ranks((whole / images).astype(by_group.dtype))
        if np.isnan(value):
            return _undefined(CONSTANT)

        def without(group: int) -> float:
            rest = images - int(self._counts[layer, group])
            if not rest:
                return float("nan")
            left = np.empty_like(by_group[group])
            np.divide(whole - by_group[group], rest, out=left, casting="same_kind")
            return ranker.correlation(left)

        replicates = np.array(list(self._pool.map(without, used)))
        return Measured(value, replicates, ranks, None)


@dataclass(frozen=True)
class Measured:
    """Value, replicates and unit ranks of one layer, or the reason why there are none."""

    value: float
    replicates: NDArray[np.float64]
    ranks: NDArray[np.float32] | None
    reason: str | None


def _undefined(reason: str) -> Measured:
    return Measured(float("nan"), np.empty(0), None, reason)
