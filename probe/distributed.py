"""Several processes of one launch (accelerate launch, torchrun, mpirun) share the images of a pass.

All run the same command; the main one alone prints and writes results. They meet only at
`exchange`, where an error of one goes to all, so that none waits for one that has given up.
"""

from __future__ import annotations

import atexit
import os
import pickle
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import cache
from typing import Any, TypeVar

from probe.errors import ProbeError, UsageError

T = TypeVar("T")

# What launchers call these: torchrun and accelerate, then the kinds of MPI.
COUNT = ("WORLD_SIZE", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE")
RANK = ("RANK", "PMI_RANK", "OMPI_COMM_WORLD_RANK", "MV2_COMM_WORLD_RANK")
LOCAL_RANK = ("LOCAL_RANK", "MPI_LOCALRANKID", "OMPI_COMM_WORLD_LOCAL_RANK")

LETTING_GO = 0.2  # seconds; it takes less than a thousandth
PATIENCE = timedelta(days=7)  # one share may take hours longer than another


class PeerError(Exception):
    """An unexpected error of another process; its text ends with the traceback."""


class Processes:
    """The processes that share a run; this class is one that runs alone."""

    rank = 0
    count = 1

    @property
    def main(self) -> bool:
        """Whether this one prints and writes."""
        return self.rank == 0

    def exchange(self, value: T) -> list[T]:
        """The `value` of every process, by rank; waits for all of them.

        Raises:
            ProbeError: if another process has ended its step with one.
            PeerError: if it has ended with an unexpected error.
        """
        return [value]

    def collect(self, value: T) -> list[T] | None:
        """The same to the main process alone, for what is large; None to the others."""
        return [value]

    def heed(self) -> None:
        """Raise what another process has ended its step with, if one has; waits for nobody."""

    @contextmanager
    def in_step(self) -> Iterator[None]:
        """A step that all processes take: an error of one ends it in all of them."""
        yield


ALONE = Processes()


class Group(Processes):
    """The processes of a launch, over gloo, since what they exchange lies in main memory."""

    def __init__(self, rank: int, count: int) -> None:
        """Meet the others."""
        import torch.distributed as dist

        self.rank, self.count = rank, count
        self._dist = dist
        store, _, _ = next(dist.rendezvous("env://", rank, count))
        self._store = dist.PrefixStore("probe", store)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=count, timeout=PATIENCE)
        self._met = 0
        self._known: Exception | None = None  # what all processes have heard of

    def exchange(self, value: T) -> list[T]:
        """As in `Processes`."""
        return self._exchange(value, None)

    def _exchange(self, value: T, own: Exception | None) -> list[T]:
        found: list[Any] = [None] * self.count
        told = None if own is None else _portable(own, self.rank)
        self._dist.all_gather_object(found, (value, told))
        self._met += 1
        for rank, (_, error) in enumerate(found):
            if error is not None:
                self._known = own if rank == self.rank and own is not None else error
                raise self._known
        return [value for value, _ in found]

    def collect(self, value: T) -> list[T] | None:
        """As in `Processes`."""
        self.exchange(None)
        found: list[Any] | None = [None] * self.count if self.main else None
        self._dist.gather_object(value, found, dst=0)
        return found

    def heed(self) -> None:
        """As in `Processes`."""
        if self._store.check([self._alarm()]):
            self.exchange(None)

    @contextmanager
    def in_step(self) -> Iterator[None]:
        """As in `Processes`."""
        try:
            yield
        except Exception as error:
            if error is self._known:
                raise
            self._store.set(self._alarm(), "")
            self._exchange(None, error)
        self.exchange(None)

    def leave(self) -> None:
        """End the group before the interpreter ends.

        A thread of gloo lets go of the tensors of the last exchange when it comes to it. It needs
        the interpreter for that, and aborts the process where that is gone.
        """
        self._dist.destroy_process_group()
        time.sleep(LETTING_GO)

    def _alarm(self) -> str:
        return f"alarm{self._met}"


def _portable(error: Exception, rank: int) -> Exception:
    """`error` as it can be sent: our own as they are, others as text."""
    if isinstance(error, ProbeError):
        try:
            return pickle.loads(pickle.dumps(error))
        except (pickle.PicklingError, TypeError, AttributeError):
            return ProbeError(str(error))
    what = f"{type(error).__name__}: {error}".splitlines()[0]
    trace = "".join(traceback.format_exception(error))
    return PeerError(f"{what} (in process {rank})\n{trace}")


@cache
def processes_of_launch() -> Processes:
    """The processes of this launch; meets the others when first called.

    On GPUs, each process of a machine gets its own.

    Raises:
        UsageError: if the launcher has not said where they meet.
    """
    count = _number(COUNT, 1)
    if count < 2:
        return ALONE
    rank = _number(RANK, -1)
    if not 0 <= rank < count or not {"MASTER_ADDR", "MASTER_PORT"} <= set(os.environ):
        raise UsageError(
            f"{count} processes were started, but not told how to meet; start them with "
            "accelerate launch or torchrun, or unset WORLD_SIZE"
        )
    import torch

    if torch.cuda.is_available() and not keeps_to_cpu():
        torch.cuda.set_device(_number(LOCAL_RANK, rank) % torch.cuda.device_count())
    group = Group(rank, count)
    atexit.register(group.leave)
    return group


def speaks() -> bool:
    """Whether this process prints: it runs alone, or is the main one of its launch."""
    return _number(COUNT, 1) < 2 or _number(RANK, 0) == 0


def keeps_to_cpu() -> bool:
    """Whether `accelerate launch --cpu` was asked for."""
    return os.environ.get("ACCELERATE_USE_CPU", "").lower() in ("true", "yes", "1")


def launched_alone() -> bool:
    """Whether accelerate was asked for several processes and has started one, for want of MPI."""
    told = {*COUNT, *RANK} & set(os.environ)
    return keeps_to_cpu() and "MASTER_ADDR" in os.environ and not told


def _number(names: Sequence[str], default: int) -> int:
    for name in names:
        text = os.environ.get(name, "")
        if text.isdecimal():
            return int(text)
    return default
