from __future__ import annotations

import csv
import hashlib
import io
import json
import math
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Callable, Sequence
from itertools import combinations
from typing import Any

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib import style
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex
from PIL import Image
from rich.cells import cell_len
from rich.console import Console

from probe.report.dose import regimes_text
from probe.report.dose_chart import dose_chart
from probe.report.scale import scale_csv, scale_figure, scale_screen
from probe.report.scale_plot import SHADES, draw_scale
from probe.report.sheet import STYLE

Json = dict[str, Any]
JPEG, BLUR = "jpeg(quality=5)", "gaussian_blur(sigma=2.5,kernel=5)"
ALPHAS = (1.0, 0.8, 0.5, 0.2, 0.0)
NO_SIGNAL = "the model has no positional signal, so there is nothing to scale"
TOO_HIGH = "alpha above 1 is outside what Swin V2's bias allows"
NONE_RIGHT = "no clean prediction is right"
RULE = (
    "stable: at least 0.8 of the value at alpha 1; collapsed: at most 0.1 of it; transition: else"
)
EXTENSION = "rotation angles are scaled, an extension of the paper's definition"


def scalar(value: float | None, half: float = 0.03, reason: str | None = None) -> Json:
    if value is None:
        return {"value": None, "low": None, "high": None, "reason": reason}
    return {"value": value, "low": value - half, "high": value + half, "reason": reason}


def row(alpha: float, corruptions: Sequence[str], reason: str | None = None) -> Json:
    def number(value: float, half: float) -> Json:
        return scalar(None if reason else value, half, reason)

    return {
        "alpha": alpha,
        "delta_ssdc_rpi": number(0.4567 * alpha**2 - 0.01, 0.031),
        "anchoring": number(0.2 + 0.311 * alpha, 0.012),
        "accuracy": number(0.6 + 0.1 * alpha, 0.053),
        "correct": None if reason else round(300 * (0.6 + 0.1 * alpha)),
        "fs": {
            text: number(0.6543 - 0.2 * alpha - 0.15 * i, 0.07)
            for i, text in enumerate(corruptions)
        },
        "reason": reason,
    }


def regimes(by_alpha: Json, knee: float | None, reason: str | None = None) -> Json:
    found = {"value": knee, "low": None, "high": None, "reason": reason}
    return {"by_alpha": by_alpha, "knee": found}


def result(
    model: str = "deit_small",
    *,
    corruptions: Sequence[str] = (JPEG,),
    reason: str | None = None,
    signals: Sequence[str] = ("absolute",),
    **changes: Any,
) -> Json:
    resolved = f"timm:{model}_patch16_224.fb_in1k"
    delta = regimes(
        {"1": "stable", "0.8": "transition", "0.5": "transition", "0.2": "collapsed",
         "0": "collapsed"},
        0.7123,
    )  # fmt: skip
    anchoring = regimes(
        {f"{alpha:g}": "stable" if alpha > 0.6 else "transition" for alpha in ALPHAS}, 0.3217
    )
    if reason:
        delta = anchoring = regimes({}, None, reason)
    return {
        "model": model,
        "resolved": resolved,
        "family": "timm_vit",
        "images": 0 if reason else 300,
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
            "rpi": [f"rpi(mode=image,seed=7,draw=0)+alpha={alpha:g}" for alpha in ALPHAS],
        },
        "labels": {
            "kind": "wnid",
            "map": {"n01440764": 0, "n01558993": 15},
            "note": "2 WordNet ids mapped to ImageNet-1k classes",
            "by_name": None,
        },
        "signals": list(signals),
        "extension": EXTENSION if "rotary" in signals else None,
        "alphas": [row(alpha, corruptions, reason) for alpha in ALPHAS],
        "regimes": {"rule": RULE, "delta_ssdc_rpi": delta, "anchoring": anchoring},
        "skipped": [],
        "notes": [],
    } | changes


def holed() -> Json:
    """One alpha that does not apply, one undefined FS, no anchoring, no knee."""
    found = result("swinv2_tiny", corruptions=(JPEG, BLUR), signals=("relative_bias",))
    found["alphas"].insert(0, row(1.5, (JPEG, BLUR), TOO_HIGH))
    found["alphas"][3]["fs"][JPEG] = scalar(None, 0, NONE_RIGHT)
    for entry in found["alphas"]:
        entry["anchoring"] = scalar(None, 0, "not measured")
    flat = "the curve does not fall below half its value at alpha 1"
    found["regimes"]["anchoring"] = regimes({}, None, "not measured")
    found["regimes"]["delta_ssdc_rpi"]["knee"] = scalar(None, 0, flat)
    return found


def delta_alone() -> Json:
    found = result(corruptions=(), labels=None)
    for entry in found["alphas"]:
        entry["accuracy"] = entry["anchoring"] = scalar(None, 0, "not measured")
        entry["correct"] = None
    return found


def suite() -> Json:
    return result(corruptions=[f"fog(severity={s})" for s in range(1, 4)])


def wrap(*results: Json, failures: Sequence[Json] = ()) -> Json:
    return {"schema": 1, "results": list(results), "failures": list(failures)}


BROKEN = {"model": "broken", "error": "weights do not match:\nhead.bias"}
WITHOUT = result("cnn_like", reason=NO_SIGNAL, signals=())
ENVELOPES = {
    "one": wrap(result(notes=["the head was dropped"], skipped=[["b.jpg", "truncated file"]])),
    "holed": wrap(holed()),
    "delta": wrap(delta_alone()),
    "suite": wrap(suite()),
    "without": wrap(WITHOUT),
    "several": wrap(
        result(), result("rope_small", signals=("rotary",)), WITHOUT, holed(), failures=[BROKEN]
    ),
}
MEASURES = ("delta_ssdc_rpi", "anchoring", "accuracy")


def screen(envelope: Json, width: int = 120) -> str:
    file = io.StringIO()
    Console(width=width, file=file, force_terminal=False).print(scale_screen(envelope))
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
    golden(f"scale_{name}_{width}.txt", text)


def test_golden_table(golden: Callable[[str, str], None]) -> None:
    golden("scale_several.csv", scale_csv(ENVELOPES["several"]))


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("name", ["one", "holed"])
def test_every_number_of_one_model_is_shown(name: str, width: int) -> None:
    text = screen(ENVELOPES[name], width)
    found = ENVELOPES[name]["results"][0]
    by_alpha = found["regimes"]["delta_ssdc_rpi"]["by_alpha"]
    for entry in found["alphas"]:
        alpha = f"{entry['alpha']:g}"
        lines = " ".join(line for line in text.splitlines() if line.split(" ")[0] == alpha)
        scalars = [entry[measure] for measure in MEASURES] + list(entry["fs"].values())
        for one in scalars:
            if one["value"] is not None:
                assert cell(one) in lines
            elif one["reason"] != "not measured":
                assert "— (" in lines
                assert f") {one['reason']}" in joined(text)
        assert by_alpha.get(alpha, "") in lines
        assert entry["correct"] is None or str(entry["correct"]) in lines
    for fact in ("images 300", "RPI image, 1 draw", f"regimes: {RULE}", "paired bootstrap",
                 f"scaled {found['signals'][0]}", "2 classes mapped"):  # fmt: skip
        assert fact in joined(text)


def test_the_knees_are_told_or_why_there_is_none() -> None:
    assert "knee of delta SSDC  alpha .712" in screen(ENVELOPES["one"])
    assert "knee of anchoring   alpha .322" in screen(ENVELOPES["one"])
    text = screen(ENVELOPES["holed"])
    mark = re.search(r"knee of delta SSDC  — (\(\d\))", text)
    assert mark is not None
    assert f"{mark[1]} the curve does not fall below half its value at alpha 1" in joined(text)


def test_what_was_not_measured_is_a_line_and_no_column() -> None:
    text = screen(ENVELOPES["delta"])
    assert "anchoring — (1) · accuracy — (1)" in text
    assert "(1) not measured" in text
    assert "labels none" in text


@pytest.mark.parametrize("width", [80, 120])
def test_a_model_without_signal_says_so_and_shows_no_table(width: int) -> None:
    text = joined(screen(ENVELOPES["without"], width))
    assert f"not applicable: {NO_SIGNAL}" in text
    assert "scaled nothing" in text
    assert "alpha " not in text
    assert scale_figure(ENVELOPES["without"]) == {}


@pytest.mark.parametrize("width", [80, 120])
def test_every_number_of_several_models_is_shown(width: int) -> None:
    text = joined(screen(ENVELOPES["several"], width))
    for found in ENVELOPES["several"]["results"]:
        for entry in found["alphas"]:
            for one in [entry[m] for m in MEASURES] + list(entry["fs"].values()):
                assert one["value"] is None or cell(one) in text
    for fact in (f"not applicable cnn_like: {NO_SIGNAL}", f"rope_small: {EXTENSION}",
                 "deit_small: delta SSDC stable 1, transition 0.8 to 0.5, collapsed 0.2 to 0",
                 f") {TOO_HIGH}", f") {NONE_RIGHT}"):  # fmt: skip
        assert fact in text
    assert "differs" not in text


def test_the_extension_is_said() -> None:
    text = screen(wrap(result(signals=("absolute", "rotary"))))
    assert "scaled absolute, rotary" in text
    assert f"extension: {EXTENSION}" in text
    figure = scale_figure(ENVELOPES["several"])["scale.svg"]
    assert EXTENSION in texts(figure)


@pytest.mark.parametrize("name", ENVELOPES)
def test_the_table_holds_every_number_exactly(name: str) -> None:
    rows = iter(csv.DictReader(io.StringIO(scale_csv(ENVELOPES[name]), newline="")))
    for found in ENVELOPES[name]["results"]:
        for entry in found["alphas"]:
            line = next(rows)
            assert (line["model"], float(line["alpha"])) == (found["model"], entry["alpha"])
            assert line["signals"].split() == found["signals"]
            assert line["correct"] == ("" if entry["correct"] is None else str(entry["correct"]))
            scalars = {measure: entry[measure] for measure in MEASURES}
            scalars |= {f"fs_{text}": one for text, one in entry["fs"].items()}
            for column, one in scalars.items():
                for key, end in (("value", ""), ("low", "_low"), ("high", "_high")):
                    text = line[column + end]
                    assert (float(text) if text else None) == one[key]
                assert line[f"{column}_reason"] == (one["reason"] or "")
            for curve in ("delta_ssdc_rpi", "anchoring"):
                own = found["regimes"][curve]
                assert line[f"{curve}_regime"] == own["by_alpha"].get(f"{entry['alpha']:g}", "")
                knee = line[f"{curve}_knee"]
                assert (float(knee) if knee else None) == own["knee"]["value"]
    assert next(rows, None) is None


def test_failures_come_last_and_stand_alone() -> None:
    last = "failed  broken: weights do not match: head.bias"
    assert screen(ENVELOPES["several"]).splitlines()[-1] == last
    assert screen(wrap(failures=[BROKEN])) == f"{last}\n"
    assert scale_figure(wrap(failures=[BROKEN])) == {}
    assert len(scale_csv(wrap()).splitlines()) == 1


@pytest.mark.parametrize("copies", [1, 2])
def test_names_are_text_and_control_characters_escapes(copies: int) -> None:
    name = "[red]x[/red] $a$\x1b\udc80"
    envelope = wrap(*[result(name)] * copies)
    shown = "[red]x[/red] $a$\\x1b\\udc80"
    assert shown in screen(envelope)
    assert "\x1b" not in screen(envelope)
    assert shown in texts(scale_figure(envelope)["scale.svg"])
    assert shown in scale_csv(envelope)


@pytest.mark.parametrize("name", ENVELOPES)
def test_other_encodings_get_ascii(name: str) -> None:
    file = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    Console(width=80, file=file, force_terminal=False).print(scale_screen(ENVELOPES[name]))
    file.flush()
    assert max(map(len, file.buffer.getvalue().decode("ascii").splitlines())) <= 80  # type: ignore[attr-defined]


def test_points_of_the_chart_stand_at_alpha_and_value() -> None:
    lines = dose_chart([1.0, 0.5, 0.0], [0.5, 0.25, None], {"FS a": [0.0, 0.25, 1.0]}, 0.75, 80)
    at = {(y, x): c for y, line in enumerate(lines[:13]) for x, c in enumerate(line) if c in "●a*"}
    assert at == {(6, 6): "●", (12, 6): "a", (9, 12): "*", (0, 18): "a"}
    assert all(line[9] == "┊" for line in lines[:13])
    assert lines[14].split() == ["1", "0.5", "0"]
    assert lines[15].strip() == "alpha  ● delta SSDC  a FS a  * several  ┊ knee of delta SSDC"


@pytest.mark.parametrize("alphas", [[1.0], [0.5, 0.5], [2.0, 1.0], [i / 100 for i in range(101)]])
@pytest.mark.parametrize("width", [40, 80])
def test_charts_stay_within_the_width(alphas: list[float], width: int) -> None:
    lines = dose_chart(alphas, [-0.3] * len(alphas), {"FS x": [1.2] * len(alphas)}, None, width)
    assert max(map(len, lines)) <= width
    assert sum(line.count("●") for line in lines[:-2]) >= 1


def test_the_figure_holds_the_values_and_marks_regimes_and_knee() -> None:
    entry = holed() | {"regimes": result()["regimes"]}
    with style.context(["default", STYLE]):
        delta, fs = draw_scale([entry], []).axes
    assert delta.get_xlim() == fs.get_xlim()
    assert delta.get_xlim()[0] > delta.get_xlim()[1]
    alphas = [1.5, *ALPHAS]
    for axes, count in ((delta, 1), (fs, 2)):
        curves = [line for line in axes.lines if len(line.get_xdata()) == len(alphas)]
        assert len(curves) == count
        np.testing.assert_array_equal(curves[0].get_xdata(), alphas)
        assert [line.get_xdata()[0] for line in axes.lines if line.get_linestyle() == "--"] == [
            0.7123
        ]
        shades = [to_hex(patch.get_facecolor()) for patch in axes.patches]
        expected = ["stable", "transition", "collapsed"]
        assert shades == [to_hex(SHADES[regime]) for regime in expected]
        starts = [patch.get_x() for patch in axes.patches]
        assert starts == pytest.approx([1.25, 0.9, 0.35])
    jpeg = next(line for line in fs.lines if len(line.get_xdata()) == len(alphas)).get_ydata()
    values = [one["fs"][JPEG]["value"] for one in entry["alphas"]]
    np.testing.assert_array_equal(jpeg, [math.nan if v is None else v for v in values])
    crosses = [list(line.get_xdata()) for line in fs.lines if line.get_marker() == "x"]
    assert crosses == [[1.5, 0.5], [1.5]]


def test_the_figure_says_what_its_numbers_are() -> None:
    text = " ".join(texts(scale_figure(ENVELOPES["several"])["scale.svg"]))
    for fact in ("delta SSDC", f"FS {JPEG}", "stable", "collapsed", "knee", "seed 7",
                 "scaled: rotary (angles, an extension)", "deit_small .712",
                 f"not applicable: cnn_like: {NO_SIGNAL}", "failed: broken",
                 f"{NONE_RIGHT}: swinv2_tiny FS {JPEG} at alpha 0.5",
                 f"{TOO_HIGH}: swinv2_tiny delta SSDC at alpha 1.5"):  # fmt: skip
        assert fact in text
    alone = texts(scale_figure(ENVELOPES["delta"])["scale.svg"])
    assert "FS" not in alone
    assert "alpha" in alone


def many(count: int, make: Callable[[str], Json]) -> list[Json]:
    names = ["deit_small", "timm:vit_large_patch14_clip_336.openai_ft_in12k_in1k",
             "/home/user/" + "checkpoints/" * 6 + "W" * 40 + ".safetensors"]  # fmt: skip
    return [make(f"{names[i % 3]}{i}") for i in range(count)]


def fine(model: str) -> Json:
    """Many alphas and corruptions."""
    texts = [f"jpeg(quality={q})" for q in range(1, 11)]
    found = result(model, corruptions=texts, signals=("absolute", "rotary"))
    found["alphas"] = [row(i / 20, texts) for i in range(40, -1, -1)]
    return found


@pytest.mark.parametrize("make", [result, fine])
@pytest.mark.parametrize("count", [1, 2, 3, 8, 20])
def test_all_text_lies_inside_the_figure_and_none_overlaps(
    count: int, make: Callable[[str], Json]
) -> None:
    with style.context(["default", STYLE]):
        figure = draw_scale([*many(count, make), WITHOUT], [{"model": "f" * 300, "error": ""}])
        canvas = FigureCanvasAgg(figure)
        canvas.draw()
        labels = [*figure.texts, *(t for legend in figure.legends for t in legend.get_texts())]
        for axes in figure.axes:
            labels += [axes.xaxis.label, axes.yaxis.label]
            for axis, bounds in ((axes.xaxis, axes.get_xlim()), (axes.yaxis, axes.get_ylim())):
                low, high = sorted(bounds)
                ticks = [t for t in axis.get_major_ticks() if low <= t.get_loc() <= high]
                labels += [t.label1 for t in ticks if t.label1.get_visible()]
        boxes = [(t.get_text(), t.get_window_extent(canvas.get_renderer())) for t in labels]
    boxes = [(text, box) for text, box in boxes if text]
    for text, box in boxes:
        assert 0 <= box.x0 <= box.x1 <= figure.bbox.width, text
        assert 0 <= box.y0 <= box.y1 <= figure.bbox.height, text
    for (first, a), (second, b) in combinations(boxes, 2):
        apart = a.x1 <= b.x0 + 1 or b.x1 <= a.x0 + 1 or a.y1 <= b.y0 + 1 or b.y1 <= a.y0 + 1
        assert apart, f"{first!r} lies on {second!r}"


def test_png_is_an_image_of_the_same_shape() -> None:
    figure = scale_figure(ENVELOPES["several"])
    with Image.open(io.BytesIO(figure["scale.png"])) as image:
        assert image.info.get("Software") is None
        width, height = image.size
    box = ET.fromstring(figure["scale.svg"]).attrib["viewBox"].split()
    assert width / height == pytest.approx(float(box[2]) / float(box[3]), rel=0.01)


SCRIPT = """
import hashlib, json, sys
from probe.report.scale import scale_figure
figure = scale_figure(json.load(sys.stdin))
heavy = [name for name in ("torch", "timm", "matplotlib.pyplot") if name in sys.modules]
print(json.dumps([heavy, {k: hashlib.sha256(v).hexdigest() for k, v in figure.items()}]))
"""


def test_bytes_are_the_same_in_every_process_and_under_any_settings() -> None:
    envelope = ENVELOPES["several"]
    here = {k: hashlib.sha256(v).hexdigest() for k, v in scale_figure(envelope).items()}
    with mpl.rc_context({"lines.linewidth": 9, "font.size": 20, "svg.fonttype": "path"}):
        own = {k: hashlib.sha256(v).hexdigest() for k, v in scale_figure(envelope).items()}
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


def test_regimes_are_runs_of_falling_alphas() -> None:
    found = {"0": "collapsed", "1": "stable", "0.5": "transition", "0.9": "stable"}
    given = {"regimes": {"anchoring": regimes(found, None)}}
    expected = "stable 1 to 0.9, transition 0.5, collapsed 0"
    assert regimes_text(given, "anchoring") == expected
