"""Trained runs as entries of a zoo file."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from io import StringIO
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from probe.errors import UsageError
from probe.families.controlled import POSITION
from probe.store import write_atomically
from probe.zoo_file import read_zoo_file

BUILT_IN = ("digits",)


def entry(run: Path, record: Mapping[str, Any], recipe: str, zoo: Path) -> tuple[str, dict]:
    """(name, entry) of a finished run; its path is relative to the zoo file's folder."""
    variant, seed = record["variant"], record["seed"]
    untrained = record["untrained"]
    name = f"{recipe}_{variant}_s{seed}" + ("_untrained" if untrained else "")
    place = Path(os.path.relpath(run.resolve(), zoo.resolve().parent)).as_posix()
    found: dict[str, Any] = {
        "source": f"file:{place}",
        "position": POSITION[variant],
        "group": f"{recipe}_controlled",
        "tags": ["controlled", variant, "untrained" if untrained else "trained"],
    }
    source = record["data"]["source"]
    if source in BUILT_IN:
        found["data"] = source
    found["provenance"] = {
        "pretraining": "none" if untrained else f"recipe {recipe}, seed {seed}, from scratch"
    }
    return name, found


def add_to_zoo(zoo: Path, runs: Sequence[tuple[Path, Mapping[str, Any]]], recipe: str) -> list[str]:
    """Append runs to a zoo file, which is made if there is none; comments in it stay.

    Returns:
        The names of the entries. One that is there already, with the same source, is renewed.

    Raises:
        ZooError: if the file is no zoo.
        UsageError: if a name belongs to another model there.
    """
    yaml = YAML()
    yaml.width = 100
    if zoo.exists():
        read_zoo_file(zoo)
        tree = yaml.load(zoo.read_text("utf-8"))
    else:
        tree = {"schema": 1}
    models = tree.setdefault("models", {})
    names = []
    for run, record in runs:
        name, made = entry(run, record, recipe, zoo)
        there = models.get(name)
        if there is not None and there.get("source") != made["source"]:
            raise UsageError(
                f"{zoo} has another model called '{name}' ({there.get('source')}); rename it, or "
                "choose another --add-to"
            )
        models[name] = made
        names.append(name)
    text = StringIO()
    yaml.dump(tree, text)
    write_atomically(zoo, text.getvalue())
    read_zoo_file(zoo)
    return names
