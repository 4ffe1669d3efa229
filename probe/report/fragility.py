"""What `probe fragility` shows and writes: a screen, a CSV table and a figure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from matplotlib import style
from rich.console import RenderableType
from rich.text import Text

from probe.report.format import identity_text, labels_text, number, plain, shared_facts, undefined
from probe.report.fragility_plot import draw_fragility
from probe.report.page import Page, Screen, aligned, header, remarks
from probe.report.severity import (
    by_severity,
    fold,
    heading,
    severity_mean,
    severity_range,
    sigmas_text,
)
from probe.report.sheet import STYLE, save
from probe.report.tables import cell, csv_text, scalar_cells, scalar_columns

MEASURES = {"accuracy": "accuracy", "fs": "FS", "agreement_fs": "agreement\nfragility"}
LEGEND = {
    "accuracy": "accuracy: top-1, [low, high] 95 % Wilson interval",
    "fs": "FS = 1 - A_shift / A_clean over the same images, [low, high] 95 % paired bootstrap over "
    "images",
    "agreement_fs": "agreement fragility = 1 - share of images whose top-1 stays the clean one, "
    "[low, high] 95 % Wilson interval",
}
READING = (
    "How to read: FS is a share of what the model could do, so two models with the same FS can "
    "differ much in accuracy; negative FS: the corruption helps."
)
REFERENCE = {"value": None, "low": None, "high": None, "reason": "clean is the reference"}


def fragility_screen(envelope: Mapping[str, Any]) -> RenderableType:
    """The JSON output of `probe fragility`, to be printed on a rich console.

    One model gives a table of its corruptions; several give tables that compare them. Where a
    corruption is there at several severities, these are columns, and their mean is named as that.
    """
    return Screen(envelope, _one_model, _several)


def fragility_figure(envelope: Mapping[str, Any]) -> dict[str, bytes]:
    """File name -> content of `fragility.svg` and `fragility.png`; empty without a result.

    Dots with 95 % intervals, one row per corruption and model; suites with severities are maps of
    corruption by severity. A cross marks an undefined value, and the footer says why. The same
    input gives the same bytes with the same versions of matplotlib and its fonts.
    """
    if not envelope["results"]:
        return {}
    with style.context(["default", STYLE]):
        return save(draw_fragility(envelope["results"], envelope["failures"]), "fragility")


def fragility_csv(envelope: Mapping[str, Any]) -> str:
    """One row per model and corruption, after one for the clean images; shares in 0..1, FS below 1.

    `effective_sigma` is in pixels at model resolution, empty for what is no Gaussian blur. Each
    `reason` column says why a number or its interval is missing. Models that failed have no row.
    """
    head = ["model", "resolved", "family", "images", "labelled", "corruption", "effective_sigma"]
    head += [*scalar_columns("accuracy"), "correct"]
    head += scalar_columns("fs") + scalar_columns("agreement_fs")
    rows = []
    for result in envelope["results"]:
        clean = {"corruption": "clean", "effective_sigma": None, "correct": result["correct"]}
        clean |= {"accuracy": result["accuracy"], "fs": REFERENCE, "agreement_fs": REFERENCE}
        for entry in (clean, *result["corruptions"]):
            row = [plain(result[key]) for key in ("model", "resolved", "family")]
            row += [str(result["images"]), str(result["labelled"]), plain(entry["corruption"])]
            row += [cell(entry["effective_sigma"]), *scalar_cells(entry["accuracy"])]
            row.append("" if entry["correct"] is None else str(entry["correct"]))
            row += scalar_cells(entry["fs"]) + scalar_cells(entry["agreement_fs"])
            rows.append(row)
    return csv_text(head, rows)


def _one_model(page: Page, result: Mapping[str, Any]) -> Iterator[RenderableType]:
    yield from header(page, result)
    yield page.text(f"labels {labels_text(result)}")
    yield Text()
    clean = page.notes.with_interval(result["accuracy"])
    yield page.text(f"clean accuracy  {clean}  {_counts(result, result['correct'])}".rstrip())
    entries = {entry["corruption"]: entry for entry in result["corruptions"]}
    suites = by_severity(list(entries))
    suited = {text for texts in suites.values() for text in texts.values()}
    alone = [entry for text, entry in entries.items() if text not in suited]
    if alone:
        yield Text()
        yield from _corruptions(page, result, alone)
    for measure, title in MEASURES.items():
        if suites:
            yield Text()
            yield from _by_severity(page, entries, suites, measure, " ".join(title.split()))
    yield Text()
    yield from _legend(page, [result])


def _counts(result: Mapping[str, Any], correct: int | None) -> str:
    return "" if correct is None else f"{correct} of {result['labelled']}"


def _corruptions(
    page: Page, result: Mapping[str, Any], entries: Sequence[Mapping[str, Any]]
) -> Iterator[RenderableType]:
    """One row per corruption; what is undefined in all of them for one reason is a line."""
    first = {"corruption": [plain(entry["corruption"]) for entry in entries]}
    columns: dict[str, list[str]] = {}
    if any(entry["effective_sigma"] is not None for entry in entries):
        sigmas = [entry["effective_sigma"] for entry in entries]
        columns["effective\nsigma, px"] = ["-" if s is None else number(s) for s in sigmas]
    absent = []
    for measure, title in MEASURES.items():
        scalars = [entry[measure] for entry in entries]
        if undefined(scalars):
            absent.append(f"{' '.join(title.split())} {page.notes.dash(scalars[0])}")
            continue
        columns[title] = aligned(scalars, page.notes.with_interval)
        if measure == "accuracy":
            counts = [_counts(result, entry["correct"]) for entry in entries]
            widest = max(map(len, counts))
            columns["correct"] = [text.rjust(widest) for text in counts]
    yield from page.tables(first, columns)
    if absent:
        yield page.lines(absent)


def _by_severity(
    page: Page,
    entries: Mapping[str, Mapping[str, Any]],
    suites: Mapping[str, Mapping[int, str]],
    measure: str,
    title: str,
) -> Iterator[RenderableType]:
    """Corruptions by severity: intervals below the numbers where the page is wide enough."""
    scalars = {
        name: {severity: entries[text][measure] for severity, text in texts.items()}
        for name, texts in suites.items()
    }
    cells = [scalar for row in scalars.values() for scalar in row.values()]
    if undefined(cells):
        yield page.text(f"{title} by severity {page.notes.dash(cells[0])}")
        return
    yield page.text(f"{title} by severity", "bold")
    severities = sorted({severity for row in scalars.values() for severity in row})
    mean = f"mean of\nseverities\n{severity_range(severities)}"
    names = {"corruption": [plain(name) for name in scalars]}

    def columns(between: str | None) -> dict[str, list[str]]:
        def write(scalar: Mapping[str, Any] | None) -> str:
            if scalar is None:
                return ""
            whole = page.notes.with_interval(scalar, between or " ")
            return whole if between else page.notes.value(scalar)

        return {str(s): [write(row.get(s)) for row in scalars.values()] for s in severities}

    numbers = columns(None)
    means = {mean: [page.notes.value(severity_mean(row)) for row in scalars.values()]}
    wide = page.table(names | columns("\n") | means)
    if page.fits(wide):
        yield wide
        return
    yield page.shown(page.table(names | numbers | means))
    widths = {
        s["high"] - s["low"]: text
        for text, s in ((t, e[measure]) for t, e in entries.items())
        if s["low"] is not None and s["high"] is not None
    }
    if widths:
        most = max(widths)
        yield page.text(
            f"95 % intervals are at most {number(most)} wide ({plain(widths[most])}); each is in "
            "the CSV and the JSON"
        )


def _several(page: Page, results: Sequence[Mapping[str, Any]]) -> Iterator[RenderableType]:
    shared, differing = shared_facts(results)
    yield page.lines([f"{len(results)} models", *shared])
    for line in differing:
        yield page.text(line)
    labels: dict[str, list[str]] = {}
    for result in results:
        labels.setdefault(labels_text(result), []).append(plain(result["model"]))
    for text, names in labels.items():
        who = f" ({', '.join(names)})" if len(labels) > 1 else ""
        yield page.text(f"labels {text}{who}")
    yield Text()
    names = [plain(result["model"]) for result in results]
    accuracy = aligned([result["accuracy"] for result in results], page.notes.with_interval)
    counts = [_counts(result, result["correct"]) for result in results]
    resolved = [identity_text(result) for result in results]
    overview = {"clean accuracy": accuracy, "correct": counts, "resolved": resolved}
    yield page.shown(page.table({"model": names} | overview, "resolved"))
    for measure, title in (("fs", "FS"), ("agreement_fs", "agreement fragility")):
        yield Text()
        yield from _matrix(page, results, measure, title)
    yield Text()
    yield from _legend(page, results)
    entries = [entry for result in results for entry in result["corruptions"]]
    if sigmas := sigmas_text(entries):
        yield page.text(sigmas)
    yield page.text("accuracy and counts under each corruption: in the CSV and the JSON")


def _matrix(
    page: Page, results: Sequence[Mapping[str, Any]], measure: str, title: str
) -> Iterator[RenderableType]:
    """Models by corruption."""
    rows = [fold({e["corruption"]: e[measure] for e in r["corruptions"]}) for r in results]
    scalars = [scalar for row in rows for scalar in row.values()]
    if not scalars or undefined(scalars):
        reason = scalars[0]["reason"] if scalars else "no corruption was measured"
        yield page.text(f"{title} by corruption {page.notes.dash({'reason': reason})}")
        return
    yield page.text(f"{title} by corruption", "bold")
    missing = {"value": None, "low": None, "high": None, "reason": "not measured"}
    columns = {
        heading(text): aligned([row.get(text, missing) for row in rows], page.notes.with_interval)
        for text in dict.fromkeys(text for row in rows for text in row)
    }
    yield from page.tables({"model": [plain(r["model"]) for r in results]}, columns, "model")


def _legend(page: Page, results: Sequence[Mapping[str, Any]]) -> Iterator[RenderableType]:
    entries = [entry for result in results for entry in (result, *result["corruptions"])]
    shown = {m for m in MEASURES for e in entries if m in e and e[m]["value"] is not None}
    yield page.lines([text for measure, text in LEGEND.items() if measure in shown])
    if any(entry.get("effective_sigma") is not None for entry in entries) and len(results) == 1:
        yield page.text(
            "effective sigma: root of the Gaussian kernel's second moment, in pixels at "
            "model resolution; - no Gaussian blur"
        )
    if page.notes.lines():
        yield page.lines(page.notes.lines())
    if "fs" in shown:
        yield page.text(READING)
    for result in results:
        who = f"{plain(result['model'])}: " if len(results) > 1 else ""
        for remark in remarks(result):
            yield page.text(who + remark)
