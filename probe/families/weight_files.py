"""Which files hold the weights of a local checkpoint: one of its own, or the shards of an index."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable
from pathlib import Path

from probe.errors import CheckpointError
from probe.families.checkpoint import some

INDEX = ".index.json"
# In transformers' own order of preference: safetensors before pickles, whole before sharded.
WEIGHTS = ("model.safetensors", f"model.safetensors{INDEX}")
PICKLES = ("pytorch_model.bin", f"pytorch_model.bin{INDEX}")
_SUFFIXES = (".safetensors", ".bin", ".pth", ".pt", ".ckpt")
_FILE_NAME = re.compile(r"[^/\\\0]+")


def weights_files(path: Path) -> tuple[Path, ...]:
    """The state-dict file at `path`, or the one in a folder; the shards where an index names them.

    In a folder the standard names come first, then the only file there; a file of safetensors
    stands for others of its stem.

    Raises:
        CheckpointError: if a folder holds none, or several of which none has a standard name, or an
            index is broken, names files outside its folder, or a shard is missing.
    """
    if path.is_file():
        return shards(path) if path.name.endswith(INDEX) else (path,)
    if standard := standard_weights(path):
        return standard
    found = sorted(p for p in path.iterdir() if p.suffix in _SUFFIXES and p.is_file())
    safe = [p for p in found if p.suffix == ".safetensors"]
    if len(safe) == 1 and {p.stem for p in found} == {safe[0].stem}:
        found = safe
    if len(found) > 1:
        raise CheckpointError(
            f"'{path}' holds {some(p.name for p in found)}; name one of these files"
        )
    if not found:
        raise CheckpointError(f"'{path}' holds no weights ({', '.join(_SUFFIXES)}); name a file")
    return (found[0],)


def standard_weights(folder: Path) -> tuple[Path, ...]:
    """The weights of a folder under the names that transformers and timm give them; () if none.

    Raises:
        CheckpointError: if an index is broken, or a shard is missing.
    """
    for name in (*WEIGHTS, *PICKLES):
        path = folder / name
        if path.is_file():
            return shards(path) if name.endswith(INDEX) else (path,)
    return ()


def shards(index: Path) -> tuple[Path, ...]:
    """The files that a local index names, all of them there.

    Raises:
        CheckpointError: if the index is broken, or a shard is missing.
    """
    found = tuple(index.parent / name for name in shard_names(index))
    if missing := [shard.name for shard in found if not shard.is_file()]:
        raise CheckpointError(
            f"'{index.parent}' lacks the shards {some(missing)} of its {index.name}; fetch them, "
            "or save the model in one file"
        )
    return found


def shard_names(index: Path) -> list[str]:
    """The names of the files in an index, each once, sorted.

    Raises:
        CheckpointError: if it is no index, or names a file outside its folder.
    """
    try:
        names = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        raise CheckpointError(f"'{index}' is no index of weight shards; fetch it again") from error
    if not names or not all(isinstance(name, str) for name in names):
        raise CheckpointError(f"'{index}' is no index of weight shards; fetch it again")
    outside = sorted(n for n in names if n in (".", "..") or not _FILE_NAME.fullmatch(n))
    if outside:
        raise CheckpointError(
            f"'{index}' names files outside its folder: {some(outside)}; do not trust it, and "
            "fetch the checkpoint from its maker"
        )
    return sorted(names)


def combined_sha256(digests: Iterable[str]) -> str:
    """The digest of the weights: that of the file, or `sha256:` over the sorted ones of shards."""
    ordered = sorted(digests)
    if len(ordered) == 1:
        return ordered[0]
    return f"sha256:{hashlib.sha256(chr(10).join(ordered).encode()).hexdigest()}"
