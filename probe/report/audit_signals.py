"""What a card says of positions, and of them at other image sizes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from probe.report.audit_numbers import (
    Columns,
    Group,
    Json,
    common_part,
    intervals,
    lined_up,
    scalar_text,
    shape_text,
    written,
)
from probe.report.format import Footnotes, counted, grid_text, one_line, p_text, plain

RATIO_ASSUMES = (
    "depends on the images; patch tokens at the patch projection, before any norm behind it"
)
MEASURED = {"anchoring": "anchoring", "accuracy": "accuracy"}


def position_groups(card: Json, notes: Footnotes) -> Iterator[Group]:
    """The positional signals, those that rest on the same assumptions together."""
    signals = card["positions"]
    if signals is None:
        return
    if not signals:
        text = [("signal", "none: the family declares no positional signal")]
        yield Group("Position contract", "exact algebra", [], facts=text)
        return
    together: dict[tuple[str, str], list[Json]] = {}
    for signal in signals:
        together.setdefault((signal["level"], signal["assumes"]), []).append(signal)
    for (level, assumes), own in together.items():
        yield _contract(level, assumes, own, notes)
    yield from _ratios(signals, notes)


def kind_text(kind: str) -> str:
    """`relative bias` for relative_bias."""
    return plain(kind.replace("_", " "))


def _contract(level: str, assumes: str, signals: Sequence[Json], notes: Footnotes) -> Group:
    pattern, names = common_part([signal["where"] for signal in signals])
    columns: dict[str, Sequence[str]] = {
        "shape": [shape_text(signal["shape"]) for signal in signals],
        "made for": [grid_text(s["grid"]) if s["grid"] else "-" for s in signals],
        "prefix rows": [str(signal["prefix_rows"]) for signal in signals],
    }
    if any(signal["norm"]["value"] is not None for signal in signals):
        columns["row norm"] = lined_up([scalar_text(s["norm"], notes) for s in signals])
    if any(signal["bias"] for signal in signals):
        columns["sd"] = lined_up([_bias(signal, "sd") for signal in signals])
        columns["lowest"] = lined_up([_bias(signal, "low") for signal in signals])
        columns["highest"] = lined_up([_bias(signal, "high") for signal in signals])
    if any(signal["rotary"] is None for signal in signals):
        columns["own SSDC"] = lined_up([scalar_text(s["table_ssdc"], notes) for s in signals])
    below = [f"signals: {plain(pattern)}"] if pattern else []
    alike, columns = _alike(columns)
    if alike:
        below.append(f"all: {alike}")
    if "row norm" in columns:
        below.append("row norm: mean L2 norm of the patch rows")
    if "sd" in columns:
        below.append("sd, lowest, highest: of the bias, in units of attention scores")
    if "own SSDC" in columns:
        below.append("own SSDC: rank correlation of the signal's similarity with grid distance")
    kinds = ", ".join(dict.fromkeys(kind_text(signal["kind"]) for signal in signals))
    return Group(
        f"Position contract: {kinds}",
        level,
        [assumes],
        facts=[*_rotary(signals), *_resampling(signals)],
        first={"signal": [plain(name) for name in names]},
        columns=columns,
        below=below,
    )


def _alike(columns: Columns) -> tuple[str, dict[str, Sequence[str]]]:
    """The columns that say the same of several signals, as text, and the others."""
    same = {
        title for title, cells in columns.items() if len(cells) > 1 and len(set(cells)) == 1
    } & {"shape", "made for", "prefix rows"}
    text = ", ".join(f"{title} {columns[title][0]}" for title in columns if title in same)
    return text, {title: cells for title, cells in columns.items() if title not in same}


def _bias(signal: Json, key: str) -> str:
    return "-" if signal["bias"] is None else written(signal["bias"][key])


def _rotary(signals: Sequence[Json]) -> list[tuple[str, str]]:
    facts = []
    for signal in signals:
        found = signal["rotary"]
        if found is None:
            continue
        who = "shared by all blocks and heads" if found["shared"] else "of blocks and heads apart"
        inert = f", {found['inert']} of them inert" if found["inert"] else ""
        turns = found["angles_per_patch"]
        facts.append(
            ("rotation", f"{counted(found['pairs'], 'pair')}{inert}, {found['direction']}, {who}")
        )
        if turns is None:
            facts.append(("radians per patch", "none: no pair turns"))
            continue
        facts.append(("radians per patch", f"{written(turns['min'])} to {written(turns['max'])}"))
        inside = "inside" if found["wraps_inside"] else "not inside"
        facts.append(
            (
                "wraps",
                f"after {written(found['wraps_at'])} patches (fastest) to "
                f"{written(found['longest'])} (slowest); {inside} the grid",
            )
        )
    return facts


def _resampling(signals: Sequence[Json]) -> list[tuple[str, str]]:
    texts = dict.fromkeys(one_line(signal["resampling"]) for signal in signals)
    return [("to another size", text or "not stated") for text in texts]


def _ratios(signals: Sequence[Json], notes: Footnotes) -> Iterator[Group]:
    """Tables against the tokens that they are added to."""
    tables = [signal for signal in signals if signal["norm"]["value"] is not None]
    if not tables:
        return
    tokens = tables[0]["token_norm"]
    on = f" on {counted(tokens['images'], 'image')}" if tokens["images"] else ""
    facts = [("patch tokens", f"mean L2 norm {scalar_text(tokens, notes)}{on}")]
    for signal in tables:
        ratio = scalar_text(signal["ratio"], notes)
        facts.append((plain(signal["where"]), f"row norm / token norm {ratio}"))
    title = "Positional table against patch tokens"
    yield Group(title, tokens["level"], [RATIO_ASSUMES], facts=facts)


def resolution_groups(card: Json, notes: Footnotes) -> Iterator[Group]:
    """The image size of the card against the model's own."""
    found = card["resolution"]
    if found is None:
        return
    yield _mapping(found["positions"])
    yield _sizes(found["measured"], notes)


def _mapping(found: Json) -> Group:
    signals = found["signals"]
    own, other = (_size(found[key]) for key in ("own", "other"))
    pattern, names = common_part([signal["where"] for signal in signals])
    columns = {
        "kind": [kind_text(signal["kind"]) for signal in signals],
        "mapping": [plain(signal["mapping"]) for signal in signals],
        f"stored at\n{own}": [_shapes(signal["shapes"][0]) for signal in signals],
        f"stored at\n{other}": [_shapes(signal["shapes"][1]) for signal in signals],
    }
    facts = [
        (label, f"{_size(found[key])} px, {_grids(found[key])}")
        for label, key in (("own size", "own"), ("audited size", "other"))
    ]
    for name, signal in zip(names, signals, strict=True):
        if signal["angles_per_patch"] is not None:
            before, after = (written(angle) for angle in signal["angles_per_patch"])
            facts.append((plain(name), f"fastest pair {before} radians per patch, now {after}"))
    facts += _resampling(signals)
    first = {"signal": [plain(name) for name in names]} if names else {}
    below = [f"signals: {plain(pattern)}"] if pattern else []
    title = "Another image size: positions"
    return Group(
        title,
        found["level"],
        [found["assumes"]],
        facts=facts,
        first=first,
        columns=columns if names else {},
        below=below,
    )


def _size(found: Json) -> str:
    return grid_text(found["image_size"])


def _grids(found: Json) -> str:
    texts = list(dict.fromkeys(grid_text(grid) for grid in found["grids"]))
    return f"{'grids' if len(texts) > 1 else 'grid'} {', '.join(texts)}"


def _shapes(shapes: Sequence[Sequence[int]]) -> str:
    texts = [shape_text(shape) for shape in shapes]
    return texts[0] if len(texts) == 1 else counted(len(texts), "tensor")


def _sizes(found: Json, notes: Footnotes) -> Group:
    own, other = (_size(found[key]) for key in ("own", "other"))
    sides: Mapping[str, str] = {own: "own", other: "other", "difference": "difference"}
    facts = []
    for key, label in MEASURED.items():
        texts = [f"{size} {notes.with_interval(found[side][key])}" for size, side in sides.items()]
        facts.append((label, ", ".join(texts)))
    if found["mcnemar_p"] is not None:
        facts.append(("predictions", f"exact McNemar p {p_text(found['mcnemar_p'])}"))
    columns: dict[str, Sequence[str]] = {}
    for key, label in (("clean", "clean"), ("rpi", "RPI")):
        for size, side in sides.items():
            columns[f"{label}\n{size}"] = intervals(found[side][key], notes)
    layers = len(found["own"]["clean"])
    return Group(
        "Another image size: SSDC and accuracy",
        found["level"],
        [found["assumes"]],
        facts=facts,
        first={"layer": [str(layer) for layer in range(layers)]},
        columns=columns,
        below=[
            f"SSDC of every layer over {counted(found['images'], 'image')}, [low, high] 95 % "
            f"jackknife interval; difference: {other} minus {own}, paired"
        ],
    )
