"""Streamed data sets from the Hugging Face hub, and one clear line when one cannot be had."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from probe.data.columns import choose_columns, row_label
from probe.data.source import Encoded, Fingerprint, StreamSource, check_limit
from probe.errors import DataError, UsageError, did_you_mean

# Seconds that one question to the hub may take.
TIMEOUT = 10
PART = r"[A-Za-z0-9][\w.-]*"
ADDRESS = re.compile(
    rf"(?P<repo>{PART}(/{PART})?)(:(?P<config>[^@:\s]+))?(@(?P<revision>[^@:\s]+))?"
)


@dataclass(frozen=True)
class Address:
    """What `[hf:]OWNER/NAME[:CONFIG][@REVISION]` names; `explicit` with the prefix."""

    repo: str
    config: str | None
    revision: str | None
    explicit: bool


def parse_address(text: str) -> Address | None:
    """The address in `text`, None if it is none. Without `hf:` it must have an owner."""
    match = ADDRESS.fullmatch(text.removeprefix("hf:"))
    if match is None or not (text.startswith("hf:") or match["repo"].count("/") == 1):
        return None
    return Address(match["repo"], match["config"], match["revision"], text.startswith("hf:"))


class HubStream(StreamSource):
    """One split of a data set on the hub, streamed in the order the hub gives it.

    The revision is resolved to a commit once, at the start, and that commit is streamed. The
    fingerprint covers id, commit, configuration, split and limit, not the content.
    """

    kind = "hub"

    def __init__(
        self, address: Address, name: str, split: str | None = None, limit: int | None = None
    ) -> None:
        """Ask the hub and open the stream; no image is fetched yet.

        Raises:
            DataError: if the hub, or the data set, cannot be had; the line says what to do.
            UsageError: if the data set has several splits or no such one.
        """
        check_limit(limit)
        self.name, self.limit, self._address = name, limit, address
        self.revision = _commit(address)
        splits = _open(address, self.revision)
        self.split = _choose_split(address, list(splits), split)
        with _one_line(address), _bounded():
            # Only formats that carry their features know them before the first row is read.
            stream = splits[self.split]._resolve_features()
        self._columns = choose_columns(address.repo, *_kinds(stream.features))
        stream = stream.decode(False)
        self.class_names = self._columns.class_names
        self.label_kind = "classlabel" if self.class_names is not None else None
        self._stream = stream if limit is None else stream.take(limit)
        digest = Fingerprint()
        for part in (address.repo, self.revision, address.config, self.split, str(limit)):
            digest.add(part)
        self.fingerprint = str(digest)

    def stream(self, start: int = 0) -> Iterator[Encoded]:
        """The images from `start` on; their names are `SPLIT#INDEX`.

        Raises:
            DataError: if the connection breaks off.
        """
        with _one_line(self._address), _bounded():
            rows = iter(self._stream.skip(start) if start else self._stream)
        index = start
        while True:
            with _one_line(self._address), _bounded():
                row = next(rows, None)
                if row is None:
                    return
                data = _fetch(row[self._columns.image])
            yield Encoded(index, f"{self.split}#{index}", data, row_label(row, self._columns))
            index += 1


def _commit(address: Address) -> str:
    """The commit of the data set, after asking whether it exists and may be read."""
    from huggingface_hub import HfApi

    api = HfApi()
    with _one_line(address), _bounded():
        info = api.dataset_info(address.repo, revision=address.revision, timeout=TIMEOUT)
        if info.gated:
            api.auth_check(address.repo, repo_type="dataset")
    return str(info.sha)


def _open(address: Address, revision: str) -> Any:
    from datasets import load_dataset

    with _one_line(address), _bounded():
        # The prefix keeps a local folder of the same name out.
        path = f"hf://datasets/{address.repo}"
        return load_dataset(path, address.config, revision=revision, streaming=True)


def _choose_split(address: Address, splits: list[str], split: str | None) -> str:
    if split is None and len(splits) == 1:
        return splits[0]
    known = ", ".join(splits)
    if split is None:
        raise UsageError(f"'{address.repo}' has the splits {known}; choose one with --split")
    if split not in splits:
        raise UsageError(
            f"'{address.repo}' has no split '{split}' (it has: {known})."
            f"{did_you_mean(split, splits)}"
        )
    return split


def _kinds(features: Any) -> tuple[list[str], list[str], dict[str, tuple[str, ...]]]:
    from datasets import ClassLabel, Image

    images = [name for name, kind in features.items() if isinstance(kind, Image)]
    classes = {
        name: tuple(kind.names) for name, kind in features.items() if isinstance(kind, ClassLabel)
    }
    return list(features), images, classes


def _fetch(cell: Any) -> bytes:
    """The bytes of an undecoded image cell; empty where it has none."""
    if not cell:
        return b""
    if cell["bytes"] is None and cell["path"]:
        from datasets.utils.file_utils import xopen

        with xopen(cell["path"], "rb") as file:
            return bytes(file.read())
    return cell["bytes"] or b""


@contextmanager
def _bounded() -> Iterator[None]:
    """Let the hub's own client retry (five times), not the datasets library twenty times more."""
    from datasets import config

    wanted = {
        "STREAMING_READ_MAX_RETRIES": 1,
        "STREAMING_OPEN_MAX_RETRIES": 1,
        "STREAMING_READ_RETRY_INTERVAL": 1,
        "STREAMING_OPEN_RETRY_INTERVAL": 1,
        "STREAMING_READ_SERVER_UNAVAILABLE_RETRY_INTERVAL": 1,
        "STREAMING_READ_RATE_LIMIT_RETRY_INTERVAL": 1,
    }
    before = {key: getattr(config, key) for key in wanted}
    try:
        for key, value in wanted.items():
            setattr(config, key, value)
        yield
    finally:
        for key, value in before.items():
            setattr(config, key, value)


@contextmanager
def _one_line(address: Address) -> Iterator[None]:
    """Turn what the hub's libraries raise into one line that says what to do."""
    from datasets.exceptions import DatasetsError
    from huggingface_hub.errors import HfHubHTTPError, HTTPError

    try:
        yield
    except (HfHubHTTPError, HTTPError, DatasetsError, OSError, ValueError, RuntimeError) as error:
        raise DataError(_message(address, error)) from error


def _message(address: Address, error: Exception) -> str:
    from huggingface_hub import constants
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        HTTPError,
        OfflineModeIsEnabled,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    local = "" if address.explicit else " (there is no such local path)"
    what = f"the hub data set '{address.repo}'{local}"
    fetch = (
        f"fetch it where there is a connection (hf download {address.repo} --repo-type dataset "
        "--local-dir DIR) and give --data DIR"
    )
    chain: list[BaseException] = [error]
    while (cause := chain[-1].__cause__ or chain[-1].__context__) is not None:
        chain.append(cause)

    def found(kind: type[Exception]) -> bool:
        return any(isinstance(e, kind) for e in chain)

    statuses = {e.response.status_code for e in chain if isinstance(e, HfHubHTTPError)}
    if found(GatedRepoError):
        page = f"{constants.ENDPOINT}/datasets/{address.repo}"
        return (
            f"{what} is gated: accept its licence at {page}, then run `hf auth login` or set "
            "HF_TOKEN"
        )
    if found(RevisionNotFoundError):
        return f"{what} has no revision '{address.revision}'; leave @REVISION out, or correct it"
    if found(RepositoryNotFoundError):
        return (
            f"the hub has no data set '{address.repo}' that you may read{local}: check the "
            "spelling; for a private one run `hf auth login` or set HF_TOKEN"
        )
    if statuses & {401, 403}:
        return f"{what} refuses your token: run `hf auth login` or set a valid HF_TOKEN"
    if found(OfflineModeIsEnabled):
        return f"{what} cannot be reached in offline mode: unset HF_HUB_OFFLINE, or {fetch}"
    reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
    if found(HTTPError) or found(ConnectionError) or found(TimeoutError):
        return f"{what} cannot be reached ({reason}): check the connection, or {fetch}"
    return f"{what} cannot be streamed ({reason}): check its files and configuration, or {fetch}"
