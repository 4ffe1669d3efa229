"""The real hub code path of timm and transformers against a local server, and every refusal."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from huggingface_hub import constants, get_session, hf_hub_download
from safetensors.torch import save_file

from probe.errors import CheckpointError
from probe.families import hub as hub_module
from probe.families.checkpoint import file_sha256
from probe.families.hub import hub_call
from probe.families.hub_words import explain
from tests.families import tiny_hf
from tests.families.hub_server import COMMIT, Hub, hub_server

TIMM_NAME = "test_vit.r160_in1k"


@pytest.fixture(scope="module")
def repos(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("repos")
    tiny = tiny_hf.save(tiny_hf.networks()["vit"](), root / "vit")
    settings = {"image_processor_type": "ViTImageProcessor", "size": {"height": 32, "width": 32}}
    (tiny / "preprocessor_config.json").write_text(json.dumps(settings))
    (root / "timm").mkdir()
    torch.manual_seed(0)
    save_file(
        timm.create_model("test_vit").state_dict(),
        root / "timm" / "model.safetensors",
        metadata={"format": "pt"},
    )
    (root / "empty").mkdir()
    (root / "bare").mkdir()
    (root / "bare" / "config.json").write_text((tiny / "config.json").read_text())
    return {
        "o/vit": tiny,
        f"timm/{TIMM_NAME}": root / "timm",
        "o/empty": root / "empty",
        "o/bare": root / "bare",
    }


@pytest.fixture
def hub(repos: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """The server, with this process online and pointing at it."""
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_ETAG_TIMEOUT", 1)
    monkeypatch.setattr(hub_module, "PAUSE", 0.01)
    with hub_server(repos) as running:
        point_at(running.url, monkeypatch)
        yield running


def point_at(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    template = url + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "ENDPOINT", url)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)


def fetch(repo: str, cache: Path, name: str = "config.json", **kwargs: Any) -> Callable[[], str]:
    return lambda: hf_hub_download(repo, name, cache_dir=cache, **kwargs)


REFUSED = {
    "o/private": r"hf:o/private: the hub has no repository of that id; check the spelling "
    r"\(owner/name\), or it is private: then run `hf auth login` or set HF_TOKEN",
    "o/login": r"the hub asks for a valid login; run `hf auth login` or set HF_TOKEN",
    "o/gated": r"gated: accept its licence at http://127\.0\.0\.1:\d+/o/gated, then run `hf auth",
    "o/forbidden": r"the token in use may not read it; ask for access at the model page",
    "o/disabled": r"the hub has disabled access to it",
    "o/busy": r"the hub refuses more requests for now \(429\); wait 300 s, or run `hf auth login`",
    "o/limited": r"the hub refuses more requests for now \(429\); wait 55 s, or run",
    "o/crowded": r"the hub refuses more requests for now \(429\); wait a few minutes, or run",
    "o/broken": r"the hub answered with status 503; try again later",
    "o/slow": r"cannot be reached \(no answer in time\), and the files are not in the local cache",
    "o/strange": r"does not answer like a Hugging Face hub; check HF_ENDPOINT",
    "o/nothing": r"the hub has no repository of that id; check the spelling",
    "o/empty": r"the repository has no file config\.json",
    "not a/valid/id": r"not a valid hub id; it has the form owner/name",
}


@pytest.mark.parametrize("repo", REFUSED)
def test_each_refusal_is_one_line_within_seconds(hub: Hub, tmp_path: Path, repo: str) -> None:
    start = time.monotonic()
    with pytest.raises(CheckpointError, match=REFUSED[repo]) as caught:
        hub_call(f"hf:{repo}", fetch(repo, tmp_path))
    assert time.monotonic() - start < 4
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith(f"hf:{repo}: ")
    assert "send" not in vars(get_session())
    assert len(hub.asked(repo)) <= 2


def test_an_unknown_revision(hub: Hub, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="the hub has no such revision of it"):
        hub_call("hf:o/vit", fetch("o/vit", tmp_path, revision="v9"))


def test_an_unreachable_hub_serves_what_the_cache_has(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = hub_call("hf:o/vit", fetch("o/vit", tmp_path))
    point_at("http://127.0.0.1:1", monkeypatch)
    assert hub_call("hf:o/vit", fetch("o/vit", tmp_path)) == path
    start = time.monotonic()
    with pytest.raises(CheckpointError, match=r"cannot be reached \(.*refused.*\), and the files"):
        hub_call("hf:o/vit", fetch("o/vit", tmp_path, "model.safetensors"))
    assert time.monotonic() - start < 4


def test_a_hub_that_is_down_is_asked_once_per_call(hub: Hub, tmp_path: Path) -> None:
    def several() -> None:
        for name in ("a", "b", "c"):
            with pytest.raises(OSError, match="cannot find the requested files"):
                fetch("o/slow", tmp_path, name)()

    hub_call("hf:o/slow", several)
    assert len(hub.asked("o/slow")) == 1


def test_offline_without_a_cached_file(hub: Hub, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(CheckpointError, match="and offline mode is on; unset HF_HUB_OFFLINE"):
        hub_call("hf:o/vit", fetch("o/vit", tmp_path))
    assert hub.requests == []


def test_a_full_disk_is_told_apart() -> None:
    full = OSError(errno.ENOSPC, "No space left on device")
    assert explain(RuntimeError("wrapped")) is None
    wrapped = RuntimeError("wrapped")
    wrapped.__cause__ = full
    text = explain(wrapped)
    assert text is not None
    assert "no space left in the cache" in text


def test_other_errors_pass_through() -> None:
    def fail() -> None:
        raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        hub_call("hf:o/vit", fail)


def test_nested_calls_put_the_client_back(hub: Hub, tmp_path: Path) -> None:
    path = hub_call("a", lambda: hub_call("b", fetch("o/vit", tmp_path)))
    assert Path(path).name == "config.json"
    assert "send" not in vars(get_session())


SCRIPT = """
import json, sys, time
import huggingface_hub, torch, transformers
from probe.errors import ProbeError
from probe.loading import load_model
from probe.types import ModelSpec

def load(source):
    start = time.monotonic()
    try:
        model = load_model(ModelSpec("m", source), device="cpu")
    except ProbeError as error:
        return {"error": str(error), "seconds": time.monotonic() - start}
    images = torch.ones(1, 3, *model.anatomy.image_size)
    with torch.no_grad():
        logits = model.predict(model.forward(images))
        if source == "hf:o/vit":  # and the library's own way through the hub
            own = transformers.AutoModelForImageClassification.from_pretrained("o/vit")
            assert torch.equal(own(images).logits, logits)
    return {
        "resolved": model.identity.resolved,
        "revision": model.identity.revision,
        "weights": model.identity.weights,
        "logits": logits[0, :3].tolist(),
        "interpolation": model.preprocess and model.preprocess.interpolation,
        "family": model.family,
    }

online = {source: load(source) for source in sys.argv[1:]}
huggingface_hub.constants.HF_HUB_OFFLINE = True
print(json.dumps([online, {source: load(source) for source in sys.argv[1:]}]))
"""


def run(sources: list[str], home: Path, endpoint: str) -> list[dict[str, Any]]:
    """What a fresh process finds online, and offline after that."""
    result = subprocess.run(
        [sys.executable, "-c", SCRIPT, *sources],
        env={
            **os.environ,
            "HF_HOME": str(home),
            "HF_ENDPOINT": endpoint,
            "HF_HUB_OFFLINE": "0",
            "HF_HUB_ETAG_TIMEOUT": "1",
        },
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert "Traceback" not in result.stderr
    return json.loads(result.stdout.splitlines()[-1])


def test_timm_and_transformers_load_through_the_hub(repos: dict[str, Path], tmp_path: Path) -> None:
    """Downloaded once, the commit and the hash recorded, and offline from the cache after."""
    loaded = {"hf:o/vit": "o/vit", f"timm:{TIMM_NAME}": f"timm/{TIMM_NAME}"}
    refused = ["hf:o/bare", "hf:o/gated", "hf:o/slow"]
    with hub_server(repos) as server:
        online, offline = run([*loaded, *refused], tmp_path, server.url)
    assert "the repository holds no model.safetensors" in online["hf:o/bare"]["error"]
    assert "gated: accept its licence" in online["hf:o/gated"]["error"]
    assert "no answer in time" in online["hf:o/slow"]["error"]
    assert max(online[source]["seconds"] for source in refused) < 8
    for source, repo in loaded.items():
        found = online[source]
        assert found["resolved"] == source
        assert found["revision"] == COMMIT
        assert found["weights"] == file_sha256(repos[repo] / "model.safetensors")
        assert offline[source] == found
    assert (online["hf:o/vit"]["family"], online["hf:o/vit"]["interpolation"]) == (
        "hf_vit",
        "bilinear",
    )
    local = tiny_hf.load_model(tiny_hf.spec(repos["o/vit"]), device="cpu")
    with torch.no_grad():
        logits = local.module(torch.ones(1, 3, 32, 32)).logits[0, :3].tolist()
    assert online["hf:o/vit"]["logits"] == logits
    assert "offline mode is on" in offline["hf:o/slow"]["error"]
