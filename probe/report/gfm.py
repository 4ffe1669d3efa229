"""GitHub-flavoured Markdown: text that stays text, and tables."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from probe.report.format import one_line

# HTML and cells as entities, markup behind a backslash.
_ESCAPES = str.maketrans(
    {
        "&": "&amp;",
        "<": "&lt;",
        ">": "&gt;",
        "|": "&#124;",
        "`": "&#96;",
        **{c: f"\\{c}" for c in "\\*_[]~$#"},
    }
)
_INNER = re.compile(r"(?<=\w)\\_(?=\w)")
_BLOCK = re.compile(r"^(?:([-+=])|(\d+)([.)])(?=\s|$))")
_LINK = re.compile(r"https?://[^\s<>|`\"\\]+")


def prose(text: str) -> str:
    """Any text on one line, as text: no markup, no HTML, no cell or list of its own."""
    escaped = _INNER.sub("_", one_line(text).translate(_ESCAPES))  # a_b is no markup
    return _BLOCK.sub(lambda m: f"\\{m[1]}" if m[1] else f"{m[2]}\\{m[3]}", escaped)


def code(text: str) -> str:
    """A name or a machine's message, in code; nothing in it is read as markup."""
    text = one_line(text)
    if not text:
        return ""
    if re.search(r"[`|\\]", text) is None:
        return f"`{text}`"
    # Inside <code> markup is read, so that what could be some is written as an entity.
    return "<code>" + re.sub(r"[^\w .,:;=()/-]", lambda m: f"&#{ord(m[0])};", text) + "</code>"


def link(text: str) -> str:
    """A web address as a link, anything else as text."""
    return f"<{text}>" if _LINK.fullmatch(text) else prose(text)


def table(head: Sequence[str], rows: Iterable[Sequence[str]], right: int = 0) -> list[str]:
    """The lines of a table, whose cells are Markdown; the last `right` columns are numbers."""
    marks = ["---"] * (len(head) - right) + ["---:"] * right
    return [_row(head), _row(marks), *(_row(row) for row in rows)]


def folded(summary: str, lines: Sequence[str]) -> list[str]:
    """Lines that are shown when the reader opens them."""
    return [f"<details><summary>{summary}</summary>", "", *lines, "", "</details>"]


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"
