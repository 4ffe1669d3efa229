"""Progress of a batch on a terminal: models, and images times passes of the one that runs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

from probe.cli.batch import UNIT, bars

Steps = tuple[Callable[..., None], Callable[[int], None]]


class Board(Protocol):
    """What a batch tells while it runs."""

    def model(self, name: str) -> Steps:
        """A model begins; gives what to call once loaded and after each batch of images."""

    def done(self) -> None:
        """A model has ended, well or not."""


class _Silent:
    def model(self, name: str) -> Steps:
        return (lambda taken, passes: None), (lambda count: None)

    def done(self) -> None:
        return None


class _Bars:
    def __init__(self, bar: Any, count: int) -> None:
        self._bar = bar
        self._all = bar.add_task("models", total=count, unit="models")
        self._one = bar.add_task("", total=None, unit=UNIT, visible=False)

    def model(self, name: str) -> Steps:
        self._bar.reset(self._one, total=None, visible=True, description=f"{name}: loading")

        def loaded(taken: int | None, passes: int) -> None:
            total = taken and taken * passes
            self._bar.update(self._one, description=name, total=total)

        return loaded, lambda count: self._bar.advance(self._one, count)

    def done(self) -> None:
        self._bar.advance(self._all)


@contextmanager
def board(models: Sequence[str]) -> Iterator[Board]:
    """Bars on standard error, with the time left, on a terminal only."""
    if not sys.stderr.isatty():
        yield _Silent()
        return
    with bars() as bar:
        yield _Bars(bar, len(models))
