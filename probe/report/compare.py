"""What `probe compare` shows and writes: a screen and a CSV table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from probe.report.format import (
    counted,
    grid_text,
    label_lines,
    one_line,
    p_text,
    plain,
    shared_facts,
)
from probe.report.page import Page, Screen, aligned, remarks
from probe.report.severity import heading
from probe.report.tables import cell, csv_text, scalar_cells, scalar_columns

NUMBER = 20  # columns that a number takes with its interval
SUMMARY = {"anchoring": "anchoring", "delta_ssdc_rpi": "delta SSDC", "final": "final layer"}
LEGEND = (
    "difference: the first minus the second, over the same images",
    "SSDC numbers: under RPI, [low, high] 95 % jackknife interval over images, of differences "
    "paired by image group",
    "~ the interval of the difference holds 0",
)
JUDGED = {
    "accuracy": "accuracy: top-1, [low, high] 95 % Wilson interval, of the difference Newcombe's "
    "for pairs; p: McNemar's exact test",
    "fs": "FS = 1 - A_shift / A_clean, [low, high] 95 % paired bootstrap over images",
    "agreement_fs": "agreement fragility = 1 - share of images whose top-1 stays the clean one, "
    "[low, high] as for accuracy",
}


def compare_screen(envelope: Mapping[str, Any]) -> RenderableType:
    """The JSON output of `probe compare`, to be printed on a rich console."""
    return Screen(envelope, _comparison, _each)


def compare_csv(envelope: Mapping[str, Any]) -> str:
    """One row per number: that of the first model, of the second, and the first minus the second.

    `layer` is there for SSDC of a layer under RPI, `corruption` for FS and agreement fragility, `p`
    (McNemar's) for accuracy. Each `reason` column says why a number or its interval is missing.
    """
    head = ["first_model", "second_model", "measure", "layer", "corruption"]
    for part in ("first", "second", "difference"):
        head += scalar_columns(part)
    rows = []
    for result in envelope["results"]:
        models = [plain(result[side]["model"]) for side in ("first", "second")]
        for measure, layer, corruption, entry in _numbers(result):
            row = [*models, measure, layer, plain(corruption)]
            for part in ("first", "second", "difference"):
                row += scalar_cells(entry[part])
            rows.append([*row, cell(entry.get("mcnemar_p"))])
    return csv_text([*head, "p"], rows)


def _numbers(result: Mapping[str, Any]) -> Iterator[tuple[str, str, str, Mapping[str, Any]]]:
    """(measure, layer, corruption, entry) of every number of the comparison."""
    for name in SUMMARY:
        yield name, "", "", result[name]
    for layer in result["layers"]:
        yield "ssdc_rpi", str(layer["layer"]), "", layer
    yield "accuracy", "", "", result["accuracy"]
    for entry in result["corruptions"]:
        for measure in ("fs", "agreement_fs"):
            yield measure, "", entry["corruption"], entry[measure]


def _each(page: Page, results: Sequence[Mapping[str, Any]]) -> Iterator[RenderableType]:
    for result in results:
        yield from _comparison(page, result)


def _comparison(page: Page, result: Mapping[str, Any]) -> Iterator[RenderableType]:
    sides = [result["first"], result["second"]]
    names = [plain(side["model"]) for side in sides]
    yield page.text(f"{names[0]} minus {names[1]}", "bold")
    for letter, side in zip("AB", sides, strict=True):
        grids = " to ".join(dict.fromkeys(map(grid_text, (side["grids"][0], side["grids"][-1]))))
        name, identity = label_lines(side)
        about = [f"{letter} {name}", *filter(None, [identity]), plain(side["family"])]
        yield page.lines([*about, counted(side["depth"], "layer"), f"grid {grids}"])
    shared, differing = shared_facts(sides)
    yield page.lines(shared)
    for line in differing:
        yield page.text(line)
    yield page.text(one_line(result["controlled"]["note"]), "bold")
    yield Text()
    yield from _table(
        page, "under RPI", names, [(label, result[name]) for name, label in SUMMARY.items()]
    )
    yield Text()
    yield from _layers(page, names, result)
    yield Text()
    yield from _predicted(page, names, result)
    yield Text()
    yield from _footer(page, sides, result)


def _layers(
    page: Page, names: Sequence[str], result: Mapping[str, Any]
) -> Iterator[RenderableType]:
    if result["layers_reason"]:
        yield page.text(f"layers are not compared: {result['layers_reason']}")
        return
    rows = [(f"{e['layer']}  {grid_text(e['grid'])}", e) for e in result["layers"]]
    yield from _table(page, "layer, RPI", names, rows)


def _predicted(
    page: Page, names: Sequence[str], result: Mapping[str, Any]
) -> Iterator[RenderableType]:
    """Accuracy and the corruptions; what no model has for one reason is a line."""
    rows = {
        "accuracy": [("accuracy", result["accuracy"])],
        "fs": [(_named("FS", e), e["fs"]) for e in result["corruptions"]],
        "agreement_fs": [
            (_named("agreement", e), e["agreement_fs"]) for e in result["corruptions"]
        ],
    }
    kept, absent = [], []
    for measure, label in (("accuracy", "accuracy"), ("fs", "FS"), ("agreement_fs", "agreement")):
        entries = [entry for _, entry in rows[measure]]
        empty = all(e[side]["value"] is None for e in entries for side in ("first", "second"))
        if empty and entries:
            absent.append(f"{label} {page.notes.dash(entries[0]['difference'])}")
        elif entries:
            kept += rows[measure]
    if kept:
        yield from _table(page, "predictions", names, kept)
    if absent:
        yield page.lines(absent)
    right, p = result["accuracy"]["right"], result["accuracy"]["mcnemar_p"]
    if right is not None:
        yield page.lines(
            [
                f"right of {result['labelled']} images: both {right['both']}",
                f"{names[0]} alone {right['first_only']}",
                f"{names[1]} alone {right['second_only']}",
                f"neither {right['neither']}",
                f"McNemar p {p_text(p)}",
            ]
        )


def _named(label: str, entry: Mapping[str, Any]) -> str:
    return f"{label} {plain(entry['corruption'])}"


def _table(
    page: Page,
    title: str,
    names: Sequence[str],
    rows: Sequence[tuple[str, Mapping[str, Any]]],
) -> Iterator[RenderableType]:
    """Both models and the difference: in one line per number where it fits, else in several."""
    entries = [entry for _, entry in rows]

    def columns(between: str) -> dict[str, list[str]]:
        def write(scalar: Mapping[str, Any]) -> str:
            return page.notes.with_interval(scalar, between)

        found = {
            title: aligned([entry[part] for entry in entries], write)
            for title, part in zip(_titles(names), ("first", "second"), strict=True)
        }
        apart = aligned([entry["difference"] for entry in entries], write)
        marks = [" ~" if _holds_zero(entry["difference"]) else "" for entry in entries]
        return found | {"A - B": [c + m for c, m in zip(apart, marks, strict=True)]}

    labels = [label for label, _ in rows]
    for first, between in (
        (labels, " "),
        ([heading(label) for label in labels], " "),
        ([heading(label) for label in labels], "\n"),
    ):
        table = page.table({title: first, **columns(between)})
        if page.fits(table):
            break
    yield page.shown(table)


def _titles(names: Sequence[str]) -> list[str]:
    """Heads of the two columns; letters alone where a name is longer than the numbers below it."""
    pairs = zip("AB", names, strict=True)
    return [f"{letter} {name}" if len(name) < NUMBER else letter for letter, name in pairs]


def _holds_zero(scalar: Mapping[str, Any]) -> bool:
    low, high = scalar["low"], scalar["high"]
    return low is not None and high is not None and low <= 0 <= high


def _footer(
    page: Page, sides: Sequence[Mapping[str, Any]], result: Mapping[str, Any]
) -> Iterator[RenderableType]:
    shown = {
        measure
        for measure, _, _, entry in _numbers(result)
        if any(entry[part]["value"] is not None for part in ("first", "second"))
    }
    judged = [text for measure, text in JUDGED.items() if measure in shown]
    yield page.lines([*LEGEND, *judged, *page.notes.lines()])
    for note in result["notes"]:
        yield page.text(f"note: {one_line(note)}")
    for side in sides:
        for remark in remarks(side):
            yield page.text(f"{plain(side['model'])}: {remark}")
