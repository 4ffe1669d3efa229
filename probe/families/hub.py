"""Calls to the Hugging Face hub, for timm and transformers alike: bounded waiting, one-line errors.

By default a hub that does not answer is asked again for minutes (a second round of 60 s timeouts
with five retries, every `Retry-After` obeyed, a download taken up again for as long as bytes come).
Inside `hub_call` a request gets one more try after a second; then the hub counts as down for the
rest of the call, and the local cache serves what it has. `HF_HUB_ETAG_TIMEOUT` and
`HF_HUB_DOWNLOAD_TIMEOUT` (10 s each) bound each wait for bytes: a hub that hangs ends the call
within two of them, a download that stops within four.

Everything goes over HTTP, through `HF_ENDPOINT` and the proxies of the environment: the hub's other
transport (Xet) knows neither, and waits as long as it likes.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, TypeVar
from urllib.parse import quote

from huggingface_hub import constants, get_session
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, OfflineModeIsEnabled
from huggingface_hub.utils import (
    are_progress_bars_disabled,
    build_hf_headers,
    disable_progress_bars,
    enable_progress_bars,
    hf_raise_for_status,
    httpx,
    logging,
    validate_repo_id,
)

from probe.errors import CheckpointError
from probe.families.hub_words import (
    SETTINGS,
    DownloadStopped,
    HubUnreachable,
    explain,
    transport_words,
    unreachable,
)

T = TypeVar("T")

PAUSE = 1.0
"""Seconds before the one retry of a request that failed."""

RESUMPTIONS = 20
"""How often a download may break off and go on from another byte."""


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
            (gated, unauthorised, unknown, too many requests), a download breaks off, or the disk is
            full.
    """
    try:
        with _plain_http(), _bounded_requests(), _quiet_unless_terminal():
            return call()
    except Exception as error:
        reason = explain(error)
        if reason is None:
            raise
        raise CheckpointError(f"{what}: {reason}") from error


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
    except HubUnreachable as error:
        return f"{unreachable(error)}; check HTTPS_PROXY, HTTP_PROXY and NO_PROXY"
    except (HfHubHTTPError, HFValidationError, OfflineModeIsEnabled, httpx.InvalidURL) as error:
        return explain(error)
    except httpx.TransportError as error:
        return (
            f"the hub at {constants.ENDPOINT} cannot be reached ({transport_words(error)}); check "
            "the connection, or wait longer"
        )
    except (httpx.HTTPError, ValueError, AttributeError):  # in circles; no JSON, no object in it
        return f"{constants.ENDPOINT} does not answer like a Hugging Face hub; {SETTINGS}"
    return None


def _ask(place: str, timeout: float) -> httpx.Response:
    response = _session().get(
        f"{constants.ENDPOINT}{place}", headers=build_hf_headers(), timeout=timeout
    )
    hf_raise_for_status(response)
    return response


def _session() -> httpx.Client:
    try:
        return get_session()
    except (ImportError, ValueError, httpx.InvalidURL) as error:  # a proxy that it cannot use
        raise HubUnreachable(transport_words(error)) from error


@contextmanager
def _bounded_requests() -> Iterator[None]:
    client = _session()
    send = client.send
    down: list[Exception] = []
    starts: dict[str, list[int]] = {}

    def bounded_send(request: httpx.Request, **kwargs: Any) -> httpx.Response:
        if not down and request.method == "GET":
            down.extend(_stopped(request, starts.setdefault(str(request.url), [])))
        if down:
            raise down[0]
        _bound_timeouts(request)
        error, response = _try(send, request, kwargs)
        if _worth_a_retry(error, response):
            time.sleep(PAUSE)
            error, response = _try(send, request, kwargs)
        if error is not None:
            down.append(HubUnreachable(transport_words(error)))
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


def _stopped(request: httpx.Request, starts: list[int]) -> list[DownloadStopped]:
    """Whether a download is to be given up: its second try brought nothing, or it has no end."""
    start = int(request.headers.get("Range", "bytes=0").removeprefix("bytes=").partition("-")[0])
    if starts.count(start) < 2 and len(starts) <= RESUMPTIONS:
        starts.append(start)
        return []
    return [DownloadStopped(request.url.path.rpartition("/")[2], start)]


@contextmanager
def _plain_http() -> Iterator[None]:
    before, constants.HF_HUB_DISABLE_XET = constants.HF_HUB_DISABLE_XET, True
    level = logging.get_verbosity()
    logging.set_verbosity_error()  # each retry would be a line of its own, with a signed address
    try:
        yield
    finally:
        constants.HF_HUB_DISABLE_XET = before
        logging.set_verbosity(level)


@contextmanager
def _quiet_unless_terminal() -> Iterator[None]:
    with ExitStack() as stack:
        if not sys.stderr.isatty() and not are_progress_bars_disabled():
            disable_progress_bars()
            stack.callback(enable_progress_bars)
        yield
