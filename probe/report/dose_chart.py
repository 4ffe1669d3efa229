"""Curves over alpha in a terminal, as lines of text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from string import ascii_lowercase

from probe.report.chart import CLEAN, MARGIN, STAGE, STEPS, TICKS
from probe.report.format import pack

DELTA, SEVERAL, KNEE = CLEAN, "*", STAGE
SIGNS = ascii_lowercase
WIDEST = 6  # columns from one alpha to the next, at most


def dose_chart(
    alphas: Sequence[float],
    delta: Sequence[float | None],
    others: Mapping[str, Sequence[float | None]],
    knee: float | None,
    width: int,
) -> list[str]:
    """Delta SSDC and up to 26 other curves over alpha, which falls from left to right.

    Undefined values leave a gap, and a curve without a value has no place in the legend.

    Args:
        alphas: where the curves are known, in any order, at least one.
        delta: delta SSDC at each alpha.
        others: name -> values at each alpha; each gets a letter.
        knee: alpha of delta SSDC's knee, drawn as a vertical line.
        width: columns to stay within, at least 20.
    """
    top, bottom = max(alphas), min(alphas)
    room = width - MARGIN
    span = min(room, WIDEST * max(1, len(set(alphas)) - 1) + 4)

    def column(alpha: float) -> int:
        return 1 + round((span - 4) * (top - alpha) / (top - bottom)) if top > bottom else 1

    curves = {DELTA: ("delta SSDC", delta)}
    curves |= {sign: pair for sign, pair in zip(SIGNS, others.items(), strict=False)}
    curves = {
        sign: (name, values)
        for sign, (name, values) in curves.items()
        if any(value is not None for value in values)
    }
    rows = [round(STEPS * v) for _, values in curves.values() for v in values if v is not None]
    lowest, highest = min([0, *rows]), max([STEPS, *rows])
    canvas = [[" "] * span for _ in range(highest - lowest + 1)]
    if knee is not None and bottom <= knee <= top:
        for line in canvas:
            line[column(knee)] = KNEE
    shared = False
    for sign, (_, values) in curves.items():
        for alpha, value in zip(alphas, values, strict=True):
            if value is not None:
                line = canvas[highest - round(STEPS * value)]
                taken = line[column(alpha)] not in (" ", KNEE, sign)
                shared |= taken
                line[column(alpha)] = SEVERAL if taken else sign
    lines = []
    for y, cells in enumerate(canvas):
        tick = highest - y
        label = TICKS.get(abs(tick), "")
        label = f"-{label}" if label and tick < 0 else label
        lines.append(f"{label:>{MARGIN - 1}}{'┤' if label else '│'}{''.join(cells)}".rstrip())
    lines.append(" " * (MARGIN - 1) + "└" + "─" * span)
    labels = ""
    for alpha in sorted(set(alphas), reverse=True):
        text = f"{alpha:g}"
        start = max(0, column(alpha) - len(text) // 2)
        if (not labels or start > len(labels)) and start + len(text) <= room:
            labels = labels.ljust(start) + text
    lines.append(" " * MARGIN + labels)
    legend = ["alpha", *(f"{sign} {name}" for sign, (name, _) in curves.items())]
    legend += [f"{SEVERAL} several"] * shared
    if knee is not None and bottom <= knee <= top:
        legend.append(f"{KNEE} knee of delta SSDC")
    below = pack(legend, "  ", lambda line: len(line) <= room)
    return lines + [" " * MARGIN + line for line in below]
