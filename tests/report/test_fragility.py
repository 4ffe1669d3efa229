from __future__ import annotations

import csv
import hashlib
import io
import json
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Callable, Sequence
from itertools import combinations
from typing import Any

import matplotlib as mpl
import pytest
from matplotlib import style
from matplotlib.backends.backend_agg import FigureCanvasAgg
from PIL import Image
from rich.cells import cell_len
from rich.console import Console

from probe.report.chart import UNDEFINED
from probe.report.fragility import fragility_csv, fragility_figure, fragility_screen
from probe.report.fragility_plot import draw_fragility
from probe.report.severity import by_severity, fold, heading, severity_mean
from probe.report.sheet import STYLE

Json = dict[str, Any]
JPEG, BLUR = "jpeg(quality=5)", "gaussian_blur(sigma=2.5,kernel=5)"
UNLABELLED = "the images have no labels"
NONE_RIGHT = "no clean prediction is right"
MEASURES = ("accuracy", "fs", "agreement_fs")
KINDS = ("fog", "snow", "elastic_transform")


def scalar(value: float | None, half: float = 0.05, reason: str | None = None) -> Json:
    if value is None:
        return {"value": None, "low": None, "high": None, "reason": reason}
    return {"value": value, "low": value - half, "high": value + half, "reason": reason}


def entry(corruption: str, fs: float | None, sigma: float | None = None, why: str = "") -> Json:
    bare = fs is None
    unlabelled = why == UNLABELLED
    accuracy = None if unlabelled else 0.25 if fs is None else 0.75 * (1 - fs)
    return {
        "corruption": corruption,
        "effective_sigma": sigma,
        "accuracy": scalar(accuracy, 0.041, UNLABELLED if unlabelled else None),
        "correct": None if accuracy is None else round(240 * accuracy),
        "fs": scalar(fs, 0.063, why if bare else None),
        "agreement_fs": scalar(0.4321 if fs is None else fs + 0.111, 0.057),
    }


def result(model: str = "deit_small", corruptions: Sequence[Json] = (), **changes: Json) -> Json:
    resolved = f"timm:{model}_patch16_224.fb_in1k"
    return {
        "model": model,
        "resolved": resolved,
        "family": "timm_vit",
        "images": 250,
        "labelled": 240,
        "settings": {
            "resolved": resolved,
            "revision": "0f3a77",
            "weights": "sha256:0123456789abcdef0123456789abcdef",
            "family": "timm_vit",
            "site": "attn_in",
            "distance": "l1",
            "average": "similarity",
            "seed": 7,
            "dtype": "float32",
            "device": "cpu",
            "image_size": [224, 224],
            "preprocess": {"source": "checkpoint"},
            "data": {"name": "birds", "fingerprint": "9c1b2d3e4f5a6b7c"},
            "versions": {"probe": "0.1.0"},
        },
        "labels": {
            "kind": "wnid",
            "map": {"n01440764": 0, "n01558993": 15},
            "note": "2 WordNet ids mapped to ImageNet-1k classes",
            "by_name": None,
        },
        "accuracy": scalar(0.75, 0.052),
        "correct": 180,
        "corruptions": list(corruptions or [entry(JPEG, 0.371), entry(BLUR, -0.0234, 1.33452)]),
        "skipped": [],
        "notes": [],
    } | changes


def unlabelled(model: str) -> Json:
    rows = [entry(JPEG, None, None, UNLABELLED), entry(BLUR, None, 1.33452, UNLABELLED)]
    none = {"labels": None, "labelled": 0, "correct": None, "accuracy": scalar(None, 0, UNLABELLED)}
    return result(model, rows, **none)


def suite(model: str = "deit_small") -> Json:
    rows = [
        entry(f"{name}(severity={s})", None if (name, s) == ("snow", 3) else 0.05 * i + 0.11 * s,
              why=NONE_RIGHT)
        for i, name in enumerate(KINDS)
        for s in range(1, 6)
    ]  # fmt: skip
    return result(model, rows)


def wrap(*results: Json, failures: Sequence[Json] = ()) -> Json:
    return {"schema": 1, "results": list(results), "failures": list(failures)}


BROKEN = {"model": "broken", "error": "weights do not match:\nhead.bias"}
ONE = wrap(
    result(skipped=[["a/b.jpg", "truncated file"]], notes=["readout: cls features, C 0.1"])
)  # fmt: skip
SEVERAL = wrap(
    result(),
    result("swin_tiny", [entry(JPEG, 0.25), entry(BLUR, None, 1.33452, NONE_RIGHT)]),
    unlabelled("dino_small"),
    failures=[BROKEN],
)
ENVELOPES = {
    "one": ONE,
    "several": SEVERAL,
    "unlabelled": wrap(unlabelled("dino_small")),
    "suite": wrap(suite()),
    "suites": wrap(suite(), suite("swin_tiny"), result("vit_base")),
}


def screen(envelope: Json, width: int = 120) -> str:
    file = io.StringIO()
    Console(width=width, file=file, force_terminal=False).print(fragility_screen(envelope))
    return "".join(f"{line.rstrip()}\n" for line in file.getvalue().splitlines())


def joined(text: str) -> str:
    return " ".join(text.split())


def short(value: float) -> str:
    text = f"{value:.3f}"
    return text.replace("0.", ".", 1) if text.lstrip("-").startswith("0.") else text


def cell(found: Json) -> str:
    return f"{short(found['value'])} [{short(found['low'])}, {short(found['high'])}]"


def texts(svg: bytes) -> list[str]:
    return [n.text or "" for n in ET.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")]


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("name", ENVELOPES)
def test_golden_screens(name: str, width: int, golden: Callable[[str, str], None]) -> None:
    text = screen(ENVELOPES[name], width)
    assert max(map(cell_len, text.splitlines())) <= width
    assert re.search(r"\b(nan|inf|None)\b", text) is None
    golden(f"fragility_{name}_{width}.txt", text)


@pytest.mark.parametrize("name", ["one", "several", "suite"])
def test_golden_tables(name: str, golden: Callable[[str, str], None]) -> None:
    golden(f"fragility_{name}.csv", fragility_csv(ENVELOPES[name]))


@pytest.mark.parametrize("width", [80, 120])
def test_every_number_of_one_model_is_shown(width: int) -> None:
    text = screen(ONE, width)
    found = ONE["results"][0]
    for row in found["corruptions"]:
        lines = " ".join(line for line in text.splitlines() if line.startswith(row["corruption"]))
        for measure in MEASURES:
            assert cell(row[measure]) in lines
        assert f"{row['correct']} of 240" in lines
        assert row["effective_sigma"] is None or "1.335" in lines
    for fact in ("clean accuracy .750 [.698, .802] 180 of 240", "images 250", "birds", "seed 7",
                 "labels wnid, 2 classes mapped; 2 WordNet ids mapped to ImageNet-1k classes",
                 "FS = 1 - A_shift / A_clean", "paired bootstrap", "Wilson", "revision 0f3a77",
                 "left out 1 unreadable: a/b.jpg (truncated file)",
                 "note: readout: cls features, C 0.1"):  # fmt: skip
        assert fact in joined(text)


@pytest.mark.parametrize("width", [80, 120])
def test_every_fragility_of_several_models_is_shown(width: int) -> None:
    text = joined(screen(SEVERAL, width))
    for found in SEVERAL["results"]:
        assert found["resolved"] in text
        for row in found["corruptions"]:
            for measure in ("fs", "agreement_fs"):
                if row[measure]["value"] is not None:
                    assert cell(row[measure]) in text
    assert f") {NONE_RIGHT}" in text
    assert f") {UNLABELLED}" in text
    assert "labels none (dino_small)" in text
    assert (
        "effective sigma, px at model resolution: gaussian_blur(sigma=2.5,kernel=5) 1.335" in text
    )


def test_without_labels_only_agreement_is_a_column() -> None:
    text = screen(ENVELOPES["unlabelled"])
    assert "accuracy — (1) · FS — (1)" in text
    assert f"(1) {UNLABELLED}" in text
    assert ".432 [.375, .489]" in text
    assert "FS = " not in text


@pytest.mark.parametrize("width", [80, 120])
def test_a_suite_has_severities_as_columns_and_a_named_mean(width: int) -> None:
    text = screen(ENVELOPES["suite"], width)
    rows = [line.split() for line in text.splitlines() if line.startswith("fog ")]
    assert [row[1:7] for row in rows][1] == [".110", ".220", ".330", ".440", ".550", ".330"]
    assert "mean of" in text
    assert ("[.047, .173]" in text) is (width == 120)
    assert ("95 % intervals are at most .126 wide" in text) is (width == 80)
    assert "mean of severities 1-5: undefined at 3 (no clean prediction is right)" in joined(text)


@pytest.mark.parametrize("name", ENVELOPES)
def test_the_table_holds_every_number_exactly(name: str) -> None:
    rows = iter(csv.DictReader(io.StringIO(fragility_csv(ENVELOPES[name]), newline="")))

    def same(row: dict[str, str], measure: str, found: Json) -> None:
        for key, column in (("value", measure), ("low", f"{measure}_low"),
                            ("high", f"{measure}_high")):  # fmt: skip
            assert (float(row[column]) if row[column] else None) == found[key]
        assert row[f"{measure}_reason"] == (found["reason"] or "")

    for found in ENVELOPES[name]["results"]:
        clean = next(rows)
        assert (clean["corruption"], clean["fs"], clean["agreement_fs"]) == ("clean", "", "")
        assert clean["fs_reason"] == "clean is the reference"
        same(clean, "accuracy", found["accuracy"])
        for wanted in found["corruptions"]:
            row = next(rows)
            assert row["corruption"] == wanted["corruption"]
            assert (row["images"], row["labelled"]) == ("250", str(found["labelled"]))
            assert row["correct"] == ("" if wanted["correct"] is None else str(wanted["correct"]))
            for measure in MEASURES:
                same(row, measure, wanted[measure])
    assert next(rows, None) is None


def test_failures_come_last_and_stand_alone() -> None:
    assert screen(SEVERAL).splitlines()[-1] == "failed  broken: weights do not match: head.bias"
    assert screen(wrap(failures=[BROKEN])) == "failed  broken: weights do not match: head.bias\n"
    assert fragility_figure(wrap(failures=[BROKEN])) == {}
    assert len(fragility_csv(wrap()).splitlines()) == 1


@pytest.mark.parametrize("copies", [1, 2])
def test_names_are_text_and_control_characters_escapes(copies: int) -> None:
    name = "[red]x[/red] $a_b$ <b>&\x1b\udc80"
    envelope = wrap(*[result(name)] * copies)
    shown = "[red]x[/red] $a_b$ <b>&\\x1b\\udc80"
    assert shown in screen(envelope)
    assert "\x1b" not in screen(envelope)
    assert shown in " ".join(texts(fragility_figure(envelope)["fragility.svg"]))
    assert shown in fragility_csv(envelope)


@pytest.mark.parametrize("name", ENVELOPES)
def test_other_encodings_get_ascii(name: str) -> None:
    file = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    Console(width=80, file=file, force_terminal=False).print(fragility_screen(ENVELOPES[name]))
    file.flush()
    assert max(map(len, file.buffer.getvalue().decode("ascii").splitlines())) <= 80  # type: ignore[attr-defined]


def test_the_figure_says_what_its_numbers_are() -> None:
    text = " ".join(texts(fragility_figure(SEVERAL)["fragility.svg"]))
    for fact in ("deit_small", "swin_tiny", JPEG, BLUR, "FS, 95 % interval", "seed 7",
                 "agreement fragility, 95 % interval", ".750 [.698, .802] (180 of 240)",
                 f"{NONE_RIGHT}: swin_tiny FS under {BLUR}", f"{UNLABELLED}: dino_small FS",
                 "failed: broken", f"{BLUR} 1.335", "2 WordNet ids"):  # fmt: skip
        assert fact in text


def test_maps_print_every_value_and_the_mean() -> None:
    envelope = ENVELOPES["suite"]
    found = texts(fragility_figure(envelope)["fragility.svg"])
    for row in envelope["results"][0]["corruptions"]:
        for measure in ("fs", "agreement_fs"):
            value = row[measure]["value"]
            assert (UNDEFINED if value is None else short(value)) in found
    assert found.count("mean") == 2
    assert found.count(UNDEFINED) == 2
    assert set(KINDS) <= set(found)
    assert "unweighted mean of severities 1-5" in " ".join(found)


def test_dots_stand_at_their_values() -> None:
    with style.context(["default", STYLE]):
        axes = draw_fragility(ONE["results"], []).axes
    for panel, measure in zip(axes, ("fs", "agreement_fs"), strict=True):
        dots = [line.get_xdata()[0] for line in panel.lines if line.get_marker() == "o"]
        assert dots == [row[measure]["value"] for row in ONE["results"][0]["corruptions"]]
        assert panel.get_xlim()[0] < min(dots)


def many(count: int, make: Callable[[str], Json]) -> list[Json]:
    names = ["deit_small", "timm:vit_large_patch14_clip_336.openai_ft_in12k_in1k",
             "/home/user/" + "checkpoints/" * 6 + "W" * 40 + ".safetensors"]  # fmt: skip
    return [make(f"{names[i % 3]}{i}") for i in range(count)]


@pytest.mark.parametrize("make", [result, suite, unlabelled])
@pytest.mark.parametrize("count", [1, 3, 8, 20])
def test_all_text_lies_inside_the_figure_and_none_overlaps(
    count: int, make: Callable[[str], Json]
) -> None:
    with style.context(["default", STYLE]):
        figure = draw_fragility(many(count, make), [{"model": "f" * 300, "error": ""}])
        canvas = FigureCanvasAgg(figure)
        canvas.draw()
        labels = list(figure.texts)
        for axes in figure.axes:
            labels += [*axes.texts, axes._left_title]
            low, high = axes.get_xlim()
            ticks = [t for t in axes.get_xticklabels() if low <= t.get_position()[0] <= high]
            labels += ticks if axes.axison else []
        boxes = [(t.get_text(), t.get_window_extent(canvas.get_renderer())) for t in labels]
    boxes = [(text, box) for text, box in boxes if text]
    for text, box in boxes:
        assert 0 <= box.x0 <= box.x1 <= figure.bbox.width, text
        assert 0 <= box.y0 <= box.y1 <= figure.bbox.height, text
    for (first, a), (second, b) in combinations(boxes, 2):
        apart = a.x1 <= b.x0 + 1 or b.x1 <= a.x0 + 1 or a.y1 <= b.y0 + 1 or b.y1 <= a.y0 + 1
        assert apart, f"{first!r} lies on {second!r}"


def test_png_is_an_image_of_the_same_shape() -> None:
    figure = fragility_figure(SEVERAL)
    with Image.open(io.BytesIO(figure["fragility.png"])) as image:
        assert image.info.get("Software") is None
        width, height = image.size
    box = ET.fromstring(figure["fragility.svg"]).attrib["viewBox"].split()
    assert width / height == pytest.approx(float(box[2]) / float(box[3]), rel=0.01)


SCRIPT = """
import hashlib, json, sys
from probe.report.chart import UNDEFINED
from probe.report.fragility import fragility_figure
figure = fragility_figure(json.load(sys.stdin))
heavy = [name for name in ("torch", "timm", "matplotlib.pyplot") if name in sys.modules]
print(json.dumps([heavy, {k: hashlib.sha256(v).hexdigest() for k, v in figure.items()}]))
"""


def test_bytes_are_the_same_in_every_process_and_under_any_settings() -> None:
    envelope = ENVELOPES["suites"]
    here = {k: hashlib.sha256(v).hexdigest() for k, v in fragility_figure(envelope).items()}
    with mpl.rc_context({"lines.linewidth": 9, "font.size": 20, "svg.fonttype": "path"}):
        own = {k: hashlib.sha256(v).hexdigest() for k, v in fragility_figure(envelope).items()}
    assert own == here
    run = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        input=json.dumps(envelope),
        env=os.environ | {"PYTHONHASHSEED": "4242", "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(run.stdout) == [[], here]


def test_suites_are_told_by_two_severities_or_more() -> None:
    given = ["fog(severity=2)", "fog(severity=1)", "snow(severity=3)", JPEG]
    assert by_severity(given) == {"fog": {1: "fog(severity=1)", 2: "fog(severity=2)"}}
    folded = fold({text: scalar(0.1 * i) for i, text in enumerate(given)})
    assert list(folded) == ["fog(mean of severities 1-2)", "snow(severity=3)", JPEG]
    assert folded["fog(mean of severities 1-2)"]["value"] == pytest.approx(0.05)


def test_a_mean_over_severities_has_no_interval_and_no_gap() -> None:
    mean = severity_mean({1: scalar(0.1), 3: scalar(0.4)})
    assert mean["value"] == pytest.approx(0.25)
    assert (mean["low"], mean["high"]) == (None, None)
    assert mean["reason"] == "mean of severities 1, 3, without interval"
    holed = severity_mean({1: scalar(0.1), 2: scalar(None, 0, NONE_RIGHT)})
    assert holed["value"] is None
    assert holed["reason"] == f"mean of severities 1-2: undefined at 2 ({NONE_RIGHT})"


def test_headings_break_before_and_between_parameters() -> None:
    assert heading(BLUR) == "gaussian_blur\n(sigma=2.5,\nkernel=5)"
