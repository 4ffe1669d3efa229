"""`probe zoo check`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from probe.zoo_check import Checked

STYLES = {"ok": "green", "failed": "red", "not checked offline": "yellow"}


def check(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="[NAME]...", help="Names of the zoo. Default: all of them."),
    ] = None,
    online: Annotated[
        bool,
        typer.Option("--online", help="Ask the hub for each repository, and for configurations."),
    ] = False,
    timeout: Annotated[
        float, typer.Option("--timeout", help="Seconds to wait for each answer of the hub.")
    ] = 10.0,
    zoo: Annotated[
        Path | None,
        typer.Option("--zoo", metavar="FILE", help="Lay this zoo file over the built-in."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")] = False,
) -> None:
    """Check what each entry says, without its weights: architecture, anatomy, provenance.

    Exit code 1 if an entry fails. Entries of transformers whose configuration is not in the local
    cache are listed as not checked, unless --online fetches it. Weights are never downloaded.
    """
    from huggingface_hub import constants

    from probe.errors import UsageError
    from probe.zoo import load_zoo

    specs = load_zoo(zoo).select(names or ())
    if not 0 < timeout <= 600:
        raise UsageError(f"--timeout must be above 0 and at most 600 seconds, got {timeout:g}")
    if online and constants.HF_HUB_OFFLINE:
        raise UsageError("--online asks the hub, but HF_HUB_OFFLINE is set; unset it")
    from probe.zoo_check import check_entries

    found = check_entries(specs, online=online, timeout=timeout)
    if as_json:
        _print_json(found)
    else:
        _print_table(found)
    if any(one.status == "failed" for one in found):
        raise typer.Exit(1)


def _print_json(found: Sequence[Checked]) -> None:
    import json
    from dataclasses import asdict

    failures = [{"model": c.name, "error": c.reason} for c in found if c.status == "failed"]
    envelope = {"schema": 1, "results": [asdict(one) for one in found], "failures": failures}
    typer.echo(json.dumps(envelope, indent=2, ensure_ascii=False))


def _print_table(found: Sequence[Checked]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, expand=True)
    table.add_column("name", overflow="fold", ratio=2)
    table.add_column("family, position", overflow="fold", ratio=2)
    table.add_column("result", overflow="fold", ratio=4)
    for one in found:
        result = Text(one.status, style=STYLES[one.status])
        if one.reason is not None:
            result.append(f": {one.reason}", style="default")
        has = f"{one.family}, {one.position}" if one.family is not None else "-"
        table.add_row(Text(one.name), Text(has), result)
    console = Console()
    console.print(table)
    counts = {status: sum(one.status == status for one in found) for status in STYLES}
    console.print(", ".join(f"{count} {status}" for status, count in counts.items()) + ".")
