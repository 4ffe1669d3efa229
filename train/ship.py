"""Put finished runs into the package, where `package:` entries of the zoo find them.

    python -m train.ship runs/digits --to weights/digits

Copies configuration, weights and record of every finished run; states, metrics and measured times
stay behind.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib import resources
from pathlib import Path

from probe.errors import DataError, ProbeError
from probe.store import write_atomically
from train.export import CONFIG, RECORD, WEIGHTS, finished


def ship(runs: Path, to: Path) -> list[tuple[str, int]]:
    """Copy every finished run in `runs` into a folder of the same name in `to`.

    Returns:
        (name, bytes) of each.

    Raises:
        DataError: if a run is not finished, or there is none.
    """
    found = []
    for folder in sorted(path for path in runs.iterdir() if (path / "metrics.jsonl").is_file()):
        if finished(folder) is None:
            raise DataError(f"{folder} is not finished; run the same `probe train` again")
        contents = {name: (folder / name).read_bytes() for name in (CONFIG, WEIGHTS, RECORD)}
        for name, content in contents.items():
            write_atomically(to / folder.name / name, content)
        found.append((folder.name, sum(map(len, contents.values()))))
    if not found:
        raise DataError(f"{runs} holds no run; train some first")
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m train.ship", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("runs", type=Path)
    parser.add_argument("--to", required=True, help="folder inside the package `probe`")
    given = parser.parse_args(arguments)
    try:
        found = ship(given.runs, Path(str(resources.files("probe"))) / given.to)
    except ProbeError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    for name, size in found:
        print(f"{name}: {size / 1e6:.2f} MB")
    print(f"{len(found)} runs, {sum(size for _, size in found) / 1e6:.1f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
