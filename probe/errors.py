"""What can go wrong, in kinds that the command line turns into one line and an exit code.

Every message says what happened and what to do next; none needs a traceback to be understood.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class ProbeError(Exception):
    """Base of every error that `probe` raises on purpose. Exit code 1."""

    exit_code = 1


class UsageError(ProbeError):
    """The request itself is wrong: an option, a name, a value out of range. Exit code 2."""

    exit_code = 2


class ZooError(UsageError):
    """`zoo.yaml` cannot be read as a zoo."""


class UnknownModel(UsageError):
    """No zoo entry, prefix or path fits the name that was given."""


class CheckpointError(ProbeError):
    """A checkpoint cannot be fetched, read, or matched to its architecture."""


class AnatomyError(ProbeError):
    """The model's tokens are not where its family says, or it has no token grid."""


class NotApplicable(ProbeError):
    """An intervention has nothing to act on in this model; commands report null with the reason."""


class NoEffect(ProbeError):
    """An intervention was entered, and changed nothing."""


class DataError(ProbeError):
    """Images cannot be found, read or used."""


class UnreadableImage(DataError):
    """One image cannot be read. `name` is its name in the data set, `reason` says why."""

    def __init__(self, name: str, reason: str) -> None:
        """Keep both parts: the loader lists them, and they survive pickling between workers."""
        super().__init__(name, reason)
        self.name = name
        self.reason = reason

    def __str__(self) -> str:
        """The one line a user sees."""
        return f"cannot read image '{self.name}': {self.reason}; repair or remove it"


class CorruptionError(DataError):
    """A corruption fails on one image, which is then left out of every condition."""


class OutOfMemory(ProbeError):
    """Images do not fit into memory, in the smallest batch that the request allows."""


class TrainingError(ProbeError):
    """A training run cannot go on; what it had saved is kept."""


class StoreError(ProbeError):
    """A record or an output file cannot be read or written."""


def is_out_of_memory(error: Exception) -> bool:
    """Whether a device or the machine had no memory left."""
    import torch
    from accelerate.utils.memory import should_reduce_batch_size

    return isinstance(error, MemoryError | torch.OutOfMemoryError) or bool(
        should_reduce_batch_size(error)
    )


def did_you_mean(word: str, known: Iterable[str], count: int = 3) -> str:
    """Return " Did you mean a, b?" for the names nearest to `word`, or an empty string."""
    near = difflib.get_close_matches(word, list(known), n=count, cutoff=0.5)
    return f" Did you mean {', '.join(near)}?" if near else ""
