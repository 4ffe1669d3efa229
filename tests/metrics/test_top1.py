"""Top-1 predictions: kept by position, judged against sets of right classes, additive."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from probe.errors import DataError
from probe.metrics.top1 import Top1

LOGITS = torch.tensor([[0.1, 2.0, 0.3], [5.0, -1.0, 4.9], [0.0, 0.0, 1e-3], [3.0, 3.0, 1.0]])
FOUR = np.arange(4)
ONE = frozenset({1})


def filled(order: list[int], sizes: list[int]) -> Top1:
    """Four images whose right class is 1, added in `order` in batches of `sizes`."""
    statistic, start = Top1(), 0
    for size in sizes:
        rows = order[start : start + size]
        statistic.update(LOGITS[rows], FOUR[rows], [ONE] * size)
        start += size
    return statistic


def test_the_largest_logit_is_predicted_and_judged() -> None:
    statistic = Top1()
    accepted = [frozenset({1}), frozenset({1, 0}), frozenset({0}), None]
    statistic.update(LOGITS, FOUR, accepted)
    predicted, correct = statistic.finalise(4)
    assert predicted.tolist() == [1, 0, 2, 0]  # of equal logits the first
    assert correct.tolist() == [1, 1, 0, -1]
    assert (predicted.dtype, correct.dtype) == (np.int32, np.int8)


def test_images_that_were_not_read_hold_minus_one() -> None:
    statistic = Top1()
    statistic.update(LOGITS[:2], np.array([4, 1]), [ONE, None])
    predicted, correct = statistic.finalise(6)
    assert predicted.tolist() == [-1, 0, -1, -1, 1, -1]
    assert correct.tolist() == [-1, -1, -1, -1, 1, -1]
    empty = Top1().finalise(2)
    assert [part.tolist() for part in empty] == [[-1, -1], [-1, -1]]


@pytest.mark.parametrize("order", [[0, 1, 2, 3], [3, 1, 0, 2]])
@pytest.mark.parametrize("sizes", [[4], [1, 3], [2, 1, 1]])
def test_order_and_batches_change_nothing(order: list[int], sizes: list[int]) -> None:
    for found, expected in zip(
        filled(order, sizes).finalise(4), filled([0, 1, 2, 3], [4]).finalise(4), strict=True
    ):
        assert np.array_equal(found, expected)


def test_a_saved_state_goes_on() -> None:
    first, second = filled([0, 1, 2, 3], [2]), Top1()
    second.merge(first.state())
    second.update(LOGITS[2:], FOUR[2:], [ONE, ONE])
    whole = filled([0, 1, 2, 3], [4])
    assert {k: v.tolist() for k, v in second.state().items()} == {
        k: v.tolist() for k, v in whole.state().items()
    }
    assert second.finalise(4)[0].tolist() == whole.finalise(4)[0].tolist()
    assert Top1().state() == {}
    second.merge(Top1().state())
    assert second.finalise(4)[0].tolist() == whole.finalise(4)[0].tolist()


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_logits_that_are_not_finite_are_refused(value: float) -> None:
    logits = LOGITS.clone()
    logits[2, 0] = value
    with pytest.raises(DataError) as error:
        Top1().update(logits, FOUR, [None] * 4)
    assert str(error.value) == "the model gives logits that are not finite; try --dtype float32"


def test_half_precision_is_judged_too() -> None:
    statistic = Top1()
    statistic.update(LOGITS.to(torch.bfloat16), FOUR, [ONE] * 4)
    assert statistic.finalise(4)[1].tolist() == [1, 0, 0, 0]
