"""timm's names: which model one means, and which file in the cache its weights came from."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import timm
import torch
from huggingface_hub import try_to_load_from_cache
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
from probe.types import Identity

_FILES = ("model.safetensors", "open_clip_model.safetensors", "pytorch_model.bin")


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


def hub_identity(resolved: str, config: Mapping[str, Any]) -> Identity:
    """Commit and hash of the weights that timm has just loaded, found in the local cache.

    Args:
        resolved: the full id, for the identity.
        config: the module's `pretrained_cfg`.

    Raises:
        CheckpointError: if the file is not where timm puts it.
    """
    path, revision = _cached_file(config)
    if path is None:
        raise CheckpointError(
            f"the weights of {resolved} are not in the download cache, so they cannot be "
            "identified; clear the cache of that model and run again"
        )
    blob = path.resolve().name  # the hub names large files by their sha256
    digest = f"sha256:{blob}" if re.fullmatch(r"[0-9a-f]{64}", blob) else file_sha256(path)
    return Identity(resolved, revision, digest)


def _cached_file(config: Mapping[str, Any]) -> tuple[Path | None, str | None]:
    hub_id = config.get("hf_hub_id")
    if hub_id:
        repository, _, revision = hub_id.partition("@")
        name = config.get("hf_hub_filename")
        for file in (name,) if name else _FILES:
            found = try_to_load_from_cache(repository, file, revision=revision or None)
            if isinstance(found, str):
                return Path(found), Path(found).parent.name
        return None, None
    url = str(config.get("url") or "")
    path = Path(torch.hub.get_dir()) / "checkpoints" / url.rpartition("/")[2]
    return (path if path.is_file() else None), None
