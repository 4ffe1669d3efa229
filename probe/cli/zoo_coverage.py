"""`probe zoo coverage`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from probe.coverage.covered import Covered, Field, Share
    from probe.coverage.listed import Library


def coverage(
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="Write the table as Markdown.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")] = False,
) -> None:
    """Find out what works on every architecture of timm and transformers that has a token grid.

    Each is built with random weights and run; nothing is downloaded. Exit code 1 if one breaks:
    neither works nor is refused.
    """
    from importlib.metadata import version

    from probe.coverage.listed import LIBRARIES, read_listing
    from probe.coverage.page import coverage_page
    from probe.store import write_atomically

    listings = {library: read_listing(library) for library in LIBRARIES}
    found = _cover({library: one.architectures for library, one in listings.items()})
    if out is not None:
        excluded = {library: one.excluded for library, one in listings.items()}
        versions = {str(name): version(name) for name in LIBRARIES}
        write_atomically(out, coverage_page(found, excluded, versions).encode())
    rows = [one for library in LIBRARIES for one in found[library]]
    if as_json:
        _print_json(found, rows)
    else:
        _print_summary(found, rows, out)
    if any(one.works is None and not one.refused for one in rows):
        raise typer.Exit(1)


def _cover(listed: Mapping[Library, Mapping[str, Any]]) -> dict[Library, list[Covered]]:
    from rich.console import Console
    from rich.progress import track

    from probe.coverage.covered import cover, one_thread

    work = [(lib, name, one) for lib, named in listed.items() for name, one in named.items()]
    found: dict[Library, list[Covered]] = {library: [] for library in listed}
    bar = track(work, "architectures", console=Console(stderr=True), transient=True)
    with one_thread():
        for library, name, one in bar:
            found[library].append(cover(library, name, one))
    return found


def _shares(
    found: Mapping[Library, Sequence[Covered]], rows: Sequence[Covered]
) -> dict[str, dict[Field, Share]]:
    """What works on how many, by library and together."""
    from probe.coverage.covered import share
    from probe.coverage.page import SHARES

    parts: dict[str, Sequence[Covered]] = {str(name): part for name, part in found.items()}
    parts["together"] = rows
    return {name: {field: share(part, field) for field in SHARES} for name, part in parts.items()}


def _print_json(found: Mapping[Library, Sequence[Covered]], rows: Sequence[Covered]) -> None:
    import json
    from dataclasses import asdict

    shares = {
        name: {field: asdict(one) for field, one in fields.items()}
        for name, fields in _shares(found, rows).items()
    }
    failures = [
        {"model": f"{one.library}:{one.architecture}", "error": one.reason}
        for one in rows
        if one.works is None and not one.refused
    ]
    results = [asdict(one) for one in rows]
    content = {"schema": 1, "shares": shares, "results": results, "failures": failures}
    typer.echo(json.dumps(content, indent=2, ensure_ascii=False))


def _print_summary(
    found: Mapping[Library, Sequence[Covered]], rows: Sequence[Covered], out: Path | None
) -> None:
    from probe.coverage.page import SHARES

    for library, fields in _shares(found, rows).items():
        typer.echo(f"{library}:")
        for field, part in fields.items():
            typer.echo(f"  {SHARES[field]}: {part.count} of {part.of} ({part.percent:.1f} %)")
    for one in rows:
        if one.works is None:
            state = "refused" if one.refused else "broken"
            typer.echo(f"{one.library} {one.architecture}: {state}: {one.reason}")
            continue
        for field in SHARES:
            outcome = getattr(one.works, field)
            if outcome.works is False:
                typer.echo(f"{one.library} {one.architecture}: no {field}: {outcome.words}")
    if out is not None:
        typer.echo(f"wrote {out}")
