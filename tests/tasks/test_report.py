"""What is drawn and shown of results: the same bytes again, missing parts with their reason."""

from __future__ import annotations

import io
import re
from typing import Any

import pytest
from rich.console import Console

from probe.report.tasks import tasks_csv, tasks_figure, tasks_screen
from probe.report.tasks_plot import draw_tasks
from probe.tasks import alignment, arrangement
from probe.tasks.frame import Frame
from probe.tasks.run import Plan, run_task
from tests.tasks.checks import DEIT, DIGITS
from tests.tasks.stub import StubReader, nothing, the_answer

TINY = Frame((8, 8), (4, 4), (2, 2))


def result(model: str, frame: Frame, features: Any = the_answer) -> dict[str, Any]:
    tasks = [
        run_task(task, frame, Plan(24, 8, (0, 1)), StubReader(features))  # type: ignore[arg-type]
        for task in (alignment.TASK, arrangement.TASK)
    ]
    settings = {
        "data": {"name": "rendered scenes", "fingerprint": "0123456789abcdef"},
        "seed": 0, "dtype": "float32", "device": "cpu", "image_size": list(frame.size),
    }  # fmt: skip
    return {
        "model": model, "resolved": f"test:{model}", "family": "test", "pool": "mean",
        "image_size": list(frame.size), "patch": list(frame.patch), "grid": list(frame.grid),
        "seeds": [0, 1], "images": 99, "skipped": [], "tasks": tasks, "settings": settings,
        "versions": {"probe": "0"}, "notes": ["a remark"],
    }  # fmt: skip


def envelope(*results: dict[str, Any]) -> dict[str, Any]:
    return {"schema": 1, "results": list(results), "failures": [{"model": "x", "error": "broken"}]}


def shown(found: dict[str, Any], width: int = 120) -> str:
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(tasks_screen(found))
    return console.export_text()


def test_offsets_of_all_patch_sizes_share_an_axis() -> None:
    figure = draw_tasks([result("small", DIGITS), result("large", DEIT, nothing)], [])
    offsets, moves, widths = figure.axes
    assert [axes.get_xlabel() for axes in figure.axes] == [
        "offset, share of a patch", "move, patches", "width, patches",
    ]  # fmt: skip
    curves = {tuple(line.get_xdata()) for line in offsets.lines if len(line.get_xdata()) > 2}
    assert curves == {(0.0, 0.25, 0.5, 0.75), tuple(i / 8 for i in range(8))}
    heights = {tuple(line.get_ydata()) for line in moves.lines if len(line.get_xdata()) > 2}
    assert heights == {(1.0,) * 3, (0.25,) * 4}
    chance = [line for line in widths.lines if set(line.get_ydata()) == {0.5}]
    assert any(line.get_linestyle() != "-" for line in chance)


def test_the_same_results_give_the_same_bytes() -> None:
    found = envelope(result("small", DIGITS), result("large", DEIT))
    first = tasks_figure(found)
    assert set(first) == {"tasks.svg", "tasks.png"}
    assert tasks_figure(found) == first
    assert b"failed: x" in first["tasks.svg"]


def test_nothing_is_drawn_where_no_task_has_room() -> None:
    found = result("tiny", TINY)
    found["tasks"] = found["tasks"][:1]
    assert tasks_figure(envelope(found)) == {}
    assert "failed  x: broken" in shown(envelope(found))
    rows = tasks_csv(envelope(found)).splitlines()
    assert len(rows) == 1 + len(found["tasks"][0]["left_out"])
    assert "it takes a grid of 7x7 patches, the model has 2x2" in rows[1]


@pytest.mark.parametrize("width", [80, 160])
def test_screens_keep_to_their_width_and_say_what_is_missing(width: int) -> None:
    tiny, small = result("tiny", TINY), result("small", DIGITS)
    alone, both = shown(envelope(tiny), width), shown(envelope(tiny, small), width)
    for text in (alone, both):
        assert max(map(len, text.splitlines())) <= width
    alone, both = (re.sub(r"\s+", " ", text) for text in (alone, both))
    assert "alignment: Does a readout" in alone
    assert "not run" in alone
    assert "note: a remark" in alone
    reason = "alignment: the image has no room for this task: it takes a grid of 7x7 patches"
    assert f"left out: {reason}" in alone
    assert f"left out on tiny: {reason}" in both
    assert "left out on small: move 4 (" in both
    assert "(1) not tested at this level" in both
