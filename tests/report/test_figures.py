from __future__ import annotations

import hashlib
import io
import json
import math
import os
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Callable
from itertools import combinations
from typing import Any

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib import style
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image

from probe.report.figures import draw_figure, ssdc_figure
from probe.report.panel import draw_panel
from probe.report.sheet import STYLE
from probe.report.typeset import text_width, wrap_parts
from probe.report.typeset import wrap as wrap_text

Json = dict[str, Any]
Make = Callable[..., Json]
SWIN = ((56, 56), (28, 28), (14, 14), (7, 7))


def texts(svg: bytes) -> list[str]:
    root = ET.fromstring(svg)
    return [node.text or "" for node in root.iter("{http://www.w3.org/2000/svg}text")]


def test_svg_names_models_as_text_and_says_where_numbers_come_from(several: Json) -> None:
    found = texts(ssdc_figure(several)["ssdc.svg"])
    for entry in several["results"]:
        assert entry["model"] in found
        assert entry["resolved"] in found
    text = " ".join(found)
    for fact in ("site attn_in", "distance l1", "average similarity", "seed 7", "float32 on cpu",
                 "photos (fingerprint 9c1b2d3e4f5a)", "image, 1 draw", "probe 0.1.0",
                 "not finite: vit_base RPI at layer 5, 6", "no interval from one image: tiny",
                 "failed: broken", "56x56", "under RPI, 95 % interval", "null band under RPI",
                 "undefined"):  # fmt: skip
        assert fact in text


def test_markup_in_names_stays_text(make: Make, wrap: Make) -> None:
    name = "a<b>&$x_1^2$\\frac"
    figure = ssdc_figure(wrap(make(name, "file:/tmp/<y>&$z_0$")))
    assert b"a&lt;b&gt;&amp;$x_1^2$\\frac" in figure["ssdc.svg"]
    assert name in texts(figure["ssdc.svg"])
    assert "file:/tmp/<y>&$z_0$" in texts(figure["ssdc.svg"])


def test_characters_that_xml_forbids_are_escaped(make: Make, wrap: Make) -> None:
    assert "a\\x00\\x1b\\udc80" in texts(ssdc_figure(wrap(make("a\x00\x1b\udc80")))["ssdc.svg"])


def test_png_is_an_image_of_the_same_shape(several: Json) -> None:
    figure = ssdc_figure(several)
    with Image.open(io.BytesIO(figure["ssdc.png"])) as image:
        image.load()
        assert image.info.get("Software") is None
        width, height = image.size
    box = ET.fromstring(figure["ssdc.svg"]).attrib["viewBox"].split()
    assert width / height == pytest.approx(float(box[2]) / float(box[3]), rel=0.01)


def test_no_results_give_no_figure(wrap: Make) -> None:
    assert ssdc_figure(wrap(failures=[{"model": "a", "error": "b"}])) == {}


SCRIPT = """
import hashlib, json, sys
from probe.report.figures import ssdc_figure
from probe.report.tables import layers_csv
from probe.report.terminal import ssdc_screen
figure = ssdc_figure(json.load(sys.stdin))
heavy = [name for name in ("torch", "timm", "matplotlib.pyplot") if name in sys.modules]
print(json.dumps([heavy, {k: hashlib.sha256(v).hexdigest() for k, v in figure.items()}]))
"""


def test_bytes_are_the_same_in_every_process_and_nothing_heavy_is_imported(several: Json) -> None:
    here = {k: hashlib.sha256(v).hexdigest() for k, v in ssdc_figure(several).items()}
    assert here == {k: hashlib.sha256(v).hexdigest() for k, v in ssdc_figure(several).items()}
    for seed in ("1", "4242"):
        run = subprocess.run(
            [sys.executable, "-c", SCRIPT],
            input=json.dumps(several),
            env=os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
        )
        assert json.loads(run.stdout) == [[], here]
        assert run.stderr == ""


def test_the_users_matplotlib_settings_neither_matter_nor_change(several: Json) -> None:
    expected = ssdc_figure(several)
    own = {"lines.linewidth": 9, "font.size": 20, "svg.hashsalt": "own", "svg.fonttype": "path"}
    with mpl.rc_context(own):
        before = dict(mpl.rcParams)
        assert ssdc_figure(several) == expected
        assert dict(mpl.rcParams) == before


def many(make: Make, count: int) -> list[Json]:
    long = "timm:vit_large_patch14_clip_336.openai_ft_in12k_in1k"
    shapes = [
        {"layers": 12},
        {"layers": 12, "grids": SWIN},
        {"layers": 4, "grids": SWIN},  # one layer per grid
        {"layers": 40, "fall": 0.02},
        {"layers": 1},
        {"layers": 24, "undefined": (2, 23)},
    ]
    names = ["deit_small", long, "/home/user/" + "checkpoints/" * 9 + "W" * 60 + ".safetensors"]
    return [make(names[i % 3], f"hf:{i}/" + "x" * (i * 9), **shapes[i % 6]) for i in range(count)]


@pytest.mark.parametrize("count", [1, 2, 3, 4, 8, 20])
def test_all_text_lies_inside_the_figure_and_none_overlaps(count: int, make: Make) -> None:
    with style.context(["default", STYLE]):
        figure = draw_figure(many(make, count), [{"model": "f" * 300, "error": ""}])
        canvas = FigureCanvasAgg(figure)
        canvas.draw()
        renderer = canvas.get_renderer()
        labels = [*figure.texts, *figure.legends[0].get_texts()]
        for axes in figure.axes:
            labels += [*axes.texts, axes.xaxis.label, axes.yaxis.label]
            labels += [tick for tick in axes.get_xticklabels() if tick.get_text()]
        boxes = [(label.get_text(), label.get_window_extent(renderer)) for label in labels]
    boxes = [(text, box) for text, box in boxes if text]
    for text, box in boxes:
        assert box.x0 >= 0, text
        assert box.x1 <= figure.bbox.width, text
        assert box.y0 >= 0, text
        assert box.y1 <= figure.bbox.height, text
    for (first, a), (second, b) in combinations(boxes, 2):
        apart = a.x1 <= b.x0 + 1 or b.x1 <= a.x0 + 1 or a.y1 <= b.y0 + 1 or b.y1 <= a.y0 + 1
        assert apart, f"{first!r} lies on {second!r}"


def test_panels_share_the_scale_and_hold_the_values(make: Make, wrap: Make) -> None:
    entry = make(undefined=(3,), fall=0.1)
    figure = draw_figure([entry, make(fall=0.0)], [])
    first, second = figure.axes
    assert first.get_ylim() == second.get_ylim()
    lowest = min(layer["rpi"]["low"] for layer in entry["layers"] if layer["rpi"]["value"])
    assert first.get_ylim()[0] < lowest
    assert first.get_ylim()[1] > 1
    for kind, color in (("clean", "#0072B2"), ("rpi", "#D55E00")):
        line = next(
            line
            for line in first.lines
            if line.get_color() == color and line.get_linestyle() == "-"
        )
        expected = [layer[kind]["value"] for layer in entry["layers"]]
        expected = [math.nan if value is None else value for value in expected]
        np.testing.assert_array_equal(line.get_ydata(), expected)
        np.testing.assert_array_equal(line.get_xdata(), range(12))
    crosses = [line for line in first.lines if line.get_marker() == "x" and len(line.get_xdata())]
    assert [list(line.get_xdata()) for line in crosses] == [[3]]


def test_grids_and_integer_layers_are_labelled(make: Make) -> None:
    axes = Figure().add_axes((0, 0, 1, 1))
    draw_panel(axes, make(layers=12, grids=SWIN), (-0.1, 1), 3.0)
    assert [text.get_text() for text in axes.texts] == ["56x56", "28x28", "14x14", "7x7"]
    upright = [list(line.get_xdata()) for line in axes.lines if line.get_linestyle() == "--"]
    assert upright == [[2.5, 2.5], [5.5, 5.5], [8.5, 8.5]]
    assert all(float(tick).is_integer() for tick in axes.get_xticks())


def test_rpi_off_draws_one_curve_and_its_own_band(make: Make, wrap: Make) -> None:
    found = texts(ssdc_figure(wrap(make(draws=0)))["ssdc.svg"])
    assert "clean, 95 % interval" in found
    assert "null band" in found
    assert not [text for text in found if "under RPI" in text]
    assert "RPI off" in " ".join(found)


def test_wrapping_keeps_every_character_and_the_width() -> None:
    text = "/a/long-path/" + "W" * 80 + "/vit_base_patch16_224.augreg"
    lines = wrap_text(text, 9, 2.0, bold=True)
    assert "".join(lines) == text
    assert max(text_width(line, 9, bold=True) for line in lines) <= 2.0
    assert wrap_text("short", 9, 2.0) == ["short"]
    assert wrap_parts(["one two", "three"], " · ", 9, 0.7) == ["one two", "three"]
