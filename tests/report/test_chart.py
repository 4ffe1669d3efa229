from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from probe.report.chart import chart, sparkline, to_ascii

Json = dict[str, Any]
Make = Callable[..., Json]
GRIDS = ((56, 56), (28, 28))


def plotted(lines: list[str], sign: str) -> list[tuple[int, int]]:
    """(column, row) of every sign above the axis, in order of columns."""
    axis = next(i for i, line in enumerate(lines) if "└" in line)
    found = [
        (x, y) for y, line in enumerate(lines[:axis]) for x, char in enumerate(line) if char == sign
    ]
    return sorted(found)


def set_values(entry: Json, kind: str, values: list[float | None]) -> None:
    for layer, value in zip(entry["layers"], values, strict=True):
        layer[kind]["value"] = value


def test_points_stand_on_the_row_of_their_value(make: Make) -> None:
    entry = make(layers=3)
    set_values(entry, "clean", [1.0, 0.75, 0.5])
    set_values(entry, "rpi", [0.25, 0.75, None])
    lines = chart(entry, 80)
    labels = [line[:5].strip() for line in lines[:13]]
    assert [(i, text) for i, text in enumerate(labels) if text != "│"] == [
        (0, "1┤"), (3, ".75┤"), (6, ".50┤"), (9, ".25┤"), (12, "0┤"),
    ]  # fmt: skip
    assert plotted(lines, "●") == [(7, 0), (17, 6)]
    assert plotted(lines, "◉") == [(12, 3)]
    assert plotted(lines, "○") == [(7, 9)]


def test_negative_values_extend_the_axis(make: Make) -> None:
    entry = make(layers=2)
    set_values(entry, "rpi", [0.0, -0.5])
    lines = chart(entry, 80)
    assert [y for _, y in plotted(lines, "○")] == [12, 18]
    assert lines[18].startswith("-.50┤")


def test_the_band_is_shaded_at_the_layers_that_have_one(make: Make) -> None:
    entry = make(layers=4, undefined=(2,))
    columns = {x for x, _ in plotted(chart(entry, 80), "░")}
    assert columns == set(range(5, 15)) | set(range(20, 25))
    assert {y for _, y in plotted(chart(entry, 80), "░")} == {12}


def test_grids_are_separated_and_named(make: Make) -> None:
    lines = chart(make(layers=4, grids=GRIDS), 80)
    assert lines[0].split() == ["56x56", "28x28"]
    assert {x for x, _ in plotted(lines, "┊")} == {15}


@pytest.mark.parametrize("width", [30, 80, 120])
@pytest.mark.parametrize("layers", [1, 2, 12, 13, 24, 40, 75, 76, 100])
def test_charts_stay_within_the_width_and_show_every_layer(
    layers: int, width: int, make: Make
) -> None:
    lines = chart(make(layers=layers, fall=0.4 / layers, grids=GRIDS[: min(2, layers)]), width)
    assert max(map(len, lines)) <= width
    columns = {x for sign in "●◉" for x, _ in plotted(lines, sign)}
    assert len(columns) == min(layers, width - 5)
    labels = next(line for i, line in enumerate(lines) if "└" in lines[i - 1])
    numbers = [int(text) for text in labels.split()]
    assert numbers[0] == 0
    assert numbers == sorted(set(numbers))
    assert numbers[-1] < layers


def test_sparkline_levels(make: Make) -> None:
    entry = make(layers=6, grids=((14, 14), (7, 7)))
    set_values(entry, "rpi", [0.0, 0.124, 0.126, 1.0, -0.01, None])
    assert sparkline(entry["layers"], "rpi") == "▁▁▂│█_\N{MULTIPLICATION SIGN}"
    assert to_ascii(sparkline(entry["layers"], "rpi")) == "112|8_?"
