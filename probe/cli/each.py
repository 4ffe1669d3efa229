"""Commands without a data set: one function per model, a failure is a row, files, a screen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from probe.cli.batch import (
    Output,
    check_outputs,
    deliver,
    envelope_of,
    progress_bar,
    resolved,
    unexpected,
)
from probe.distributed import speaks
from probe.errors import ProbeError, UsageError
from probe.store import slug
from probe.types import Failure

if TYPE_CHECKING:
    from probe.types import LoadedModel


@dataclass(frozen=True)
class EachRequest:
    """Which models, and where the outputs go."""

    models: tuple[str, ...]
    arch: str | None
    zoo: Path | None
    runs: Path
    out: Path | None
    json_path: str | None


@dataclass(frozen=True)
class Steps:
    """How one model's progress is shown: `loaded(model, steps)` once, then `done(steps)`."""

    loaded: Callable[[LoadedModel, int], None]
    done: Callable[[int], None]


def folder_of(request: EachRequest, command: str) -> Path:
    """Where the files of `command` go."""
    return request.out or request.runs / command / slug("+".join(request.models))


def run_each(request: EachRequest, output: Output) -> int:
    """Call `output.result(spec, steps)` for every model, write the files, print the screen.

    Of several processes of a launch the main one does all.

    Returns:
        The exit code, 1 if a model failed.

    Raises:
        UsageError: if the request itself is wrong, or fits none of its models.
        ProbeError: if a folder cannot be written into; nothing has run then.
    """
    if not speaks():
        return 0
    specs = resolved(request.models, request.arch, request.zoo)
    out = folder_of(request, output.name)
    check_outputs(out, request.runs, request.json_path)
    results, failures, refused = [], [], []
    for number, spec in enumerate(specs, start=1):
        title = spec.name if len(specs) == 1 else f"{spec.name} ({number}/{len(specs)})"
        try:
            with progress_bar(title, 1) as (loaded, done):
                results.append(output.result(spec, Steps(loaded, done)))
        except ProbeError as error:
            refused += [error] if isinstance(error, UsageError) else []
            failures.append(Failure(spec.name, " ".join(str(error).split())))
        except Exception as error:  # one broken model never ends a batch; its traceback is kept
            failures.append(unexpected(spec, error, out, keep=True))
    if len(refused) == len(specs):
        raise refused[0]
    envelope = envelope_of(output.combine(results), failures)
    return deliver(envelope, output, out, request.json_path)
