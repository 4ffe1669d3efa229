"""The additive statistic against a straightforward computation over all images at once."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr

from probe.errors import AnatomyError
from probe.metrics.finish import finalise_together
from probe.metrics.ssdc import CONSTANT, SSDCStatistic
from probe.numerics.distance import grid_distances
from probe.types import Grid

GRID = Grid(5, 6)


def tokens(images: int, grid: Grid = GRID, width: int = 12, seed: int = 0) -> torch.Tensor:
    return torch.randn(images, grid.tokens, width, generator=torch.Generator().manual_seed(seed))


def reference(x: torch.Tensor, grid: Grid, average: str, metric: str = "l1") -> float:
    x = x.double().numpy()
    x = x / np.linalg.norm(x, axis=2, keepdims=True)
    cosines = x @ x.transpose(0, 2, 1)
    upper = np.triu_indices(grid.tokens, 1)
    closeness = -grid_distances(grid, metric)[upper]
    if average == "similarity":
        return float(spearmanr(cosines.mean(0)[upper], closeness).statistic)
    return float(np.mean([spearmanr(c[upper], closeness).statistic for c in cosines]))


def run(
    x: torch.Tensor,
    batch: int,
    *,
    grid: Grid = GRID,
    average: str = "similarity",
    metric: str = "l1",
    seed: int = 0,
    order: np.ndarray | None = None,
) -> SSDCStatistic:
    groups = min(20, len(x))
    statistic = SSDCStatistic([grid], distance=metric, average=average, groups=groups, seed=seed)
    index = np.arange(len(x)) if order is None else order
    for start in range(0, len(x), batch):
        part = index[start : start + batch]
        statistic.update(0, x[torch.from_numpy(part)], part % groups, part)
    return statistic


@pytest.mark.parametrize("average", ["similarity", "image"])
@pytest.mark.parametrize("metric", ["l1", "l2"])
def test_value_and_replicates(average: str, metric: str) -> None:
    x = tokens(23)
    layer = finalise_together([run(x, 4, average=average, metric=metric)])[0][0]
    assert layer.value == pytest.approx(reference(x, GRID, average, metric), abs=1e-9)
    assert layer.pairs == 435
    assert layer.reason is None
    for group in range(20):
        keep = torch.arange(23) % 20 != group
        expected = reference(x[keep], GRID, average, metric)
        assert layer.leave_one_out[group] == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("average", ["similarity", "image"])
@pytest.mark.parametrize("batch", [1, 5, 64])
def test_batch_size_and_order_change_nothing(average: str, batch: int) -> None:
    x = tokens(30)
    base = finalise_together([run(x, 7, average=average)])[0][0]
    shuffled = np.random.default_rng(0).permutation(30)
    other = finalise_together([run(x, batch, average=average, order=shuffled)])[0][0]
    assert other.value == pytest.approx(base.value, abs=1e-9)
    np.testing.assert_allclose(other.leave_one_out, base.leave_one_out, atol=1e-9)
    np.testing.assert_allclose(other.null, base.null, atol=1e-6)  # float32


@pytest.mark.parametrize("average", ["similarity", "image"])
@pytest.mark.parametrize("rows", [3, 5, 8, 16])
def test_rows_that_are_no_images_are_refused(average: str, rows: int) -> None:
    """Windows of the right number of tokens would give a number that looks like SSDC."""
    statistic = SSDCStatistic([GRID], distance="l1", average=average, groups=4, seed=0)
    with pytest.raises(AnatomyError, match=rf"layer 0 gives {rows} rows of tokens for 4 images"):
        statistic.update(0, tokens(rows), np.arange(4), np.arange(4))
    assert finalise_together([statistic])[0][0].reason == "no image was read"


@pytest.mark.parametrize("average", ["similarity", "image"])
def test_saved_sums_go_on(average: str) -> None:
    """Two halves merged through their arrays equal one run."""
    x = tokens(24)
    whole = finalise_together([run(x, 6, average=average)])[0][0]
    first = SSDCStatistic([GRID], distance="l1", average=average, groups=20, seed=0)
    second = SSDCStatistic([GRID], distance="l1", average=average, groups=20, seed=0)
    for start in range(0, 24, 6):
        index = np.arange(start, start + 6)
        half = first if start < 12 else second
        half.update(0, x[start : start + 6], index % 20, index)
    second.merge(first.state(), torch.device("cpu"))
    merged = finalise_together([second])[0][0]
    assert merged.value == pytest.approx(whole.value, abs=1e-9)
    np.testing.assert_allclose(merged.leave_one_out, whole.leave_one_out, atol=1e-9)


def test_common_mean_in_half_precision_keeps_its_ranks() -> None:
    """bfloat16 tokens with a strong common mean are compared in float32."""
    x = tokens(8) + 3
    half = finalise_together([run(x.bfloat16(), 8)])[0][0]
    assert half.value == pytest.approx(
        reference(x.bfloat16().float(), GRID, "similarity"), abs=1e-4
    )


def test_constant_and_zero_tokens_are_undefined_with_a_reason() -> None:
    same = torch.ones(3, GRID.tokens, 4) * torch.tensor([0.1, 0.7, 0.3, 0.9])
    layer = finalise_together([run(same, 3)])[0][0]
    assert np.isnan(layer.value)
    assert layer.reason == CONSTANT
    assert len(layer.null) == 0
    broken = tokens(3)
    broken[1, 4] = 0
    assert finalise_together([run(broken, 3)])[0][0].reason == CONSTANT
    mixed = torch.cat([tokens(4), same[:2].repeat(1, 1, 3)])
    image = run(mixed, 3, average="image")
    assert finalise_together([image])[0][0].reason == f"undefined for 2 of 6 images: {CONSTANT}"


def test_one_image_has_a_value_and_no_replicate() -> None:
    layer = finalise_together([run(tokens(1), 1)])[0][0]
    assert layer.value == pytest.approx(reference(tokens(1), GRID, "similarity"), abs=1e-9)
    assert np.isnan(layer.leave_one_out).all()


def test_a_grid_of_two_tokens_is_undefined() -> None:
    layer = finalise_together([run(tokens(3, Grid(1, 2)), 3, grid=Grid(1, 2))])[0][0]
    assert layer.reason == "2 tokens have no two different distances"


def test_memory_does_not_grow_with_images() -> None:
    statistic = run(tokens(20), 20)
    size = sum(array.nbytes for array in statistic.state().values())
    longer = run(tokens(400), 20)
    assert sum(array.nbytes for array in longer.state().values()) == size


def test_a_large_grid_ranks_its_subset() -> None:
    grid = Grid(96, 96)
    x = tokens(2, grid, width=4)
    statistic = run(x, 1, grid=grid)
    layer = finalise_together([statistic])[0][0]
    shared = statistic._ranks[grid]
    assert layer.subset == 2048
    assert layer.maps is None
    assert layer.pairs == 2_096_128
    picked = x[:, torch.from_numpy(shared.subset)].double().numpy()
    picked /= np.linalg.norm(picked, axis=2, keepdims=True)
    cosines = (picked @ picked.transpose(0, 2, 1)).mean(0)
    upper = shared.ranker.upper
    closeness = -grid_distances(grid, "l1", shared.subset)[upper]
    expected = spearmanr(cosines[upper], closeness).statistic
    assert layer.value == pytest.approx(expected, abs=1e-5)


def test_swin_first_stage_ranks_every_pair() -> None:
    grid = Grid(56, 56)
    x = tokens(2, grid, width=3)
    layer = finalise_together([run(x, 2, grid=grid)])[0][0]
    assert layer.pairs == 3136 * 3135 // 2
    assert layer.subset is None
    assert layer.value == pytest.approx(reference(x, grid, "similarity"), abs=1e-5)
    assert len(layer.null) == 99


@pytest.mark.parametrize("grid", [Grid(5, 6), Grid(12, 12), Grid(1, 5)])
def test_maps_are_the_averaged_cosines_of_three_tokens(grid: Grid) -> None:
    """Centre, corner and mid-edge; 12 x 12 is summed in float32 and in blocks of rows."""
    x = tokens(7, grid)
    found = finalise_together([run(x, 3, grid=grid)])[0][0].maps
    unit = x.double().numpy()
    unit /= np.linalg.norm(unit, axis=2, keepdims=True)
    mean = (unit @ unit.transpose(0, 2, 1)).mean(0)
    assert found.shape == (3, grid.tokens)
    assert found.dtype == np.uint8
    places = [(grid.rows // 2, grid.cols // 2), (0, 0), (0, grid.cols // 2)]
    for values, (row, col) in zip(found, places, strict=True):
        token = row * grid.cols + col
        np.testing.assert_allclose(values, (mean[token] + 1) / 2 * 255, atol=0.501)
        assert values[token] == 255


def test_maps_are_left_out_where_they_would_say_something_else() -> None:
    assert finalise_together([run(tokens(4), 2, average="image")])[0][0].maps is None
    constant = torch.ones(2, GRID.tokens, 4)
    assert finalise_together([run(constant, 2)])[0][0].maps is None
