"""The modules that ran as a tree of lines, siblings of one shape folded."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

from probe.families.trace import Step, Trace, shown


def tree(seen: Trace) -> list[str]:
    """Lines such as `layers.0 .. layers.11 (Block) gives (B, 65, 64)`, indented by depth.

    Numbered siblings of one class and shape that follow each other are one line, and what is
    inside the first of them stands for all.
    """
    children: dict[str, list[str]] = {}
    for name in seen.steps:
        if name:
            children.setdefault(_owner(name, seen), []).append(name)
    return list(_lines(seen, children, "", 0))


def _owner(name: str, seen: Trace) -> str:
    """The nearest module around it that ran; a list of modules never does."""
    owner = name.rpartition(".")[0]
    while owner and owner not in seen.steps:
        owner = owner.rpartition(".")[0]
    return owner


def _lines(seen: Trace, children: dict[str, list[str]], owner: str, depth: int) -> Iterator[str]:
    def alike(name: str) -> tuple[object, ...]:
        step = seen.steps[name]
        parent, _, own = name.rpartition(".")
        return parent, own.isdigit() or name, step.kind, step.gives

    for _, group in groupby(children.get(owner, []), key=alike):
        names = list(group)
        yield "  " * depth + _line(names, seen.steps[names[0]])
        yield from _lines(seen, children, names[0], depth + 1)


def _line(names: list[str], step: Step) -> str:
    which = names[0] if len(names) == 1 else f"{names[0]} .. {names[-1]}"
    again = f", {step.calls} calls" if step.calls > 1 else ""
    return f"{which} ({step.kind}{again}) gives {shown(step.gives)}"
