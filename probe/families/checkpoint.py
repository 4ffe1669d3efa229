"""Reading local state dicts: which entry, which prefix, which values, what does not match."""

from __future__ import annotations

import argparse
import hashlib
import os
import pickle
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from importlib import resources
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from probe.errors import CheckpointError

# DataParallel, Lightning's usual names of the network, torch.compile.
PREFIXES = ("module.", "model.", "net.", "_orig_mod.")


def local_path(source: str) -> Path:
    """The path meant by `file:PATH` or `package:NAME` (a name inside the installed package).

    Raises:
        CheckpointError: if nothing is there, or the name leads out of the package.
    """
    kind, _, place = source.partition(":")
    path = Path(place)
    if kind == "package":
        if path.is_absolute() or ".." in path.parts:
            raise CheckpointError(f"'{source}' leads out of the package; write file:PATH instead")
        path = Path(str(resources.files("probe"))) / place
    if not os.path.exists(path):  # False too for what can be no path, such as a name too long
        raise CheckpointError(f"there is no checkpoint at '{path}'; check the path")
    return path


def resolved_id(source: str) -> str:
    """The id that records give a model: its source, of a local path the last part only.

    So a record names no machine's folders; which weights they are, their hash says.
    """
    kind, _, place = source.partition(":")
    return f"file:{Path(place).name}" if kind == "file" else source


def file_sha256(path: Path) -> str:
    """`sha256:` and the hexadecimal digest of a file's bytes."""
    with path.open("rb") as file:
        return f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"


def read_state_dict(
    *files: Path, own: Iterable[str] = (), notes: list[str] | None = None
) -> dict[str, Tensor]:
    """The one state dict that a file holds, or its shards together, without wrapper prefixes.

    A pickle is read with `weights_only`, so that it cannot run code. A prefix of `PREFIXES` is
    taken off where every key carries it.

    Args:
        files: a file, or all shards of one state dict.
        own: names that the model has; a prefix that one of them carries too is left on.
        notes: gets a line where the state dict is an entry of what the file holds, such as
            `state_dict_ema`.

    Returns:
        The tensors by name, on the CPU, as they were stored.

    Raises:
        CheckpointError: if a file cannot be read so, or holds no state dict, or several.
    """
    state: dict[str, Tensor] = {}
    for path in files:
        part, entry = _only_state_dict(read_content(path), path)
        if entry is not None and notes is not None:
            notes.append(f"the weights are the entry '{entry}' of {path.name}")
        if twice := sorted(state.keys() & part.keys()):
            raise CheckpointError(
                f"'{path}' holds {some(twice)} once more than the other shards; fetch them anew"
            )
        state |= part
    names = tuple(own)
    while prefix := _common_prefix(state, names):
        state = {key.removeprefix(prefix): tensor for key, tensor in state.items()}
    return state


def read_content(path: Path) -> Any:
    """What a file of safetensors or a pickle holds; nothing that lies in it can run.

    Raises:
        CheckpointError: if it cannot be read so.
    """
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        # Training checkpoints often carry their parsed arguments, a plain container.
        with torch.serialization.safe_globals([argparse.Namespace]):
            return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        named = re.search(r"GLOBAL (\w[\w.]*)", str(error))
        what = f"from the file ({named[1]})" if named else "from the file, or it is damaged"
        raise CheckpointError(
            f"'{path}' is no plain state dict: reading it would run code {what}; save the model's "
            "state_dict() as safetensors"
        ) from error
    except Exception as error:  # a damaged file can make its reader stumble in any way
        kind = type(error).__name__
        reason = kind if isinstance(error, KeyError) else str(error).partition("\n")[0] or kind
        raise CheckpointError(
            f"'{path}' cannot be read as a checkpoint: {reason}; it is damaged or none, so fetch "
            "it anew or save its state dict as safetensors"
        ) from error


def check_floating(state: Mapping[str, Tensor], expected: Mapping[str, Tensor], where: str) -> None:
    """Refuse whole numbers, truth values and complex numbers where the model has floating ones.

    Both libraries would convert them without a word: the codes of a quantised model, for one,
    would become its weights. A name that the model lacks, because the library has yet to translate
    it, is judged by its last part.

    Args:
        state: what was read.
        expected: the state dict of the model; its values do not matter, and may be on `meta`.
        where: the file, for the message.

    Raises:
        CheckpointError: naming the keys.
    """
    floats = {name for name, tensor in expected.items() if tensor.is_floating_point()}
    lasts = {name.rpartition(".")[2] for name in floats}
    wrong = [
        f"{name} ({str(tensor.dtype).removeprefix('torch.')})"
        for name, tensor in state.items()
        if not tensor.is_floating_point()
        and (name in floats or (name not in expected and name.rpartition(".")[2] in lasts))
    ]
    if wrong:
        raise CheckpointError(
            f"{where} holds no floating-point numbers in {len(wrong)} of its weights: "
            f"{some(wrong)}; save them as float32, those of a quantised model dequantised"
        )


def check_finite(
    module: nn.Module,
    where: str,
    advice: str = "the training diverged or the file is damaged, so take another checkpoint",
) -> None:
    """Refuse NaN and infinite weights, out of which no number but NaN would come.

    A buffer that is infinite throughout is a bound that is not set, and stays.

    Raises:
        CheckpointError: naming the keys, with how many of their values are affected.
    """
    broken, parameters = [], {name for name, _ in module.named_parameters()}
    for name, tensor in module.state_dict().items():
        if tensor.is_floating_point():
            bad = tensor.numel() - int(torch.isfinite(tensor).sum())
            bound = bad and name not in parameters and bool(torch.isinf(tensor).all())
            broken += [f"{name} ({bad} of {tensor.numel()} values)"] if bad and not bound else []
    if broken:
        raise CheckpointError(
            f"{where} holds NaN or infinite values in {len(broken)} of its weights: "
            f"{some(broken)}; {advice}"
        )


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
    parts = [f"{len(names)} {kind}: {some(names)}" for kind, names in groups.items() if names]
    return "; ".join(parts) or None


def wrapping(state: Iterable[str], own: Iterable[str]) -> str | None:
    """What to do about a prefix after which the keys are the model's, None if there is none.

    Such as `student.`, or `model.` and `ema.` side by side: which of them is meant, nobody but the
    user knows. As many keys as half of the model's must stand after it, and four of its names
    among them: a library may have other names in its files for the rest.
    """
    names, keys = set(own), list(state)
    found: Counter[str] = Counter()
    for key in keys:
        parts = key.split(".")
        rests = (".".join(parts[start:]) for start in range(1, len(parts)))
        rest = next((rest for rest in rests if rest in names), None)
        if rest is not None and key not in names:
            found[key.removesuffix(rest)] += 1
    whole = sorted(
        prefix
        for prefix, count in found.items()
        if count >= min(4, len(names))
        and 2 * sum(key.startswith(prefix) for key in keys) > len(names)
    )
    if not whole:
        return None
    which = " and ".join(f"'{prefix}'" for prefix in whole)
    if len(whole) > 1:
        return f"the model's names stand after {which}: save the one you mean alone, without prefix"
    return f"the model's names stand after {which}: save them alone, without that prefix"


def some(names: Iterable[str], shown: int = 4) -> str:
    """The first names, and how many more there are."""
    listed = list(names)
    more = f" and {len(listed) - shown} more" if len(listed) > shown else ""
    return ", ".join(listed[:shown]) + more


def _only_state_dict(content: Any, path: Path) -> tuple[dict[str, Tensor], str | None]:
    """The state dict, and the name of the entry that it is, None where it is the whole."""
    if content and _is_named_tensors(content):
        return dict(content), None
    entries = content if isinstance(content, Mapping) else {}
    held = sorted(str(key) for key, value in entries.items() if _is_state_dict(value))
    if len(held) == 1:
        return dict(entries[held[0]]), held[0]
    if held:
        chosen = f"torch.save(torch.load('{path.name}')['{held[0]}'], '{held[0]}.pth')"
        raise CheckpointError(
            f"'{path}' holds several state dicts ({', '.join(held)}); save the one you mean "
            f"alone: {chosen}"
        )
    what = f"entries {some(str(key) for key in entries)}" if entries else type(content).__name__
    raise CheckpointError(f"'{path}' holds no state dict, but {what}; save the model's alone")


def _is_named_tensors(value: Any) -> bool:
    return isinstance(value, Mapping) and all(
        isinstance(k, str) and isinstance(v, Tensor) for k, v in value.items()
    )


def _is_state_dict(value: Any) -> bool:
    """Names to tensors, and numbers in a row among them: not random states (bytes), nor scores."""
    return _is_named_tensors(value) and any(
        tensor.is_floating_point() and tensor.ndim > 0 for tensor in value.values()
    )


def _common_prefix(state: Mapping[str, Tensor], own: Iterable[str]) -> str | None:
    return next(
        (
            prefix
            for prefix in PREFIXES
            if all(key.startswith(prefix) for key in state)
            and not any(name.startswith(prefix) for name in own)
        ),
        None,
    )
