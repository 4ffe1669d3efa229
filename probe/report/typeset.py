"""Widths and line breaks of figure text, measured with the font that matplotlib ships."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from matplotlib.font_manager import FontProperties
from matplotlib.textpath import text_to_path

from probe.report.format import pack

BREAK_AFTER = " /\\_-.:,;"
SLACK = 1.05  # hinting in the PNG, and other fonts in a reader of the SVG, set text wider


@lru_cache(maxsize=4096)
def text_width(text: str, size: float, bold: bool = False) -> float:
    """Width in inches of one line of text at `size` points."""
    font = FontProperties(family="DejaVu Sans", size=size, weight="bold" if bold else "normal")
    width, _, _ = text_to_path.get_text_width_height_descent(text, font, ismath=False)
    return SLACK * float(width) / 72


def wrap(text: str, size: float, width: float, bold: bool = False) -> list[str]:
    """Break text into lines of at most `width` inches, after a separator where there is one."""
    lines = []
    while text_width(text, size, bold) > width and len(text) > 1:
        end = 1
        while text_width(text[: end + 1], size, bold) <= width:
            end += 1
        breaks = [i + 1 for i in range(end // 2, end) if text[i] in BREAK_AFTER]
        end = breaks[-1] if breaks else end
        lines.append(text[:end].rstrip())
        text = text[end:].lstrip()
    return [*lines, text]


def wrap_parts(parts: Sequence[str], between: str, size: float, width: float) -> list[str]:
    """Break a list of parts into lines, between parts where possible."""
    packed = pack(parts, between, lambda line: text_width(line, size) <= width)
    return [line for long in packed for line in wrap(long, size, width)]
