"""Loading a model that a zoo file names by the import path of its constructor.

That runs the user's own code, and only a zoo file that the user names can ask for it.
"""

from __future__ import annotations

import hashlib
import importlib
import inspect
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.machinery import PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import nn

from probe.errors import CheckpointError, UsageError, did_you_mean
from probe.families.base import RawModel
from probe.families.checkpoint import (
    check_finite,
    check_floating,
    file_sha256,
    local_path,
    mismatch,
    read_state_dict,
    wrapping,
)
from probe.families.import_code import code_files
from probe.families.weight_files import combined_sha256, weights_files
from probe.types import Identity, ModelSpec


def load_import(
    spec: ModelSpec, *, image_size: tuple[int, int] | None, random_init: bool, seed: int
) -> RawModel:
    """Call the constructor with `options`, put the weights in, and give the module in eval mode.

    MODULE is looked up in the zoo file's folder first, then among installed packages. The
    configuration that is recorded covers the options and the source files of the model, as
    `code_files` finds them.

    Args:
        spec: `import:MODULE:NAME`, with `weights`, a state dict that fits exactly: a file, an index
            of shards, or a folder that holds either.
        image_size: (height, width) in pixels.
        random_init: what the constructor gives, instead of weights.
        seed: seed of that initialisation. The global generator is left as it was.

    Raises:
        UsageError: if there is no such constructor, an option does not fit it, it would end the
            program, or no image size is given.
        CheckpointError: if no weights are named, or they cannot be read, do not match, or are no
            finite numbers.
    """
    if image_size is None:
        raise UsageError(
            f"{spec.name} does not say its image size; give --image-size, or an anatomy"
        )
    if spec.weights is None and not random_init:
        raise CheckpointError(
            f"{spec.name} names no weights; add `weights: FILE` to its entry, or use --random-init"
        )
    with _looked_up(spec.folder):
        build = _constructor(spec)
        _check_options(spec, build)
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            with _going_on(f"{spec.name}: calling {spec.source}"):
                module = build(**spec.options)
    if not isinstance(module, nn.Module):
        raise UsageError(
            f"{spec.source} gives a {type(module).__name__}, not a torch.nn.Module; name the "
            "function or class that builds the model"
        )
    weights, notes = f"random:{seed}", list[str]()
    if not random_init and spec.weights is not None:
        files = weights_files(local_path(f"file:{spec.weights}"))
        notes = _fill(module, files, spec)
        weights = combined_sha256(file_sha256(file) for file in files)
    module.eval().requires_grad_(False)
    return RawModel(
        module=module,
        library="import",
        identity=Identity(spec.source, None, weights, _configuration(spec, build, module)),
        image_size=image_size,
        preprocess=None,
        forward=module,
        classes=None,
        notes=tuple(notes),
    )


@contextmanager
def _looked_up(folder: str | None) -> Iterator[None]:
    """Modules are found in `folder` first, as a script finds those beside it."""
    if folder is None:
        yield
        return
    sys.path.insert(0, folder)
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.path.remove(folder)


@contextmanager
def _going_on(what: str) -> Iterator[None]:
    """A script that exits, as one that parses its arguments does, ends nothing but its model."""
    try:
        yield
    except SystemExit as error:
        raise UsageError(
            f"{what} ends the program (SystemExit: {error.code}); put what the script runs under "
            '`if __name__ == "__main__":`'
        ) from error


def _constructor(spec: ModelSpec) -> Callable[..., Any]:
    _, path, name = spec.source.split(":")
    _check_unmixed(path, spec)
    try:
        with _going_on(f"{spec.name}: importing '{path}'"):
            module = importlib.import_module(path)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{path}.".startswith(f"{error.name}."):
            raise  # something that the user's own module imports
        raise UsageError(
            f"{spec.name}: there is no module '{error.name}' in {spec.folder} or among the "
            "installed packages; check the source of its entry"
        ) from error
    build = getattr(module, name, None)
    if not callable(build):
        known = [key for key, value in vars(module).items() if callable(value)]
        raise UsageError(
            f"{spec.name}: module '{path}' has no constructor '{name}'.{did_you_mean(name, known)}"
        )
    return build


def _check_unmixed(path: str, spec: ModelSpec) -> None:
    """Refuse a module of the folder whose name another one, already imported, has taken."""
    top = path.partition(".")[0]
    meant = PathFinder.find_spec(top, [spec.folder]) if spec.folder else None
    taken: ModuleType | None = sys.modules.get(top)
    if meant is None or taken is None or meant.origin is None:
        return
    found = getattr(taken, "__file__", None)
    if found is None or Path(found).resolve() != Path(meant.origin).resolve():
        raise UsageError(
            f"{spec.name}: '{top}' is already the name of {found or 'a built-in module'}, so "
            f"{meant.origin} cannot be imported; rename it"
        )


def _check_options(spec: ModelSpec, build: Callable[..., Any]) -> None:
    try:
        signature = inspect.signature(build)
    except (TypeError, ValueError):
        return  # written in C; it will say itself what it does not take
    try:
        signature.bind(**spec.options)
    except TypeError as error:
        unknown = [name for name in spec.options if name not in signature.parameters]
        near = did_you_mean(unknown[0], signature.parameters) if unknown else ""
        raise UsageError(f"{spec.name}: {spec.source}{signature}: {error}.{near}") from error


def _fill(module: nn.Module, files: tuple[Path, ...], spec: ModelSpec) -> list[str]:
    """Put the weights of the files in; gives notes on what was read."""
    where = f"'{files[0] if len(files) == 1 else files[0].parent}'"
    expected, notes = module.state_dict(), list[str]()
    state = read_state_dict(*files, own=expected, notes=notes)
    check_floating(state, expected, where)
    problem = mismatch(
        [key for key in expected if key not in state],
        [key for key in state if key not in expected],
        [
            f"{key} {list(tensor.shape)} for {list(expected[key].shape)}"
            for key, tensor in state.items()
            if key in expected and tensor.shape != expected[key].shape
        ],
    )
    if problem is not None:
        advice = wrapping(state, expected) or f"check the options of {spec.name}"
        raise CheckpointError(f"{where} does not fit {spec.source}: {problem}; {advice}")
    module.load_state_dict(state)
    check_finite(module, where)
    return notes


def _configuration(spec: ModelSpec, build: Callable[..., Any], module: nn.Module) -> str:
    """Hash of the import path, the options and the code of the model."""
    starts = {spec.source.split(":")[1], build.__module__}
    files = code_files(starts, module, spec.folder)
    code = [(name, file_sha256(file)) for name, file in sorted(files.items())]
    text = json.dumps([spec.source, sorted(spec.options.items()), code], default=str)
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"
