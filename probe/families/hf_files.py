"""The files of a transformers checkpoint: found in a folder or fetched from the hub, and hashed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from huggingface_hub import hf_hub_download
from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

from probe.errors import CheckpointError
from probe.families.checkpoint import file_sha256, local_path
from probe.families.hub import hub_call
from probe.families.hub_cache import verified
from probe.families.weight_files import (
    INDEX,
    PICKLES,
    WEIGHTS,
    combined_sha256,
    shard_names,
    standard_weights,
)
from probe.types import ModelSpec

CONFIG = "config.json"
PROCESSORS = ("preprocessor_config.json", "processor_config.json")


@dataclass(frozen=True)
class CheckpointFiles:
    """Where a checkpoint lies. `weights` and `digest` are empty when none were asked for.

    `digest` is `sha256:` of the weights file, of the sorted digests of the shards where there are
    more. `processor` says whether an image processor's settings are among the files; `revision` is
    the hub commit, None for a local folder.
    """

    folder: Path
    weights: tuple[Path, ...]
    processor: bool
    revision: str | None
    digest: str
    notes: tuple[str, ...] = ()


def locate(spec: ModelSpec, *, weights: bool) -> CheckpointFiles:
    """Find the files of `hf:ID` (fetched where the cache lacks them) or of a local folder.

    Args:
        spec: the model; its `revision` is a branch, tag or commit of the hub repository.
        weights: whether the weights are wanted; without them only the settings are fetched.

    Raises:
        CheckpointError: if the hub or the folder does not give them, or a file of the hub is not
            what the hub says it is.
    """
    if spec.source.startswith("hf:"):
        repo = spec.source.removeprefix("hf:")
        return hub_call(spec.source, lambda: _from_hub(repo, spec.revision, weights))
    folder = local_path(spec.source)
    if not (folder / CONFIG).is_file():
        raise CheckpointError(f"'{folder}' holds no {CONFIG}; name a transformers folder")
    found = _local_weights(folder) if weights else ()
    return CheckpointFiles(
        folder,
        found,
        any((folder / name).is_file() for name in PROCESSORS),
        None,
        combined_sha256(map(file_sha256, found)) if found else "",
    )


def _local_weights(folder: Path) -> tuple[Path, ...]:
    found = standard_weights(folder)
    if not found:
        raise CheckpointError(f"'{folder}' holds no weights; expected {WEIGHTS[0]} or {PICKLES[0]}")
    return found


def _from_hub(repo: str, revision: str | None, weights: bool) -> CheckpointFiles:
    config = Path(hf_hub_download(repo, CONFIG, revision=revision))
    verified(config)
    commit = config.parent.name
    found = _hub_weights(repo, commit) if weights else ()
    processor, notes = False, []
    for name in PROCESSORS:
        try:
            processor |= _fetch(repo, name, commit) is not None
        except LocalEntryNotFoundError:
            notes.append(f"{name} is not in the local cache, and the hub was not reached")
    return CheckpointFiles(
        config.parent,
        found,
        processor,
        commit,
        combined_sha256(map(verified, found)) if found else "",
        () if processor else tuple(notes),
    )


def _hub_weights(repo: str, commit: str) -> tuple[Path, ...]:
    unreached: LocalEntryNotFoundError | None = None
    for name in (*WEIGHTS, *PICKLES):
        try:
            path = _fetch(repo, name, commit, check=name.endswith(INDEX))
        except LocalEntryNotFoundError as error:
            unreached = unreached or error
            continue
        if path is not None and name.endswith(INDEX):
            shards = (hf_hub_download(repo, shard, revision=commit) for shard in shard_names(path))
            return tuple(Path(shard) for shard in shards)
        if path is not None:
            return (path,)
    if unreached is not None:
        raise unreached
    raise CheckpointError(
        f"hf:{repo}: the repository holds no {WEIGHTS[0]} or {PICKLES[0]}; choose one with weights "
        "for PyTorch"
    )


def _fetch(repo: str, name: str, commit: str, *, check: bool = True) -> Path | None:
    """The file in the cache, None where the repository has none of that name."""
    try:
        path = Path(hf_hub_download(repo, name, revision=commit))
    except LocalEntryNotFoundError:
        raise
    except EntryNotFoundError:
        return None
    if check:
        verified(path)
    return path
