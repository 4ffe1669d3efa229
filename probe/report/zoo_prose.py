"""The sections of REPORT.md that stand beside the measured numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from probe.report.format import DASH, Footnotes, counted, grid_text, number
from probe.report.gfm import code, folded, link, prose, table
from probe.report.interface import HEAD, WORDS, interface_notes, interface_rows

GIB = 2**30
SKIPPED = 5  # images that are named

Json = Mapping[str, Any]
Lines = list[str]

HOW_TO_READ = (
    "- **SSDC**: Spearman correlation, over pairs of patch tokens, of how similar two tokens are "
    "(cosine) with how close they sit on the grid. High on clean images wherever neighbouring "
    "patches look alike.",
    "- **RPI**: patch tokens are shuffled right after the patch projection, positions stay on the "
    "index. What remains of SSDC follows the position; what vanishes followed content.",
    "- **anchoring**: mean of SSDC under RPI over all layers. **peak** is its highest layer, "
    "without interval, as a maximum is biased; **final** its last.",
    "- **delta SSDC**: layer 1 minus layer 0 under RPI, what the first block adds.",
    "- **null band**: where SSDC falls when the tokens are relabelled at random; inside it a curve "
    "is not told apart from chance.",
    "- **FS**: 1 - accuracy under the corruption / clean accuracy, over the same images; may be "
    "negative. **agreement fragility**: share of images whose predicted class changes; it needs "
    "no labels.",
    "- **alpha**: factor on every positional signal of the model.",
    "- Brackets hold 95 % intervals over images. A dash is an undefined number; its mark leads to "
    "the reason.",
)


def published(report: Json) -> Lines:
    """Our numbers beside published ones; nothing where there are none."""
    models = [model for model in report["models"] if model["published"]]
    if not models:
        return []
    lines = ["## Published figures", ""]
    for model in models:
        entries = model["published"]
        judged = [entry["inside"] for entry in entries if entry["inside"] is not None]
        inside = f"{sum(judged)} of {counted(len(judged), 'published value')} inside our interval"
        notes = Footnotes()
        rows = [
            [
                prose(entry["what"]),
                number(entry["published"]),
                notes.with_interval(entry["ours"]),
                DASH if entry["difference"] is None else number(entry["difference"]),
                {True: "yes", False: "no", None: DASH}[entry["inside"]],
            ]
            for entry in entries
        ]
        head = ["what", "published", "ours", "ours - published", "inside"]
        body = [*table(head, rows, right=4), *(f"\n{prose(line)}" for line in notes.lines())]
        lines += [f"### {code(model['model'])}", "", f"{inside}.", ""]
        told: dict[tuple[str, str], list[str]] = {}
        for entry in entries:
            told.setdefault((entry["source"], entry["protocol"]), []).append(entry["what"])
        for (source, protocol), whats in told.items():
            of = "" if len(told) == 1 else f" ({_some(whats)})"
            lines.append(f"- {link(source)}{of}: {prose(protocol)}")
        lines += ["", *folded(f"{counted(len(rows), 'number')} beside ours", body), ""]
    return lines[:-1]


def _some(whats: list[str]) -> str:
    rest = f" and {len(whats) - 3} more" if len(whats) > 4 else ""
    return ", ".join(map(prose, whats[: 3 if rest else 4])) + rest


def cost(report: Json) -> Lines:
    """What the architecture says, without measuring: exact counts, then analytic cost."""
    if not report["models"]:
        return []
    exact = [
        [
            code(model["model"]),
            code(model["resolved"]),
            prose(model["position"]),
            ", ".join(map(grid_text, model["grids"])),
            str(model["depth"]),
            grid_text(model["image_size"]),
            f"{model['params'] / 1e6:.2f}",
        ]
        for model in report["models"]
    ]
    head = ["model", "resolved", "position", "grids", "layers", "image size", "parameters, M"]
    lines = ["## Read off the architecture, exact", "", *table(head, exact, right=3)]
    counted_macs = [
        [
            code(model["model"]),
            DASH if model["macs"] is None else f"{model['macs'] / 1e9:.2f}",
            prose(model["macs_convention"]),
        ]
        for model in report["models"]
    ]
    lines += ["", "## Analytic cost, not measured", ""]
    return lines + table(["model", "GMACs per image", "counted as"], counted_macs)


def interface_lines(report: Json) -> Lines:
    """What the interface of every model loses, keeps and reaches; nothing where unaudited."""
    rows = interface_rows(report)
    if not rows:
        return []
    lines = ["## Interface, exact algebra", ""]
    lines += table(list(HEAD), [[code(row[0]), *row[1:]] for row in rows], right=7)
    lines += ["", prose(WORDS)]
    notes = [f"- {prose(note)}" for note in interface_notes(report)]
    return lines + (["", *notes] if notes else [])


def hardware_lines(hardware: Json | None, report: Json) -> Lines:
    """Throughput and memory on the machine that is named; nothing without `hardware`."""
    if hardware is None or not hardware["models"]:
        return []
    order = [model["model"] for model in report["models"]]
    named = sorted(
        hardware["models"], key=lambda n: (order.index(n) if n in order else len(order), n)
    )
    several = any("machine" in hardware["models"][name] for name in named)
    rows = []
    for name in named:
        found = hardware["models"][name]
        memory = found["peak_memory_bytes"]
        rows.append(
            [
                code(name),
                f"{found['images_per_second']:.4g}",
                f"{found['seconds']:.1f}",
                DASH if memory is None else f"{memory / GIB:.2f}",
                str(found["batch"]),
                prose(f"{found['dtype']} on {found['device']}"),
                *([_machine(found["machine"])] if several else []),
            ]
        )
    head = ["model", "images per second", "seconds", "peak memory, GiB", "batch", "precision"]
    lines = ["## Measured on this hardware", ""]
    if several:
        return [*lines, *table([*head, "machine"], rows)]
    return [*lines, f"{_machine(hardware['machine'])}.", "", *table(head, rows)]


def _machine(facts: Json) -> str:
    known = {key: value for key, value in facts.items() if value is not None}
    return ", ".join(f"{prose(str(key))} {prose(str(value))}" for key, value in known.items())


def provenance(report: Json) -> Lines:
    """Where the weights come from, how they were run, and what was remarked on the way."""
    if not report["models"]:
        return []
    rows = []
    for model in report["models"]:
        known = model["provenance"]
        expected = known.get("expected")
        rows.append(
            [
                code(model["model"]),
                DASH if model["group"] is None else code(model["group"]),
                prose(known.get("pretraining", "unknown")),
                # The zoo file leaves out a teacher where the pretraining is stated and had none.
                prose(known.get("teacher", "none" if "pretraining" in known else "unknown")),
                prose(known.get("licence", "unknown")),
                DASH if expected is None else number(expected),
                link(known["source"]) if "source" in known else "unknown",
                prose(model["settings"]["preprocess"]["source"]),
                DASH if model["readout"] is None else prose(model["readout"]),
                DASH if model["revision"] is None else code(model["revision"]),
                code(_short(model["weights"])),
            ]
        )
    head = ["model", "group", "pretraining", "teacher", "licence", "published top-1", "source"]
    lines = [
        "## Provenance",
        "",
        *table([*head, "preprocessing", "readout", "revision", "weights"], rows),
    ]
    remarks = []
    for model in report["models"]:
        labels = model.get("labels")
        told = [*([f"labels: {labels}"] if labels else []), *model["notes"]]
        remarks += [f"- {code(model['model'])}: {prose(note)}" for note in told]
        skipped = model["skipped"]
        if skipped:
            named = "; ".join(f"{code(name)} ({prose(why)})" for name, why in skipped[:SKIPPED])
            more = f" and {len(skipped) - SKIPPED} more" if len(skipped) > SKIPPED else ""
            left = counted(len(skipped), "image") + " left out"
            remarks.append(f"- {code(model['model'])}: {left}: {named}{more}")
    return [*lines, "", "### Remarks", "", *remarks] if remarks else lines


def _short(weights: str) -> str:
    """The start of a hash, as screens show it; `report.json` has all of it."""
    return weights[:19] if weights.startswith("sha256:") else weights
