"""Files of a runs folder: finished passes, unfinished sums, and atomic writing for all outputs.

A folder is merged with another by copying: a pass's file name carries the hash of everything that
can change its numbers, so equal names hold equal numbers.
"""

from __future__ import annotations

import os
import re
import tempfile
import zipfile
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray

from probe.errors import StoreError
from probe.records import PassRecord

MARKER = ".probe-runs"
MARK = "A runs folder of probe: measured passes and what belongs to them.\n"
# What commands put into a runs folder; `hardware` and `cards` come with reports.
KNOWN = frozenset(
    (
        *("passes", "partial", "cards", "reports", "failures", "hardware"),
        *("ssdc", "scale", "fragility", "compare", "audit", "readout", "tasks", "train", "demo"),
    )
)
State = dict[str, NDArray[np.generic]]


def slug(text: str, limit: int = 80) -> str:
    """`text` as a file name: letters, digits, `.`, `_`, `+`, `=`, `-`; never a path."""
    name = re.sub(r"[^A-Za-z0-9._+=-]+", "-", text).strip("-.")
    return name[:limit] or "unnamed"


def write_atomically(path: Path, content: bytes | str | Callable[[IO[bytes]], None]) -> None:
    """Write a file whole or not at all: into a temporary neighbour, flushed, then renamed.

    Args:
        path: the file; its folder is made.
        content: what it holds, or what writes that into the open file.

    Raises:
        StoreError: if the folder cannot be written or the disk is full; nothing is left behind.
    """
    data = content.encode("utf-8") if isinstance(content, str) else content
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(
            dir=path.parent, prefix=f".{path.name[:40]}.", suffix=".new"
        )
        try:
            with os.fdopen(handle, "wb") as file:
                if callable(data):
                    data(file)
                else:
                    file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.chmod(name, 0o644)
            os.replace(name, path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise StoreError(
            f"cannot write {path}: {error.strerror or error}; choose another folder or free space"
        ) from error


def check_writable(folder: Path) -> None:
    """Make `folder` and write a byte in it, before hours are spent on what could not be kept.

    Raises:
        StoreError: if that fails.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"\0")
            file.flush()
    except OSError as error:
        raise StoreError(
            f"cannot write into {folder}: {error.strerror or error}; choose another folder"
        ) from error


class Store:
    """The passes under `root`: `passes/MODEL/CONDITION-KEY.json`, unfinished sums in `partial/`."""

    def __init__(self, root: Path) -> None:
        """Use `root`; it is made when something is saved.

        `set_aside` gets the path of every file that `load` found to be no whole record.
        """
        self.root = root
        self.set_aside: list[Path] = []

    def is_ours(self) -> bool:
        """Whether a runs folder of ours is there: marked, or with passes in it."""
        return (self.root / MARKER).is_file() or (self.root / "passes").is_dir()

    def claim(self) -> None:
        """Make the folder and mark it as a runs folder.

        Raises:
            StoreError: if it cannot be written, or holds what is not ours.
        """
        if not self.is_ours() and self.root.is_dir():
            strange = sorted(
                entry.name
                for entry in self.root.iterdir()
                if entry.name not in KNOWN and not entry.name.startswith(".")
            )
            if strange:
                raise StoreError(
                    f"{self.root} is no runs folder of probe: it holds '{strange[0]}'; choose "
                    "another --runs folder"
                )
        check_writable(self.root)
        if not (self.root / MARKER).is_file():
            write_atomically(self.root / MARKER, MARK)

    def path(self, model: str, condition: str, key: str) -> Path:
        """Where the record of a pass lies."""
        return self.root / "passes" / slug(model) / f"{slug(condition, 60)}-{key[:20]}.json"

    def load(self, model: str, condition: str, key: str) -> PassRecord | None:
        """The stored record of a pass, or None.

        A file that is no record of that pass is renamed to `*.broken`, so that the pass runs again.

        Raises:
            StoreError: if it cannot be read, or a newer version of probe wrote it.
        """
        path = self.path(model, condition, key)
        try:
            record = _record(path.read_bytes())
            if record is not None and record.key == key:
                return record
            path.replace(path.with_suffix(".broken"))
            self.set_aside.append(path)
        except FileNotFoundError:
            pass
        except OSError as error:
            raise StoreError(_unreadable(path, error)) from error
        return None

    def save(self, record: PassRecord) -> Path:
        """Write a finished pass; its unfinished sums are removed."""
        path = self.path(record.model, record.condition, record.key)
        write_atomically(path, record.to_json())
        self.drop_partial(record.key)
        return path

    def save_partial(self, key: str, state: State, share: str = "") -> None:
        """Keep the running sums of a pass, or of the named share of its images."""

        def write(file: IO[bytes]) -> None:
            np.savez(file, **state)  # type: ignore[arg-type]

        write_atomically(self._partial(key, share), write)

    def load_partial(self, key: str, share: str = "") -> State | None:
        """The running sums of a pass that was interrupted, or of a share of it, or None."""
        path = self._partial(key, share)
        try:
            with np.load(BytesIO(path.read_bytes()), allow_pickle=False) as file:
                return {name: file[name] for name in file.files}
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StoreError(_unreadable(path, error)) from error
        except (ValueError, EOFError, zipfile.BadZipFile):
            path.unlink(missing_ok=True)  # a damaged file says nothing; the pass starts again
            return None

    def drop_partial(self, key: str) -> None:
        """Forget the running sums of a pass, those of its shares too."""
        for path in (self.root / "partial").glob(f"{key[:20]}*.npz"):
            path.unlink(missing_ok=True)

    def _partial(self, key: str, share: str) -> Path:
        return self.root / "partial" / f"{key[:20]}{share and '.'}{share}.npz"


def _record(content: bytes) -> PassRecord | None:
    try:
        return PassRecord.from_json(content)
    except ValueError:
        return None


def _unreadable(path: Path, error: OSError) -> str:
    return f"cannot read {path}: {error.strerror or error}; check its permissions"
