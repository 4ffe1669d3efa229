"""A local HTTP server that answers like the Hugging Face hub, with one repository per behaviour."""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

COMMIT = "0123456789abcdef0123456789abcdef01234567"
RESOLVE = re.compile(r"/(?P<repo>[^/]+/[^/]+)/resolve/(?P<revision>[^/]+)/(?P<file>.+)")
API = re.compile(r"/api/models/(?P<repo>[^/]+/[^/?]+)(/revision/(?P<revision>[^/?]+))?")

REFUSALS: dict[str, tuple[int, dict[str, str]]] = {
    "o/private": (401, {"X-Error-Code": "RepoNotFound"}),
    "o/login": (401, {"X-Error-Message": "Invalid credentials in Authorization header"}),
    "o/gated": (403, {"X-Error-Code": "GatedRepo"}),
    "o/forbidden": (403, {"X-Error-Message": "token lacks a scope"}),
    "o/disabled": (403, {"X-Error-Message": "Access to this resource is disabled."}),
    "o/busy": (429, {"Retry-After": "300"}),
    "o/limited": (429, {"RateLimit": '"api";r=0;t=55'}),
    "o/crowded": (429, {"Retry-After": "Wed, 21 Oct 2099 07:28:00 GMT"}),
    "o/broken": (503, {}),
    "o/circling": (302, {"Location": "/api/models/o/circling"}),
}


@dataclass
class Hub:
    """The running server: its address and what was asked of it.

    `extra` headers stand on every file. `faults` says how the weights of a repository go wrong:

    - `cut` and `cut, no ranges`: the connection ends after half of a file, at each attempt; without
      ranges every attempt begins at the start.
    - `cut once`: half of it, then the rest when that is asked for.
    - `hang`: half of it, then silence.
    - `short`: a file that is whole, but shorter than the hub says.
    - `other`: as long as it should be, with its last byte changed; `other, small`: of small files
      too.
    """

    url: str
    repos: Mapping[str, Path]
    faults: dict[str, str] = field(default_factory=dict)
    extra: dict[str, str] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)
    stop_hanging: threading.Event = field(default_factory=threading.Event)

    def asked(self, repo: str) -> list[str]:
        """Requests that named `repo`."""
        return [line for line in self.requests if f"/{repo}" in line]


@contextmanager
def hub_server(repos: Mapping[str, Path]) -> Iterator[Hub]:
    """Serve folders as repositories `owner/name`, and refusals for the ids in `REFUSALS`.

    The facts of `o/asked` are public and its files are not, as of a gated repository; `o/slow`
    never answers and `o/strange` answers without the headers of a hub; every other id is unknown.
    Only revision `main` and the commit exist.
    """
    hub = Hub("", repos)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_HEAD(self) -> None:
            self.answer(body=False)

        def do_GET(self) -> None:
            self.answer(body=True)

        def log_message(self, *_args: object) -> None:
            pass

        def answer(self, body: bool) -> None:
            hub.requests.append(f"{self.command} {self.path}")
            path = re.sub("^http://[^/]+", "", self.path)  # a proxy is asked for whole addresses
            match = RESOLVE.fullmatch(path) or API.match(path)
            repo = match["repo"] if match else ""
            if repo == "o/slow":
                hub.stop_hanging.wait(60)
                self.close_connection = True
            elif repo in REFUSALS:
                status, headers = REFUSALS[repo]
                self.send(status, headers, b"", body)
            elif repo == "o/strange":
                self.send(200, {}, b"<html>", body)
            elif match is None or repo not in hub.repos:
                self.send(404, {"X-Error-Code": "RepoNotFound"}, b"", body)
            elif match["revision"] not in (None, "main", COMMIT):
                self.send(404, {"X-Error-Code": "RevisionNotFound"}, b"", body)
            elif match.re is API and self.path.endswith("/auth-check"):
                self.send(403, {"X-Error-Code": "GatedRepo"}, b"", body)
            elif match.re is API:
                gated = "manual" if repo == "o/asked" else False
                facts = {"id": repo, "sha": COMMIT, "gated": gated}
                self.send(200, {}, json.dumps(facts).encode(), body)
            else:
                self.file(hub.repos[repo] / match["file"], body, hub.faults.get(repo, ""))

        def do_CONNECT(self) -> None:
            hub.requests.append(f"{self.command} {self.path}")
            self.send(403, {}, b"", False)

        def file(self, path: Path, body: bool, fault: str) -> None:
            headers = {"X-Repo-Commit": COMMIT}
            if not path.is_file():
                self.send(404, headers | {"X-Error-Code": "EntryNotFound"}, b"", body)
                return
            content = path.read_bytes()
            large = path.suffix in (".safetensors", ".bin", ".pth")
            # Large files carry their SHA-256, small ones git's hash, as on the hub.
            git = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
            tag = hashlib.sha256(content).hexdigest() if large else git
            headers |= {"ETag": f'"{tag}"', "X-Linked-Etag": f'"{tag}"'}
            headers |= {"X-Linked-Size": str(len(content))} | hub.extra
            if not body or not fault or (fault != "other, small" and not large):
                self.send(200, headers, content, body)
            elif fault.startswith("other"):
                self.send(200, headers, content[:-1] + bytes([content[-1] ^ 1]), body)
            elif fault == "short":
                self.send(200, headers, content[:-1], body)
            else:
                self.half(content, fault)

        def half(self, content: bytes, fault: str) -> None:
            """Half of a file and no more; the rest after `cut once`."""
            asked = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
            start = int(asked[1]) if asked and fault != "cut, no ranges" else 0
            self.send_response(206 if start else 200)
            self.send_header("Content-Length", str(len(content) - start))
            self.end_headers()
            end = len(content) if start and fault == "cut once" else len(content) // 2
            self.wfile.write(content[start:end])
            if fault == "hang":
                hub.stop_hanging.wait(60)
            self.close_connection = True

        def send(self, status: int, headers: Mapping[str, str], content: bytes, body: bool) -> None:
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            if body:
                self.wfile.write(content)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    hub.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield hub
    finally:
        hub.stop_hanging.set()
        server.shutdown()
        thread.join()
        server.server_close()
