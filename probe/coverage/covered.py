"""What became of every listed architecture, and what that makes in numbers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import torch

from probe.coverage.build import build
from probe.coverage.contract import Works, works
from probe.coverage.listed import Architecture, Library
from probe.errors import ProbeError

Field = Literal["ssdc", "rpi", "alpha", "accuracy"]


@dataclass(frozen=True)
class Covered:
    """One architecture. `family` and `grids` are None where it was not read, `reason` says why.

    `grids` counts patch tokens, one (rows, cols) per stage. `refused`: `probe` has refused it, for
    the reason that the list gives, or in its own words; neither that nor `works`: it broke.
    """

    library: Library
    architecture: str
    built: str
    family: str | None = None
    grids: tuple[tuple[int, int], ...] = ()
    works: Works | None = None
    refused: bool = False
    reason: str | None = None


@dataclass(frozen=True)
class Share:
    """How many of how many."""

    count: int
    of: int

    @property
    def percent(self) -> float:
        """The share in percent, 100 of none."""
        return 100 * self.count / self.of if self.of else 100.0


def cover(library: Library, key: str, architecture: Architecture) -> Covered:
    """Build an architecture and see what works; nothing that it does raises an error."""
    try:
        model = build(library, architecture)
    except ProbeError as error:
        reason = architecture.refused or " ".join(str(error).split())
        return Covered(library, key, architecture.name, refused=True, reason=reason)
    except Exception as error:  # one broken architecture must not end the others
        return Covered(library, key, architecture.name, reason=_words(error))
    grids = tuple(dict.fromkeys((s.grid.rows, s.grid.cols) for s in model.anatomy.attn_in))
    try:
        found = works(model)
    except Exception as error:
        return Covered(library, key, architecture.name, model.family, grids, reason=_words(error))
    return Covered(library, key, architecture.name, model.family, grids, found)


@contextmanager
def one_thread() -> Iterator[None]:
    """Let torch use one thread, which for networks this small is the fastest."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def share(found: Sequence[Covered], field: Field) -> Share:
    """On how many architectures `field` works: SSDC and RPI of all, the others of those with it.

    Alpha needs a positional signal that can be scaled, accuracy a head. What is refused or broken
    counts as one that has both.
    """
    outcomes = [getattr(one.works, field).works if one.works else False for one in found]
    without = outcomes.count(None) if field in ("alpha", "accuracy") else 0
    return Share(outcomes.count(True), len(outcomes) - without)


def _words(error: Exception) -> str:
    lines = str(error).strip().splitlines() or ["no message"]
    return lines[0] if isinstance(error, ProbeError) else f"{type(error).__name__}: {lines[0]}"
