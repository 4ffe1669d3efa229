"""The screen of several models: one table that compares them, and their curves as sparklines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from probe.report.chart import BELOW, LEVELS, UNDEFINED, sparkline
from probe.report.format import counted, grid_text, grids_of, label_lines, plain, shared_facts
from probe.report.page import GUIDE, INTERVALS, Page, remarks


def comparison_screen(page: Page, results: Sequence[Mapping[str, Any]]) -> Iterator[RenderableType]:
    """What several models share and differ in, their numbers, then their curves."""
    shared, differing = shared_facts(results)
    yield page.lines([f"{len(results)} models", *shared])
    for line in differing:
        yield page.text(line)
    yield Text()
    yield _comparison(page, results)
    yield Text()
    for result in results:
        grids = result["anchoring_by_grid"]
        if len(grids) > 1:
            means = [f"{grid_text(g['grid'])} {page.notes.with_interval(g)}" for g in grids]
            means[0] = f"† {plain(result['model'])}: anchoring mixes grids; on each: {means[0]}"
            yield page.lines(means)
    if any(len(result["anchoring_by_grid"]) > 1 for result in results):
        yield Text()
    yield page.text("SSDC by layer", "bold")
    for result in results:
        labels = [label for label in label_lines(result) if label]
        yield page.lines([*labels, counted(len(result["layers"]), "layer")])
        for kind, label in (("clean", "clean"), ("rpi", "RPI  ")):
            if kind == "clean" or result["settings"]["rpi"]:
                yield page.text(f"  {label} {_curve(page, result, kind)}")
    yield Text()
    scale = (
        f"{LEVELS[0]} to {LEVELS[-1]} eighths from 0 to 1, {BELOW} below 0, {UNDEFINED} undefined"
    )
    footer = [scale, INTERVALS, "peak without interval, as a maximum is biased"]
    yield page.lines(footer + page.notes.lines())
    yield page.text(GUIDE)
    for result in results:
        for remark in remarks(result):
            yield page.text(f"{plain(result['model'])}: {remark}")


def _curve(page: Page, result: Mapping[str, Any], kind: str) -> str:
    """A sparkline, then a mark for each reason why a layer or its interval is missing."""
    points = [layer[kind] for layer in result["layers"]]
    reasons = dict.fromkeys(point["reason"] for point in points if point["reason"] is not None)
    marks = "".join(f" {page.notes.mark(reason)}" for reason in reasons)
    return sparkline(result["layers"], kind) + marks


def _comparison(page: Page, results: Sequence[Mapping[str, Any]]) -> Table:
    """One line per model where it fits, else two: numbers above their intervals."""

    def column(name: str, between: str) -> list[str]:
        return [page.notes.with_interval(result[name], between) for result in results]

    names = [
        plain(result["model"]) + (" †" if len(result["anchoring_by_grid"]) > 1 else "")
        for result in results
    ]
    images = [str(result["images"]) for result in results]
    grids = [" to ".join(dict.fromkeys([g[0], g[-1]])) for g in map(grids_of, results)]

    def peak(result: Mapping[str, Any]) -> str:
        where = "" if result["peak"]["layer"] is None else f" at {result['peak']['layer']}"
        return page.notes.value(result["peak"]) + where

    def numbers(between: str) -> dict[str, list[str]]:
        return {
            "delta SSDC": column("delta_ssdc_rpi", between),
            "anchoring": column("anchoring", between),
            "peak at": [peak(result) for result in results],
            "final": column("final", between),
        }

    single = page.table({"model": names, "images": images, "grid": grids} | numbers(" "), "model")
    if page.fits(single):
        return single
    both = [
        f"{name}\n{counted(result['images'], 'image')}, {grid}"
        for name, result, grid in zip(names, results, grids, strict=True)
    ]
    return page.shown(page.table({"model": both} | numbers("\n"), "model"))
