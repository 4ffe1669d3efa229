"""What `probe tasks` shows and writes: a screen, a CSV table and a figure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from matplotlib import style
from rich.console import RenderableType
from rich.text import Text

from probe.report.format import (
    counted,
    grid_text,
    identity_text,
    number,
    one_line,
    plain,
    shared_facts,
)
from probe.report.page import Page, Screen, aligned, header, remarks
from probe.report.sheet import STYLE, save
from probe.report.tables import cell, csv_text, scalar_cells, scalar_columns
from probe.report.tasks_plot import draw_tasks
from probe.report.tasks_text import left_out_lines

LEGEND = (
    "accuracy: share of the test scenes of all seeds that a linear readout gets right, [low, high] "
    "95 % Wilson interval over scenes; the interval over seeds is in the CSV and the JSON"
)
MISSING = {"value": None, "low": None, "high": None, "reason": "not tested at this level"}


def tasks_screen(envelope: Mapping[str, Any]) -> RenderableType:
    """The JSON output of `probe tasks`, to be printed on a rich console.

    One model gives a table per task: accuracy, its seeds and its subgroups at every level; several
    give tables that compare their accuracies.
    """
    return Screen(envelope, _one_model, _several)


def tasks_figure(envelope: Mapping[str, Any]) -> dict[str, bytes]:
    """File name -> content of `tasks.svg` and `tasks.png`; empty where no task has a level.

    A panel per task, a curve per model, bands are 95 % Wilson intervals, the dashed line is chance.
    The same input gives the same bytes with the same versions of matplotlib and its fonts.
    """
    if not any(task["levels"] for result in envelope["results"] for task in result["tasks"]):
        return {}
    with style.context(["default", STYLE]):
        return save(draw_tasks(envelope["results"], envelope["failures"]), "tasks")


def tasks_csv(envelope: Mapping[str, Any]) -> str:
    """One row per model, task, subgroup and level; `all` is the task itself, accuracy is in 0..1.

    A level that is left out has a row with its reason. Models that failed have no row.
    """
    head = ["model", "resolved", "family", "pool", "patch", "task", "subgroup", "factor", "unit"]
    head += ["level", "chance", *scalar_columns("accuracy"), *scalar_columns("over_seeds")]
    head += ["correct", "images"]
    rows = []
    for result in envelope["results"]:
        model = [plain(result[key]) for key in ("model", "resolved", "family", "pool")]
        model.append(grid_text(result["patch"]))
        for task in result["tasks"]:
            for curve in (main_curve(task), *task["subgroups"]):
                start = [task["task"], curve["name"], curve["factor"], curve["unit"]]
                for entry in curve["levels"]:
                    row = [*model, *start, cell(entry["level"]), cell(task["chance"])]
                    row += scalar_cells(entry["accuracy"]) + scalar_cells(entry["over_seeds"])
                    rows.append([*row, str(entry["correct"]), str(entry["images"])])
            for left in task["left_out"]:
                start = [task["task"], "all", left["factor"], left["unit"], cell(left["level"])]
                empty = MISSING | {"reason": left["reason"]}
                row = [*model, *start, cell(task["chance"]), *scalar_cells(empty)]
                rows.append([*row, *scalar_cells(empty), "", ""])
    return csv_text(head, rows)


def main_curve(task: Mapping[str, Any]) -> dict[str, Any]:
    """The task's own levels in the form of a subgroup."""
    return {"name": "all"} | {key: task[key] for key in ("factor", "unit", "levels")}


def _one_model(page: Page, result: Mapping[str, Any]) -> Iterator[RenderableType]:
    yield from header(page, result)
    yield page.lines(_how(result))
    for task in result["tasks"]:
        yield Text()
        yield page.text(f"{task['task']}: {task['question']}", "bold")
        if task["reason"] is not None:
            yield page.text("not run")
            continue
        yield page.lines(_about(task))
        own = [group for group in task["subgroups"] if group["factor"] == task["factor"]]
        yield from _table(page, [main_curve(task), *own])
        for group in task["subgroups"]:
            if group not in own:
                yield Text()
                yield from _table(page, [group])
        for note in task["notes"]:
            yield page.text(f"note: {one_line(note)}")
    yield Text()
    yield from _legend(page, [result])


def _how(result: Mapping[str, Any]) -> list[str]:
    seeds = ", ".join(map(str, result["seeds"]))
    pools = {"class": "the class token", "mean": "the mean patch token"}
    return [
        f"readout of {pools.get(result['pool'], 'class token and mean patch token')}",
        f"patches {grid_text(result['patch'])} px on a grid of {grid_text(result['grid'])}",
        f"seeds {seeds}",
        f"probe {plain(result['versions']['probe'])}",
    ]


def _about(task: Mapping[str, Any]) -> list[str]:
    count, choices = task["scenes"], ", ".join(f"{c:g}" for c in task["regularisation"])
    return [
        f"classes {', '.join(task['classes'])}",
        f"chance {number(task['chance'])}",
        f"per seed {counted(count['fitted'], 'scene')} fitted, {count['validated']} to choose C "
        f"({choices}), {count['tested']} tested at each level",
        task["level"],
    ]


def _table(page: Page, curves: Sequence[Mapping[str, Any]]) -> Iterator[RenderableType]:
    """Levels down; accuracy and seeds of the first curve, then the accuracy of the others."""
    main = curves[0]
    levels = main["levels"]
    first = {f"{main['factor']},\n{main['unit']}": [f"{entry['level']:g}" for entry in levels]}
    title = "accuracy" if main["name"] == "all" else f"accuracy,\n{main['name']}"
    columns = {title: _cells(page, levels)}
    columns["each seed"] = [" ".join(map(_share, entry["per_seed"])) for entry in levels]
    columns |= {curve["name"]: _cells(page, curve["levels"]) for curve in curves[1:]}
    yield from page.tables(first, columns)


def _cells(page: Page, levels: Sequence[Mapping[str, Any]]) -> list[str]:
    return aligned([entry["accuracy"] for entry in levels], page.notes.with_interval)


def _share(share: float | None) -> str:
    return "-" if share is None else number(share)


def _several(page: Page, results: Sequence[Mapping[str, Any]]) -> Iterator[RenderableType]:
    shared, differing = shared_facts(results)
    yield page.lines([f"{len(results)} models", *shared])
    for line in differing:
        yield page.text(line)
    yield Text()
    overview = {
        "model": [plain(result["model"]) for result in results],
        "pool": [result["pool"] for result in results],
        "patch": [grid_text(result["patch"]) for result in results],
        "grid": [grid_text(result["grid"]) for result in results],
        "resolved": [identity_text(result) for result in results],
    }
    yield page.shown(page.table(overview, "resolved"))
    for task in results[0]["tasks"]:
        yield Text()
        yield page.text(f"{task['task']}: {task['question']}", "bold")
        yield page.text(f"classes {', '.join(task['classes'])} (chance {number(task['chance'])})")
        found = [
            next(one for one in result["tasks"] if one["task"] == task["task"])
            for result in results
        ]
        for curves in _comparable(found):
            yield from _comparison(page, results, curves)
    yield Text()
    yield from _legend(page, results)


def _comparable(found: Sequence[Mapping[str, Any]]) -> Iterator[list[Mapping[str, Any]]]:
    """The main curve of every model, then those over another factor."""
    yield [main_curve(task) for task in found]
    names = dict.fromkeys(
        group["name"]
        for task in found
        for group in task["subgroups"]
        if group["factor"] != task["factor"]
    )
    for name in names:
        yield [
            next((g for g in task["subgroups"] if g["name"] == name), {"levels": []} | {"name": ""})
            for task in found
        ]


def _comparison(
    page: Page, results: Sequence[Mapping[str, Any]], curves: Sequence[Mapping[str, Any]]
) -> Iterator[RenderableType]:
    """Levels by model."""
    levels = sorted({entry["level"] for curve in curves for entry in curve["levels"]})
    if not levels:
        return
    head = next(curve for curve in curves if curve["levels"])
    columns: dict[str, list[str]] = {}
    for order, (result, curve) in enumerate(zip(results, curves, strict=True), 1):
        name = plain(result["model"])
        title = "\n".join(name[i : i + 18] for i in range(0, len(name), 18))
        at = {entry["level"]: entry["accuracy"] for entry in curve["levels"]}
        cells = [at.get(level, MISSING) for level in levels]
        columns[f"{title} ({order})" if title in columns else title] = aligned(
            cells, page.notes.with_interval
        )
    first = {f"{head['factor']},\n{head['unit']}": [f"{level:g}" for level in levels]}
    yield from page.tables(first, columns)


def _legend(page: Page, results: Sequence[Mapping[str, Any]]) -> Iterator[RenderableType]:
    for line in left_out_lines(results):
        yield page.text(line)
    yield page.text(LEGEND)
    for task in results[0]["tasks"]:
        if task["reason"] is None:
            yield page.text(f"{task['task']}: held fixed: {task['held_fixed']}; {task['assumes']}")
    if page.notes.lines():
        yield page.lines(page.notes.lines())
    for result in results:
        who = f"{plain(result['model'])}: " if len(results) > 1 else ""
        for remark in remarks(result):
            yield page.text(who + remark)
