"""Pretrained timm models, out of a hub cache that was filled by hand."""

from __future__ import annotations

import hashlib
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import huggingface_hub.constants
import pytest
import timm
import torch
from safetensors.torch import save_file
from timm.models import PretrainedCfg, get_pretrained_cfg
from torch import Tensor, nn

from probe.errors import CheckpointError, UsageError
from probe.families import timm_loader
from probe.families.timm_hub import fetch_weights
from probe.types import Identity, ModelSpec
from tests.families.hub_server import Hub, hub_server
from tests.families.timm_specs import ARCH, SMALL, SWIN, hub_spec, load, refusal, trained, untrained

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Put a state dict into the cache as the named model's; returns the file's sha256."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))

    def put(state: dict[str, Tensor], name: str = f"{ARCH}.fb_in1k", ref: str = "main") -> str:
        repository = tmp_path / f"models--timm--{name}"
        for part in ("blobs", "refs", f"snapshots/{COMMIT}"):
            (repository / part).mkdir(parents=True, exist_ok=True)
        save_file(state, tmp_path / "new")
        digest = hashlib.sha256((tmp_path / "new").read_bytes()).hexdigest()
        (tmp_path / "new").rename(repository / "blobs" / digest)
        (repository / "refs" / ref).write_text(COMMIT)
        link = repository / "snapshots" / COMMIT / "model.safetensors"
        link.symlink_to(f"../../blobs/{digest}")
        return digest

    return put


def hub_state(**options: Any) -> dict[str, Tensor]:
    return trained(**({"img_size": 224, "num_classes": 1000} | options)).state_dict()


def test_hub_weights_are_loaded_and_identified(hub: Callable[..., str]) -> None:
    state = hub_state()
    digest = hub(state)
    raw = load(hub_spec())
    assert all(torch.equal(state[key], value) for key, value in raw.module.state_dict().items())
    assert raw.identity.resolved == "timm:deit_tiny_patch16_224.fb_in1k"
    assert raw.identity.revision == COMMIT
    assert raw.identity.weights == f"sha256:{digest}"
    assert (raw.classes, raw.notes, raw.image_size) == (1000, (), (224, 224))


def test_a_revision_is_asked_for(hub: Callable[..., str]) -> None:
    hub(hub_state(), ref="v2")
    spec = ModelSpec("x", f"timm:{ARCH}", options=SMALL, revision="v2")
    assert load(spec).identity.revision == COMMIT
    assert "not in the local cache" in refusal(CheckpointError, lambda: load(hub_spec()))


@pytest.mark.parametrize("by_option", [False, True])
def test_hub_weights_at_another_size_are_resampled_and_noted(
    hub: Callable[..., str], by_option: bool
) -> None:
    state = hub_state()
    hub(state)
    raw = load(hub_spec(img_size=64)) if by_option else load(hub_spec(), (64, 64))
    assert raw.image_size == (64, 64)
    assert raw.module.pos_embed.shape == (1, 17, 32)
    assert raw.notes[0].startswith("run at 64 x 64 px; the checkpoint's own size is 224 x 224")
    assert raw.preprocess is not None
    assert raw.preprocess.resize == ("short", 71)


def test_hub_weights_that_do_not_match_are_named(hub: Callable[..., str]) -> None:
    hub(hub_state(depth=3))
    text = refusal(CheckpointError, lambda: load(hub_spec()))
    assert "the weights do not fit deit_tiny_patch16_224.fb_in1k: 12 unexpected: " in text
    assert "blocks.2.attn.proj.bias" in text


def test_a_head_is_never_drawn_anew(hub: Callable[..., str]) -> None:
    hub(hub_state())
    text = refusal(CheckpointError, lambda: load(hub_spec(num_classes=10)))
    assert "has a head of width 1000; one of 10 would be untrained" in text
    bare = load(hub_spec(num_classes=0))
    assert bare.classes is None
    assert isinstance(bare.module.head, nn.Identity)


def test_windows_stay_the_checkpoints_own(hub: Callable[..., str]) -> None:
    name = "swin_tiny_patch4_window7_224"
    torch.manual_seed(0)
    hub(timm.create_model(name, **SWIN).state_dict(), f"{name}.ms_in1k")
    spec = ModelSpec("swin", f"timm:{name}", options=SWIN)
    assert load(spec, (256, 288)).image_size == (256, 288)
    text = refusal(UsageError, lambda: load(spec, (48, 224)))
    assert "has attention windows that do not fit into its grids at 48 x 224 px; use 224 x" in text
    assert untrained(spec, (48, 224)).image_size == (48, 224)


def test_without_cache_or_weights_the_way_out_is_named(tmp_path: Path) -> None:
    text = refusal(CheckpointError, lambda: load(hub_spec("vit_tiny_patch16_224")))
    assert text.startswith("timm:vit_tiny_patch16_224.augreg_in21k_ft_in1k: not in the local cache")
    bare = refusal(CheckpointError, lambda: load(ModelSpec("x", "timm:vit_small_patch16_36x1_224")))
    assert "timm has no pretrained weights for vit_small_patch16_36x1_224" in bare
    assert "use --random-init" in bare


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A server that is no hub, an empty cache, and answers awaited for a second."""
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path / "torch"))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_DOWNLOAD_TIMEOUT", 1)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    (tmp_path / "files").mkdir()
    with hub_server({"o/files": tmp_path / "files"}) as running:
        yield running


def at(server: Hub, stated: str | None = None) -> tuple[PretrainedCfg, str]:
    """Weights at an address with `stated` of their hash in the name, and their hash."""
    folder = server.repos["o/files"]
    torch.save({"a": torch.ones(9999)}, folder / "new")
    digest = hashlib.sha256((folder / "new").read_bytes()).hexdigest()
    name = f"w-{stated or digest[:8]}.pth"
    (folder / "new").rename(folder / name)
    return PretrainedCfg(url=f"{server.url}/o/files/resolve/main/{name}"), digest


def test_weights_from_elsewhere_are_held_to_the_hash_in_their_name(elsewhere: Hub) -> None:
    config, digest = at(elsewhere)
    for _ in range(2):
        path, identity = fetch_weights("timm:x", config, None)
        assert identity == Identity("timm:x", None, f"sha256:{digest}")
        assert path.parts[-3:] == ("torch", "checkpoints", f"w-{digest[:8]}.pth")
    assert len(elsewhere.requests) == 1
    wrong, digest = at(elsewhere, "00000000")
    text = refusal(CheckpointError, lambda: fetch_weights("timm:x", wrong, None))
    assert text.endswith(
        f"w-00000000.pth' is not the file that timm names: its hash is sha256:{digest}, which does "
        "not begin with 00000000; delete it and run again"
    )


def test_weights_from_elsewhere_need_no_connection_once_they_are_there(
    elsewhere: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, _ = at(elsewhere)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    text = refusal(CheckpointError, lambda: fetch_weights("timm:x", config, None))
    assert text == (
        "timm:x: not in the local cache, and offline mode is on; unset HF_HUB_OFFLINE to download "
        "it, or give a local path"
    )
    assert elsewhere.requests == []
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    path, _ = fetch_weights("timm:x", config, None)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    assert fetch_weights("timm:x", config, None)[0] == path


def test_a_server_elsewhere_that_hangs_is_left(elsewhere: Hub) -> None:
    config, _ = at(elsewhere)
    elsewhere.faults["o/files"] = "hang"
    start = time.monotonic()
    with pytest.raises(TimeoutError):
        fetch_weights("timm:x", config, None)
    assert time.monotonic() - start < 4
    assert socket.getdefaulttimeout() is None
    elsewhere.faults.clear()
    assert fetch_weights("timm:x", config, None)[0].is_file()


def test_weights_elsewhere_that_are_gone_are_one_line(
    elsewhere: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = replace(get_pretrained_cfg("gcvit_xxtiny.in1k"), url=f"{elsewhere.url}/gone-abc.pth")
    monkeypatch.setattr(timm_loader, "resolve_name", lambda name: (name, config))
    spec = ModelSpec("x", "timm:gcvit_xxtiny.in1k")
    assert refusal(CheckpointError, lambda: load(spec)) == (
        "timm:gcvit_xxtiny.in1k cannot be downloaded: HTTP Error 404: Not Found; check the "
        "connection and the proxy settings, or give a local path"
    )
