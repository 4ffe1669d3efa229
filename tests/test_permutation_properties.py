"""Permutations of patch tokens: named by seed, draw and image, and by nothing else."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from probe.interventions import rpi_permutations
from probe.types import Grid, Permutation

GRIDS = st.builds(Grid, st.integers(1, 12), st.integers(1, 12))
INDICES = st.lists(st.integers(0, 10**7), min_size=1, max_size=6)
NAMED = st.builds(
    Permutation,
    st.sampled_from(["image", "shared", "batch"]),
    st.integers(0, 2**63),
    st.integers(0, 99),
)


@given(GRIDS, INDICES, NAMED)
def test_every_row_is_a_permutation(grid: Grid, indices: list[int], named: Permutation) -> None:
    found = rpi_permutations(grid, indices, named)
    assert (found.shape, found.dtype) == ((len(indices), grid.tokens), torch.int64)
    everything = torch.arange(grid.tokens).expand_as(found)
    assert torch.equal(found.sort(dim=1).values, everything)


@given(GRIDS, INDICES, NAMED, st.randoms(use_true_random=False))
def test_a_row_depends_on_no_other(
    grid: Grid, indices: list[int], named: Permutation, order: object
) -> None:
    """Batches of any size, in any order, give each image what it gets alone."""
    found = dict(zip(indices, rpi_permutations(grid, indices, named), strict=True))
    shuffled = list(indices)
    order.shuffle(shuffled)  # type: ignore[attr-defined]
    again = rpi_permutations(grid, shuffled, named)
    for index, row in zip(shuffled, again, strict=True):
        assert torch.equal(row, found[index])
        assert torch.equal(rpi_permutations(grid, [index], named)[0], found[index])


@given(GRIDS, INDICES, NAMED)
def test_a_row_is_what_numpy_draws(grid: Grid, indices: list[int], named: Permutation) -> None:
    for index, row in zip(indices, rpi_permutations(grid, indices, named), strict=True):
        which = 0 if named.mode == "shared" else index
        sequence = np.random.SeedSequence([named.seed, named.draw, which])
        drawn = np.random.Generator(np.random.PCG64(sequence)).permutation(grid.tokens)
        assert row.tolist() == drawn.tolist()


@given(INDICES, NAMED)
def test_names_are_told_apart(indices: list[int], named: Permutation) -> None:
    """On 144 tokens two draws that are equal would be no chance."""
    grid = Grid(12, 12)
    found = rpi_permutations(grid, indices, named)
    rows = {tuple(row.tolist()) for row in found}
    assert len(rows) == (1 if named.mode == "shared" else len(set(indices)))
    others = [replace(named, seed=named.seed + 1), replace(named, draw=named.draw + 1)]
    for other in others:
        assert rows.isdisjoint(
            tuple(row.tolist()) for row in rpi_permutations(grid, indices, other)
        )


@given(GRIDS, INDICES, NAMED)
def test_the_global_generators_are_left_alone(
    grid: Grid, indices: list[int], named: Permutation
) -> None:
    numpy_before, torch_before = np.random.get_state()[1].copy(), torch.get_rng_state()  # type: ignore[index, union-attr]
    rpi_permutations(grid, indices, named)
    assert np.array_equal(np.random.get_state()[1], numpy_before)  # type: ignore[index]
    assert torch.equal(torch.get_rng_state(), torch_before)
