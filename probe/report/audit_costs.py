"""What a card says of costs: counted and measured apart, and of what a model was trained on."""

from __future__ import annotations

from collections.abc import Iterator

from probe.report.audit_numbers import Group, Json, count, evidence, large, memory, written
from probe.report.format import Footnotes, counted, one_line, plain

EXPOSURE = ("pretraining", "teacher", "licence", "source")


def cost_groups(card: Json, notes: Footnotes) -> Iterator[Group]:
    """The analytic budget, what others state of the training, and the measured hardware."""
    budget = card["budget"]
    yield Group(
        "Budget",
        *evidence(card, "budget"),
        facts=[
            ("parameters", large(budget["params"], "").strip() + f" ({count(budget['params'])})"),
            ("image tokens", tokens_text(budget)),
            ("multiply-adds", macs_text(card, notes)),
            ("activations", activations_text(card, notes)),
        ],
        below=[f"counted: {one_line(budget['convention'])}"],
    )
    exposure = card["exposure"]
    yield Group(
        "Training exposure",
        *evidence(card, "exposure"),
        facts=[(name, one_line(exposure[name])) for name in EXPOSURE if name in exposure],
    )
    hardware = card["hardware"]
    if hardware is None:
        return
    place = hardware["device"]
    if hardware["accelerator"]:
        place += f" ({hardware['accelerator']})"
    yield Group(
        "Hardware",
        *evidence(card, "hardware"),
        facts=[
            ("images per second", written(hardware["images_per_second"])),
            (
                "peak memory",
                f"{memory(hardware['peak_memory_bytes'])} {one_line(hardware['memory'])}",
            ),
            (
                "on",
                f"{plain(place)}, {hardware['dtype']}, batch {hardware['batch']}, "
                f"{counted(hardware['threads'], 'thread')}, median of {hardware['rounds']} passes, "
                f"torch {plain(hardware['torch'])}",
            ),
        ],
    )


def tokens_text(budget: Json) -> str:
    """`196 and 1 prefix token`."""
    prefix = budget["prefix_tokens"]
    text = count(budget["image_tokens"])
    return f"{text} and {counted(prefix, 'prefix token')}" if prefix else text


def macs_text(card: Json, notes: Footnotes) -> str:
    """`4.60 GMACs`, or a dash with its reason."""
    budget = card["budget"]
    if budget["macs"] is None:
        return notes.dash(budget)
    return large(budget["macs"], "MACs")


def activations_text(card: Json, notes: Footnotes) -> str:
    """`74.3 MiB in float32`, or a dash with its reason."""
    budget = card["budget"]
    if budget["activation_bytes"] is None:
        return notes.dash(budget)
    return f"{memory(budget['activation_bytes'])} in {plain(budget['dtype'])}"
