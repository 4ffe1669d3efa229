"""The figure of `probe fragility`: dots with intervals, and maps of corruption by severity."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MultipleLocator

from probe.report.format import Footnotes, label_lines, labels_text, one_line, plain
from probe.report.panel import COLORS
from probe.report.severity import by_severity, severity_range, sigmas_text
from probe.report.severity_map import Map, Maps, draw_maps, layout_maps
from probe.report.sheet import (
    GREY,
    LINE,
    NAME,
    SMALL,
    TICK,
    TOP,
    footer_lines,
    place,
    write_footer,
    write_heading,
)
from probe.report.typeset import text_width, wrap

MEASURES = {"fs": "FS", "agreement_fs": "agreement fragility"}
MEASURE_COLORS = {"fs": COLORS["clean"], "agreement_fs": COLORS["rpi"]}
PANEL, GAP, RIGHT = 2.9, 0.3, 0.25  # width of a panel of dots, between panels, right margin: inches
WIDEST_LABEL = 2.6  # inches
ROW = 0.17  # least height of a row, inches
ABOVE, BELOW = 0.26, 0.3  # titles over the panels, ticks under them, inches

Result = Mapping[str, Any]


@dataclass(frozen=True)
class _Row:
    """A line of the dot plot: a corruption's name over its models, or one entry."""

    label: list[str]
    entry: Mapping[str, Any] | None
    top: float  # inches below the panel's top

    @property
    def height(self) -> float:
        return max(ROW, LINE * TICK * len(self.label) + 0.03)

    @property
    def middle(self) -> float:
        return self.top + self.height / 2


def draw_fragility(results: Sequence[Result], failures: Sequence[Mapping[str, Any]]) -> Figure:
    """The figure itself, under whatever matplotlib style is in force; `results` is not empty."""
    suites = [by_severity([e["corruption"] for e in r["corruptions"]]) for r in results]
    rows = _rows(results, suites)
    measures = _defined(results)
    widest = max((text_width(t, TICK, not r.entry) for r in rows for t in r.label), default=0.0)
    left = TOP + widest + 0.1
    width = left + len(measures) * (PANEL + GAP) - GAP + RIGHT
    maps = layout_maps(_maps(results, suites, measures))
    page = max(width if rows else 0.0, maps.width if maps else 0.0)

    name, identity = label_lines(results[0]) if len(results) == 1 else ("", "")
    title = wrap(name, NAME, page - 2 * TOP, bold=True) if name else []
    details = wrap(identity, SMALL, page - 2 * TOP) if identity else []
    heading = LINE * (NAME * len(title) + SMALL * len(details))
    tall = rows[-1].top + rows[-1].height if rows else 0.0
    dots = ABOVE + tall + BELOW if rows else 0.0
    footer = footer_lines(results, failures, _extra(results, any(suites)), page - 2 * TOP)
    height = TOP + heading + dots + (maps.height if maps else 0.0)
    height += 0.1 + LINE * SMALL * len(footer) + TOP
    figure = Figure(figsize=(page, height))

    write_heading(figure, title, details, TOP, height - TOP)
    y = height - TOP - heading
    if rows:
        for i, (measure, label) in enumerate(measures.items()):
            x = left + i * (PANEL + GAP)
            axes = place(figure, x, y - ABOVE - tall, PANEL, tall)
            _draw_dots(axes, rows, measure, label, labelled=i == 0)
        y -= dots
    if maps:
        draw_maps(figure, maps, y)
    write_footer(figure, footer)
    return figure


def _defined(results: Sequence[Result]) -> dict[str, str]:
    """The measures that have a value anywhere, or all where none has."""
    entries = [entry for result in results for entry in result["corruptions"]]
    found = {
        measure: label
        for measure, label in MEASURES.items()
        if any(entry[measure]["value"] is not None for entry in entries)
    }
    return found or MEASURES


def _rows(
    results: Sequence[Result], suites: Sequence[Mapping[str, Mapping[int, str]]]
) -> list[_Row]:
    """Corruptions in order; with several models each is a name over a row per model."""
    found: dict[str, list[tuple[str, Mapping[str, Any]]]] = {}
    for result, suite in zip(results, suites, strict=True):
        suited = {text for texts in suite.values() for text in texts.values()}
        for entry in result["corruptions"]:
            if entry["corruption"] not in suited:
                pair = (plain(result["model"]), entry)
                found.setdefault(plain(entry["corruption"]), []).append(pair)
    rows: list[_Row] = []
    top = 0.04

    def add(label: str, entry: Mapping[str, Any] | None) -> None:
        nonlocal top
        rows.append(_Row(wrap(label, TICK, WIDEST_LABEL, bold=entry is None), entry, top))
        top += rows[-1].height

    for corruption, pairs in found.items():
        if len(results) == 1:
            add(corruption, pairs[0][1])
            continue
        add(corruption, None)
        for model, entry in pairs:
            add(model, entry)
        top += 0.05
    return rows


def _draw_dots(axes: Axes, rows: Sequence[_Row], measure: str, title: str, labelled: bool) -> None:
    entries = [row for row in rows if row.entry is not None]
    scalars = [row.entry[measure] for row in entries if row.entry is not None]
    ends = [s[key] for s in scalars for key in ("value", "low", "high") if s[key] is not None]
    axes.set_xlim(min([0.0, *ends]) - 0.04, max([1.0, *ends]) + 0.03)
    axes.set_ylim(rows[-1].top + rows[-1].height, 0)
    axes.set_title(f"{title}, 95 % interval", fontsize=TICK + 0.5, loc="left", pad=6)
    axes.xaxis.set_major_locator(MultipleLocator(0.25))
    axes.tick_params(axis="x", labelsize=TICK, length=2.5, width=0.6)
    axes.set_yticks([])
    axes.axvline(0, color=GREY, linewidth=0.5, zorder=1)
    color = MEASURE_COLORS[measure]
    for row, scalar in zip(entries, scalars, strict=True):
        y = row.middle
        axes.axhline(y, color="#EEEEEE", linewidth=0.6, zorder=0)
        if scalar["value"] is None:
            at = axes.get_xlim()[0]
            axes.plot([at], [y], "x", color=GREY, markersize=4, clip_on=False, zorder=4)
            continue
        if scalar["low"] is not None and scalar["high"] is not None:
            axes.hlines(
                y, scalar["low"], scalar["high"], color=color, alpha=0.45, linewidth=2.5, zorder=2
            )
        axes.plot([scalar["value"]], [y], "o", color=color, markersize=4, zorder=3)
    for row in rows if labelled else ():
        for i, line in enumerate(row.label):
            middle = row.middle + LINE * TICK * (i - (len(row.label) - 1) / 2)
            heads = row.entry is None
            axes.annotate(
                line,
                (0, middle),
                xycoords=("axes fraction", "data"),
                xytext=(-5, 0),
                textcoords="offset points",
                ha="right",
                va="center",
                fontsize=TICK,
                weight="bold" if heads else "normal",
            )


def _maps(
    results: Sequence[Result],
    suites: Sequence[Mapping[str, Mapping[int, str]]],
    measures: Mapping[str, str],
) -> Maps:
    """A map per model and measure, FS beside agreement."""
    found: Maps = []
    for result, suite in zip(results, suites, strict=True):
        if not suite:
            continue
        entries = {entry["corruption"]: entry for entry in result["corruptions"]}
        heading = label_lines(result) if len(results) > 1 else ("", "")
        pair = [
            Map(
                label,
                {
                    name: {severity: entries[text][measure] for severity, text in texts.items()}
                    for name, texts in suite.items()
                },
                MEASURE_COLORS[measure],
            )
            for measure, label in measures.items()
        ]
        found.append((heading[0], heading[1], pair))
    return found


def _extra(results: Sequence[Result], mapped: bool) -> list[str]:
    """How labels were mapped, the clean accuracies, and the reason of everything missing."""
    notes = Footnotes()
    labels: dict[str, list[str]] = {}
    accuracies = []
    for result in results:
        name = plain(result["model"])
        labels.setdefault(labels_text(result), []).append(name)
        counts = (
            "" if result["correct"] is None else f" ({result['correct']} of {result['labelled']})"
        )
        who = f"{name} " if len(results) > 1 else ""
        accuracies.append(who + notes.with_interval(result["accuracy"]) + counts)
    lines = [
        f"labels {text}" + (f": {', '.join(names)}" if len(labels) > 1 else "")
        for text, names in labels.items()
    ]
    lines.append(f"clean accuracy {'; '.join(accuracies)}")
    lines += notes.lines()
    lines.append("FS = 1 - A_shift / A_clean, paired bootstrap interval; the others are Wilson's")
    entries = [entry for result in results for entry in result["corruptions"]]
    if sigmas := sigmas_text(entries):
        lines.append(sigmas)
    if mapped:
        severities = sorted(
            {s for r in results for texts in by_severity(
                [e["corruption"] for e in r["corruptions"]]).values() for s in texts}
        )  # fmt: skip
        lines.append(
            f"maps: white at 0 or below, dark at 1; mean: unweighted mean of severities "
            f"{severity_range(severities)}; intervals are in the CSV and the JSON"
        )
    return lines + _gaps(results)


def _gaps(results: Sequence[Result]) -> list[str]:
    """For every reason of a missing value or interval: what misses it, and the reason."""
    found: dict[str, list[str]] = {}
    for result in results:
        who = f"{plain(result['model'])} " if len(results) > 1 else ""
        for measure, label in MEASURES.items():
            entries = result["corruptions"]
            by_reason: dict[str, list[str]] = {}
            for entry in entries:
                reason = entry[measure]["reason"]
                if reason is not None:
                    by_reason.setdefault(one_line(reason), []).append(plain(entry["corruption"]))
            for reason, texts in by_reason.items():
                where = "" if len(texts) == len(entries) else f" under {', '.join(texts)}"
                found.setdefault(reason, []).append(f"{who}{label}{where}")
    lines = []
    for reason, places in found.items():
        more = [f"{len(places) - 4} more"] if len(places) > 4 else []
        lines.append(f"{reason}: {'; '.join(places[:4] + more)}")
    return lines
