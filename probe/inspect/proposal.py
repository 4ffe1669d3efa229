"""The inline anatomy that a traced pass suggests, and what it leaves open."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from probe.errors import AnatomyError
from probe.families.base import RawModel
from probe.families.declared import declare
from probe.families.trace import Trace, tensors
from probe.inline import InlineAnatomy
from probe.inspect.follow import Follower
from probe.inspect.head import find_features, find_head
from probe.inspect.layers import Found, find_layers, items
from probe.inspect.moments import Watched
from probe.inspect.order import misplaced
from probe.inspect.positions import find_positions

# Of classes that are used for anything, another one says nothing.
PLAIN = {"Linear", "Conv1d", "Conv2d", "Sequential", "Identity", "AvgPool2d", "MaxPool2d"}


@dataclass(frozen=True)
class Proposal:
    """An anatomy as a zoo entry states it, None where none could be declared.

    `missing` has a line on every layer that could not be decided, `unclear` on positions and the
    head; what they name is left out.
    """

    anatomy: Mapping[str, Any] | None
    missing: tuple[str, ...]
    unclear: tuple[str, ...] = ()


def propose(raw: RawModel, name: str, seen: Trace) -> Proposal:
    """State what is found in a traced pass and in many more; it has been declared, as at a load."""
    follower = Follower(raw)
    found = find_layers(follower, seen, Watched(raw, follower.parts))
    missing = [*found.missing, *_untold(seen, found)]
    if not found.mixers:
        missing.append("a module that mixes tokens by anything but convolution")
    if found.patches is None or not found.layers:
        return Proposal(None, tuple(missing))
    anatomy: dict[str, Any] = {
        "image_size": list(raw.image_size),
        "patches": found.patches.stated(),
        "blocks": items(follower, found.layers),
    }
    try:
        read, family = declare(raw, InlineAnatomy.model_validate(anatomy), name)
        wrong = [*misplaced(follower, family.anatomy(read.module, read.image_size))]
        if wrong:
            return Proposal(None, (*missing, *wrong))
        mixers = [mixer.name for mixer in found.mixers]
        positions, unclear = find_positions(raw, anatomy, seen, mixers)
        anatomy |= {"positions": positions} if positions else {}
        head = find_head(seen)
        if head is not None:
            features = find_features(follower, seen, found.layers[-1])
            anatomy |= ({"features": features} if features else {}) | {"head": head}
            unclear += [] if features else ["which tokens the head takes, so no features are named"]
            if raw.classes is None:
                unclear.append(f"whether the output is logits; if not, leave out `head: {head}`")
        elif any(tensor.ndim == 2 for tensor in tensors(seen.output)):
            unclear.append("whether what the model gives are logits")
        declare(raw, InlineAnatomy.model_validate(anatomy), name)
    except AnatomyError as error:
        return Proposal(None, (*missing, f"an anatomy that holds: {error}"))
    return Proposal(anatomy, tuple(missing), tuple(unclear))


def _untold(seen: Trace, found: Found) -> Iterator[str]:
    """Modules of a mixer's class that are none: of another branch, or where no token spread."""
    names = {mixer.name for mixer in found.mixers}
    kinds = {seen.steps[name].kind for name in names} - PLAIN
    for kind in sorted(kinds):
        others = [
            step.name
            for step in seen.steps.values()
            if step.kind == kind and step.name not in names
        ]
        if others:
            more = f" and {len(others) - 1} more" if len(others) > 1 else ""
            yield f"how '{others[0]}' ({kind}){more} belongs to the tokens that were followed"
