"""REPORT.md: a report for a paper's appendix or a pull request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from probe.report.format import DASH, Footnotes, counted, grid_text, number, p_text
from probe.report.gfm import code, folded, prose, table
from probe.report.zoo_facts import (
    COLUMNS,
    MEASURES,
    MIXED,
    by_corruption,
    corruption_columns,
    figure_names,
    grids_text,
    model_words,
    report_facts,
    scaled,
    sigmas,
    unscaled,
)
from probe.report.zoo_prose import (
    HOW_TO_READ,
    cost,
    hardware_lines,
    interface_lines,
    provenance,
    published,
)

TOGETHER = 4  # corruptions whose FS and agreement share a table
SCALARS = {"anchoring": "anchoring", "delta_ssdc_rpi": "delta SSDC"}

Json = Mapping[str, Any]
Lines = list[str]


def report_markdown(report: Json, hardware: Json | None = None) -> str:
    """The report in GitHub-flavoured Markdown, with its figures at `figures/NAME.svg`.

    What is exact, what is computed, what was measured on images and, with `hardware`, what was
    measured on a machine stand in sections of their own. Names and messages are shown as they
    are, whatever they hold. The same arguments give the same text.

    Args:
        report: the content of `report.json`.
        hardware: the content of `hardware.json`.
    """
    facts = report_facts(report)
    lines = [f"# {prose(report['title'])}", "", _first_line(report), ""]
    lines += ["## Data and settings", ""]
    lines += table(["setting", "value"], [[label, prose(text)] for label, text in facts.items()])
    if report["models"]:
        lines += ["", "## Models, measured on images", ""]
        lines += [*_position(report), "", *_judged(report)]
        if any(model["alphas"] for model in report["models"]):
            lines += ["", *_scaling(report)]
        lines += ["", *_statistics(report)]
    if report["failures"]:
        lines += ["", "## Failures", ""]
        failed = [[code(f["model"]), code(f["error"])] for f in report["failures"]]
        lines += table(["model", "reason"], failed)
    sections = (published, interface_lines, cost)
    for section in (*(one(report) for one in sections), hardware_lines(hardware, report)):
        lines += ["", *section] if section else []
    lines += ["", "## How to read this", "", *HOW_TO_READ]
    section = provenance(report)
    lines += ["", *section] if section else []
    return "\n".join(lines) + "\n"


def _first_line(report: Json) -> str:
    return (
        f"{model_words(report)}, protocol {prose(report['protocol'])}. "
        "All numbers: `summary.csv`, `layers.csv`, `records.parquet`, `report.json`; interactive: "
        "`index.html`."
    )


def _figure(name: str, caption: str) -> Lines:
    return ["", f"![{prose(caption)}](figures/{name}.svg)"]


def _position(report: Json) -> Lines:
    """What the curves come to, one row per model."""
    notes = Footnotes()
    rows = []
    for model in report["models"]:
        peak = model["peak"]
        where = "" if peak["layer"] is None else f" at layer {peak['layer']}"
        mark = " †" if len(model["grids"]) > 1 else ""
        rows.append(
            [
                code(model["model"]) + mark,
                prose(model["position"]),
                grids_text(model),
                str(model["images"]),
                notes.with_interval(model["anchoring"]),
                notes.value(peak) + where,
                notes.with_interval(model["final"]),
                notes.with_interval(model["delta_ssdc_rpi"]),
            ]
        )
    head = ["model", "position", "grid", "images", "anchoring", "peak", "final", "delta SSDC"]
    lines = ["### Where a token sits", "", *table(head, rows, right=5)]
    several = [model for model in report["models"] if len(model["grids"]) > 1]
    if several:
        lines += ["", f"† {prose(MIXED)}:", ""]
        for model in several:
            means = [
                f"{grid_text(entry['grid'])} {notes.with_interval(entry)}"
                for entry in model["anchoring_by_grid"]
            ]
            lines.append(f"- {code(model['model'])}: {', '.join(means)}")
    lines += _footnotes(notes)
    if "depth" in figure_names(report):
        lines += _figure("depth", "SSDC over layers, clean and under RPI, one panel per model")
    return lines


def _judged(report: Json) -> Lines:
    """Accuracy and fragility; suites as means over their severities."""
    notes = Footnotes()
    tables = {
        measure: [by_corruption(model, measure) for model in report["models"]]
        for measure in MEASURES
    }
    labels = list(dict.fromkeys(label for own in tables["fs"] for label in own))
    lines = ["### What images are worth", ""]
    if not labels:
        lines += _judged_table(report, notes, {}, tables)
    elif len(labels) <= TOGETHER:
        lines += _judged_table(report, notes, dict.fromkeys(MEASURES, labels), tables)
    else:
        lines += _judged_table(report, notes, {"fs": labels}, tables)
        lines += ["", *_judged_table(report, notes, {"agreement_fs": labels}, tables)]
    found = sigmas(report)
    if found:
        told = [f"{code(text)} {number(sigma)}" for text, sigma in found.items()]
        lines += ["", f"Effective sigma, px at model resolution: {', '.join(told)}."]
    return lines + _footnotes(notes)


def _judged_table(
    report: Json,
    notes: Footnotes,
    shown: Mapping[str, Sequence[str]],
    tables: Mapping[str, Sequence[Mapping[str, Json]]],
) -> Lines:
    head = ["model", "accuracy"]
    head += [f"{MEASURES[m]} {code(label)}" for m, labels in shown.items() for label in labels]
    rows = []
    for i, model in enumerate(report["models"]):
        row = [code(model["model"]), notes.with_interval(model["accuracy"])]
        for measure, labels in shown.items():
            own = tables[measure][i]
            row += [notes.with_interval(own[x]) if x in own else DASH for x in labels]
        rows.append(row)
    return table(head, rows, right=len(head) - 1)


def _scaling(report: Json) -> Lines:
    lines = ["### What remains when the positional signal is scaled", ""]
    reached = scaled(report)
    for why, names in unscaled(report).items():
        lines.append(f"- not scaled: {', '.join(map(code, names))}: {prose(why)}")
    if not reached:
        return lines
    rotary = [code(m["model"]) for m in reached if "rotary" in m["position"]]
    if rotary:
        told = "rotary angles are scaled, an extension of the paper's definition"
        lines.append(f"- {told}: {', '.join(rotary)}")
    notes = Footnotes()
    labels = dict.fromkeys(text for m in reached for row in m["alphas"] for text in row["fs"])
    rows = [
        [
            code(model["model"]),
            f"{row['alpha']:g}",
            *(notes.with_interval(row[key]) for key in (*SCALARS, "accuracy")),
            *(notes.with_interval(row["fs"][x]) if x in row["fs"] else DASH for x in labels),
        ]
        for model in reached
        for row in model["alphas"]
    ]
    head = ["model", "alpha", *SCALARS.values(), "accuracy", *(f"FS {code(x)}" for x in labels)]
    inner = [*table(head, rows, right=len(head) - 1), *_footnotes(notes)]
    lines += ["", *folded(f"{counted(len(rows), 'row')}: every model at every alpha", inner)]
    return lines + _figure("alpha", "delta SSDC, anchoring and FS over alpha, one panel per model")


def _statistics(report: Json) -> Lines:
    statistics, note = report["statistics"], report["controlled"]["note"]
    said = prose(note[:1].upper() + note[1:])
    lines = [
        "## Statistics over models",
        "",
        f"**{said}.**",
        "",
    ]
    columns = {
        f"{COLUMNS[measure]}_{column}": f"{MEASURES[measure]} {code(text)}"
        for measure in MEASURES
        for column, text in corruption_columns(report).items()
    }
    notes = Footnotes()
    rows = []
    for found in statistics["correlations"]:
        scalar = {**found, "value": found["rho"]}
        loo = (found["loo_low"], found["loo_high"])
        rows.append(
            [
                SCALARS.get(found["x"], prose(found["x"])),
                columns.get(found["y"], prose(found["y"])),
                "all" if found["group"] is None else f"within {code(found['group'])}",
                str(found["models"]),
                notes.with_interval(scalar),
                DASH if found["p"] is None else prose(p_text(found["p"])),
                DASH if None in loo else f"{number(loo[0])} to {number(loo[1])}",
                " ".join(notes.mark(note) for note in found["notes"]),
            ]
        )
    head = ["x", "y", "models", "n", "Spearman rho", "p", "leaving one out", "note"]
    if rows:
        lines += table(head, rows)
    else:
        lines.append("No pair of numbers was measured on enough models to be ranked.")
    lines += _footnotes(notes)
    if statistics["notes"]:
        lines += ["", *(f"- {prose(note)}" for note in statistics["notes"])]
    for name in figure_names(report):
        if name.startswith("scatter"):
            lines += _figure(name, f"{name.removeprefix('scatter_')} against anchoring")
    return lines


def _footnotes(notes: Footnotes) -> Lines:
    lines = [f"{prose(line)}" for line in notes.lines()]
    return ["", "  \n".join(lines)] if lines else []
