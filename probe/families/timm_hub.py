"""timm's names: which model one means, and which file in the cache its weights came from."""

from __future__ import annotations

import re
from pathlib import Path

import timm
import torch
from huggingface_hub import hf_hub_download
from huggingface_hub.errors import EntryNotFoundError
from timm.models import (
    PretrainedCfg,
    get_arch_name,
    get_arch_pretrained_cfgs,
    get_deprecated_models,
    get_pretrained_cfg,
    is_model,
)

from probe.errors import CheckpointError, UnknownModel, did_you_mean
from probe.families.base import added_families
from probe.families.checkpoint import file_sha256
from probe.families.hub_cache import verified
from probe.types import Identity

_PICKLE = "pytorch_model.bin"


def known_architecture(name: str) -> str:
    """`name` itself, or what timm has renamed it to.

    Raises:
        UnknownModel: if timm has no such architecture; the nearest names are given.
    """
    name = get_deprecated_models().get(name) or name
    if not is_model(name):
        added_families()  # packages that add a family may register its architectures with timm
    if not re.fullmatch(r"[\w.]+", name) or not is_model(name):
        longer = sorted(timm.list_models(f"{name}_*"), key=len)[:3]
        near = f" Did you mean {', '.join(longer)}?" if longer else ""
        near = near or did_you_mean(name, [*timm.list_models(), *timm.list_pretrained()])
        hint = near or " timm.list_models() names those there are."
        raise UnknownModel(f"timm has no model '{name}'.{hint}")
    return name


def resolve_name(name: str) -> tuple[str, PretrainedCfg | None]:
    """The full name, with its pretrained tag, and its registered configuration if there is one.

    Raises:
        UnknownModel: if timm has no such model or tag; the nearest names are given.
    """
    name = known_architecture(name)
    architecture = get_arch_name(name)
    try:
        config = get_pretrained_cfg(name)
    except RuntimeError as error:
        tagged = list(get_arch_pretrained_cfgs(architecture))
        near = did_you_mean(name, tagged) or f" It has: {', '.join(tagged)}."
        raise UnknownModel(f"timm has no weights called '{name}'.{near}") from error
    tag = config.tag if config is not None else None
    return (f"{architecture}.{tag}" if tag else architecture), config


def fetch_weights(config: PretrainedCfg, revision: str | None) -> tuple[Path, str] | None:
    """The file that timm takes from the hub, in the cache, and its verified hash.

    None where timm takes the weights from another address.

    Raises:
        CheckpointError: if the file is not what the hub says it is.
        OSError: what the hub's client raises if it cannot be fetched.
    """
    if not config.hf_hub_id:
        return None
    repository, _, own = config.hf_hub_id.partition("@")
    missing: EntryNotFoundError | None = None
    for name in _candidates(config.hf_hub_filename or _PICKLE):
        try:
            path = Path(hf_hub_download(repository, name, revision=revision or own or None))
        except EntryNotFoundError as error:
            missing = missing or error
        else:
            return path, verified(path)
    assert missing is not None
    raise missing


def hub_identity(
    resolved: str, config: PretrainedCfg, fetched: tuple[Path, str] | None
) -> Identity:
    """Commit and hash of the weights that timm has just loaded.

    Args:
        resolved: the full id, for the identity.
        config: where timm finds the weights.
        fetched: what `fetch_weights` gave for it.

    Raises:
        CheckpointError: if the file is not where timm puts it.
    """
    if fetched is not None:
        return Identity(resolved, _commit(fetched[0]), fetched[1])
    path = Path(torch.hub.get_dir()) / "checkpoints" / str(config.url or "").rpartition("/")[2]
    if not path.is_file():
        raise CheckpointError(
            f"the weights of {resolved} are not in the download cache, so they cannot be "
            "identified; clear the cache of that model and run again"
        )
    return Identity(resolved, None, file_sha256(path))


def _commit(path: Path) -> str:
    """The folder below `snapshots`, also of a file in a folder of its repository."""
    return path.parts[len(path.parts) - 1 - path.parts[::-1].index("snapshots") + 1]


def _candidates(name: str) -> tuple[str, ...]:
    """What timm looks for, in its order: safetensors before the pickle that is configured."""
    if name == _PICKLE:
        return ("model.safetensors", name)
    safe = name.replace("open_clip_pytorch_model", "open_clip_model")
    return (f"{safe.removesuffix('.bin')}.safetensors", name) if name.endswith(".bin") else (name,)
