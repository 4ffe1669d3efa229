"""One screen: its width, its characters, its footnotes, and what all screens say."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType
from rich.table import Table
from rich.text import Text

from probe.report.chart import to_ascii
from probe.report.format import Footnotes, facts, label_lines, one_line, pack, plain

GUIDE = (
    "How to read: clean SSDC is high wherever neighbouring patches look alike; RPI shuffles the "
    "patches and leaves positions in place, so what SSDC remains under RPI follows the position."
)

USUAL_RELABELLINGS = 999
FEW_PAIRS = 120  # 4 x 4 tokens
INTERVALS = "[low, high] 95 % jackknife interval over images"


class Page:
    """What the parts of one screen share: its width, its characters, its footnotes."""

    def __init__(self, console: Console, options: ConsoleOptions) -> None:
        """Take width and encoding from the console."""
        self.console = console
        self.options = options
        self.width = options.max_width
        self.notes = Footnotes()

    def text(self, text: str, style: str = "") -> Text:
        """Text as it is: no markup, no highlighting."""
        return Text(to_ascii(text) if self.options.ascii_only else text, style, overflow="fold")

    def lines(self, parts: Sequence[str], style: str = "") -> Text:
        """Parts joined by dots, broken between parts."""
        packed = pack(parts, " · ", lambda line: cell_len(line) <= self.width)
        return self.text("\n".join(packed), style)

    def table(self, columns: Mapping[str, Sequence[str]], folded: str | None = None) -> Table:
        """A table from columns of cells; only the column named by `folded` may break a word."""
        table = Table(
            box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False, leading=0
        )
        for title in columns:
            table.add_column(self.text(title), overflow="fold", no_wrap=title != folded)
        for cells in zip(*columns.values(), strict=True):
            table.add_row(*(self.text(c, "dim" if c.endswith("~") else "") for c in cells))
        return table

    def shown(self, table: Table) -> Table:
        """The table; where it is too wide even so, its cells break instead of being cut."""
        if not self.fits(table):
            for column in table.columns:
                column.no_wrap = False
        return table

    def tables(
        self,
        first: Mapping[str, Sequence[str]],
        columns: Mapping[str, Sequence[str]],
        folded: str | None = None,
    ) -> Iterator[RenderableType]:
        """As few tables as fit, each as many of `columns` as it holds, beginning with `first`."""
        left = list(columns)
        while left:
            taken = len(left)
            while taken > 1 and not self.fits(
                self.table({**first, **{title: columns[title] for title in left[:taken]}})
            ):
                taken -= 1
            if len(left) < len(columns):
                yield Text()
            part = {title: columns[title] for title in left[:taken]}
            yield self.shown(self.table({**first, **part}, folded))
            left = left[taken:]

    def fits(self, table: Table) -> bool:
        """Whether the table needs no more columns than there are."""
        wide = self.options.update_width(10 * self.width)
        return self.console.measure(table, options=wide).maximum <= self.width


Part = Callable[[Page, Any], Iterator[RenderableType]]


class Screen:
    """Asks the console for its width and encoding, then lays out the results, failures last."""

    def __init__(self, envelope: Mapping[str, Any], one: Part, several: Part) -> None:
        """`one` lays out the only result, `several` a list of two or more."""
        self.envelope = envelope
        self.one = one
        self.several = several

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Any]:
        """Yield the parts of the screen."""
        results, failures = self.envelope["results"], self.envelope["failures"]
        page = Page(console, options)
        if len(results) == 1:
            yield from self.one(page, results[0])
        elif results:
            yield from self.several(page, results)
        if results and failures:
            yield Text()
        for failure in failures:
            error = one_line(failure["error"])
            yield page.text(f"failed  {plain(failure['model'])}: {error}", "bold")


def header(page: Page, result: Mapping[str, Any]) -> Iterator[RenderableType]:
    """Which model, and what its numbers are traced by."""
    name, identity = label_lines(result)
    yield page.lines([name, identity] if identity else [name], "bold")
    settings = result["settings"]
    known = [f"{label} {text}" for label, text in facts(result).items()]
    if settings.get("revision"):
        known.append(f"revision {plain(settings['revision'])}")
    if settings.get("weights"):
        known.append(f"weights {plain(settings['weights'])[:19]}")
    yield page.lines(known)


def aligned(
    scalars: Sequence[Mapping[str, Any]], write: Callable[[Mapping[str, Any]], str]
) -> list[str]:
    """Cells whose decimal points stand below each other; a dash keeps to the left."""
    cells = [write(scalar) for scalar in scalars]
    ahead = [
        None if scalar["value"] is None else cell.index(".")
        for cell, scalar in zip(cells, scalars, strict=True)
    ]
    most = max((before for before in ahead if before is not None), default=0)
    return [
        cell if before is None else " " * (most - before) + cell
        for cell, before in zip(cells, ahead, strict=True)
    ]


def remarks(result: Mapping[str, Any]) -> list[str]:
    """What else a reader must know: sampled pairs, images left out, the loader's notes."""
    found = []
    for entry in result.get("ranked", ()):
        rows, cols = entry["grid"]
        if 0 < entry.get("relabellings", USUAL_RELABELLINGS) < USUAL_RELABELLINGS:
            found.append(
                f"grid {rows}x{cols}: null band from {entry['relabellings']} relabellings instead "
                f"of {USUAL_RELABELLINGS}"
            )
        if entry["pairs"] < FEW_PAIRS:
            found.append(f"grid {rows}x{cols}: only {entry['pairs']} pairs; SSDC says little")
        if entry["tokens"] < rows * cols:
            found.append(
                f"grid {rows}x{cols}: {entry['tokens']:,} of {rows * cols:,} tokens ranked "
                f"({entry['pairs']:,} pairs)"
            )
    skipped = result["skipped"]
    if skipped:
        listed = ", ".join(f"{name} ({reason})" for name, reason in skipped[:3])
        rest = f" and {len(skipped) - 3} more" if len(skipped) > 3 else ""
        found.append(f"left out {len(skipped)} unreadable: {one_line(listed)}{rest}")
    return found + [f"note: {one_line(note)}" for note in result["notes"]]
