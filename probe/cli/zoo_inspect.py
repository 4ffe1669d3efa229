"""`probe zoo inspect`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from probe.cli import options as opt


def inspect(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A zoo name, source or path.")],
    random_init: Annotated[
        bool, typer.Option("--random-init", help="Random weights; none are downloaded.")
    ] = False,
    image_size: opt.ImageSize = None,
    zoo: Annotated[
        Path | None,
        typer.Option("--zoo", metavar="FILE", help="Lay this zoo file over the built-in."),
    ] = None,
) -> None:
    """Print a model's modules with their token shapes, and propose a zoo entry with its anatomy.

    Nothing is taken from a family: one token is changed, and the model shows where it mixes. What
    cannot be decided is said and left out. Exit code 1 if that is a layer, or there is no entry.
    """
    from probe.cli.batch import size_of
    from probe.families.declared import traced
    from probe.inspect.entry import entry_text
    from probe.inspect.proposal import propose
    from probe.inspect.tree import tree
    from probe.loading import load_raw
    from probe.zoo import load_zoo

    spec = load_zoo(zoo).resolve(model)
    size = size_of(image_size) if image_size else None
    if size is None and spec.anatomy is not None:
        height, width = spec.anatomy["image_size"]
        size = height, width
    raw = load_raw(spec, image_size=size, random_init=random_init, seed=0)
    seen = traced(raw, spec.name)
    for line in tree(seen):
        typer.echo(line)
    typer.echo()
    found = propose(raw, spec.name, seen)
    for line in found.missing:
        typer.echo(f"not found: {line}")
    for line in found.unclear:
        typer.echo(f"unclear: {line}")
    if found.anatomy is not None:
        typer.echo(entry_text(spec, found.anatomy), nl=False)
    if found.missing or found.anatomy is None:
        raise typer.Exit(1)
