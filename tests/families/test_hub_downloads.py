"""Downloads that go wrong, through the hub code of both libraries: told in one line, and soon."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from huggingface_hub import close_session, constants
from safetensors.torch import save_file

from probe.errors import CheckpointError
from probe.families import hub as hub_module
from probe.families.base import RawModel
from probe.families.checkpoint import file_sha256
from probe.families.hf_loader import load_hf
from probe.families.timm_loader import load_timm
from probe.types import ModelSpec
from tests.families import tiny_hf
from tests.families.hub_server import COMMIT, Hub, hub_server
from tests.families.local_checkpoints import Hostile

TIMM_NAME = "test_vit.r160_in1k"
REPOS = {"timm": f"timm/{TIMM_NAME}", "hf": "o/vit"}
SOURCES = {"timm": f"timm:{TIMM_NAME}", "hf": "hf:o/vit"}
WAIT = 1  # seconds that one answer may take in these tests
CHUNK = 1024  # bytes that are written at once


@pytest.fixture(params=["timm", "hf"])
def library(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def repos(tmp_path: Path) -> dict[str, Path]:
    (tmp_path / "timm").mkdir()
    torch.manual_seed(0)
    save_file(timm.create_model("test_vit").state_dict(), tmp_path / "timm" / "model.safetensors")
    folder = tiny_hf.save(tiny_hf.networks()["vit"](), tmp_path / "vit")
    return {REPOS["timm"]: tmp_path / "timm", REPOS["hf"]: folder}


@pytest.fixture
def hub(repos: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """The server, with this process online, pointing at it, and with a cache of its own."""
    for name, value in {
        "HF_HUB_OFFLINE": False, "HF_HUB_CACHE": str(tmp_path / "cache"),
        "DOWNLOAD_CHUNK_SIZE": CHUNK, "HF_HUB_ETAG_TIMEOUT": WAIT, "HF_HUB_DOWNLOAD_TIMEOUT": WAIT,
    }.items():  # fmt: skip
        monkeypatch.setattr(constants, name, value)
    monkeypatch.setattr(hub_module, "PAUSE", 0.01)
    close_session()  # a client keeps the proxies that were there when it was made
    with hub_server(repos) as running:
        point_at(running.url, monkeypatch)
        yield running
    close_session()


def point_at(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    template = url + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "ENDPOINT", url)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)


def load(library: str, **fields: Any) -> RawModel:
    loader: Callable[..., RawModel] = load_timm if library == "timm" else load_hf
    spec = ModelSpec("m", SOURCES[library], **fields)
    return loader(spec, image_size=None, random_init=False, seed=0)


def refused(library: str, limit: float) -> str:
    start = time.monotonic()
    with pytest.raises(CheckpointError) as caught:
        load(library)
    assert time.monotonic() - start < limit
    assert "\n" not in str(caught.value)
    return str(caught.value)


BROKEN = (
    "the download of model.safetensors breaks off at byte {byte}, also when repeated; try again "
    "later, and check HF_ENDPOINT and the proxy settings if it stays so"
)
STOPPED = {
    "cut": BROKEN,
    "cut, no ranges": BROKEN,
    "hang": BROKEN,
    "short": "a file came in another size than the hub says; run again, and check HF_ENDPOINT and "
    "the proxy settings if it stays so",
}


@pytest.mark.parametrize("fault", STOPPED)
def test_a_download_that_does_not_end_is_given_up(hub: Hub, library: str, fault: str) -> None:
    """After a second try from the byte at which it stopped; nothing stays in the cache."""
    hub.faults[REPOS[library]] = fault
    size = (hub.repos[REPOS[library]] / "model.safetensors").stat().st_size
    text = refused(library, 4 * WAIT + 8)
    assert text == f"{SOURCES[library]}: {STOPPED[fault].format(byte=size // 2 // CHUNK * CHUNK)}"
    blobs = Path(constants.HF_HUB_CACHE).rglob("blobs/*")
    assert [path for path in blobs if path.stat().st_size >= size // 2] == []
    hub.faults.clear()
    assert load(library).identity.revision == COMMIT


def test_a_download_is_taken_up_where_it_broke_off(hub: Hub, library: str) -> None:
    hub.faults[REPOS[library]] = "cut once"
    expected = file_sha256(hub.repos[REPOS[library]] / "model.safetensors")
    assert load(library).identity.weights == expected
    gets = [line for line in hub.asked(REPOS[library]) if line.startswith("GET")]
    assert sum(line.endswith("model.safetensors") for line in gets) == 2


def test_another_file_than_the_hub_names_is_refused(hub: Hub, library: str) -> None:
    """Its size is right, its name and its tensors' names too: its hash alone tells."""
    path = hub.repos[REPOS[library]] / "model.safetensors"
    hub.faults[REPOS[library]] = "other"
    text = refused(library, 8)
    stated = file_sha256(path).removeprefix("sha256:")
    (blob,) = Path(constants.HF_HUB_CACHE).rglob(f"blobs/{stated}")
    found = file_sha256(blob).removeprefix("sha256:")
    assert found != stated
    assert f"/{COMMIT}/model.safetensors' is not the file that the hub names: its hash is " in text
    assert text.endswith(
        f"its hash is {found}, not {stated}; delete '{blob}' and run again, and check HF_ENDPOINT "
        "and the proxy settings if it stays so"
    )
    assert refused(library, 8) == text  # also out of the cache
    blob.unlink()
    hub.faults.clear()
    assert load(library).identity.weights == f"sha256:{stated}"


def test_settings_are_held_to_their_hash_too(hub: Hub) -> None:
    hub.faults[REPOS["hf"]] = "other, small"
    text = refused("hf", 8)
    assert f"/{COMMIT}/config.json' is not the file that the hub names: its hash is " in text


def test_a_cached_file_that_changed_is_refused(hub: Hub, library: str) -> None:
    load(library)
    (blob,) = (p for p in Path(constants.HF_HUB_CACHE).rglob("blobs/*") if len(p.name) == 64)
    content = bytearray(blob.read_bytes())
    content[-1] ^= 1
    blob.chmod(0o644)
    blob.write_bytes(content)
    assert f"delete '{blob}' and run again" in refused(library, 8)


@pytest.mark.parametrize("kind", ["page", "code"])
def test_what_a_maker_damaged_is_told(hub: Hub, tmp_path: Path, library: str, kind: str) -> None:
    """The hash is right, so the file came as it lies on the hub."""
    folder = hub.repos[REPOS[library]]
    if kind == "page":
        (folder / "model.safetensors").write_bytes(b"<!DOCTYPE html>")
        assert "' cannot be read as a checkpoint: " in refused(library, 8)
        return
    (folder / "model.safetensors").unlink()
    torch.save({"a": Hostile(tmp_path / "ran")}, folder / "pytorch_model.bin")
    text = refused(library, 8)
    assert "reading it would run code from the file (posix.mkdir); save the model's" in text
    assert not (tmp_path / "ran").exists()


def test_a_proxy_serves_what_it_is_asked_for(
    hub: Hub, library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hub's own name is never looked up."""
    point_at("http://hub.invalid", monkeypatch)
    monkeypatch.setenv("HTTP_PROXY", hub.url)
    expected = file_sha256(hub.repos[REPOS[library]] / "model.safetensors")
    assert load(library).identity.weights == expected
    assert all(" http://hub.invalid/" in line for line in hub.requests)


@pytest.mark.parametrize("name", ["HTTPS_PROXY", "https_proxy", "ALL_PROXY"])
def test_a_proxy_that_refuses_is_named_without_its_password(
    hub: Hub, library: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    point_at("https://hub.invalid", monkeypatch)
    address = hub.url.removeprefix("http://")
    monkeypatch.setenv(name, f"http://me:secret@{address}")
    assert refused(library, 4) == (
        f"{SOURCES[library]}: the hub at https://hub.invalid cannot be reached through the proxy "
        f"{address} (403 Forbidden), and the files are not in the local cache; check HTTPS_PROXY, "
        "HTTP_PROXY and NO_PROXY, or give a local path"
    )
    assert set(hub.requests) == {"CONNECT hub.invalid:443"}


def test_no_proxy_goes_past_it(hub: Hub, library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    text = refused(library, 4)
    assert (
        "cannot be reached through the proxy 127.0.0.1:1 ([Errno 111] Connection refused)" in text
    )
    assert hub.requests == []
    close_session()
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    assert load(library).identity.revision == COMMIT


def test_a_proxy_that_cannot_be_used_is_named(
    hub: Hub, library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "gopher://me:secret@127.0.0.1:1")
    text = refused(library, 4)
    assert "cannot be reached through the proxy 127.0.0.1:1 (Unknown scheme for proxy" in text
    assert "check HTTPS_PROXY, HTTP_PROXY and NO_PROXY" in text
    assert "secret" not in text


@pytest.mark.parametrize(
    ("endpoint", "words"),
    [
        ("http://127.0.0.1:1", "Connection refused), and the files are not in the local cache"),
        ("127.0.0.1:1", "cannot be reached (Request URL is missing an 'http://' or 'https://'"),
        ("http://[::1", "is no address of a hub (Invalid port: ':1'); correct HF_ENDPOINT"),
    ],
)  # fmt: skip
def test_a_mirror_that_is_none_is_named(
    hub: Hub, library: str, endpoint: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    point_at(endpoint, monkeypatch)
    text = refused(library, 4)
    assert endpoint in text
    assert words in text


def test_the_other_transport_is_not_used(hub: Hub, library: str, repos: dict[str, Path]) -> None:
    """Xet would go past the mirror and the proxies, and has no bounded wait."""
    hub.extra |= {"X-Xet-Hash": "0" * 64, "X-Xet-Refresh-Route": f"{hub.url}/xet/token"}
    assert load(library).identity.revision == COMMIT
    assert [line for line in hub.requests if "/xet/" in line] == []
    assert constants.HF_HUB_DISABLE_XET is False


def test_notes_of_settings_are_kept(hub: Hub) -> None:
    """Small files that are right pass the check of their hash."""
    settings = {"image_processor_type": "ViTImageProcessor", "size": {"height": 32, "width": 32}}
    (hub.repos[REPOS["hf"]] / "preprocessor_config.json").write_text(json.dumps(settings))
    assert load("hf").preprocess is not None
