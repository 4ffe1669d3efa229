"""Hashes of local files and facts of data sets, remembered by path, size and time of change.

What is remembered belongs to one machine and saves reading alone; it may be deleted at any time.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from probe.data.open import BUILT_IN, open_data
from probe.plan import versions
from probe.session import data_facts
from probe.store import write_atomically

if TYPE_CHECKING:
    from probe.data.source import Source

BUNDLED = ("scikit-image", "scikit-learn")  # the packages that hold the built-in data


class Remembered:
    """A JSON file of `{what: content}` that is written whole when something new is learnt."""

    def __init__(self, path: Path) -> None:
        """Read `path`; what is damaged or missing is as if nothing were known."""
        self._path = path
        self._known: dict[str, Any] = {}
        try:
            found = json.loads(path.read_bytes())
            self._known = found if isinstance(found, dict) else {}
        except (OSError, ValueError):
            pass

    def get(self, key: str, make: Callable[[], Any]) -> Any:
        """What is known under `key`, made and kept if it is new."""
        if key not in self._known:
            self._known[key] = make()
            write_atomically(self._path, json.dumps(self._known, indent=0, sort_keys=True) + "\n")
        return self._known[key]

    def sha256(self, path: Path) -> str | None:
        """`sha256:...` of a file's bytes, read once per path, size and time; None for no file."""
        try:
            state = path.stat()
        except OSError:
            return None
        if not path.is_file():
            return None
        key = f"{path.resolve()}|{state.st_size}|{state.st_mtime_ns}"

        def digest() -> str:
            with path.open("rb") as file:
                return f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"

        return str(self.get(key, digest))


class DataSet:
    """`--data TEXT` with its facts, which are known without opening it when it is unchanged."""

    def __init__(self, text: str, split: str | None, limit: int | None, known: Remembered) -> None:
        """Find the facts, opening and reading the data only if they are not remembered.

        Raises:
            ProbeError: if the data cannot be used.
        """
        self._ask = (text, split, limit)
        self._source: Source | None = None
        key = _signature(text, split, limit)
        facts = data_facts(self.source()) if key is None else known.get(key, self._facts)
        self.facts: dict[str, Any] = {**facts, "name": text}

    def source(self) -> Source:
        """The opened data."""
        if self._source is None:
            text, split, limit = self._ask
            self._source = open_data(text, split=split, limit=limit)
            facts = getattr(self, "facts", None)
            if facts is not None:  # the images were read once; do not read them again to hash them
                self._source.__dict__["fingerprint"] = facts["fingerprint"]
        return self._source

    def _facts(self) -> dict[str, Any]:
        return data_facts(self.source())


def _signature(text: str, split: str | None, limit: int | None) -> str | None:
    """What tells that a data set is unchanged; None where only opening it can tell."""
    asked = [split, limit, versions()["code"]]
    if text in BUILT_IN:
        return json.dumps([text, *asked, *(version(name) for name in BUNDLED)])
    path = os.path.expanduser(text)
    if text.startswith("hf:") or not os.path.exists(path):
        return None
    from probe.data.folder import walk

    here = os.path.realpath(path)
    names = walk(path) if os.path.isdir(path) else [""]
    digest = hashlib.sha256()
    for name in names:
        try:
            state = os.stat(os.path.join(path, name) if name else path)
        except OSError:
            return None
        entry = f"{name}\0{state.st_size}\0{state.st_mtime_ns}\n"
        digest.update(entry.encode("utf-8", "surrogateescape"))
    return json.dumps([here, digest.hexdigest(), *asked])
