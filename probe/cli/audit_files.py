"""What `probe audit` writes and shows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

SIDES = (4, 8, 16, 32)  # of a patch, px
IMAGE, WINDOW = 224, (7, 7)
PATCH = (4, 4, 3)  # rows, columns, channels
WIDEST = 96  # token width up to which nullity is drawn


def audit_files(envelope: dict[str, Any], figures: bool) -> dict[str, bytes | str]:
    """File name -> content; with `figures` also the two pictures that need no model."""
    from probe.report.audit import audit_figures
    from probe.report.audit_tables import audit_csv, blocks_csv

    files: dict[str, bytes | str] = {
        "audit.csv": audit_csv(envelope),
        "blocks.csv": blocks_csv(envelope),
        **audit_figures(envelope),
    }
    if figures:
        files.update(_analytic())
    return files


def audit_screen(envelope: dict[str, Any]) -> Any:
    """The JSON output, to be printed on a rich console."""
    from probe.report.audit import audit_screen

    return audit_screen(envelope)


def analytic_figures(out: Path) -> int:
    """Write the two pictures that need no model into `out`; returns the exit code."""
    from probe.store import check_writable, write_atomically

    check_writable(out)
    files = _analytic()
    for name, content in files.items():
        write_atomically(out / name, content)
    print(f"Written to {out}: {', '.join(sorted(files))}")
    return 0


def _analytic() -> dict[str, bytes]:
    """Pairs over patch side, counted by the formula of the audit, and nullity over token width."""
    from math import prod

    from probe.audit.graph import expected_pairs
    from probe.report.audit_analytic import PairsAt, nullity_figure, pairs_figure
    from probe.types import Grid

    counts = []
    for side in SIDES:
        grid = Grid(IMAGE // side, IMAGE // side)
        (everywhere, _), (windowed, _) = expected_pairs(grid), expected_pairs(grid, WINDOW)
        counts.append(PairsAt(side, grid.tokens, everywhere, windowed))
    dim = prod(PATCH)
    nullity = {width: max(0, dim - width) for width in range(1, WIDEST + 1)}
    return pairs_figure(counts, IMAGE, WINDOW) | nullity_figure(nullity, dim, PATCH)
