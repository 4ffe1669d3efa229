"""What a card says of interface, symmetry and connectivity, one level of evidence a group."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from probe.report.audit_numbers import (
    COUNTS,
    DEFECTS,
    Columns,
    Group,
    Json,
    blocks_of,
    by_block,
    count,
    defect_text,
    evidence,
    largest_text,
    lined_up,
    pixels,
    ranges,
    rounding,
    share,
    written,
)
from probe.report.format import Footnotes, counted, grid_text, one_line

DEFECT_LEGEND = {
    "defect_without_position": "without position: every positional signal is silent",
    "defect_with_position": "with position: the model as it is",
    "defect_joint": "joint: content and position are permuted together",
    "defect_within_windows": "inside windows: no position, slots permuted alike in every window",
}
COUNT_LEGEND = {
    "pairs": "pairs: ordered (query, key) pairs of patch tokens in one window, per image and head",
    "allowed": "allowed: those that no mask forbids",
    "wrapped": "wrapped: allowed between opposite edges of a rolled grid",
    "prefix": "prefix: allowed with a prefix token, apart from the pairs",
    "padding": "padding: allowed with padding, apart from the pairs",
}
THREE_ROUNDING = 64 * 2.220446049250313e-16  # 64 eps of float64, as for a block's dtype
THREE = {
    "without_position": "without position",
    "with_table": "with a table",
    "with_bias": "with a bias",
    "joint": "joint",
}


def interface_groups(card: Json, notes: Footnotes) -> Iterator[Group]:
    """The patch interface, and what of natural patches it loses."""
    patch = card["patch"]
    if patch is None:
        return
    yield Group("Patch interface", *evidence(card, "patch"), facts=_rank(patch) + _collision(patch))
    variance = patch["variance"]
    if variance is None:
        return
    of = f"of the variance of {counted_patches(variance)}"
    facts = [
        (label, _share_of(variance, key, of, notes))
        for label, key in (("lost", "share_lost"), ("lost or nearly", "share_nearly"))
    ]
    yield Group("Variance in lost directions", *evidence(card, "variance"), facts=facts)


def counted_patches(variance: Json) -> str:
    """`3,136 patches`."""
    return f"{count(variance['patches'])} {'patch' if variance['patches'] == 1 else 'patches'}"


def _share_of(variance: Json, key: str, of: str, notes: Footnotes) -> str:
    if variance[key] is None:
        return notes.dash(variance)
    return f"{share(variance[key])} {of}"


def _rank(patch: Json) -> list[tuple[str, str]]:
    kernel, stride, dim, rank = (patch[key] for key in ("kernel", "stride", "dim", "rank"))
    how = "disjoint" if kernel == stride else f"overlapping, every {pixels(stride)}"
    channels = dim // (kernel[0] * kernel[1])
    facts = [
        ("patch", f"{pixels(kernel)}, {counted(channels, 'channel')}, {how}"),
        ("coordinates D", f"{count(dim)} into a token of width d = {count(patch['width'])}"),
        ("rank", f"{count(rank)}; singular values above {written(patch['tolerance'])} count"),
        (
            "nullity",
            f"{count(patch['nullity'])} = D - rank, at least max(0, D - d) = "
            f"{count(patch['nullity_bound'])}",
        ),
    ]
    if rank:
        values = patch["singular_values"]
        facts.append(
            (
                "singular values",
                f"{written(values[0])} to {written(values[rank - 1])}, condition "
                f"{written(patch['condition'])}; {patch['nearly_lost'] or 'none'} below 1 % of the "
                "largest (nearly lost)",
            )
        )
    if overlap := patch.get("overlap"):
        facts.append(
            (
                f"{grid_text(overlap['tokens'])} tokens",
                f"rank {count(overlap['rank'])} of the {count(overlap['dim'])} coordinates under "
                f"them, in {count(overlap['rows'])} numbers",
            )
        )
    return facts


def _collision(patch: Json) -> list[tuple[str, str]]:
    found = patch["collision"]
    if found is None:
        label = "collision" if patch["stem"] == "patch" else "per patch"
        return [(label, one_line(patch["reason"] or "none"))]
    return [
        (
            "collision",
            f"two patches within 0..255 that differ by up to "
            f"{written(found['max_pixel_difference'])} of 255 levels, and their tokens by "
            f"{written(found['token_difference'])} (relative L2); shown in collisions.svg",
        )
    ]


def symmetry_groups(card: Json, notes: Footnotes) -> Iterator[Group]:
    """The permutation defects of every block."""
    rows = card["symmetry"]
    if not rows:
        return
    keys = [key for key in DEFECTS if key != "defect_within_windows" or _any(rows, key)]
    columns = {
        DEFECTS[key]: lined_up([defect_text(card, row, key, notes) for row in rows]) for key in keys
    }
    network = rows[0]["scope"] == "network"
    below = [DEFECT_LEGEND[key] for key in keys]
    if network:
        below.append("tokens are permuted after the patch projection and read after every block")
        grows = f"0: below rounding, {written(card['symmetry_tolerance'])} for each block so far"
    else:
        below.append("every block by itself: its own input is permuted")
        grows = f"0: below rounding, {written(rounding(card, rows[0]))}"
    below.append(grows)
    for remains in dict.fromkeys(row["remains"] for row in rows if row["remains"]):
        where = ranges([row["block"] for row in rows if row["remains"] == remains])
        below.append(f"what keeps place without position: {remains} (blocks {where})")
    yield Group(
        "Permutation symmetry",
        *evidence(card, "symmetry"),
        facts=[(f"{DEFECTS[key]}", f"at most {largest_text(card, key, notes)}") for key in keys],
        first={"block": [str(row["block"]) for row in rows]},
        columns=columns,
        below=below,
    )


def _any(rows: Sequence[Json], key: str) -> bool:
    return any(row.get(key) is not None for row in rows)


def connectivity_groups(card: Json) -> Iterator[Group]:
    """Pairs and reach, then their check by changing a token."""
    found = card["attention"]
    if found is None:
        return
    first, columns, below = _pairs(blocks_of(card))
    depth = found["share_reached"]
    until = found["blocks_until_all_reached"]
    reached = (
        f"never; after the last block {share(depth[-1])} of all pairs"
        if until is None
        else f"after {counted(until, 'block')} every token depends on every patch"
    )
    facts = [("all reached", reached), ("share by block", by_block([share(s) for s in depth]))]
    yield Group(
        "Connectivity",
        *evidence(card, "attention"),
        facts=facts,
        first=first,
        columns=columns,
        below=below,
    )
    if checks := found["perturbation"]:
        facts = []
        for check in checks:
            pairs = zip(check["moved"], check["reachable"], strict=True)
            texts = [f"{count(moved)} of {count(can)}" for moved, can in pairs]
            facts.append((f"token {tuple(check['token'])}", by_block(texts)))
        beyond = sum(check["beyond"] for check in checks)
        verdict = "0, as the masks say" if beyond == 0 else f"{count(beyond)}, against the masks"
        facts.append(("moved beyond reach", verdict))
        below = ["by block: patch tokens that moved, of those that a path of the masks reaches"]
        title = "Connectivity, checked by changing one patch token"
        yield Group(title, *evidence(card, "perturbation"), facts=facts, below=below)


def _pairs(blocks: Sequence[Json]) -> tuple[Columns, Columns, list[str]]:
    """Blocks of one grid that are alike share a row; counts that are 0 everywhere are a line."""
    rows: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for block in blocks:
        key = tuple(repr(value) for name, value in block.items() if name != "layer")
        rows.setdefault(key, []).append(dict(block))
    kinds = [alike[0] for alike in rows.values()]
    first = {
        "grid": [grid_text(block["grid"]) for block in kinds],
        "blocks": [ranges([block["layer"] for block in alike]) for alike in rows.values()],
    }
    columns = {"kind": [block["kind"] for block in kinds]}
    for name in ("window", "shift"):
        if any(block[name] is not None for block in kinds):
            columns[name] = [grid_text(block[name]) if block[name] else "-" for block in kinds]
    shown = [name for name in COUNTS if name in COUNTS[:2] or any(b[name] for b in kinds)]
    for name in shown:
        texts = [count(block[name]) for block in kinds]
        columns[name] = [text.rjust(max(map(len, texts))) for text in texts]
    columns["formula"] = [
        "equal" if block["as_expected"] else "/".join(map(count, block["by_formula"]))
        for block in kinds
    ]
    below = [COUNT_LEGEND[name] for name in shown]
    if absent := [name for name in COUNTS if name not in shown]:
        below.append(f"{', '.join(absent)}: 0 in every block")
    wrong = [block["layer"] for block in blocks if not block["as_expected"]]
    below.append("formula: pairs and allowed in closed form, from grid, window and shift")
    if wrong:
        below.append(f"counts and formula differ in blocks {ranges(wrong)}")
    return first, columns, below


def example_groups(examples: Json) -> Iterator[Group]:
    """The three-token case, once for all models."""
    three = examples.get("three_tokens")
    if three is None:
        return

    def text(value: float) -> str:
        below = f"0 (below rounding {written(THREE_ROUNDING)})"
        return below if value <= THREE_ROUNDING else written(value)

    yield Group(
        f"Three tokens, all {three['permutations']} permutations",
        "exact algebra",
        ["one head of explicit attention in float64 on random tokens, no model; relative L2"],
        facts=[(label, text(three[key])) for key, label in THREE.items()],
    )
