"""Streaming and its error lines, in processes of their own: the hub's address is read at import."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from probe.data.hub import Address, parse_address
from tests.data.hub_server import COMMIT, hub

PROGRAM = """
import json, sys, time
from probe.data.open import open_data
from probe.errors import ProbeError

results = []
for text, options in json.load(sys.stdin):
    begin = time.monotonic()
    try:
        source = open_data(text, **options)
        rows = [item.decode() for item in source.stream()]
        late = [item.name for item in source.stream(3)]
        result = {
            "kind": source.kind, "split": source.split, "revision": source.revision,
            "names": source.class_names, "label_kind": source.label_kind,
            "fingerprint": source.fingerprint, "counts": [source.total, source.indices],
            "rows": [[i.index, i.name, i.image.getpixel((0, 0))[0], i.label] for i in rows],
            "late": late,
        }
    except ProbeError as error:
        result = {"error": type(error).__name__ + ": " + str(error)}
    results.append(result | {"seconds": time.monotonic() - begin})
print(json.dumps(results))
"""


def ask(
    endpoint: str, tmp_path: Path, *requests: tuple[str, dict[str, Any]], **environment: str
) -> list[dict[str, Any]]:
    """What `open_data` gives for each request, against the hub at `endpoint`."""
    environment = {"HF_HUB_OFFLINE": "0", "HF_ENDPOINT": endpoint} | environment
    environment |= {"HF_HOME": str(tmp_path / "hf"), "PYTHONPATH": os.pathsep.join(sys.path)}
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        input=json.dumps(requests),
        env={**os.environ, **environment},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    return list(json.loads(run.stdout.splitlines()[-1]))


def closed_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_streaming_and_refusals(tmp_path: Path) -> None:
    requests: dict[str, tuple[str, dict[str, Any]]] = {
        "whole": ("own/one", {}),
        "limited": ("own/one", {"limit": 4}),
        "named": ("hf:own/two@main", {"split": "train", "limit": 2}),
        "which": ("own/two", {}),
        "tset": ("own/two", {"split": "tset"}),
        "gated": ("own/gated", {}),
        "missing": ("own/missing", {}),
        "token": ("hf:own/token", {}),
        "revision": ("own/one@v9", {}),
        "text": ("own/text", {}),
        "config": ("own/one:large", {}),
    }
    with hub() as endpoint:
        answers = ask(endpoint, tmp_path, *requests.values())
    got = dict(zip(requests, answers, strict=True))

    whole = got["whole"]
    assert whole["rows"] == [
        [i, f"test#{i}", 40 + i, {0: None, 1: 0, 2: 1}[(40 + i) % 3]] for i in range(10)
    ]
    assert whole["late"] == [f"test#{i}" for i in range(3, 10)]
    assert (whole["kind"], whole["split"], whole["revision"]) == ("hub", "test", COMMIT)
    assert (whole["names"], whole["label_kind"]) == (["cat", "dog"], "classlabel")
    assert whole["counts"] == [None, None]
    assert [row[:3] for row in got["limited"]["rows"]] == [r[:3] for r in whole["rows"][:4]]
    assert got["limited"]["late"] == ["test#3"]
    assert [row[1:3] for row in got["named"]["rows"]] == [["train#0", 0], ["train#1", 1]]
    prints = {got[name]["fingerprint"] for name in ("whole", "limited", "named")}
    assert len(prints) == 3
    assert all(text.startswith("blake2b:") for text in prints)

    errors = {name: answer["error"] for name, answer in got.items() if "error" in answer}
    assert errors["which"] == (
        "UsageError: 'own/two' has the splits train, test; choose one with --split"
    )
    assert "has no split 'tset' (it has: " in errors["tset"]
    assert errors["tset"].endswith("Did you mean test?")
    assert errors["gated"] == (
        "DataError: the hub data set 'own/gated' (there is no such local path) is gated: accept "
        f"its licence at {endpoint}/datasets/own/gated, then run `hf auth login` or set HF_TOKEN"
    )
    assert errors["missing"] == (
        "DataError: the hub has no data set 'own/missing' that you may read (there is no such "
        "local path): check the spelling; for a private one run `hf auth login` or set HF_TOKEN"
    )
    assert errors["token"] == (
        "DataError: the hub data set 'own/token' refuses your token: run `hf auth login` or set a "
        "valid HF_TOKEN"
    )
    assert "has no revision 'v9'; leave @REVISION out, or correct it" in errors["revision"]
    assert "'own/text' has no image column (its columns: a, b)" in errors["text"]
    assert "cannot be streamed (BuilderConfig 'large' not found" in errors["config"]
    assert all("\n" not in text for text in errors.values())
    assert all(answer["seconds"] < 20 for answer in got.values())


def test_unreachable_hub_says_what_to_do_within_seconds(tmp_path: Path) -> None:
    begin = time.monotonic()
    (answer,) = ask(f"http://127.0.0.1:{closed_port()}", tmp_path, ("hf:own/one", {"split": "x"}))
    assert re.sub(r"\[Errno \d+\] ", "", answer["error"]) == (
        "DataError: the hub data set 'own/one' cannot be reached (Connection refused): "
        "check the connection, or fetch it where there is a connection (hf download own/one "
        "--repo-type dataset --local-dir DIR) and give --data DIR"
    )
    assert answer["seconds"] < 15
    assert time.monotonic() - begin < 60


def test_offline_mode_says_what_to_do(tmp_path: Path) -> None:
    (answer,) = ask("http://127.0.0.1:9", tmp_path, ("own/one", {}), HF_HUB_OFFLINE="1")
    assert answer["error"] == (
        "DataError: the hub data set 'own/one' (there is no such local path) cannot be reached in "
        "offline mode: unset HF_HUB_OFFLINE, or fetch it where there is a connection (hf download "
        "own/one --repo-type dataset --local-dir DIR) and give --data DIR"
    )
    assert answer["seconds"] < 15


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("own/n-1.x", Address("own/n-1.x", None, None, False)),
        ("hf:mnist", Address("mnist", None, None, True)),
        ("hf:own/n:small@v1", Address("own/n", "small", "v1", True)),
        ("own/n@main", Address("own/n", None, "main", False)),
        ("mnist", None),
        ("./own", None),
        ("hf:", None),
        ("a/b/c", None),
        ("own/n m", None),
    ],
)
def test_addresses(text: str, expected: Address | None) -> None:
    assert parse_address(text) == expected
