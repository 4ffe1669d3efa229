"""What lies in a runs folder, and which of it neither a report nor the present code needs."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from probe.manifest import manifests
from probe.plan import current
from probe.store import Store

WEEK, HOUR = 7 * 24 * 3600.0, 3600.0


@dataclass(frozen=True)
class Stored:
    """One stored pass or card; `current` says whether the present code and libraries made it."""

    path: Path
    model: str
    key: str
    current: bool
    size: int


def stored_passes(store: Store) -> Iterator[Stored]:
    """Every whole record."""
    for path in sorted((store.root / "passes").glob("*/*.json")):
        fields = _read(path)
        settings = fields.get("settings", {})
        if isinstance(settings, dict) and "key" in fields:
            yield Stored(
                path,
                str(fields.get("model")),
                str(fields["key"]),
                current(settings.get("versions")),
                path.stat().st_size,
            )


def _cards(store: Store) -> Iterator[Stored]:
    for path in sorted((store.root / "cards").glob("*-*.json")):
        fields = _read(path)
        common = fields.get("common", {})
        if isinstance(common, dict) and "key" in fields:
            yield Stored(
                path,
                str(fields.get("model")),
                str(fields["key"]),
                current(common.get("versions")),
                path.stat().st_size,
            )


def prunable(store: Store) -> list[Path]:
    """Files that may go: see `probe runs prune`."""
    wanted = manifests(store.root)
    passes = {one.key for m in wanted for model in m.models for one in model.passes}
    cards = {model.card for m in wanted for model in m.models}
    found = [s.path for s in stored_passes(store) if s.key not in passes and not s.current]
    found += [s.path for s in _cards(store) if s.key not in cards and not s.current]
    finished = {one.key[:20] for one in stored_passes(store)}
    now = time.time()
    for path in sorted((store.root / "partial").glob("*.npz")):
        if path.stem in finished or now - path.stat().st_mtime > WEEK:
            found.append(path)
    found += sorted((store.root / "passes").glob("*/*.broken"))
    for path in sorted(store.root.glob("**/.*.new")):  # what a killed process was writing
        if now - path.stat().st_mtime > HOUR:
            found.append(path)
    return found


def _read(path: Path) -> dict[str, Any]:
    try:
        fields = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return fields if isinstance(fields, dict) else {}
