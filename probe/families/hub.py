"""Calls to the Hugging Face hub, for timm and transformers alike: bounded waiting, one-line errors.

By default a hub that does not answer is asked again for minutes (a second round of 60 s timeouts
with five retries, and every `Retry-After` obeyed). Inside `hub_call` a request gets one more try
after a second; then the hub counts as down for the rest of the call, and the local cache serves
what it has. `HF_HUB_ETAG_TIMEOUT` and `HF_HUB_DOWNLOAD_TIMEOUT` (10 s each) bound each request.
"""

from __future__ import annotations

import errno
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, TypeVar
from urllib.parse import quote

from huggingface_hub import constants, get_session
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
from huggingface_hub.utils import (
    are_progress_bars_disabled,
    build_hf_headers,
    disable_progress_bars,
    enable_progress_bars,
    hf_raise_for_status,
    httpx,
    validate_repo_id,
)

from probe.errors import CheckpointError

T = TypeVar("T")

PAUSE = 1.0
"""Seconds before the one retry of a request that failed."""

NO_HUB = "{} does not answer like a Hugging Face hub; check HF_ENDPOINT and the proxy settings"
LOG_IN = "run `hf auth login` or set HF_TOKEN"


class HubUnreachable(OfflineModeIsEnabled):
    """The hub gave no answer: being offline is what its client does not retry."""


@contextmanager
def offline() -> Iterator[None]:
    """Ask the hub for nothing: what the local cache lacks counts as not there."""
    before = constants.HF_HUB_OFFLINE
    constants.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = before


def hub_call(what: str, call: Callable[[], T]) -> T:
    """Run `call`, which may download, with bounded waiting and one-line errors.

    Args:
        what: the id that the user asked for, such as `hf:facebook/dinov2-small`; opens the message.
        call: anything that fetches through `huggingface_hub`. What it raises for other reasons
            passes through unchanged.

    Raises:
        CheckpointError: if the hub cannot be reached and the cache lacks the files, or it refuses
            (gated, unauthorised, unknown, too many requests), or the disk is full.
    """
    try:
        with _bounded_requests(), _quiet_unless_terminal():
            return call()
    except Exception as error:
        reason = explain(error)
        if reason is None:
            raise
        raise CheckpointError(f"{what}: {reason}") from error


def explain(error: BaseException) -> str | None:
    """What a failed hub access means and what to do, in one line; None if it was none.

    The chain of causes is searched, because both libraries wrap the hub's errors in their own.
    """
    chain = _chain(error)
    http = next((e for e in chain if isinstance(e, HfHubHTTPError)), None)
    if any(isinstance(e, OSError) and e.errno == errno.ENOSPC for e in chain):
        return f"no space left in the cache {constants.HF_HUB_CACHE}; free some, or move HF_HOME"
    if http is not None:
        return _explain_answer(http)
    for found in chain:
        if isinstance(found, HubUnreachable):
            return (
                f"the hub at {constants.ENDPOINT} cannot be reached ({found}), and the files are "
                "not in the local cache; check the connection, or give a local path"
            )
        if isinstance(found, FileMetadataError):
            return NO_HUB.format(constants.ENDPOINT)
        if isinstance(found, HFValidationError):
            return "not a valid hub id; it has the form owner/name"
    if any(isinstance(e, OfflineModeIsEnabled | LocalEntryNotFoundError) for e in chain):
        return (
            "not in the local cache, and offline mode is on; unset HF_HUB_OFFLINE to download it, "
            "or give a local path"
        )
    if any(isinstance(e, EntryNotFoundError) for e in chain):
        return "the repository lacks a file that a checkpoint needs; check the id"
    return None


def why_not_there(repo: str, revision: str | None, timeout: float) -> str | None:
    """Why the hub would not give this repository at this revision; None if it would.

    Its facts are asked for and, of a gated one, whether the token in use may read it; no file is.
    May be called from several threads at once.

    Args:
        repo: `owner/name`.
        revision: branch, tag or commit; None for the default branch.
        timeout: seconds to wait for a connection, and for each part of an answer.
    """
    place = f"/api/models/{repo}"
    try:
        validate_repo_id(repo)
        facts = _ask(place + (f"/revision/{quote(revision, safe='')}" if revision else ""), timeout)
        if facts.json().get("gated"):
            _ask(f"{place}/auth-check", timeout)
    except (HfHubHTTPError, HFValidationError, OfflineModeIsEnabled) as error:
        return explain(error)
    except httpx.TransportError as error:
        return (
            f"the hub at {constants.ENDPOINT} cannot be reached ({_transport_words(error)}); check "
            "the connection, or wait longer"
        )
    except (ValueError, AttributeError):  # no JSON, or no object in it
        return NO_HUB.format(constants.ENDPOINT)
    return None


def _ask(place: str, timeout: float) -> httpx.Response:
    response = get_session().get(
        f"{constants.ENDPOINT}{place}", headers=build_hf_headers(), timeout=timeout
    )
    hf_raise_for_status(response)
    return response


def _explain_answer(error: HfHubHTTPError) -> str:
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


@contextmanager
def _bounded_requests() -> Iterator[None]:
    client = get_session()
    send = client.send
    down: list[Exception] = []

    def bounded_send(request: httpx.Request, **kwargs: Any) -> httpx.Response:
        if down:
            raise down[0]
        _bound_timeouts(request)
        error, response = _try(send, request, kwargs)
        if _worth_a_retry(error, response):
            time.sleep(PAUSE)
            error, response = _try(send, request, kwargs)
        if error is not None:
            down.append(HubUnreachable(_transport_words(error)))
            raise down[0] from error
        assert response is not None
        if response.status_code == 429 or response.status_code >= 500:
            try:
                hf_raise_for_status(response)
            except HfHubHTTPError as refused:
                down.append(refused)
                raise
        return response

    # The shared client is the one place that every request of both libraries passes.
    before = vars(client).get("send")
    vars(client)["send"] = bounded_send
    try:
        yield
    finally:
        if before is None:
            del vars(client)["send"]
        else:
            vars(client)["send"] = before


def _try(
    send: Callable[..., httpx.Response], request: httpx.Request, kwargs: dict[str, Any]
) -> tuple[httpx.TransportError | None, httpx.Response | None]:
    try:
        return None, send(request, **kwargs)
    except httpx.TransportError as error:
        return error, None


def _worth_a_retry(error: Exception | None, response: httpx.Response | None) -> bool:
    if error is not None:
        return not isinstance(error, httpx.TimeoutException | httpx.ProxyError)
    return response is not None and response.status_code >= 500


def _bound_timeouts(request: httpx.Request) -> None:
    download, ask = constants.HF_HUB_DOWNLOAD_TIMEOUT, constants.HF_HUB_ETAG_TIMEOUT
    limit = download if request.method == "GET" else ask
    given = request.extensions.get("timeout") or {}
    bounded = {
        step: limit if given.get(step) is None else min(given[step], limit)
        for step in ("connect", "read", "write", "pool")
    }
    request.extensions = {**request.extensions, "timeout": bounded}


def _transport_words(error: Exception) -> str:
    if isinstance(error, httpx.TimeoutException):
        return "no answer in time"
    return str(error).splitlines()[0] if str(error) else type(error).__name__


@contextmanager
def _quiet_unless_terminal() -> Iterator[None]:
    with ExitStack() as stack:
        if not sys.stderr.isatty() and not are_progress_bars_disabled():
            disable_progress_bars()
            stack.callback(enable_progress_bars)
        yield
