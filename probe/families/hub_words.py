"""What a failed access to the hub means, and what to do about it, in one line."""

from __future__ import annotations

import errno
from urllib.parse import urlsplit
from urllib.request import getproxies_environment, proxy_bypass

from huggingface_hub import constants
from huggingface_hub.errors import (
    DisabledRepoError,
    EntryNotFoundError,
    FileMetadataError,
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.utils import httpx, parse_ratelimit_headers

LOG_IN = "run `hf auth login` or set HF_TOKEN"
SETTINGS = "check HF_ENDPOINT and the proxy settings"


class HubUnreachable(OfflineModeIsEnabled):
    """The hub gave no answer: being offline is what its client does not retry."""


class DownloadStopped(HubUnreachable):
    """A download of the file `name` broke off at byte `start`, and again when it was taken up."""

    def __init__(self, name: str, start: int) -> None:
        """Keep both for the message."""
        super().__init__(f"the download of {name} breaks off at byte {start}, also when repeated")


def explain(error: BaseException) -> str | None:
    """What a failed hub access means and what to do, in one line; None if it was none.

    The chain of causes is searched, because both libraries wrap the hub's errors in their own.
    """
    chain = _chain(error)
    http = next((e for e in chain if isinstance(e, HfHubHTTPError)), None)
    if any(isinstance(e, OSError) and e.errno == errno.ENOSPC for e in chain):
        return f"no space left in the cache {constants.HF_HUB_CACHE}; free some, or move HF_HOME"
    if http is not None:
        return _answer(http)
    for found in chain:
        text = _failure(found)
        if text is not None:
            return text
    if any(isinstance(e, OfflineModeIsEnabled | LocalEntryNotFoundError) for e in chain):
        return (
            "not in the local cache, and offline mode is on; unset HF_HUB_OFFLINE to download it, "
            "or give a local path"
        )
    if any(isinstance(e, EntryNotFoundError) for e in chain):
        return "the repository lacks a file that a checkpoint needs; check the id"
    return None


def transport_words(error: Exception) -> str:
    """Why a request got no answer, in a few words."""
    if isinstance(error, httpx.TimeoutException):
        return "no answer in time"
    return str(error).splitlines()[0] if str(error) else type(error).__name__


def _failure(found: BaseException) -> str | None:
    """What one link of the chain says, None if it is no failed transfer."""
    if isinstance(found, DownloadStopped):
        return f"{found}; try again later, and {SETTINGS} if it stays so"
    if isinstance(found, HubUnreachable):
        return _unreachable(found)
    if isinstance(found, FileMetadataError):
        return f"{constants.ENDPOINT} does not answer like a Hugging Face hub; {SETTINGS}"
    if isinstance(found, HFValidationError):
        return "not a valid hub id; it has the form owner/name"
    if isinstance(found, httpx.InvalidURL):
        return f"{constants.ENDPOINT} is no address of a hub ({found}); correct HF_ENDPOINT"
    if isinstance(found, httpx.HTTPError):
        return f"the download broke off ({transport_words(found)}); run again to repeat it"
    if isinstance(found, OSError) and str(found).startswith("Consistency check failed"):
        return (
            f"a file came in another size than the hub says; run again, and {SETTINGS} if it stays "
            "so"
        )
    return None


def unreachable(error: HubUnreachable) -> str:
    """Which hub cannot be reached, through which proxy, and why."""
    proxy = _proxy()
    through = f" through the proxy {proxy}" if proxy else ""
    return f"the hub at {constants.ENDPOINT} cannot be reached{through} ({error})"


def _unreachable(error: HubUnreachable) -> str:
    if "CERTIFICATE_VERIFY_FAILED" in str(error):
        advice = "set SSL_CERT_FILE to the certificates that your network uses"
    elif _proxy() or isinstance(error.__cause__, httpx.ProxyError):
        advice = "check HTTPS_PROXY, HTTP_PROXY and NO_PROXY, or give a local path"
    else:
        advice = "check the connection, or give a local path"
    return f"{unreachable(error)}, and the files are not in the local cache; {advice}"


def _proxy() -> str | None:
    """Host and port of the proxy that the environment names for the hub, without its password."""
    proxies = getproxies_environment()
    try:
        hub = urlsplit(constants.ENDPOINT)
        proxy = proxies.get(hub.scheme) or proxies.get("all")
        if not proxy or proxy_bypass(hub.netloc):
            return None
        return urlsplit(proxy if "//" in proxy else f"//{proxy}").netloc.rpartition("@")[2]
    except ValueError:  # no address; what was wrong with it stands beside this
        return None


def _answer(error: HfHubHTTPError) -> str:
    status = error.response.status_code
    repo = getattr(error, "repo_id", None)
    page = f"{constants.ENDPOINT}/{repo}" if repo else "the model page"
    if isinstance(error, GatedRepoError):
        return f"gated: accept its licence at {page}, then {LOG_IN}"
    if isinstance(error, DisabledRepoError):
        return f"the hub has disabled access to it; see {page}"
    if isinstance(error, RevisionNotFoundError):
        return "the hub has no such revision of it; check the revision"
    if isinstance(error, EntryNotFoundError):
        name = str(error.response.request.url).rsplit("/", 1)[-1]
        return f"the repository has no file {name}, so it is no checkpoint of this library"
    if isinstance(error, RepositoryNotFoundError) or status == 404:
        private = f", or it is private: then {LOG_IN}" if status in (401, 404) else ""
        return f"the hub has no repository of that id; check the spelling (owner/name){private}"
    if status == 401:
        return f"the hub asks for a valid login; {LOG_IN}"
    if status == 403:
        return f"the token in use may not read it; ask for access at {page}, then {LOG_IN}"
    if status == 429:
        after = error.response.headers.get("Retry-After", "")
        limit = parse_ratelimit_headers(error.response.headers)
        if limit is not None and not after.isdigit():
            after = str(limit.reset_in_seconds)
        wait = f"wait {after} s" if after.isdigit() else "wait a few minutes"
        return f"the hub refuses more requests for now (429); {wait}, or {LOG_IN}"
    return f"the hub answered with status {status}; try again later"


def _chain(error: BaseException) -> list[BaseException]:
    found: list[BaseException] = []
    following: BaseException | None = error
    while following is not None and following not in found:
        found.append(following)
        following = following.__cause__ or following.__context__
    return found
