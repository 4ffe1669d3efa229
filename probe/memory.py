"""What fits into memory: how many passes at once, and a smaller batch when one did not fit."""

from __future__ import annotations

import os
from collections.abc import Sequence

from probe.errors import OutOfMemory, is_out_of_memory
from probe.metrics.grids import sum_bytes
from probe.types import Pass, TokenSite

LEAST = 4 * 2**30


def budget() -> int:
    """Bytes of running sums that one reading of the data may hold: a quarter of the machine's."""
    return max(LEAST, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 4)


def smaller_batch(error: Exception, size: int, passes: Sequence[Pass]) -> int:
    """Half of `size`, the number of images in a forward pass that has run out of memory.

    Args:
        error: what ended it; raised again if it is about anything else.
        size: images per forward pass.
        passes: what was run.

    Raises:
        OutOfMemory: if one image does not fit, or a pass shares a permutation within each batch,
            since smaller batches would have other permutations.
    """
    if not is_out_of_memory(error):
        raise error
    if size == 1:
        raise OutOfMemory(
            "out of memory with one image per forward pass; choose a smaller --image-size, "
            "--dtype bfloat16 or another --device"
        ) from error
    if any(_by_batch(one) for one in passes):
        raise OutOfMemory(
            f"out of memory with {size} images per forward pass, and the paper's protocol draws "
            "one permutation per batch, so a smaller one is another measurement; choose it with "
            "--batch-size"
        ) from error
    return size // 2


def free_memory() -> None:
    """Give back what the failed batch has left in the allocator's cache."""
    from accelerate.utils.memory import clear_device_cache

    clear_device_cache(garbage_collection=True)


def _by_batch(one: Pass) -> bool:
    permutation = one.condition.permutation
    return permutation is not None and permutation.mode == "batch"


def affordable(
    passes: Sequence[Pass], sites: Sequence[TokenSite], most: int | None = None
) -> list[list[Pass]]:
    """Parts of `passes` whose running sums fit into `most` bytes; a part has one at least.

    One reading serves as many passes as fit. Only large grids under many draws need a second.
    `most` is `budget()` where it is None.
    """
    most = budget() if most is None else most
    parts: list[list[Pass]] = []
    room = 0
    for one in passes:
        last = one.task.last_layer
        read = [s for s in sites if last is None or s.layer <= last] if one.task.ssdc else []
        need = sum(sum_bytes(site.grid) for site in read)
        if not parts or need > room:
            parts.append([])
            room = most
        parts[-1].append(one)
        room -= need
    return parts
