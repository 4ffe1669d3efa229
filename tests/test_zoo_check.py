"""`probe zoo check`: what it accepts, what it finds, and what it asks of the hub."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from huggingface_hub import close_session, constants
from safetensors.torch import save_file
from typer.testing import CliRunner, Result

from probe.cli.zoo import zoo_app
from probe.errors import UnknownModel, UsageError
from probe.families import base
from probe.types import TokenSite
from probe.zoo import load_zoo
from tests.families import tiny_hf, unseen
from tests.families.hub_server import Hub, hub_server
from tests.families.test_hub import point_at

WHOLE = "group: g, provenance: {pretraining: p, licence: mit, source: 'https://example.org/'}"
LOCAL = "group: g, provenance: {pretraining: p, licence: mit}"


def check(*arguments: str) -> Result:
    return CliRunner().invoke(zoo_app, ["check", *arguments])


def rows(*arguments: str, code: int) -> dict[str, dict[str, Any]]:
    """The rows that `--json` prints, by name; its failures must be the failed ones."""
    done = check(*arguments, "--json")
    assert done.exit_code == code, done.output
    told = json.loads(done.stdout)
    assert set(told) == {"schema", "results", "failures"}
    found = {row["name"]: row for row in told["results"]}
    failed = {name: row["reason"] for name, row in found.items() if row["status"] == "failed"}
    assert {one["model"]: one["error"] for one in told["failures"]} == failed
    return found


def write(folder: Path, entries: dict[str, str]) -> str:
    """A zoo file; each entry is its source and, after a comma, the rest of it."""
    lines = []
    for name, entry in entries.items():
        source, comma, rest = entry.partition(",")
        lines.append(f"  {name}: {{source: '{source}'{comma}{rest}}}")
    (folder / "zoo.yaml").write_text("schema: 1\nmodels:\n" + "\n".join(lines) + "\n")
    return str(folder / "zoo.yaml")


@pytest.mark.slow
def test_the_builtin_zoo_is_as_it_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    found = rows(code=0)
    specs = load_zoo().models
    assert list(found) == list(specs)
    assert sum(not spec.source.startswith("package:") for spec in specs.values()) >= 80
    for name, row in found.items():
        library = specs[name].source.partition(":")[0]
        if library == "hf":
            assert row["status"] == "not checked offline", row
            assert row["reason"] == (
                "its configuration is not in the local cache; --online fetches it"
            )
        else:
            assert (row["status"], row["reason"]) == ("ok", None), row
            assert row["family"].startswith("timm_")
    # Weights that ship are loaded; without weights a fixed table cannot be told from a learned one.
    assert found["digits_spe_s0"]["position"] == "sinusoidal"
    assert found["vit_base_mae"]["position"] == "absolute"
    assert found["vit_small_rope_ape"]["position"] == "absolute+rotary"
    assert found["digits_none_s0"]["position"] == "none"


IMPORTED = f"import:unseen:Net, preprocess: half, position: none, {LOCAL}, "
ANATOMY = (
    "anatomy: {image_size: [32, 48], patches: {module: proj, grid: [4, 6], layout: NCHW}, "
    "blocks: [{pattern: 'layers.*', attn_in: norm1, grid: [4, 6], prefix: 1, layout: NLC}], "
    "head: tensor}"
)
FAULTY = {
    "fine": ("timm:test_vit, position: absolute, " + WHOLE, None),
    "sincos": ("timm:test_vit, position: sinusoidal, " + WHOLE, None),
    "mixed": (
        "timm:test_vit, position: rotary+absolute, " + WHOLE,
        "position says rotary+absolute, but the anatomy has absolute",
    ),
    "nowhere": (
        "timm:test_vit, position: none, " + WHOLE,
        "position says none, but the anatomy has absolute",
    ),
    "unplaced": ("timm:test_vit, " + WHOLE, "position missing; the anatomy has absolute"),
    "bare": (
        "timm:test_vit, position: absolute",
        "group, provenance.pretraining, provenance.licence, provenance.source missing; add to the "
        "entry",
    ),
    "sourceless": (
        "timm:test_vit, position: absolute, group: g, provenance: {pretraining: p, licence: mit}",
        "provenance.source missing; add to the entry",
    ),
    "paged": (
        "timm:test_vit, position: absolute, group: g, "
        "provenance: {pretraining: p, licence: mit, source: a book}",
        "provenance.source is 'a book'; give the address of a page",
    ),
    "misspelt": (
        "timm:test_vitt, position: absolute, " + WHOLE,
        "timm has no model 'test_vitt'. Did you mean test_vit",
    ),
    "untagged": (
        "timm:test_vit.mine, position: absolute, " + WHOLE,
        "timm has no weights called 'test_vit.mine'.",
    ),
    "untrained": (
        "timm:vit_base_patch16_gap_224, position: absolute, " + WHOLE,
        "timm has no pretrained weights for vit_base_patch16_gap_224.untrained; name another tag",
    ),
    "optioned": (
        "timm:test_vit, options: {depht: 2}, position: absolute, " + WHOLE,
        "test_vit.r160_in1k takes no option 'depht'. Did you mean depth",
    ),
    "forced": (
        "timm:test_vit, family: timm_swin, position: absolute, " + WHOLE,
        "this family reads SwinTransformer, but the model is a VisionTransformer",
    ),
    "unprepared": (
        "timm:test_vit, preprocess: none.yaml, position: absolute, " + WHOLE,
        "",
    ),
    "unread": (
        "timm:test_vit, readout: r.safetensors, labels: l.csv, position: absolute, " + WHOLE,
        "readout names 'r.safetensors', which is no file; labels names 'l.csv', which is no",
    ),
    "gone": ("file:gone.safetensors, arch: test_vit, position: absolute, " + LOCAL, ""),
    "weights": (
        "file:mine.safetensors, arch: test_vit, preprocess: half, position: absolute, " + LOCAL,
        None,
    ),
    "plain": (
        "file:mine.safetensors, arch: test_vit, position: absolute, " + LOCAL,
        "carries no preprocessing; choose --preprocess imagenet, half or a FILE",
    ),
    "exact": (  # where the weights are there, a fixed table is told from a learned one
        "file:mine.safetensors, arch: test_vit, preprocess: half, position: sinusoidal, " + LOCAL,
        "position says sinusoidal, but the anatomy has absolute",
    ),
    "own": (IMPORTED + "weights: own.safetensors, " + ANATOMY, None),
    "own_unweighted": (IMPORTED + ANATOMY, "own_unweighted names no weights; add `weights: FILE`"),
    "own_gone": (IMPORTED + "weights: gone.safetensors, " + ANATOMY, "there is no checkpoint at '"),
    "own_other": (
        IMPORTED + "weights: mine.safetensors, " + ANATOMY,
        "mine.safetensors' does not fit import:unseen:Net: ",
    ),
    "own_misread": (
        IMPORTED + "weights: own.safetensors, " + ANATOMY.replace("norm1", "norm_1"),
        "no module 'layers.0.norm_1' ran in a forward pass at 32 x 48 px. Nearest: layers.0.norm1",
    ),
    "own_ending": (
        "import:ends:build, preprocess: half, position: none, "
        + LOCAL
        + ", "
        + ANATOMY
        + ", weights: own.safetensors",
        "own_ending: importing 'ends' ends the program (SystemExit: 2); put what the script runs",
    ),
    "stated": (
        "timm:test_vit, preprocess: half, position: none, anatomy: {image_size: [160, 160], "
        "patches: {module: patch_embed, grid: [10, 10], layout: NHWC}, blocks: [{pattern: "
        "'blocks.*', attn_in: norm1, grid: [10, 10], prefix: 1, layout: NLC}]}, " + WHOLE,
        None,
    ),
    "far": ("hf:o/vit, position: absolute, " + WHOLE, "its configuration is not in the local"),
}


def test_each_fault_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    torch.manual_seed(0)
    save_file(timm.create_model("test_vit").state_dict(), tmp_path / "mine.safetensors")
    save_file(unseen.Net().state_dict(), tmp_path / "own.safetensors")
    (tmp_path / "ends.py").write_text("raise SystemExit(2)\n")
    monkeypatch.syspath_prepend(str(Path(unseen.__file__).parent))
    zoo = write(tmp_path, {name: entry for name, (entry, _) in FAULTY.items()})
    found = rows(*FAULTY, "--zoo", zoo, code=1)
    for name, (_, reason) in FAULTY.items():
        row = found[name]
        if reason is None:
            assert (row["status"], row["reason"]) == ("ok", None), row
        else:
            status = "not checked offline" if name == "far" else "failed"
            assert row["status"] == status, row
            assert reason in row["reason"], row
            assert "\n" not in row["reason"]
    assert found["fine"]["family"] == "timm_vit"
    assert found["misspelt"]["family"] is None


def test_what_is_not_checked_is_no_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "80")
    done = check("hf_deit_small", "digits_ape_s0")
    assert done.exit_code == 0
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert done.stdout.splitlines()[-1] == "1 ok, 0 failed, 1 not checked offline."
    with pytest.raises(UnknownModel, match=r"no model .deit_smal. in the zoo\. Did you mean"):
        raise_(check("deit_smal"))


def raise_(done: Result) -> None:
    assert done.exception is not None
    raise done.exception


def test_options_that_cannot_be(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="--timeout must be above 0 and at most 600 seconds"):
        raise_(check("deit_small", "--timeout", "0"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(UsageError, match="--online asks the hub, but HF_HUB_OFFLINE is set"):
        raise_(check("deit_small", "--online"))


def test_a_family_that_looks_at_values_gets_some(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked = []
    family = base.families()["timm_vit"]

    def anatomy(module: Any, size: tuple[int, int]) -> Any:
        looked.append(float(module.pos_embed.sum()))
        return family.anatomy(module, size)

    monkeypatch.setitem(base.families(), "timm_vit", replace(family, anatomy=anatomy))
    zoo = write(tmp_path, {"a": f"timm:test_vit, position: absolute, {WHOLE}"})
    assert rows("a", "--zoo", zoo, code=0)["a"]["status"] == "ok"
    assert len(looked) == 1


def test_an_anatomy_must_fit_what_the_network_gives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    family = base.families()["timm_vit"]

    def wrong(change: Callable[[TokenSite], TokenSite]) -> str:
        def anatomy(module: Any, size: tuple[int, int]) -> Any:
            found = family.anatomy(module, size)
            return replace(found, block_out=tuple(map(change, found.block_out)))

        monkeypatch.setitem(base.families(), "timm_vit", replace(family, anatomy=anatomy))
        zoo = write(tmp_path, {"a": f"timm:test_vit, position: absolute, {WHOLE}"})
        return str(rows("a", "--zoo", zoo, code=1)["a"]["reason"])

    reason = wrong(lambda site: replace(site, prefix=site.prefix + 1))
    assert reason.startswith("tokens at 'blocks.0' have shape (1, 101, 64), but NLC")
    reason = wrong(lambda site: replace(site, module="attn_pool_of_none"))
    assert reason == "the model has no module 'attn_pool_of_none'; check the anatomy"
    reason = wrong(lambda site: replace(site, module=f"{site.module}.attn.attn_drop"))
    assert reason == "module 'blocks.0.attn.attn_drop' never ran; the timm_vit family is wrong"


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A hub with a transformers model, whose processor is there too, and a timm repository."""
    vit = tiny_hf.save(tiny_hf.networks()["vit"](), tmp_path / "vit")
    settings = {"image_processor_type": "ViTImageProcessor", "size": {"height": 32, "width": 32}}
    (vit / "preprocessor_config.json").write_text(json.dumps(settings))
    repos = {"o/vit": vit, "timm/test_vit.r160_in1k": tmp_path, "o/asked": vit}
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    with hub_server(repos) as running:
        point_at(running.url, monkeypatch)
        yield running


ANSWERS = {
    "there": ("hf:o/vit", None),
    "commit": ("hf:o/vit, revision: 0123456789abcdef0123456789abcdef01234567", None),
    "revision": ("hf:o/vit, revision: v9", "the hub has no such revision of it"),
    "timm": ("timm:test_vit.r160_in1k", None),
    "timm_other": ("timm:test_vit2.r160_in1k", "the hub has no repository of that id"),
    "unknown": ("hf:o/nothing", "the hub has no repository of that id; check the spelling"),
    "private": ("hf:o/private", "or it is private: then run `hf auth login` or set HF_TOKEN"),
    "login": ("hf:o/login", "the hub asks for a valid login; run `hf auth login`"),
    "gated": ("hf:o/gated", "gated: accept its licence at http://127.0.0.1:"),
    "asked": ("hf:o/asked", "gated: accept its licence at http://127.0.0.1:"),
    "forbidden": ("hf:o/forbidden", "the token in use may not read it; ask for access at"),
    "disabled": ("hf:o/disabled", "the hub has disabled access to it"),
    "busy": ("hf:o/busy", "the hub refuses more requests for now (429); wait 300 s"),
    "broken": ("hf:o/broken", "the hub answered with status 503; try again later"),
    "strange": ("hf:o/strange", "does not answer like a Hugging Face hub; check HF_ENDPOINT"),
    "circling": ("hf:o/circling", "does not answer like a Hugging Face hub; check HF_ENDPOINT"),
    "invalid": ("hf:not a/valid/id", "not a valid hub id; it has the form owner/name"),
    **{f"slow{n}": ("hf:o/slow", "cannot be reached (no answer in time); check") for n in range(2)},
    "slow_too": ("hf:o/slow, revision: x", "cannot be reached (no answer in time); check"),
}


def test_the_hub_is_asked_in_parallel_and_gives_no_weights(hub: Hub, tmp_path: Path) -> None:
    rest = f", position: absolute, {WHOLE}"
    entries = {name: entry + rest for name, (entry, _) in ANSWERS.items()}
    zoo = write(tmp_path, entries)
    start = time.monotonic()
    found = rows(*ANSWERS, "--zoo", zoo, "--online", "--timeout", "1.5", code=1)
    assert time.monotonic() - start < 12  # one after the other, the slow ones alone take 4.5 s
    for name, (_, reason) in ANSWERS.items():
        row = found[name]
        if reason is None:
            assert (row["status"], row["reason"]) == ("ok", None), row
        else:
            assert row["status"] == "failed", row
            assert reason in row["reason"], row
            assert "\n" not in row["reason"]
    assert found["there"]["family"] == "hf_vit"
    assert found["timm_other"]["family"] == "timm_vit"  # the entry itself was looked at
    assert not [line for line in hub.requests if "safetensors" in line or ".bin" in line]
    # Each place is asked once, however many entries name it, and what was refused is let be.
    assert sorted(hub.asked("o/slow")) == [
        "GET /api/models/o/slow", "GET /api/models/o/slow/revision/x"
    ]  # fmt: skip
    assert len(hub.asked("o/gated")) == 1

    offline = rows("there", "gated", "--zoo", zoo, code=0)  # from the cache, no question asked
    assert offline["there"]["status"] == "ok"
    assert offline["gated"]["status"] == "not checked offline"
    assert len(hub.asked("o/gated")) == 1


NO_SOCKS = "Using SOCKS proxy, but the 'socksio' package is not installed."


@pytest.mark.parametrize(
    ("endpoint", "proxy", "words"),
    [
        ("http://127.0.0.1:1", "", "the hub at http://127.0.0.1:1 cannot be reached ("),
        ("127.0.0.1:1", "", "the hub at 127.0.0.1:1 cannot be reached (Request URL is missing"),
        ("http://[::1", "", "http://[::1 is no address of a hub (Invalid port: ':1'); correct HF"),
        (
            "http://hub.invalid",
            "socks5://me:secret@127.0.0.1:1",
            "the hub at http://hub.invalid cannot be reached through the proxy 127.0.0.1:1 "
            f"({NO_SOCKS}",
        ),
        ("http://hub.invalid", "gopher://127.0.0.1:1", "(Unknown scheme for proxy URL"),
        ("http://hub.invalid", "http://[::1", "(Invalid port: ':1'); check HTTPS_PROXY, HTTP_PROX"),
    ],
)
def test_a_hub_that_is_not_there(
    endpoint: str, proxy: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setitem(sys.modules, "socksio", None)  # so that it cannot be imported
    if proxy:
        monkeypatch.setenv("HTTP_PROXY", proxy)
    point_at(endpoint, monkeypatch)
    close_session()  # a client keeps the proxies that were there when it was made
    try:
        found = rows("deit_tiny", "hf_deit_small", "digits_ape_s0", "--online", code=1)
    finally:
        close_session()
    for name in ("deit_tiny", "hf_deit_small"):
        assert words in found[name]["reason"]
        assert "secret" not in found[name]["reason"]
    assert found["digits_ape_s0"]["status"] == "ok"
