"""timm's names: which model one means, and which file in the cache its weights came from."""

from __future__ import annotations

import re
import socket
import sys
from pathlib import Path
from urllib.parse import urlsplit

import timm
import torch
from huggingface_hub import constants, hf_hub_download
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


def fetch_weights(
    resolved: str, config: PretrainedCfg, revision: str | None
) -> tuple[Path, Identity]:
    """The file that timm will load, in the local cache, its hash verified.

    Args:
        resolved: the full id, for the identity.
        config: where timm finds the weights.
        revision: a branch, tag or commit of the hub repository.

    Raises:
        CheckpointError: if the file is not what its source says it is, or there is none.
        OSError: if it cannot be fetched.
    """
    if not config.hf_hub_id:
        path, digest = _from_url(resolved, str(config.url))
        return path, Identity(resolved, None, digest)
    repository, _, own = config.hf_hub_id.partition("@")
    missing: EntryNotFoundError | None = None
    for name in _candidates(config.hf_hub_filename or _PICKLE):
        try:
            path = Path(hf_hub_download(repository, name, revision=revision or own or None))
        except EntryNotFoundError as error:
            missing = missing or error
        else:
            return path, Identity(resolved, _commit(path), verified(path))
    assert missing is not None
    raise missing


def _from_url(resolved: str, url: str) -> tuple[Path, str]:
    """A file of the few that timm has elsewhere than on the hub, where timm looks for it."""
    name = urlsplit(url).path.rpartition("/")[2]
    path = Path(torch.hub.get_dir()) / "checkpoints" / name
    if not path.is_file():
        if constants.HF_HUB_OFFLINE:
            raise CheckpointError(
                f"{resolved}: not in the local cache, and offline mode is on; unset HF_HUB_OFFLINE "
                "to download it, or give a local path"
            )
        path.parent.mkdir(parents=True, exist_ok=True)
        before = socket.getdefaulttimeout()
        socket.setdefaulttimeout(constants.HF_HUB_DOWNLOAD_TIMEOUT)  # else it may wait for ever
        try:
            torch.hub.download_url_to_file(url, str(path), progress=sys.stderr.isatty())
        finally:
            socket.setdefaulttimeout(before)
    digest, stated = file_sha256(path), re.search(r"-([0-9a-f]{8,})\.", name)
    if stated is not None and not digest.startswith(f"sha256:{stated[1]}"):
        raise CheckpointError(
            f"'{path}' is not the file that timm names: its hash is {digest}, which does not begin "
            f"with {stated[1]}; delete it and run again"
        )
    return path, digest


def _commit(path: Path) -> str:
    """The folder below `snapshots`, also of a file in a folder of its repository."""
    return path.parts[len(path.parts) - path.parts[::-1].index("snapshots")]


def _candidates(name: str) -> tuple[str, ...]:
    """What timm looks for, in its order: safetensors before the pickle that is configured."""
    if name == _PICKLE:
        return ("model.safetensors", name)
    safe = name.replace("open_clip_pytorch_model", "open_clip_model")
    return (f"{safe.removesuffix('.bin')}.safetensors", name) if name.endswith(".bin") else (name,)
