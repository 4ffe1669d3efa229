"""Manifests: which passes and cards a report was made of, so that it is rendered without a model.

One lies in `RUNS/reports/NAME.json` per report; it also keeps its passes from being pruned.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from probe.errors import StoreError, UsageError, did_you_mean
from probe.store import slug, write_atomically


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class PassRef(_Part):
    """A pass by what its file name is made of."""

    resolved: str
    condition: str
    key: str


class ModelRef(_Part):
    """A model of a report: the key of its card, and its passes."""

    model: str
    card: str
    passes: tuple[PassRef, ...]


class Refused(_Part):
    """A model that could not be measured."""

    model: str
    error: str


class Manifest(_Part):
    """One report: what it was asked for, and what it is made of.

    `rendered` maps the files that were written to their hashes, and `inputs` is the hash of all
    that they were made from; both are empty until then.
    """

    version: Literal[1] = 1
    name: str
    title: str
    protocol: str
    against: str | None
    data_name: str
    corruptions: tuple[str, ...]
    dosed: tuple[str, ...]
    alphas: tuple[float, ...]
    models: tuple[ModelRef, ...] = ()
    failures: tuple[Refused, ...] = ()
    inputs: str = ""
    rendered: dict[str, str] = {}

    def save(self, runs: Path) -> Path:
        """Write it."""
        path = manifest_path(runs, self.name)
        write_atomically(path, json.dumps(self.model_dump(mode="json"), indent=1) + "\n")
        return path


def manifest_path(runs: Path, name: str) -> Path:
    """Where the manifest of a report lies."""
    return runs / "reports" / f"{slug(name)}.json"


def load_manifest(path: Path) -> Manifest | None:
    """The manifest in a file, None if there is none or it is not whole.

    Raises:
        StoreError: if a newer version of probe wrote it.
    """
    try:
        fields: Any = json.loads(path.read_bytes())
        version = fields.get("version") if isinstance(fields, dict) else None
        if isinstance(version, int) and version > 1:
            raise StoreError(f"{path} was written by a newer probe; use that one")
        return Manifest.model_validate(fields)
    except (FileNotFoundError, ValueError):
        return None


def manifests(runs: Path) -> list[Manifest]:
    """All whole manifests of a runs folder, the newest last."""
    paths = sorted(
        (runs / "reports").glob("*.json"), key=lambda path: (path.stat().st_mtime_ns, path.name)
    )
    found = [load_manifest(path) for path in paths]
    return [one for one in found if one is not None]


def choose_manifest(runs: Path, name: str | None) -> tuple[Manifest, int]:
    """The manifest called `name`, else the newest, and how many there are.

    Raises:
        UsageError: if there is none, or none of that name.
    """
    found = manifests(runs)
    if not found:
        raise UsageError(
            f"{runs} holds no finished report to render; run `probe report` into it first"
        )
    if name is None:
        return found[-1], len(found)
    names = [one.name for one in found]
    if name not in names:
        raise UsageError(
            f"{runs} holds no report '{name}' (it has: {', '.join(sorted(names))})."
            f"{did_you_mean(name, names)}"
        )
    return found[names.index(name)], len(found)
