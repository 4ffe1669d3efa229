"""Several cards side by side: one table for every level of evidence of every item."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from probe.report.audit_costs import EXPOSURE, activations_text, macs_text, tokens_text
from probe.report.audit_numbers import (
    DEFECTS,
    Columns,
    Group,
    Json,
    blocks_of,
    count,
    largest_text,
    lined_up,
    memory,
    pixels,
    scalar_text,
    share,
    why_missing,
    written,
)
from probe.report.audit_shifts import PARTS, change_at, shift_of
from probe.report.audit_signals import RATIO_ASSUMES, kind_text
from probe.report.format import Footnotes, one_line, plain

Cards = Sequence[Json]
Write = Callable[[Json], str]


def comparison_groups(cards: Cards, notes: Footnotes) -> Iterator[Group]:
    """A table per item that some model has, numbers of one level of evidence each."""
    names = {"model": [plain(card["model"]) for card in cards]}

    def group(title: str, item: str, columns: Columns, below: Sequence[str] = ()) -> Group:
        found = [card["evidence"][item] for card in cards]
        assumes = list(dict.fromkeys(one["assumes"] for one in found))
        return Group(title, found[0]["level"], assumes, first=names, columns=columns, below=below)

    yield group("Patch interface", "patch", _patch(cards, notes), ["difference: of the collision"])
    yield group("Variance in lost directions", "variance", _variance(cards, notes))
    yield group(
        "Permutation symmetry", "symmetry", _symmetry(cards, notes), ["largest over blocks"]
    )
    sums = "pairs, allowed: summed over blocks, per image and head"
    yield group("Connectivity", "attention", _attention(cards, notes), [sums])
    yield from _positions(cards, notes, names)
    yield from _shifts(cards, notes, names)
    yield group("Budget", "budget", _budget(cards, notes), _conventions(cards))
    yield group("Training exposure", "exposure", _exposure(cards))
    if any(card["hardware"] for card in cards):
        yield group("Hardware", "hardware", _hardware(cards, notes))


def _cells(cards: Cards, notes: Footnotes, item: str, write: Write) -> list[str]:
    """One cell per card; a dash with its reason where the item is missing."""
    return lined_up(
        [
            notes.dash({"reason": why_missing(card, item)}) if card[item] is None else write(card)
            for card in cards
        ]
    )


def _patch(cards: Cards, notes: Footnotes) -> Columns:
    def collision(key: str) -> Write:
        def write(card: Json) -> str:
            found = card["patch"]["collision"]
            return notes.dash(card["patch"]) if found is None else written(found[key])

        return write

    def value(key: str) -> Write:
        return lambda card: count(card["patch"][key])

    def condition(card: Json) -> str:
        found = card["patch"]["condition"]
        return "-" if found is None else written(found)

    writers: dict[str, Write] = {
        "patch": lambda card: pixels(card["patch"]["kernel"]),
        "D": value("dim"),
        "width d": value("width"),
        "rank": value("rank"),
        "nullity": value("nullity"),
        "nearly\nlost": value("nearly_lost"),
        "condition": condition,
        "pixel\ndifference": collision("max_pixel_difference"),
        "token\ndifference": collision("token_difference"),
    }
    return {title: _cells(cards, notes, "patch", write) for title, write in writers.items()}


def _variance(cards: Cards, notes: Footnotes) -> Columns:
    def value(key: str) -> Write:
        def write(card: Json) -> str:
            found = card["patch"]["variance"]
            if found is None:
                return notes.dash(card["patch"])
            return notes.dash(found) if found[key] is None else share(found[key])

        return write

    def patches(card: Json) -> str:
        found = card["patch"]["variance"]
        return notes.dash(card["patch"]) if found is None else count(found["patches"])

    writers = {
        "patches": patches,
        "share lost": value("share_lost"),
        "lost or nearly": value("share_nearly"),
    }
    return {title: _cells(cards, notes, "patch", write) for title, write in writers.items()}


def _symmetry(cards: Cards, notes: Footnotes) -> Columns:
    def remains(card: Json) -> str:
        found = dict.fromkeys(row["remains"] for row in card["symmetry"] if row["remains"])
        return plain(", ".join(found)) or "-"

    columns = {
        label: lined_up([largest_text(card, key, notes, short=True) for card in cards])
        for key, label in DEFECTS.items()
        if key != "defect_within_windows"
    }
    return columns | {"remains": _cells(cards, notes, "symmetry", remains)}


def _attention(cards: Cards, notes: Footnotes) -> Columns:
    def total(key: str) -> Write:
        return lambda card: count(sum(block[key] for block in blocks_of(card)))

    def until(card: Json) -> str:
        found = card["attention"]["blocks_until_all_reached"]
        return "never" if found is None else str(found)

    def agrees(card: Json) -> str:
        return "equal" if all(block["as_expected"] for block in blocks_of(card)) else "differs"

    def beyond(card: Json) -> str:
        return count(sum(check["beyond"] for check in card["attention"]["perturbation"]))

    writers: dict[str, Write] = {
        "kinds": lambda card: ", ".join(dict.fromkeys(b["kind"] for b in blocks_of(card))),
        "blocks": lambda card: str(len(blocks_of(card))),
        "pairs": total("pairs"),
        "allowed": total("allowed"),
        "formula": agrees,
        "blocks until\nall reached": until,
        "moved\nbeyond reach": beyond,
    }
    return {title: _cells(cards, notes, "attention", write) for title, write in writers.items()}


def _positions(cards: Cards, notes: Footnotes, names: Columns) -> Iterator[Group]:
    def kinds(card: Json) -> str:
        return ", ".join(dict.fromkeys(kind_text(s["kind"]) for s in card["positions"])) or "none"

    def prefix(card: Json) -> str:
        return _span([float(signal["prefix_rows"]) for signal in card["positions"]], whole=True)

    def own(card: Json) -> str:
        found = [s["table_ssdc"] for s in card["positions"] if s["table_ssdc"]["value"] is not None]
        if found:
            return _span([scalar["value"] for scalar in found])
        reasons = [signal["table_ssdc"] for signal in card["positions"]]
        return notes.dash(reasons[0]) if reasons else "-"

    writers: dict[str, Write] = {
        "kinds": kinds,
        "signals": lambda card: str(len(card["positions"])),
        "prefix rows": prefix,
        "own SSDC": own,
    }
    columns = {title: _cells(cards, notes, "positions", w) for title, w in writers.items()}
    signals = [signal for card in cards for signal in card["positions"] or ()]
    assumes = list(dict.fromkeys(signal["assumes"] for signal in signals))
    level = signals[0]["level"] if signals else "exact algebra"
    yield Group("Position contract", level, assumes, first=names, columns=columns)
    tables = [signal for signal in signals if signal["norm"]["value"] is not None]
    if not tables:
        return

    def ratio(card: Json) -> str:
        found = [s["ratio"] for s in card["positions"] if s["norm"]["value"] is not None]
        return ", ".join(scalar_text(one, notes) for one in found) or "-"

    columns = {"row norm / token norm": _cells(cards, notes, "positions", ratio)}
    title = "Positional table against patch tokens"
    level = tables[0]["token_norm"]["level"]
    yield Group(title, level, [RATIO_ASSUMES], first=names, columns=columns)


def _span(values: Sequence[float], whole: bool = False) -> str:
    """`.412`, or `.301 to .655` over several signals."""
    texts = [f"{value:.0f}" if whole else written(value) for value in sorted(values)]
    return " to ".join(dict.fromkeys([texts[0], texts[-1]])) if texts else "-"


def _shifts(cards: Cards, notes: Footnotes, names: Columns) -> Iterator[Group]:
    found = [card["translation"] for card in cards if card["translation"] is not None]
    if not found:
        return

    def change(part: str, key: str) -> Write:
        return lambda card: notes.with_interval(change_at(card, part, key))

    def shifts(card: Json) -> str:
        made = [shift_of(card, part) for part in PARTS]
        return ", ".join("-" if shift is None else str(shift["pixels"]) for shift in made)

    columns: dict[str, Sequence[str]] = {"shifts,\npx": _cells(cards, notes, "translation", shifts)}
    for part, label in PARTS.items():
        for key, what in (("token_change_last", "tokens"), ("prediction_change", "prediction")):
            cells = _cells(cards, notes, "translation", change(part, key))
            columns[f"{what},\n{label}"] = cells
    yield Group(
        "Shifts of the view",
        found[0]["level"],
        list(dict.fromkeys(one["assumes"] for one in found)),
        first=names,
        columns=columns,
        below=[
            "half a patch: the shift nearest to it",
            "tokens: relative L2 at the last layer",
            "prediction: share of images with another top-1",
        ],
    )


def _conventions(cards: Cards) -> list[str]:
    texts = dict.fromkeys(one_line(card["budget"]["convention"]) for card in cards)
    return [f"counted: {text}" for text in texts]


def _budget(cards: Cards, notes: Footnotes) -> Columns:
    parameters = [count(card["budget"]["params"]) for card in cards]
    return {
        "parameters": [text.rjust(max(map(len, parameters))) for text in parameters],
        "image tokens": [tokens_text(card["budget"]) for card in cards],
        "multiply-adds": lined_up([macs_text(card, notes) for card in cards]),
        "activations": lined_up([activations_text(card, notes) for card in cards]),
    }


def _exposure(cards: Cards) -> Columns:
    return {
        name: [one_line(card["exposure"].get(name, "-")) for card in cards]
        for name in EXPOSURE
        if name != "source"
    }


def _hardware(cards: Cards, notes: Footnotes) -> Columns:
    def on(card: Json) -> str:
        found = card["hardware"]
        place = plain(found["accelerator"] or found["device"])
        return f"{place}, {found['dtype']}, batch {found['batch']}"

    writers: dict[str, Write] = {
        "images per second": lambda card: written(card["hardware"]["images_per_second"]),
        "peak memory": lambda card: memory(card["hardware"]["peak_memory_bytes"]),
        "on": on,
    }
    return {title: _cells(cards, notes, "hardware", write) for title, write in writers.items()}
