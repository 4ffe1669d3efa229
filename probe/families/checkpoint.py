"""Reading local state-dict files: which file, which entry, which prefix, what does not match."""

from __future__ import annotations

import argparse
import hashlib
import pickle
import zipfile
from collections.abc import Iterable, Mapping
from importlib import resources
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from probe.errors import CheckpointError

PREFIXES = ("module.", "model.", "_orig_mod.")
_PREFERRED = ("model.safetensors", "pytorch_model.bin")
_SUFFIXES = (".safetensors", ".bin", ".pth", ".pt")


def local_path(source: str) -> Path:
    """The path meant by `file:PATH` or `package:NAME` (a name inside the installed package).

    Raises:
        CheckpointError: if nothing is there.
    """
    kind, _, place = source.partition(":")
    path = Path(str(resources.files("probe"))) / place if kind == "package" else Path(place)
    if not path.exists():
        raise CheckpointError(f"there is no checkpoint at '{path}'; check the path")
    return path


def resolved_id(source: str) -> str:
    """The id that records give a model: its source, of a local path the last part only.

    So a record names no machine's folders; which weights they are, their hash says.
    """
    kind, _, place = source.partition(":")
    return f"file:{Path(place).name}" if kind == "file" else source


def weights_file(path: Path) -> Path:
    """The state-dict file at `path`: the file itself, or the one in a folder, safetensors first.

    Raises:
        CheckpointError: if a folder holds none, or several of which none has a standard name.
    """
    if path.is_file():
        return path
    for name in _PREFERRED:
        if (path / name).is_file():
            return path / name
    for suffix in _SUFFIXES:
        found = sorted(p.name for p in path.glob(f"*{suffix}"))
        if len(found) > 1:
            raise CheckpointError(f"'{path}' holds {_some(found)}; name one of these files")
        if found:
            return path / found[0]
    raise CheckpointError(f"'{path}' holds no weights ({', '.join(_SUFFIXES)}); name a file")


def file_sha256(path: Path) -> str:
    """`sha256:` and the hexadecimal digest of a file's bytes."""
    with path.open("rb") as file:
        return f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"


def read_state_dict(path: Path) -> dict[str, Tensor]:
    """The one state dict that a file holds, on the CPU, without wrapper prefixes.

    A pickle is read with `weights_only`, so that it cannot run code. A prefix of `PREFIXES` is
    taken off where every key carries it.

    Raises:
        CheckpointError: if the file cannot be read so, or holds no state dict, or several.
    """
    state = _only_state_dict(_read(path), path)
    while prefix := _common_prefix(state):
        state = {key.removeprefix(prefix): tensor for key, tensor in state.items()}
    return state


def mismatch(
    missing: Iterable[str], unexpected: Iterable[str], differing: Iterable[str]
) -> str | None:
    """One line about the keys that do not match, None when all do.

    Args:
        missing: names that the model has and the checkpoint lacks.
        unexpected: names that only the checkpoint has.
        differing: descriptions of tensors whose shapes differ, each beginning with its name.
    """
    groups = {
        "missing": sorted(missing),
        "unexpected": sorted(unexpected),
        "of another shape": sorted(differing),
    }
    parts = [f"{len(names)} {kind}: {_some(names)}" for kind, names in groups.items() if names]
    return "; ".join(parts) or None


def _read(path: Path) -> Any:
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        # Training checkpoints often carry their parsed arguments, a plain container.
        with torch.serialization.safe_globals([argparse.Namespace]):
            return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise CheckpointError(
            f"'{path}' is no plain state dict: reading it would run code from the file, or it is "
            "damaged; save the model's state_dict() as safetensors"
        ) from error
    except (
        SafetensorError,
        OSError,
        EOFError,
        RuntimeError,
        ValueError,
        KeyError,
        zipfile.BadZipFile,
    ) as error:
        kind = type(error).__name__
        reason = kind if isinstance(error, KeyError) else str(error).partition("\n")[0] or kind
        raise CheckpointError(
            f"'{path}' cannot be read as a checkpoint: {reason}; it is damaged or none, so fetch "
            "it anew or save its state dict as safetensors"
        ) from error


def _only_state_dict(content: Any, path: Path) -> dict[str, Tensor]:
    if _is_state_dict(content):
        return dict(content)
    entries = content if isinstance(content, Mapping) else {}
    held = sorted(str(key) for key, value in entries.items() if _is_state_dict(value))
    if len(held) == 1:
        return dict(entries[held[0]])
    if held:
        raise CheckpointError(
            f"'{path}' holds several state dicts ({', '.join(held)}); save the one you mean alone"
        )
    what = f"entries {_some(str(key) for key in entries)}" if entries else type(content).__name__
    raise CheckpointError(f"'{path}' holds no state dict, but {what}; save the model's alone")


def _is_state_dict(value: Any) -> bool:
    """Names to tensors, some of them floating: random states are tensors too, of bytes."""
    return (
        isinstance(value, Mapping)
        and all(isinstance(k, str) and isinstance(v, Tensor) for k, v in value.items())
        and any(v.is_floating_point() for v in value.values())
    )


def _common_prefix(state: Mapping[str, Tensor]) -> str | None:
    return next((p for p in PREFIXES if all(key.startswith(p) for key in state)), None)


def _some(names: Iterable[str], shown: int = 4) -> str:
    listed = list(names)
    more = f" and {len(listed) - shown} more" if len(listed) > shown else ""
    return ", ".join(listed[:shown]) + more
