"""Files in the hub's cache, held to the hashes that the hub gives them."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

from probe.errors import CheckpointError
from probe.families.checkpoint import file_sha256


def verified(path: Path) -> str:
    """The `sha256:...` of a file in the hub's cache, which is what the hub said that it is.

    The hub's client checks a file's size alone, and once. The cache names its files by the hash
    that the hub stated: SHA-256 of large files, of small ones git's (or, by some mirrors, SHA-1).
    Where the file system has no links there is no such name, and nothing to compare with.

    Raises:
        CheckpointError: if the content has another hash.
    """
    digest, stated = file_sha256(path), path.resolve()
    if not path.is_symlink():
        return digest
    found = [digest.removeprefix("sha256:")]
    if re.fullmatch("[0-9a-f]{40}", stated.name):
        content = path.read_bytes()
        git = hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False)
        found = [git.hexdigest(), hashlib.sha1(content, usedforsecurity=False).hexdigest()]
    if re.fullmatch("[0-9a-f]{40}|[0-9a-f]{64}", stated.name) and stated.name not in found:
        raise CheckpointError(
            f"'{path}' is not the file that the hub names: its hash is {found[0]}, not "
            f"{stated.name}; delete '{stated}' and run again, and check HF_ENDPOINT and the proxy "
            "settings if it stays so"
        )
    return digest
