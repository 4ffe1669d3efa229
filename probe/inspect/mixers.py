"""Which modules mix tokens by anything but convolution: found by following changes of one token."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from probe.families.trace import BATCH
from probe.inspect.follow import Change, Follower
from probe.inspect.rows import channels, rows


@dataclass(frozen=True)
class Place:
    """One row of what a module gives; `axis` is that of the channels if it is no leaf."""

    name: str
    row: int
    axis: int | None = None


@dataclass(frozen=True)
class Mixer:
    """A module that takes one changed token and lets it reach others.

    `last` is the leaf that gave one changed row before that, `first` the one that saw several,
    `after` a place from which the next mixer is reached.
    """

    name: str
    last: str
    first: str
    after: Place


def beginning(follower: Follower) -> Place:
    """A row in the middle of an image, of what the first convolution or linear layer gives."""
    return Place(follower.start, follower.middle)


def next_mixer(follower: Follower, place: Place) -> Mixer | None:
    """The first mixer that a change at a place reaches, None if it stays one row to the end.

    A gate that multiplies whole channels, as squeeze-and-excitation does, tells tokens apart no
    more than before: it is noted in `follower.gates`, and no change goes through it any more.
    """
    passed: set[str] = set()
    while True:
        changes = follower.follow(place.name, place.row, place.axis)
        number = next((n for n, c in enumerate(changes) if c.spread), None)
        if number is None:
            return None
        first, before = changes[number], changes[:number]
        if _closed(follower, first, place):
            continue
        singles = [c for c in before if c.leaf and len(c.gives) == 1 and c.name != first.name]
        last = singles[-1].name if singles else place.name
        after = Place(first.name, _same_row(first, singles, follower))
        owner = _owner(first, before)
        if owner is not None:
            return Mixer(owner, last, first.name, after)
        if first.name in passed:
            return None
        passed.add(first.name)
        place = after


def _owner(first: Change, before: list[Change]) -> str | None:
    """The innermost module around (or at) the leaf that takes one changed row."""
    around = [c for c in (*before, first) if f"{first.name}.".startswith(f"{c.name}.")]
    fitting = [c.name for c in around if len(c.takes) == 1]
    return max(fitting, key=len, default=None)


def _same_row(first: Change, singles: list[Change], follower: Follower) -> int:
    """The row of the token that was changed, if rows are counted alike; else one that changed."""
    given = follower.rows(first.name)
    for change in reversed(singles):
        if change.size == given == first.size and change.takes == change.gives:
            return change.gives[0]
    reached = first.gives or first.takes
    return reached[len(reached) // 2] if given > max(reached) else given // 3


def _closed(follower: Follower, first: Change, place: Place) -> bool:
    """Close a gate, if it is one that let the change spread over all of an image."""
    most = len(first.takes) > max(3, 0.9 * first.size / BATCH)
    if first.name in follower.gates or not most:
        return False
    whole, disturbed = follower.taken(first.name, place.name, place.row, place.axis)
    axis = channels(follower.parts[first.name], tuple(whole.shape))
    clean, now = rows(whole, axis), rows(disturbed, axis)
    apart = (now - clean).norm(dim=1)
    others = [row for row in first.takes if row != int(apart.argmax())]
    if not _is_product(clean[others].double(), now[others].double()):
        return False
    follower.gates[first.name] = whole
    return True


def _is_product(clean: Tensor, now: Tensor) -> bool:
    """Whether rows were multiplied by the same factors, which a sum of one thing does not explain.

    Attention that is all but uniform gives rows that hardly differ; both then fit, and it is none.
    """
    apart = now - clean
    factors = (now * clean).sum(0) / (clean * clean).sum(0).clamp_min(1e-30)
    product = float((now - factors * clean).norm())
    shift = float((apart - apart.mean(0)).norm())
    rounding = 1e-7 * float(now.norm())
    if float((clean - clean.mean(0)).norm()) < 0.1 * float(clean.norm()):
        return False
    return product < 0.01 * float(apart.norm()) + rounding and shift > 10 * (product + rounding)
