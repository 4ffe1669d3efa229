"""`probe runs list` and `probe runs prune`: what a runs folder holds, and what nothing needs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from probe.store import Store

runs_app = typer.Typer(no_args_is_help=True, help="The stored passes.")

Folder = Annotated[Path, typer.Argument(metavar="[RUNS]", help="The runs folder.")]


@runs_app.command("list")
def list_runs(runs: Folder = Path("runs")) -> None:
    """List the reports of a runs folder, and the stored passes by model."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    from probe.cli.report_plan import amount
    from probe.manifest import manifests
    from probe.prune import stored_passes

    store = _ours(runs)
    console = Console()
    reports = manifests(runs)
    for one in reports:
        count = sum(len(model.passes) for model in one.models)
        failed = f", {len(one.failures)} failed" if one.failures else ""
        line = f"report {one.name}: {len(one.models)} models, {count} passes{failed}"
        console.print(line, highlight=False, markup=False)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for head in ("model", "passes", "of other code", "size"):
        table.add_column(head, justify="left" if head == "model" else "right", overflow="fold")
    by_model: dict[str, list[tuple[bool, int]]] = {}
    for found in stored_passes(store):
        by_model.setdefault(found.model, []).append((found.current, found.size))
    for model, found_here in sorted(by_model.items()):
        other = sum(not current for current, _ in found_here)
        size = amount(sum(size for _, size in found_here))
        table.add_row(model, str(len(found_here)), str(other), size)
    console.print(table)


@runs_app.command("prune")
def prune_runs(
    runs: Folder = Path("runs"),
    yes: Annotated[bool, typer.Option("--yes", help="Delete; without it, only say what.")] = False,
) -> None:
    """Delete passes and cards that no report needs and that other code made.

    Also sums of passes that are finished, sums that nobody has touched for a week, and files that
    were set aside.
    """
    from probe.cli.report_plan import amount
    from probe.prune import prunable

    store = _ours(runs)
    found = prunable(store)
    size = sum(path.stat().st_size for path in found)
    what = f"{len(found)} files, {amount(size)}"
    if not found:
        typer.echo(f"Nothing to delete in {runs}.")
        return
    if not yes:
        for path in found:
            typer.echo(str(path.relative_to(runs)))
        typer.echo(f"Would delete {what}. Nothing is deleted without --yes.")
        return
    for path in found:
        path.unlink(missing_ok=True)
    typer.echo(f"Deleted {what}.")


def _ours(runs: Path) -> Store:
    from probe.errors import UsageError
    from probe.store import Store

    store = Store(runs)
    if not store.is_ours():
        raise UsageError(f"{runs} is no runs folder of probe; name the one that commands ran into")
    return store
