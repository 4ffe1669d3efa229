"""The page docs/coverage.md: a pure function of what was found and of the lists."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from probe.coverage.contract import Outcome
from probe.coverage.covered import Covered, Field, share
from probe.coverage.listed import Library

HEADINGS: dict[Library, str] = {
    "timm": "timm: one row per model class",
    "transformers": "transformers: one row per model type",
}
SHARES: dict[Field, str] = {
    "ssdc": "SSDC",
    "rpi": "RPI",
    "alpha": "alpha, where a signal can be scaled",
    "accuracy": "accuracy, where there is a head",
}
INTRODUCTION = """\
# Coverage

Written by `probe zoo coverage --out docs/coverage.md`; do not edit. Every architecture below is
built in its smallest variant with random weights, depth, width and input cut where its constructor
lets them be, and what its row says is done with it: SSDC has a value at every layer, RPI permutes
its patch tokens one by one and nothing else, alpha changes what the model computes through each
signal alone, and its logits can be counted. Each time the model is left as it was, bit for bit.
"""
KEY = """\
`-`: does not apply. Grids are those of the variant that was built, in tokens, one per stage. Where
convolutions take turns with other blocks, layers are the blocks that mix tokens by something else
(attention, pooling, a recurrence, a state space), and convolutions count as merging. ResNet and
ConvNeXt, which are left out of the count, are baselines: their stages are the layers."""


def coverage_page(
    found: Mapping[Library, Sequence[Covered]],
    excluded: Mapping[Library, Mapping[str, str]],
    versions: Mapping[str, str],
) -> str:
    """The page as Markdown.

    Args:
        found: what became of every listed architecture, by library.
        excluded: the architectures that were left out, with the reason, by library.
        versions: of the libraries.
    """
    everything = [one for rows in found.values() for one in rows]
    blocks = [INTRODUCTION.rstrip(), measured_with(versions), summary(found), KEY]
    for library, covered in found.items():
        blocks += [f"## {HEADINGS[library]}", _works(covered)]
    lacking = [one for one in everything if one.works is None]
    if lacking:
        blocks += [
            "## Refused",
            _table(("library", "architecture", "reason"), map(_lacks, lacking)),
        ]
    blocks.append("## Left out of the count")
    left: dict[tuple[Library, str], list[str]] = {}
    for library, reasons in excluded.items():
        for name, reason in reasons.items():
            left.setdefault((library, reason), []).append(f"`{name}`")
    rows = [(library, reason, ", ".join(names)) for (library, reason), names in left.items()]
    blocks.append(_table(("library", "reason", "architectures"), rows))
    return "\n\n".join(blocks) + "\n"


def measured_with(versions: Mapping[str, str]) -> str:
    """The line that names the versions."""
    return "Built with " + ", ".join(f"{name} {v}" for name, v in versions.items()) + "."


def summary(found: Mapping[Library, Sequence[Covered]]) -> str:
    """How many architectures there are, and on how many what works."""
    columns: dict[str, list[Covered]] = {name: list(rows) for name, rows in found.items()}
    columns["together"] = [one for rows in found.values() for one in rows]
    rows = [["architectures with a token grid", *(str(len(c)) for c in columns.values())]]
    for field, name in SHARES.items():
        shares = [share(column, field) for column in columns.values()]
        rows.append([name, *(f"{s.count} of {s.of} ({s.percent:.1f} %)" for s in shares)])
    return _table(("", *columns), rows)


def _works(rows: Sequence[Covered]) -> str:
    head = ("architecture", "built as", "family", "grids", "SSDC", "RPI", "alpha", "accuracy")
    lines = []
    for one in rows:
        if one.works is None:
            continue
        outcomes = (one.works.ssdc, one.works.rpi, one.works.alpha, one.works.accuracy)
        grids = ", ".join(f"{r} x {c}" for r, c in one.grids)
        lines.append(
            (f"`{one.architecture}`", f"`{one.built}`", one.family, grids, *map(_cell, outcomes))
        )
    return _table(head, lines)


def _cell(outcome: Outcome) -> str:
    if outcome.works is None:
        return f"-: {outcome.words}" if outcome.words else "-"
    if outcome.works:
        return outcome.words or "yes"
    return f"no: {outcome.words}"


def _lacks(one: Covered) -> tuple[str, str, str]:
    reason = one.reason if one.refused else f"broken: {one.reason}"
    return one.library, f"`{one.architecture}`", str(reason)


def _table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines: list[Sequence[object]] = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(map(_plain, line)) + " |" for line in lines)


def _plain(cell: object) -> str:
    return str(cell).replace("|", "\\|").replace("\n", " ")
