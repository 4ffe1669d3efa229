"""Saving of running sums beside the work: one pass at a time, in a thread of its own."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from probe.errors import StoreError
from probe.store import State, Store


class Clock:
    """When the sums of one pass are to be saved, of a pass that is asked now and then."""

    def __init__(self) -> None:
        """Nothing is worth saving yet."""
        self.saved = self.asked = time.monotonic()

    def due(self, every: float) -> bool:
        """Whether more than `every` seconds would have gone by when this is asked again."""
        now = time.monotonic()
        ahead, self.asked = now + (now - self.asked), now
        if ahead - self.saved <= every:
            return False
        self.saved = now
        return True


class Saver:
    """Writes the sums of unfinished passes while others go on.

    A Swin's sums are a gigabyte over all passes, and measuring need not wait for the disk to take
    them once a minute. No more than one pass's sums are held twice at any time.
    """

    def __init__(self, store: Store | None, share: str) -> None:
        """Save into `store` under the name of this share of the images; without one, nothing."""
        self.store, self.share = store, share
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="probe-saver")
        self._writing: Future[None] | None = None

    def save(self, key: str, state: Callable[[], State]) -> None:
        """Begin to save a pass, once what was given before is written; its sums may change then.

        Where memory does not hold them twice, they are written at once.

        Raises:
            StoreError: if what was given before, or what is written at once, could not be written.
        """
        self.wait()
        if self.store is None:
            return
        sums = state()
        try:
            copied = {name: array.copy() for name, array in sums.items()}
        except MemoryError:
            self.store.save_partial(key, sums, self.share)
            return
        self._writing = self._thread.submit(self.store.save_partial, key, copied, self.share)

    def wait(self) -> None:
        """Until all is written.

        Raises:
            StoreError: if it could not be.
        """
        writing, self._writing = self._writing, None
        if writing is None:
            return
        try:
            writing.result()
        except MemoryError as error:  # not a batch's, which halving it would mend
            raise StoreError("no memory is left to save sums; stop other programs") from error

    def close(self) -> None:
        """End the thread, after what it writes; `wait` tells whether that could be written."""
        self._thread.shutdown(wait=True)
