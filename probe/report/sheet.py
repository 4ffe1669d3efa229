"""The sheet that a figure is drawn on: its style, sizes, headings, footer, and how it is saved."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from probe.report.format import plain, shared_facts
from probe.report.typeset import wrap_parts

# matplotlib's own defaults, whatever the user's matplotlibrc says, and these.
STYLE: dict[str, Any] = {
    "svg.hashsalt": "probe",
    "svg.fonttype": "none",
    "text.parse_math": False,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
}
METADATA: dict[str, dict[str, Any]] = {"svg": {"Date": None}, "png": {"Software": None}}
PNG_DPI = 150

GREY, BAND = "#555555", "#DDDDDD"
NAME, SMALL, TICK = 9.0, 6.5, 7.5  # font sizes, points
LINE = 1.35 / 72  # height of a line of text, inches per point
TOP = 0.12  # margin around the sheet, inches


def save(figure: Figure, name: str) -> dict[str, bytes]:
    """File name -> content of `NAME.svg` and `NAME.png`."""
    files = {}
    for kind, metadata in METADATA.items():
        content = io.BytesIO()
        figure.savefig(content, format=kind, dpi=PNG_DPI, metadata=metadata)
        files[f"{name}.{kind}"] = content.getvalue()
    return files


def place(figure: Figure, x: float, y: float, width: float, height: float) -> Axes:
    """New axes with the lower left corner at (x, y); all in inches from the sheet's."""
    across, up = figure.get_size_inches()
    return figure.add_axes((x / across, y / up, width / across, height / up))


def write_heading(
    figure: Figure, name: Sequence[str], details: Sequence[str], x: float, top: float
) -> None:
    """Bold lines, then small grey ones, downwards from `top`, in inches."""
    width, height = figure.get_size_inches()
    for lines, size, weight, color in (
        (name, NAME, "bold", "black"),
        (details, SMALL, "normal", GREY),
    ):
        for line in lines:
            top -= LINE * size
            figure.text(x / width, top / height, line, fontsize=size, weight=weight, color=color)


def write_footer(figure: Figure, lines: Sequence[str]) -> None:
    """Small grey lines that end at the sheet's lower margin."""
    width, height = figure.get_size_inches()
    for i, line in enumerate(reversed(lines)):
        at = (TOP + LINE * SMALL * i) / height
        figure.text(TOP / width, at, line, fontsize=SMALL, color=GREY)


def footer_lines(
    results: Sequence[Mapping[str, Any]],
    failures: Sequence[Mapping[str, Any]],
    extra: Sequence[str],
    width: float,
) -> list[str]:
    """What the numbers are traced by, `extra`, and the failures, broken to `width` inches."""
    shared, differing = shared_facts(results)
    lines = wrap_parts(shared, " · ", SMALL, width)
    failed = [f"failed: {plain(failure['model'])}" for failure in failures]
    for line in (*differing, *extra, *failed):
        lines += wrap_parts(line.split("; "), "; ", SMALL, width)
    return lines
