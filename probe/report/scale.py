"""What `probe scale` shows and writes: a screen, a CSV table and a figure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from matplotlib import style
from rich.console import RenderableType
from rich.text import Text

from probe.report.dose import (
    MEASURES,
    MISSING,
    alpha_text,
    applicable,
    regimes_text,
    scaled_text,
    shown_curves,
    why_not,
)
from probe.report.dose_chart import SIGNS, dose_chart
from probe.report.format import (
    identity_text,
    labels_text,
    number,
    plain,
    shared_facts,
    undefined,
)
from probe.report.page import Page, Screen, aligned, header, remarks
from probe.report.scale_plot import draw_scale
from probe.report.severity import heading
from probe.report.sheet import STYLE, save
from probe.report.tables import cell, csv_text, scalar_cells, scalar_columns

LEGEND = {
    "delta_ssdc_rpi": "delta SSDC: layer 1 - layer 0 under RPI",
    "anchoring": "anchoring: mean over layers under RPI",
    "accuracy": "accuracy: top-1, 95 % Wilson interval",
    "fs": "FS = 1 - A_shift / A_clean, both at the same alpha, 95 % paired bootstrap over images",
}
JACKKNIFE = "SSDC: [low, high] 95 % jackknife interval over images"
CHART_WIDTH = 80


def scale_screen(envelope: Mapping[str, Any]) -> RenderableType:
    """The JSON output of `probe scale`, to be printed on a rich console.

    One model gives a table over alpha, its knees and a chart; several give a table per measure.
    Models that alpha does not reach are named with the reason.
    """
    return Screen(envelope, _one_model, _several)


def scale_figure(envelope: Mapping[str, Any]) -> dict[str, bytes]:
    """File name -> content of `scale.svg` and `scale.png`; empty where alpha reaches no model.

    Delta SSDC over FS, both over alpha, a column of panels per model; bands are 95 % intervals,
    shades the regimes of delta SSDC, the dashed line its knee. The same input gives the same bytes
    with the same versions of matplotlib and its fonts.
    """
    if not any(map(applicable, envelope["results"])):
        return {}
    with style.context(["default", STYLE]):
        return save(draw_scale(envelope["results"], envelope["failures"]), "scale")


def scale_csv(envelope: Mapping[str, Any]) -> str:
    """One row per model and alpha; each corruption has its columns of FS.

    Each `reason` column says why a number or its interval is missing. A regime is empty, and a knee
    too, where the curve has none. Models that failed have no row.
    """
    results = envelope["results"]
    rows = [(result, row) for result in results for row in result["alphas"]]
    corruptions = list(dict.fromkeys(text for _, row in rows for text in row["fs"]))
    head = ["model", "resolved", "family", "images", "signals", "alpha"]
    for curve in ("delta_ssdc_rpi", "anchoring"):
        head += [*scalar_columns(curve), f"{curve}_regime", f"{curve}_knee"]
    head += [*scalar_columns("accuracy"), "correct"]
    for text in corruptions:
        head += scalar_columns(f"fs_{plain(text)}")
    lines = []
    for result, row in rows:
        line = [plain(result[key]) for key in ("model", "resolved", "family")]
        line += [str(result["images"]), " ".join(result["signals"]), cell(row["alpha"])]
        for curve in ("delta_ssdc_rpi", "anchoring"):
            regimes = result["regimes"][curve]
            line += scalar_cells(row[curve])
            line += [regimes["by_alpha"].get(alpha_text(row), ""), cell(regimes["knee"]["value"])]
        line += scalar_cells(row["accuracy"])
        line.append("" if row["correct"] is None else str(row["correct"]))
        for text in corruptions:
            line += scalar_cells(row["fs"].get(text, MISSING))
        lines.append(line)
    return csv_text(head, lines)


def _one_model(page: Page, result: Mapping[str, Any]) -> Iterator[RenderableType]:
    yield from header(page, result)
    yield from _signals(page, result)
    if not applicable(result):
        yield Text()
        yield page.text(f"not applicable: {why_not(result)}", "bold")
        for remark in remarks(result):
            yield page.text(remark)
        return
    yield page.text(f"labels {labels_text(result)}")
    yield Text()
    curves = shown_curves(result)
    columns: dict[str, list[str]] = {}
    absent = []
    for title, scalars in curves.items():
        if undefined(scalars):
            absent.append(f"{title} {page.notes.dash(scalars[0])}")
            continue
        columns[heading(title)] = aligned(scalars, page.notes.with_interval)
        if title == "accuracy":
            numbers = [row["correct"] for row in result["alphas"]]
            counts = ["" if n is None else str(n) for n in numbers]
            columns["correct"] = [count.rjust(max(map(len, counts))) for count in counts]
        regimes = _regimes_of(result, title)
        if regimes:
            columns[f"regime of\n{title}"] = [
                regimes.get(alpha_text(row), "") for row in result["alphas"]
            ]
    first = {"alpha": [alpha_text(row) for row in result["alphas"]]}
    if columns:
        yield from page.tables(first, columns)
    if absent:
        yield page.lines(absent)
    yield Text()
    for measure in ("delta_ssdc_rpi", "anchoring"):
        knee = result["regimes"][measure]["knee"]
        value = page.notes.value(knee)
        at = value if knee["value"] is None else f"alpha {value}"
        yield page.text(f"knee of {MEASURES[measure]:<10}  {at}")
    delta, others = curves.get("delta SSDC"), _fs_curves(curves)
    if delta is not None and any(
        s["value"] is not None for c in (delta, *others.values()) for s in c
    ):
        yield Text()
        yield page.text(_chart(page, result, delta, others))
    yield Text()
    yield from _legend(page, [result])


def _signals(page: Page, result: Mapping[str, Any]) -> Iterator[RenderableType]:
    yield page.text(f"scaled {scaled_text(result)}")
    if result["extension"]:
        yield page.text(f"extension: {plain(result['extension'])}")
    for one in result.get("corruptions", ()):
        if one["effective_sigma"] is not None:
            sigma = number(one["effective_sigma"])
            yield page.text(f"{plain(one['corruption'])}: effective sigma {sigma} px")


def _regimes_of(result: Mapping[str, Any], title: str) -> Mapping[str, str]:
    measure = next((key for key, text in MEASURES.items() if text == title), "")
    found: Mapping[str, str] = result["regimes"].get(measure, {}).get("by_alpha", {})
    return found


def _fs_curves(
    curves: Mapping[str, Sequence[Mapping[str, Any]]],
) -> dict[str, Sequence[Mapping[str, Any]]]:
    return {title: scalars for title, scalars in curves.items() if title.startswith("FS ")}


def _chart(
    page: Page,
    result: Mapping[str, Any],
    delta: Sequence[Mapping[str, Any]],
    others: Mapping[str, Sequence[Mapping[str, Any]]],
) -> str:
    kept = list(others)[: len(SIGNS)]
    lines = dose_chart(
        [row["alpha"] for row in result["alphas"]],
        [scalar["value"] for scalar in delta],
        {title: [scalar["value"] for scalar in others[title]] for title in kept},
        result["regimes"]["delta_ssdc_rpi"]["knee"]["value"],
        min(page.width, CHART_WIDTH),
    )
    if len(others) > len(kept):
        lines.append(f"     {len(others) - len(kept)} more corruptions are in the table alone")
    return "\n".join(lines)


def _several(page: Page, results: Sequence[Mapping[str, Any]]) -> Iterator[RenderableType]:
    reached = [result for result in results if applicable(result)]
    shared, differing = shared_facts(reached or results)
    yield page.lines([f"{len(results)} models", *shared])
    for line in differing:
        yield page.text(line)
    labels = {labels_text(result): result for result in reached}
    for text in labels:
        names = [plain(r["model"]) for r in reached if labels_text(r) == text]
        who = f" ({', '.join(names)})" if len(labels) > 1 else ""
        yield page.text(f"labels {text}{who}")
    yield Text()
    overview = {
        "model": [plain(result["model"]) for result in results],
        "scaled": [scaled_text(result) for result in results],
        "knee of\ndelta SSDC": _knees(page, results, "delta_ssdc_rpi"),
        "knee of\nanchoring": _knees(page, results, "anchoring"),
        "resolved": [identity_text(result) for result in results],
    }
    yield page.shown(page.table(overview, "resolved"))
    if reached:
        yield from _comparison(page, reached)
    yield Text()
    for result in reached:
        for measure in ("delta_ssdc_rpi", "anchoring"):
            if text := regimes_text(result, measure):
                yield page.text(f"{plain(result['model'])}: {MEASURES[measure]} {text}")
    for result in reached:
        if result["extension"]:
            yield page.text(f"{plain(result['model'])}: {plain(result['extension'])}")
    for result in results:
        if not applicable(result):
            yield page.text(f"not applicable  {plain(result['model'])}: {why_not(result)}", "bold")
    yield Text()
    yield from _legend(page, results)


def _knees(page: Page, results: Sequence[Mapping[str, Any]], measure: str) -> list[str]:
    return [page.notes.value(result["regimes"][measure]["knee"]) for result in results]


def _comparison(page: Page, results: Sequence[Mapping[str, Any]]) -> Iterator[RenderableType]:
    """A table per measure: alpha by model."""
    curves = [shown_curves(result) for result in results]
    alphas = list(dict.fromkeys(row["alpha"] for result in results for row in result["alphas"]))
    for title in dict.fromkeys(title for own in curves for title in own):
        every = [scalar for own in curves for scalar in own.get(title, [MISSING])]
        yield Text()
        if undefined(every):
            yield page.text(f"{title} {page.notes.dash(every[0])}")
            continue
        yield page.text(f"{title} by alpha", "bold")
        columns: dict[str, list[str]] = {}
        for i, (result, own) in enumerate(zip(results, curves, strict=True), 1):
            at = dict(zip((r["alpha"] for r in result["alphas"]), own.get(title, ()), strict=False))
            name = plain(result["model"])
            lines = "\n".join(name[j : j + 18] for j in range(0, len(name), 18))
            head = f"{lines} ({i})" if lines in columns else lines
            cells = [at.get(alpha, MISSING) for alpha in alphas]
            columns[head] = aligned(cells, page.notes.with_interval)
        yield from page.tables({"alpha": [f"{alpha:g}" for alpha in alphas]}, columns)


def _legend(page: Page, results: Sequence[Mapping[str, Any]]) -> Iterator[RenderableType]:
    rows = [row for result in results for row in result["alphas"]]
    scalars = {measure: [row[measure] for row in rows] for measure in MEASURES}
    scalars["fs"] = [scalar for row in rows for scalar in row["fs"].values()]
    shown = [m for m, found in scalars.items() if any(s["value"] is not None for s in found)]
    interval = [JACKKNIFE] * bool({"delta_ssdc_rpi", "anchoring"} & set(shown))
    legend = interval + [LEGEND[measure] for measure in shown]
    if legend:
        yield page.lines(legend)
    for rule in dict.fromkeys(result["regimes"]["rule"] for result in results):
        yield page.text(f"regimes: {plain(rule)}")
    if page.notes.lines():
        yield page.lines(page.notes.lines())
    for result in results:
        who = f"{plain(result['model'])}: " if len(results) > 1 else ""
        for remark in remarks(result):
            yield page.text(who + remark)
