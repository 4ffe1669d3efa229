"""`probe report --dry-run`: what would run, what is stored, and an estimate of time and disk."""

from __future__ import annotations

from typing import TYPE_CHECKING

from probe.cli.report_batch import Batch, Entry
from probe.hardware import load_hardware
from probe.plan import report_tasks
from probe.records import ModelCard

if TYPE_CHECKING:
    from rich.table import Table

UNKNOWN = "unknown"
BYTES_PER_LAYER = 5_328 + 700  # 999 null values in base64; numbers, replicates, names


def print_plan(batch: Batch) -> None:
    """Print the plan; nothing is loaded, downloaded or run."""
    from rich.console import Console

    table, lines = plan_of(batch)
    console = Console()
    console.print(table)
    for line in lines:
        console.print(line, highlight=False, markup=False)


def plan_of(batch: Batch) -> tuple[Table, list[str]]:
    """A row per model, and what they come to."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("model", overflow="fold")
    for head in ("passes", "stored", "to run", "time", "disk"):
        table.add_column(head, justify="right")
    rates = load_hardware(batch.request.runs, [e.spec.name for e in batch.entries])["models"]
    taken = batch.data.facts["taken"]
    seconds, disk, missing, unknown, slow = 0.0, 0, 0, 0, 0
    for entry in batch.entries:
        if entry.card is None:
            unknown += 1
            most = len(report_tasks(batch.request.choices, head=True, judged=True, scaled=True))
            table.add_row(entry.spec.name, f"up to {most}", "-", UNKNOWN, UNKNOWN, UNKNOWN)
            continue
        absent = [one for one in entry.passes if not _stored(batch, entry, one.key)]
        size = sum(
            pass_bytes(entry.card, taken or 0, one.task.top1, one.task.ssdc) for one in absent
        )
        rate = rates.get(entry.spec.name, {}).get("images_per_second")
        known = rate is not None and taken is not None
        own = len(absent) * taken / rate if known else 0.0
        slow += bool(absent) and not known
        time = duration(own) if known or not absent else UNKNOWN
        counts = (len(entry.passes), len(entry.passes) - len(absent), len(absent))
        table.add_row(entry.spec.name, *map(str, counts), time, amount(size))
        seconds, disk, missing = seconds + own, disk + size, missing + len(absent)
    lines = [f"{missing} passes to run over {taken or 'an unknown number of'} images each."]
    lines.append(f"Estimated time {duration(seconds)}, disk {amount(disk)}, from measured rates.")
    if slow:
        lines.append(f"{slow} models were never timed here: their time is unknown.")
    if unknown:
        lines.append(
            f"{unknown} models were never loaded with these settings: their passes, time and disk "
            "are unknown until they are."
        )
    return table, lines


def _stored(batch: Batch, entry: Entry, key: str) -> bool:
    one = next(p for p in entry.passes if p.key == key)
    return batch.store.path(one.model, str(one.condition), key).is_file()


def pass_bytes(card: ModelCard, images: int, top1: bool, ssdc: bool) -> int:
    """About how many bytes the record of a pass takes."""
    layers = sum(BYTES_PER_LAYER + 4 * rows * cols for rows, cols in card.grids) if ssdc else 0
    return 3_000 + layers + (images * 7 if top1 else 0)


def duration(seconds: float) -> str:
    """A time in the unit that fits."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def amount(size: int) -> str:
    """Bytes in the unit that fits."""
    for power, unit in ((3, "GB"), (2, "MB"), (1, "KB")):
        if size >= 1000**power:
            return f"{size / 1000**power:.1f} {unit}"
    return f"{size} B"
