"""Trained runs as entries of a zoo file."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from io import StringIO
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq
from ruamel.yaml.util import load_yaml_guess_indent

from probe.errors import UsageError, ZooError
from probe.families.controlled import POSITION
from probe.store import write_atomically
from probe.zoo import load_zoo
from probe.zoo_file import read_zoo_file

BUILT_IN = ("digits",)


def entry_name(recipe: str, variant: str, seed: int, untrained: bool) -> str:
    """What a run is called in a zoo."""
    called = re.sub(r"[^A-Za-z0-9._-]+", "-", recipe).lstrip("._-") or "recipe"
    return f"{called}_{variant}_s{seed}" + ("_untrained" if untrained else "")


def entry(run: Path, record: Mapping[str, Any], recipe: str, zoo: Path) -> tuple[str, dict]:
    """(name, entry) of a finished run; its path is relative to the zoo file's folder."""
    variant, seed = record["variant"], record["seed"]
    untrained = record["untrained"]
    found: dict[str, Any] = {
        "source": _source(run, zoo),
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
    return entry_name(recipe, variant, seed, untrained), found


def check_names(zoo: Path, runs: Mapping[str, Path]) -> None:
    """Refuse, before anything is trained, what `add_to_zoo` would refuse; `runs` by entry name.

    Raises:
        ZooError: if the file is no zoo.
        UsageError: if a name belongs to another model there.
    """
    if not zoo.exists():
        return
    models = read_zoo_file(zoo)[0].models
    for name, run in runs.items():
        if name in models and models[name].source != _source(run, zoo):
            raise UsageError(
                f"{zoo} has another model called '{name}' ({models[name].source}); rename it, or "
                "choose another --add-to"
            )


def add_to_zoo(zoo: Path, runs: Sequence[tuple[Path, Mapping[str, Any]]], recipe: str) -> list[str]:
    """Append runs to a zoo file, which is made if there is none; comments in it stay.

    Returns:
        The names of the entries. One that is there already, with the same source, is renewed.

    Raises:
        ZooError: if the file is no zoo, or would be none with these entries; it stays as it was.
        UsageError: if a name belongs to another model there.
    """
    made = {}
    for run, record in runs:
        name, found = entry(run, record, recipe, zoo)
        check_names(zoo, {name: run})
        made[name] = found
    before = zoo.read_text("utf-8") if zoo.exists() else "schema: 1\n"
    yaml, tree = _like(before)
    models = tree.setdefault("models", CommentedMap())
    if not models:
        models.fa.set_block_style()  # {} becomes a mapping of lines
    for name, found in made.items():
        models[name] = found
        models[name]["tags"] = CommentedSeq(found["tags"])
        models[name]["tags"].fa.set_flow_style()
    text = StringIO()
    yaml.dump(tree, text)
    write_atomically(zoo, text.getvalue())
    try:
        load_zoo(zoo)
    except ZooError:
        write_atomically(zoo, before)
        raise
    return list(made)


def _like(text: str) -> tuple[YAML, Any]:
    """The content of a YAML file, and a writer that indents and quotes as the file does."""
    yaml = YAML()
    yaml.width = 2**20  # lines that are there stay whole
    yaml.preserve_quotes = True
    tree = yaml.load(text)
    models = tree.get("models")
    step = models.lc.col if models and not models.fa.flow_style() else 2
    _, indent, dash = load_yaml_guess_indent(text)
    yaml.indent(mapping=step, sequence=indent if dash else 2, offset=dash or 0)
    return yaml, tree


def _source(run: Path, zoo: Path) -> str:
    return "file:" + Path(os.path.relpath(run.resolve(), zoo.resolve().parent)).as_posix()
