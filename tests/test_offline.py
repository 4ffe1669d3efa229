"""With HF_HUB_OFFLINE=1 and local sources, no socket is connected and no name is looked up."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.families import tiny_hf

ROOT = Path(__file__).resolve().parent.parent

# Audit hooks see every call, whichever library makes it, and cannot be taken off again.
SCRIPT = """
import json, sys
FORBIDDEN = {
    "socket.connect", "socket.bind", "socket.sendto", "socket.sendmsg", "socket.getaddrinfo",
    "socket.gethostbyname", "socket.gethostbyaddr", "socket.getnameinfo", "urllib.Request",
    "http.client.connect",
}
tried = []

def forbid(event, arguments):
    if event in FORBIDDEN:
        tried.append(f"{event} {arguments}")
        raise OSError(f"{event} is forbidden")

sys.addaudithook(forbid)
import socket

def never(self, address):
    tried.append(f"connect {address}")
    raise OSError("connecting is forbidden")

socket.socket.connect = socket.socket.connect_ex = never
from probe.cli.app import main

codes = []
for arguments in json.loads(sys.argv[1]):
    sys.argv = ["probe", *arguments]
    try:
        main()
    except SystemExit as ended:
        codes.append(ended.code or 0)
print(json.dumps({"codes": codes, "tried": tried}))
"""


def run(commands: list[list[str]], folder: Path, **env: str) -> dict[str, Any]:
    """What commands in one process ended with, and which connections were tried."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, json.dumps(commands)],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT), "HF_HOME": str(folder / "home")} | env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found | {"stderr": done.stderr}


def test_local_models_and_data_need_no_socket(tmp_path: Path) -> None:
    folder = tiny_hf.save(tiny_hf.networks()["vit"](), tmp_path / "mine")
    local = [str(folder), "--data", "digits", "--preprocess", "half", "--limit", "4"]
    found = run(
        [
            ["ssdc", "digits_ape_s0", "--limit", "4"],
            ["ssdc", *local],
            ["ssdc", "timm:vit_tiny_patch16_224", "--limit", "4"],
        ],
        tmp_path,
        HF_HUB_OFFLINE="1",
    )
    assert found["tried"] == []
    assert found["codes"] == [0, 0, 1], found["stderr"]
    assert "offline mode is on; unset HF_HUB_OFFLINE to download it" in found["stderr"]
    names = {path.parent.name for path in (tmp_path / "runs" / "ssdc").glob("*/ssdc.json")}
    assert "digits_ape_s0" in names
    assert len(names) >= 2


def test_the_watch_sees_what_is_tried(tmp_path: Path) -> None:
    """So that the test above can fail."""
    found = run(
        [["ssdc", "hf:o/vit", "--limit", "4"]], tmp_path,
        HF_HUB_OFFLINE="0", HF_ENDPOINT="http://127.0.0.1:9", HF_HUB_ETAG_TIMEOUT="1",
    )  # fmt: skip
    assert found["codes"] == [1]
    assert any("127.0.0.1" in one for one in found["tried"])
    assert "cannot be reached" in found["stderr"]
