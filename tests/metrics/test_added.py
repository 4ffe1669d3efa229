"""Metrics of other packages: means over images, their replicates, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from probe.errors import AnatomyError, DataError, UsageError
from probe.metrics.added import ImageMeans, TokenMetric, find_metrics
from probe.types import Grid

GRID = Grid(2, 3)


def first(tokens: Tensor, grid: Grid) -> Tensor:
    assert tokens.shape[1] == grid.tokens
    return tokens[:, 0, 0]


def means(measure: Callable[..., Any] = first, groups: int = 3) -> ImageMeans:
    metrics = [
        TokenMetric("first", "", measure),
        TokenMetric("one", "", lambda t, g: torch.ones(len(t))),
    ]
    return ImageMeans(metrics, [GRID, GRID], groups)


def images(count: int) -> Tensor:
    return torch.randn(count, GRID.tokens, 4, generator=torch.Generator().manual_seed(0))


def test_the_mean_and_the_mean_without_each_group() -> None:
    tokens, groups = images(8), np.arange(8) % 3
    statistic = means()
    for part in (slice(0, 5), slice(5, 8)):
        statistic.update(1, tokens[part], groups[part])
    found = statistic.finalise(1)
    numbers = tokens[:, 0, 0].double().numpy()
    assert found["first"].value == pytest.approx(numbers.mean(), abs=1e-15)
    by_hand = [numbers[groups != group].mean() for group in range(3)]
    np.testing.assert_allclose(found["first"].leave_one_out, by_hand, rtol=0, atol=1e-15)
    assert found["one"].value == 1
    assert found["first"].reason is None
    assert statistic.finalise(0)["first"].reason == "no image was read"


def test_parts_of_the_images_add_up() -> None:
    tokens, groups = images(7), np.arange(7) % 3
    whole, left, right = means(), means(), means()
    whole.update(0, tokens, groups)
    left.update(0, tokens[:3], groups[:3])
    right.update(0, tokens[3:], groups[3:])
    left.merge({name: array.copy() for name, array in right.state().items()})
    one, other = whole.finalise(0)["first"], left.finalise(0)["first"]
    assert one.value == pytest.approx(other.value, abs=1e-15)
    np.testing.assert_allclose(one.leave_one_out, other.leave_one_out, rtol=0, atol=1e-15)


def test_one_image_and_one_group_leave_nothing_out() -> None:
    statistic = means(groups=1)
    statistic.update(0, images(1), np.zeros(1, np.int64))
    found = statistic.finalise(0)["one"]
    assert found.value == 1
    assert np.isnan(found.leave_one_out).all()


def test_an_undefined_image_makes_the_mean_undefined() -> None:
    def odd(tokens: Tensor, grid: Grid) -> Tensor:
        return torch.tensor([1.0, float("nan"), float("inf")])

    statistic = means(odd)
    statistic.update(0, images(3), np.arange(3))
    found = statistic.finalise(0)
    assert np.isnan(found["first"].value)
    assert found["first"].reason == "undefined for 2 of 3 images"
    assert found["one"].value == 1


@pytest.mark.parametrize(
    ("measure", "message"),
    [
        (lambda t, g: 3.0, r"the metric 'first' gives float, not one real number for each of 3"),
        (lambda t, g: t.mean(dim=2), r"the metric 'first' gives \(3, 6\), not one real number"),
        (lambda t, g: t[:, 0, 0] + 1j, r"the metric 'first' gives \(3,\), not one real number"),
        (
            lambda t, g: torch.mm(t[0], t[0]),
            r"the metric 'first' raised RuntimeError: mat1 and mat2 shapes .* \(6x4 and 6x4\); rep",
        ),
        (lambda t, g: {}["odd"], r"the metric 'first' raised KeyError: 'odd'; report it to"),
    ],
)
def test_what_is_no_number_per_image_is_told(measure: Callable[..., Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        means(measure).update(0, images(3), np.arange(3))


@pytest.mark.parametrize("rows", [2, 6])
def test_rows_that_are_no_images_are_refused(rows: int) -> None:
    with pytest.raises(AnatomyError, match=rf"layer 1 gives {rows} rows of tokens for 3 images"):
        means().update(1, images(rows), np.arange(3))


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("no room"),
        MemoryError("no room"),
        RuntimeError("CUDA out of memory. Tried to allocate: no room"),
    ],
)
def test_memory_that_is_full_passes_through(error: Exception) -> None:
    """The engine takes smaller batches then."""

    def full(tokens: Tensor, grid: Grid) -> Tensor:
        raise error

    with pytest.raises(type(error), match="no room"):
        means(full).update(0, images(3), np.arange(3))


def test_a_name_that_nobody_offers() -> None:
    with pytest.raises(UsageError, match=r"no installed package adds the metric 'x'\. See docs/pl"):
        find_metrics(["x"])
