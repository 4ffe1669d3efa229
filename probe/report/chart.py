"""Curves in a terminal, as lines of text: one model's chart, and one-line sparklines."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from probe.report.format import grid_text, pack

STEPS = 12  # rows from 0 to 1, so that every quarter falls on a row
TICKS = {0: "0", 3: ".25", 6: ".50", 9: ".75", 12: "1"}
MARGIN = 5  # columns left of the first layer
CLEAN, RPI, BOTH, BAND, STAGE = "●", "○", "◉", "░", "┊"
LEVELS = "▁▂▃▄▅▆▇█"
BELOW, UNDEFINED = "_", "\N{MULTIPLICATION SIGN}"

_ASCII = str.maketrans(
    {
        CLEAN: "o",
        RPI: "x",
        BOTH: "@",
        BAND: ".",
        STAGE: ":",
        UNDEFINED: "?",
        "┤": "+",
        "│": "|",
        "└": "+",
        "─": "-",
        "·": "|",
        "†": "+",
        "\N{EM DASH}": "--",
        **{level: str(i) for i, level in enumerate(LEVELS, 1)},
    }
)


def to_ascii(text: str) -> str:
    """`text` for a console that has ASCII alone: stand-ins for our signs, escapes for the rest."""
    return text.translate(_ASCII).encode("ascii", "backslashreplace").decode("ascii")


def chart(result: Mapping[str, Any], width: int) -> list[str]:
    """Both curves of one model over its layers, SSDC from 0 (or below) to 1.

    Shaded is the null band that the RPI curve, or the clean one where RPI is off, is read against.
    Undefined values leave a gap.

    Args:
        result: one model's entry of the JSON output.
        width: columns to stay within, at least 20.
    """
    layers = result["layers"]
    rpi_on = bool(result["settings"]["rpi"])
    room = width - MARGIN
    step = max(1, min(5, room // len(layers)))
    columns = [
        i * step + step // 2 if len(layers) <= room else i * (room - 1) // (len(layers) - 1)
        for i in range(len(layers))
    ]
    span = columns[-1] + step - step // 2
    points = [layer[kind] for layer in layers for kind in ("clean", "rpi")]
    values = [point["value"] for point in points if point["value"] is not None]
    bottom = min(0, round(STEPS * min(values, default=0.0)))
    canvas = [[" "] * span for _ in range(STEPS - bottom + 1)]

    def row(value: float) -> int:
        return STEPS - max(bottom, min(STEPS, round(STEPS * value)))

    for column, layer in zip(columns, layers, strict=True):
        point = layer["rpi" if rpi_on else "clean"]
        if point["null_low"] is not None and point["null_high"] is not None:
            left = max(0, column - step // 2)
            for y in _inside(STEPS * point["null_low"], STEPS * point["null_high"]):
                if bottom <= y <= STEPS:
                    canvas[STEPS - y][left : left + step] = BAND * min(step, span - left)
    stages = _stages(layers, columns, step)
    for start, _ in stages[1:] if step > 1 else ():
        for line in canvas:
            line[start] = STAGE
    for kind, sign in (("clean", CLEAN), ("rpi", RPI)):
        for column, layer in zip(columns, layers, strict=True):
            if layer[kind]["value"] is not None:
                line = canvas[row(layer[kind]["value"])]
                line[column] = BOTH if kind == "rpi" and line[column] == CLEAN else sign

    lines = []
    if len(stages) > 1:
        ends = [start for start, _ in stages[1:]] + [span]
        fitting = [
            label.ljust(end - start) if len(label) < end - start else " " * (end - start)
            for (start, label), end in zip(stages, ends, strict=True)
        ]
        lines.append((" " * MARGIN + "".join(fitting)).rstrip())
    for y, cells in enumerate(canvas):
        tick = STEPS - y
        label = TICKS.get(abs(tick), "")
        label = f"-{label}" if label and tick < 0 else label
        lines.append(f"{label:>{MARGIN - 1}}{'┤' if label else '│'}{''.join(cells)}".rstrip())
    lines.append(" " * (MARGIN - 1) + "└" + "─" * span)
    lines.append(" " * MARGIN + _layer_labels(columns, step, room))
    legend = (
        [f"{CLEAN} clean", f"{RPI} under RPI", f"{BOTH} both"] if rpi_on else [f"{CLEAN} clean"]
    )
    legend.append(f"{BAND} null band" + (" under RPI" if rpi_on else ""))
    below = pack(["layer  ", *legend], "  ", lambda line: len(line) <= room)
    lines += [" " * MARGIN + line for line in below]
    return lines


def sparkline(layers: Sequence[Mapping[str, Any]], kind: str) -> str:
    """One sign per layer, eight levels from 0 to 1, with a bar between grids."""
    signs = []
    for before, layer in zip([layers[0], *layers], layers, strict=False):
        if before["grid"] != layer["grid"]:
            signs.append("│")
        value = layer[kind]["value"]
        if value is None:
            signs.append(UNDEFINED)
        else:
            signs.append(BELOW if value < 0 else LEVELS[min(7, int(8 * value))])
    return "".join(signs)


def _inside(low: float, high: float) -> range:
    """The rows inside a band, counted from 0 upwards; at least the one nearest to its middle."""
    inside = range(math.ceil(low), math.floor(high) + 1)
    middle = round((low + high) / 2)
    return inside or range(middle, middle + 1)


def _stages(
    layers: Sequence[Mapping[str, Any]], columns: Sequence[int], step: int
) -> list[tuple[int, str]]:
    """The first column and the grid of every run of layers on one grid."""
    found: list[tuple[int, str]] = []
    for column, layer in zip(columns, layers, strict=True):
        grid = grid_text(layer["grid"])
        if not found or found[-1][1] != grid:
            found.append((max(0, column - step // 2), grid))
    return found


def _layer_labels(columns: Sequence[int], step: int, room: int) -> str:
    """The layer numbers under the axis, as many as fit."""
    text = ""
    every = -(-(len(str(len(columns) - 1)) + 1) // step)
    for layer in range(0, len(columns), every):
        if len(text) <= columns[layer] <= room - len(str(layer)):
            text = text.ljust(columns[layer]) + str(layer) + " "
    return text.rstrip()
