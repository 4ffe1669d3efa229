"""The text of the page: what it says, that nothing in it can act, and that its bytes are fixed."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import probe.report.web
from probe.errors import StoreError
from probe.report.format import number, span
from probe.report.web import maps, page
from tests.web.reports import hardware_of, make_report

ROOT = Path(__file__).resolve().parents[2]
VENDOR = Path(probe.report.web.__file__).parent / "vendor"
GOLDEN = Path(__file__).parent / "golden" / "one_model.html"
EVIL = '</script><script>window.hit=1</script><img src=x onerror="window.hit=1">'


def backwards(value: Any) -> Any:
    """The same dict with its keys in the opposite order, at every depth."""
    if isinstance(value, dict):
        return {key: backwards(inner) for key, inner in reversed(value.items())}
    return [backwards(inner) for inner in value] if isinstance(value, list) else value


def words(html: str) -> str:
    """The page without its style, scripts and data, and without tags, on one line."""
    bare = re.sub(r"<wbr>|<(style|script)\b.*?</\1>", "", html, flags=re.DOTALL)
    return " ".join(re.sub(r"<[^>]*>", " ", bare).split())


def test_equal_reports_give_equal_bytes() -> None:
    report = make_report(5, failures=1)
    html = page(report, hardware_of(report))
    assert page(backwards(report), backwards(hardware_of(report))) == html
    code = (
        "import hashlib; from probe.report.web import page\n"
        "from tests.web.reports import hardware_of, make_report\n"
        "report = make_report(5, failures=1)\n"
        "print(hashlib.sha256(page(report, hardware_of(report)).encode()).hexdigest())"
    )
    for seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-c", code],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout.strip() == hashlib.sha256(html.encode()).hexdigest()


def test_golden_page() -> None:
    report = make_report(1, maps=False)
    html = page(report, hardware_of(report))
    kept = re.sub(r"(<style>|<script>).*?(</style>|</script>)", r"\1\2", html, flags=re.DOTALL)
    kept = re.sub(r"'sha256-[^']*'", "'sha256'", kept)
    if os.environ.get("RECORD_GOLDEN") == "1":
        GOLDEN.parent.mkdir(exist_ok=True)
        GOLDEN.write_text(kept, encoding="utf-8")
        pytest.fail(f"{GOLDEN.name} was recorded; look at it")
    assert kept == GOLDEN.read_text(encoding="utf-8")


def test_the_library_is_the_one_that_its_note_names() -> None:
    note = (VENDOR / "README.md").read_text(encoding="utf-8")
    library = (VENDOR / "chart.umd.min.js").read_bytes()
    assert hashlib.sha256(library).hexdigest() in note
    version = re.search(rb"Chart\.js v([\d.]+)", library)
    assert version is not None
    assert f"Chart.js {version[1].decode()}" in note
    assert "MIT" in (VENDOR / "chart.LICENSE.md").read_text(encoding="utf-8")


def test_the_policy_allows_these_scripts_and_nothing_else() -> None:
    html = page(make_report(2))
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', html)
    assert policy is not None
    rules = dict(rule.split(" ", 1) for rule in policy[1].replace("&#39;", "'").split("; "))
    assert rules["default-src"] == "'none'"
    for tag, rule in (("script", "script-src"), ("style", "style-src")):
        texts = re.findall(rf"<{tag}>(.*?)</{tag}>", html, flags=re.DOTALL)
        hashes = [base64.b64encode(hashlib.sha256(t.encode()).digest()).decode() for t in texts]
        assert rules[rule].split() == [f"'sha256-{digest}'" for digest in hashes]
    assert "sourceMappingURL" not in html
    assert re.findall(r"(?:src|href)=\"(?!#|data:,\")[^\"]*", html) == []


def test_no_text_can_become_an_element() -> None:
    report = make_report(2, failures=1)
    clean = page(report)
    model = report["models"][0]
    for key in ("model", "resolved", "group", "position", "weights", "family", "macs_convention"):
        model[key] = EVIL
    model["tags"], model["notes"], model["skipped"] = [EVIL], [EVIL], [[EVIL, EVIL]]
    model["provenance"] = {"pretraining": EVIL, "teacher": EVIL, "source": EVIL}
    model["settings"] = {EVIL: EVIL}
    report["failures"][0] = {"model": EVIL, "error": EVIL}
    report["statistics"]["notes"] = [EVIL]
    report["controlled"]["note"] = report["title"] = report["data"]["name"] = EVIL
    html = page(report)
    for tag in ("<script", "<img", 'onerror="window'):
        assert html.count(tag) == clean.count(tag)


def test_control_characters_and_surrogates_are_shown() -> None:
    report = make_report(1, failures=1)
    report["models"][0]["model"] = "a\x1b[31m\u202e\udc80b"
    report["failures"][0]["error"] = "first\nsecond\x00"
    html = page(report)
    html.encode("utf-8")
    assert r"a\x1b[31m\u202e\udc80b" in html
    assert "first\nsecond\\x00</pre>" in html


def test_every_number_has_its_interval_or_a_reason() -> None:
    report = make_report(5)
    text = words(page(report))
    for model in report["models"]:
        scalar = model["anchoring"]
        if scalar["value"] is not None:
            bounds = span(scalar["low"], scalar["high"])
            assert f"{number(scalar['value'])} {bounds}" in text
    assert "(1) layer 4 is undefined under RPI: all tokens are equal" in text
    assert "(2) layers 0 and 1 have different grids" in text
    assert "gaussian_blur(kernel=5,sigma=2.5) effective sigma 1.33 px" in text
    assert "Not a controlled comparison: pretraining and teacher differ between the models." in text


def test_statistics_share_their_notes_and_say_what_is_not_controlled() -> None:
    text = words(page(make_report(3)))
    row = text[text.index("read with") :]
    assert row.startswith("read with anchoring FS jpeg(quality=5) all models 3 -.")
    assert row.count("(1) fewer than five models") == 1
    assert row.count("not a controlled comparison (1)") == 6
    report = make_report(3)
    report["controlled"] = {"controlled": True, "note": "one recipe"}
    text = words(page(report))
    assert "not a controlled comparison" not in text.lower()
    assert "A controlled comparison: one recipe" in text


def test_a_column_that_is_empty_for_all_becomes_a_line() -> None:
    report = make_report(3, accuracy=False)
    for model in report["models"]:
        model["provenance"], model["macs"] = {}, None
    text = words(page(report))
    assert "accuracy (top-1, clean): the data set has no labels." in text
    assert "FS (jpeg(quality=5)): the data set has no labels." in text
    assert "teacher: not stated for any model." in text
    assert "GMACs (per image): not counted for any model." in text


def test_hardware_is_shown_only_where_it_is_given() -> None:
    report = make_report(2)
    hardware = hardware_of(report)
    assert "images per second" not in words(page(report))
    text = words(page(report, hardware))
    assert "8-core test CPU" in text
    assert "deit_small 120.5 31.25 1.5 GiB 32 float32 cpu" in text
    assert "vit_base_1 120.5 31.25 not measured 32" in text


def test_published_figures_stand_beside_ours() -> None:
    report = make_report(2)
    report["models"][0]["published"][0] |= {"difference": -0.0421, "inside": True}
    text = words(page(report))
    assert re.search(r"anchoring \S+ \[\S+ \S+\] \.410 -\.042 yes paper arXiv 2606", text)
    report["models"][0]["published"] = []
    assert "published figures" not in words(page(report))


def test_pages_without_models_or_charts_of_some_kind() -> None:
    text = words(page(make_report(0, failures=1)))
    assert "No model was measured." in text
    assert "1 model failed and is in no table or chart" in text
    assert "No maps are stored" in words(page(make_report(1, maps=False, alphas=False)))


def test_numbers_that_json_cannot_hold_are_refused() -> None:
    report = make_report(1)
    report["models"][0]["layers"][0]["rpi"]["value"] = float("nan")
    with pytest.raises(ValueError, match="not JSON compliant"):
        page(report)


def test_maps_are_packed_without_loss_while_they_fit() -> None:
    models = make_report(3)["models"]
    found, text = maps.packed_maps(models)
    assert (found["bits"], found["note"]) == (8, "")
    for model, part in zip(models, found["models"], strict=True):
        raw = base64.b64decode(text[part["start"] : part["end"]], validate=True)
        given = [m for layer in model["maps"] for kind in maps.KINDS for m in layer[kind]]
        assert raw == b"".join(base64.b64decode(m) for m in given)


@pytest.mark.parametrize(
    ("share", "bits", "layers", "note"),
    [(0.6, 4, 6, "16 steps of cosine."), (0.2, 4, 2, "16 steps of cosine, one layer in 3.")],
)
def test_maps_above_the_budget_lose_precision_then_layers(
    monkeypatch: pytest.MonkeyPatch, share: float, bits: int, layers: int, note: str
) -> None:
    models = make_report(1, grid=7)["models"]
    whole = len(maps.packed_maps(models)[1])
    monkeypatch.setattr(maps, "BUDGET", int(share * whole))
    found, text = maps.packed_maps(models)
    assert len(text) <= maps.BUDGET
    assert found["bits"] == bits
    assert found["note"].endswith(note)
    kept = [layer["layer"] for layer in found["models"][0]["layers"]]
    assert (len(kept), kept[-1]) == (layers, 5)
    raw = base64.b64decode(text)
    first = base64.b64decode(models[0]["maps"][kept[0]]["clean"][0])
    halves = [half for byte in raw[:25] for half in (byte >> 4, byte & 15)]
    assert all(abs(h / 15 - v / 255) <= 1 / 30 for h, v in zip(halves, first, strict=False))


@pytest.mark.parametrize("broken", ["AAAA", "not base64"])
def test_a_map_of_the_wrong_size_is_named(broken: str) -> None:
    report = make_report(1)
    report["models"][0]["maps"][2]["rpi"][1] = broken
    with pytest.raises(StoreError, match=r"'deit_small', layer 2, does not hold 14 x 14 values"):
        page(report)


def test_the_embedded_data_is_json() -> None:
    html = page(make_report(2))
    found = re.search(r'id="report-data">(.*?)</script>', html, flags=re.DOTALL)
    assert found is not None
    data = json.loads(found[1])
    assert [model["name"] for model in data["models"]] == ["deit_small", "vit_base_1"]
    assert data["corruptions"][1]["sigma"] == "effective sigma 1.33 px"
    assert "over 2 models" not in data["relations"]["anchoring|fs_jpeg_q5"]
    assert data["relations"]["anchoring|fs_jpeg_q5"].startswith("No rank correlation: fewer than")


def test_sixty_models_with_large_maps_stay_small() -> None:
    html = page(make_report(60, grid=37))
    assert len(html.encode()) < 8_000_000
    assert "maps are shown in 16 steps of cosine." in html
