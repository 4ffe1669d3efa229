"""What `probe audit` shows and draws: a card per model, a comparison, and two figures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from matplotlib import style
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from probe.report.audit_collisions import draw_collisions
from probe.report.audit_comparison import comparison_groups
from probe.report.audit_costs import cost_groups
from probe.report.audit_groups import (
    connectivity_groups,
    example_groups,
    interface_groups,
    symmetry_groups,
)
from probe.report.audit_numbers import Group, Json, traced
from probe.report.audit_plot import draw_audit
from probe.report.audit_shifts import translation_groups
from probe.report.audit_signals import position_groups, resolution_groups
from probe.report.format import Footnotes, grid_text, one_line, plain, shared_facts
from probe.report.page import Page, Screen, header, remarks
from probe.report.sheet import STYLE, save

LEVELS = (
    "Every heading names the level of evidence of its lines: exact algebra and analytic numbers "
    "hold under what they assume; measured ones are of these images, or of this hardware; what "
    "others state is not checked."
)


def audit_screen(envelope: Json) -> RenderableType:
    """The JSON output of `probe audit`, to be printed on a rich console.

    A card per model, its lines under headings that name their level of evidence and what they
    assume; of several models also tables that compare them.
    """
    cards = [card for card in envelope["results"] if card.get("three_tokens")]
    examples = {"three_tokens": cards[0]["three_tokens"]} if cards else {}
    return Screen(envelope, partial(_one_model, examples), partial(_several, examples))


def audit_figures(envelope: Json) -> dict[str, bytes]:
    """File name -> content of `audit` and `collisions`, as SVG and PNG.

    `audit` has a row of panels per model: singular values, permutation defects, pairs reached;
    `collisions` shows the pair of patches of every model that has one, and is left out where none
    has. The same input gives the same bytes with the same versions of matplotlib and its fonts.
    """
    results, failures = envelope["results"], envelope["failures"]
    if not results:
        return {}
    files: dict[str, bytes] = {}
    with style.context(["default", STYLE]):
        files |= save(draw_audit(results, failures), "audit")
        if any(card["patch"] and card["patch"]["collision"] for card in results):
            files |= save(draw_collisions(results), "collisions")
    return files


def card_groups(card: Json, notes: Footnotes) -> Iterator[Group]:
    """Everything that a card holds, in order; reasons of what is missing go into `notes`."""
    yield from interface_groups(card, notes)
    yield from symmetry_groups(card, notes)
    yield from connectivity_groups(card)
    yield from position_groups(card, notes)
    yield from resolution_groups(card, notes)
    yield from translation_groups(card, notes)
    yield from cost_groups(card, notes)


def _one_model(examples: Json, page: Page, card: Mapping[str, Any]) -> Iterator[RenderableType]:
    yield from _card(page, card)
    yield from _examples(page, examples)
    yield Text()
    yield page.text(LEVELS)


def _several(
    examples: Json, page: Page, cards: Sequence[Mapping[str, Any]]
) -> Iterator[RenderableType]:
    for card in cards:
        yield from _card(Page(page.console, page.options), card)
        yield Text()
    shared, differing = shared_facts([traced(card) for card in cards])
    yield page.lines([f"{len(cards)} models compared", *shared], "bold")
    for line in differing:
        yield page.text(line)
    for group in comparison_groups(cards, page.notes):
        yield from _group(page, group)
    yield from _footnotes(page)
    yield from _examples(page, examples)
    yield Text()
    yield page.text(LEVELS)


def _card(page: Page, card: Json) -> Iterator[RenderableType]:
    result = traced(card)
    yield from header(page, result)
    yield page.lines([f"family {plain(card['family'])}", f"grid {grid_text(card['grid'])}"])
    for group in card_groups(card, page.notes):
        yield from _group(page, group)
    if card["left_out"]:
        yield Text()
        yield page.text("Left out", "bold")
        facts = [(plain(left["item"]), one_line(left["reason"])) for left in card["left_out"]]
        yield _facts(page, facts)
    yield from _footnotes(page)
    found = remarks(result)
    if found:
        yield Text()
    for remark in found:
        yield page.text(remark)


def _footnotes(page: Page) -> Iterator[RenderableType]:
    if page.notes.lines():
        yield Text()
        yield page.lines(page.notes.lines())


def _examples(page: Page, examples: Json) -> Iterator[RenderableType]:
    for group in example_groups(examples):
        yield from _group(page, group)


def _group(page: Page, group: Group) -> Iterator[RenderableType]:
    """The heading with its level, what it assumes, its facts, its table, how to read it."""
    yield Text()
    yield page.text(f"{group.title} [{group.level}]", "bold")
    for text in group.assumes:
        yield page.text(f"assumes: {one_line(text)}", "dim")
    if group.facts:
        yield _facts(page, group.facts)
    if group.columns:
        folded = next(iter(group.first), None)
        yield from page.tables(group.first, group.columns, folded)
    if group.below:
        yield page.lines([one_line(line) for line in group.below], "dim")


def _facts(page: Page, facts: Sequence[tuple[str, str]]) -> Table:
    """Labels and texts; labels of more than a third of the page are folded."""
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(max_width=max(16, page.width // 3), overflow="fold")
    table.add_column(overflow="fold")
    for label, text in facts:
        table.add_row(page.text(label), page.text(text))
    return table
