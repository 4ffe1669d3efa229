"""A hub with a few data sets, for tests: it speaks as much of its protocol as streaming needs."""

from __future__ import annotations

import io
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

COMMIT = "c" * 40
ERRORS = {
    "own/gated": (403, "GatedRepo"),
    "own/missing": (401, "RepoNotFound"),
    "own/token": (401, ""),
}


def table(levels: range) -> bytes:
    cells = []
    for level in levels:
        buffer = io.BytesIO()
        Image.new("RGB", (6, 5), (level, 0, 0)).save(buffer, "PNG")
        cells.append({"bytes": buffer.getvalue(), "path": None})
    struct = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    labels = pa.array([level % 3 - 1 for level in levels], pa.int64())
    label = {"_type": "ClassLabel", "names": ["cat", "dog"]}
    meta = {"info": {"features": {"image": {"_type": "Image"}, "label": label}}}
    rows = pa.table({"image": pa.array(cells, struct), "label": labels})
    buffer = io.BytesIO()
    pq.write_table(rows.replace_schema_metadata({"huggingface": json.dumps(meta)}), buffer)
    return buffer.getvalue()


FILES = {
    "own/one": {"test.parquet": table(range(40, 50))},
    "own/two": {"test.parquet": table(range(40, 50)), "train.parquet": table(range(3))},
    "own/text": {"train.csv": b"a,b\n1,2\n"},
}


class Handler(BaseHTTPRequestHandler):
    """Answers for the data sets in FILES, and refuses those in ERRORS."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *args: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.answer(404, b"{}", {"X-Error-Code": "EntryNotFound"})

    def do_GET(self) -> None:
        parts = self.path.split("?")[0].strip("/").split("/")
        parts = parts[1:] if parts[0] == "api" else parts
        repo, rest = "/".join(parts[1:3]), parts[3:]
        if repo in ERRORS:
            status, code = ERRORS[repo]
            message = (
                {} if code else {"X-Error-Message": "Invalid credentials in Authorization header"}
            )
            self.answer(status, b"{}", message | ({"X-Error-Code": code} if code else {}))
        elif repo not in FILES:
            self.answer(404, b"{}", {"X-Error-Code": "RepoNotFound"})
        elif rest[:1] == ["revision"] and rest[1] not in (COMMIT, "main"):
            self.answer(404, b"{}", {"X-Error-Code": "RevisionNotFound"})
        elif not rest or rest[0] == "revision":
            names = [{"rfilename": name} for name in FILES[repo]]
            self.answer(200, json.dumps({"id": repo, "sha": COMMIT, "siblings": names}).encode())
        elif rest[0] == "tree" and len(rest) == 2:
            sizes = {name: len(data) for name, data in FILES[repo].items()}
            rows = [
                {"type": "file", "oid": "b" * 40, "size": size, "path": name}
                for name, size in sizes.items()
            ]
            self.answer(200, json.dumps(rows).encode())
        elif rest[0] == "resolve" and rest[-1] in FILES[repo]:
            self.file(FILES[repo][rest[-1]])
        else:
            self.answer(404, b"{}", {"X-Error-Code": "EntryNotFound"})

    def file(self, data: bytes) -> None:
        headers = {"ETag": '"e"', "X-Repo-Commit": COMMIT, "Accept-Ranges": "bytes"}
        asked = self.headers.get("Range")
        if asked is None:
            return self.answer(200, data, headers)
        first, last = asked.removeprefix("bytes=").split("-")
        end = min(int(last or len(data)), len(data) - 1)
        headers["Content-Range"] = f"bytes {first}-{end}/{len(data)}"
        return self.answer(206, data[int(first) : end + 1], headers)

    def answer(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for key, value in (headers or {}).items():
            self.send_header(key, value)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


@contextmanager
def hub() -> Iterator[str]:
    """The address of a running hub."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
