"""`metrics.jsonl`: one line per logged step, the same bytes whether a run was killed or not."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from probe.errors import StoreError

NAME = "metrics.jsonl"


class Metrics:
    """Lines about steps, appended."""

    def __init__(self, folder: Path, step: int) -> None:
        """Keep the lines up to `step`, where a run goes on, and drop what came after."""
        self.path = folder / NAME
        kept = []
        if step and self.path.is_file():
            for line in self.path.read_text("utf-8").splitlines():
                try:
                    done = json.loads(line)["step"] <= step
                except (ValueError, KeyError, TypeError):
                    break  # a line that a kill cut short
                if not done:
                    break
                kept.append(line + "\n")
        self._write("w", "".join(kept))

    def add(self, values: dict[str, Any]) -> None:
        """Append a line, and put it on disk before a state that counts on it is saved."""
        self._write("a", json.dumps(values, allow_nan=False) + "\n")

    def _write(self, mode: str, text: str) -> None:
        try:
            with self.path.open(mode, encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise StoreError(
                f"cannot write {self.path}: {error.strerror or error}; free space and run the same "
                "command again"
            ) from error
