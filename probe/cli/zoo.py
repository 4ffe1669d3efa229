"""`probe zoo`: `list` and `show NAME`; the other commands have files of their own."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from probe.cli.zoo_check import check
from probe.cli.zoo_coverage import coverage
from probe.cli.zoo_inspect import inspect

if TYPE_CHECKING:
    from rich.table import Table

    from probe.types import ModelSpec

zoo_app = typer.Typer(no_args_is_help=True, help="The checkpoints that have a name.")
zoo_app.command("check")(check)
zoo_app.command("coverage")(coverage)
zoo_app.command("inspect")(inspect)

ZooOption = Annotated[
    Path | None, typer.Option("--zoo", metavar="FILE", help="Lay this zoo file over the built-in.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")]


@zoo_app.command("list")
def list_models(
    tag: Annotated[
        list[str] | None, typer.Option("--tag", help="Only models with this tag; repeatable.")
    ] = None,
    group: Annotated[
        str | None, typer.Option("--group", help="Only models of this training recipe.")
    ] = None,
    zoo: ZooOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the zoo: what each name stands for, its positional signal, recipe and licence."""
    from probe.zoo import load_zoo

    specs = load_zoo(zoo).select(tags=tag or (), group=group)
    if as_json:
        _print_json({"schema": 1, "models": [_as_dict(spec) for spec in specs]})
        return
    from rich.console import Console

    console = Console()
    console.print(_table(specs))
    console.print(f"{len(specs)} models. `probe zoo show NAME` prints all that is known of one.")


@zoo_app.command("show")
def show_model(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A name of the zoo.")],
    zoo: ZooOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show every field of one zoo entry."""
    from probe.zoo import load_zoo

    fields = _as_dict(load_zoo(zoo)[name])
    if as_json:
        _print_json({"schema": 1, "model": fields})
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for key, value in _rows(fields):
        table.add_row(key, Text(value))
    Console().print(table)


def _as_dict(spec: ModelSpec) -> dict[str, Any]:
    from dataclasses import asdict

    return asdict(spec)


def _print_json(value: dict[str, Any]) -> None:
    import json

    typer.echo(json.dumps(value, indent=2, ensure_ascii=False))


def _rows(fields: dict[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """Field names and values as text, nested ones as `provenance.licence`, empty ones as `-`."""
    rows: list[tuple[str, str]] = []
    for key, value in fields.items():
        if isinstance(value, dict) and value:
            rows += _rows(value, f"{prefix}{key}.")
        elif isinstance(value, list | tuple) and value:
            rows.append((prefix + key, ", ".join(map(str, value))))
        else:
            empty = value is None or value in ({}, (), [])
            rows.append((prefix + key, "-" if empty else str(value)))
    return rows


def _table(specs: tuple[ModelSpec, ...]) -> Table:
    # Six columns do not fit beside the long timm names, so each cell holds two fields.
    from rich import box
    from rich.table import Table
    from rich.text import Text

    def cell(first: str | None, second: str | None) -> Text:
        return Text.assemble((first or "-", "bold"), "\n", second or "-")

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, expand=True)
    table.add_column("name\nsource", overflow="fold", ratio=4)
    table.add_column("position\ngroup", overflow="fold", min_width=20)
    table.add_column("licence\npretraining", overflow="fold", ratio=3)
    for spec in specs:
        facts = spec.provenance
        table.add_row(
            cell(spec.name, spec.source),
            cell(spec.position, spec.group),
            cell(facts.get("licence"), facts.get("pretraining")),
        )
    return table
