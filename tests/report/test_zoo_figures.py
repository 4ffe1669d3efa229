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

import numpy as np
import pytest
from matplotlib import style
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image

from probe.report.sheet import STYLE
from probe.report.zoo_alpha import draw_alpha
from probe.report.zoo_depth import draw_depth
from probe.report.zoo_facts import figure_names, scatters
from probe.report.zoo_figures import figures
from probe.report.zoo_labels import Box, place_labels
from probe.report.zoo_markdown import report_markdown
from probe.report.zoo_scatter import correlation_text, draw_scatter
from probe.report.zoo_tables import layers_csv, records_parquet, summary_csv
from tests.report.zoo_reports import correlation, model, report, rich, zoo

Json = dict[str, Any]
LONG = "/home/user/" + "checkpoints/" * 5 + "W" * 60 + ".safetensors"


def texts(svg: bytes) -> list[str]:
    root = ET.fromstring(svg)
    return [node.text or "" for node in root.iter("{http://www.w3.org/2000/svg}text")]


def first_scatter(content: Json) -> Figure:
    return draw_scatter(content, scatters(content)[0])


DRAWN: dict[str, Callable[[Json], Figure]] = {
    "depth": draw_depth,
    "alpha": draw_alpha,
    "scatter": first_scatter,
}


def odd(count: int) -> Json:
    """Models of all kinds, some with very long names, a failure with one too."""
    names = {0: None, 1: LONG, 2: "timm:vit_large_patch14_clip_336.openai_ft_in12k_in1k"}
    content = report(
        *(
            model(i, f"{names[i % 3]}{i}" if names[i % 3] else None, undefined=(1,) * (i == 4))
            for i in range(count)
        ),
        failures=[{"model": "f" * 200, "error": "e"}],
    )
    if count > 2:
        content["models"][-1]["layers"] = content["models"][-1]["layers"][:1]
    return content


def test_the_files_and_what_they_say() -> None:
    content = rich()
    made = figures(content)
    names = [
        "depth",
        "scatter_fs_jpeg_q5",
        "scatter_fs_gaussian_blur_s2.5_k5",
        "scatter_fs_true_gaussian_blur_s2.5",
        "alpha",
    ]
    assert figure_names(content) == names
    assert set(made) == {f"figures/{name}.{kind}" for name in names for kind in ("svg", "png")}
    depth = " ".join(texts(made["figures/depth.svg"]))
    for wanted in (
        "deit_small",
        "<b>a|b</b> `x` *y*",
        "anchoring .513 [.501, .525]",
        "anchoring undefined",
        "anchoring† .231",
        "relative_bias, 56x56 to 7x7",
        "null band under RPI",
        "undefined",
        "photos (fingerprint blake2b:9c1b2d3e4f5a)",
        "RPI image, 1 draw",
        "not finite: no labels (RPI)",
        "failed: gone",
    ):
        assert wanted in depth, wanted
    alpha = " ".join(texts(made["figures/alpha.svg"]))
    assert "not scaled: digits_none_s0: the model has no positional signal" in alpha
    assert "an extension of the paper's definition: no labels" in alpha
    scatter = " ".join(texts(made["figures/scatter_fs_jpeg_q5.svg"]))
    for wanted in (
        "FS under jpeg(quality=5) against anchoring",
        "Spearman rho -.710 [-.920, -.310], permutation p <.001",
        "not a controlled comparison: pretraining differs",
        "swin_tiny †",
        "not shown, SSDC under RPI is undefined at layer 3: no labels",
    ):
        assert wanted in scatter, wanted


@pytest.mark.parametrize("kind", DRAWN)
@pytest.mark.parametrize("count", [1, 2, 5, 20, 60])
def test_all_text_lies_inside_the_figure_and_none_overlaps(kind: str, count: int) -> None:
    with style.context(["default", STYLE]):
        figure = DRAWN[kind](odd(count) if count < 60 else zoo(count))
        canvas = FigureCanvasAgg(figure)
        canvas.draw()
        renderer = canvas.get_renderer()
        labels = [*figure.texts]
        labels += [text for legend in figure.legends for text in legend.get_texts()]
        for axes in figure.axes:
            if axes.axison:
                ticks = [*axes.get_xticklabels(), *axes.get_yticklabels()]
                labels += [axes.xaxis.label, axes.yaxis.label, *axes.texts, *ticks]
        boxes = [(label.get_text(), label.get_window_extent(renderer)) for label in labels]
    boxes = [(text, box) for text, box in boxes if text]
    assert len(boxes) > count
    for text, box in boxes:
        assert box.x0 >= 0, text
        assert box.x1 <= figure.bbox.width, text
        assert box.y0 >= 0, text
        assert box.y1 <= figure.bbox.height, text
    for (first, a), (second, b) in combinations(boxes, 2):
        apart = a.x1 <= b.x0 + 1 or b.x1 <= a.x0 + 1 or a.y1 <= b.y0 + 1 or b.y1 <= a.y0 + 1
        assert apart, f"{first!r} lies on {second!r}"


@pytest.mark.parametrize("count", [1, 5, 20, 60])
def test_every_model_is_named_in_every_figure_that_shows_it(count: int) -> None:
    content = zoo(count)
    made = {kind: draw(content) for kind, draw in DRAWN.items()}
    for kind, figure in made.items():
        found = "".join(t.get_text() for t in (*figure.texts, *figure.axes[0].texts))
        for entry in content["models"]:
            if kind != "alpha" or entry["position"] not in ("none", "convolutional"):
                # long names are broken into lines, after an underscore
                assert entry["model"] in found, kind


def test_a_crowded_scatter_has_numbers_and_a_key() -> None:
    figure = first_scatter(zoo(60))
    labels = [text.get_text() for text in figure.axes[0].texts]
    assert sorted(map(int, labels)) == list(range(1, 61))
    key = [text.get_text() for text in figure.texts]
    assert {"1", "60", "deit_small", "beit_base_59"} <= set(key)
    assert [text.get_text() for text in first_scatter(zoo(3)).axes[0].texts] == [
        "deit_small",
        "vit_base_rope",
        "swin_tiny †",
    ]


def test_the_curves_hold_the_values() -> None:
    content = report(model(0, undefined=(3,)), model(1, depth=2))
    figure = draw_depth(content)
    (axes,) = figure.axes
    lines = {line.get_color(): line for line in axes.lines if line.get_marker() != "x"}
    # back from inches to data: both panels share the scale
    for kind, color in (("clean", "#0072B2"), ("rpi", "#D55E00")):
        drawn = np.array(lines[color].get_ydata(), dtype=float)
        values = [
            math.nan if layer[kind]["value"] is None else layer[kind]["value"]
            for entry in content["models"]
            for layer in [*entry["layers"], {kind: {"value": None}}]
        ]
        np.testing.assert_array_equal(np.isnan(drawn), np.isnan(values))
        found = ~np.isnan(drawn)
        # two models in one row: one affine map takes all values to inches
        slope, start = np.polyfit(np.array(values)[found], drawn[found], 1)
        np.testing.assert_allclose(drawn[found], slope * np.array(values)[found] + start, atol=1e-9)
        assert slope > 0
    crosses = [line for line in axes.lines if line.get_marker() == "x"]
    assert [len(line.get_xdata()) for line in crosses] == [1]


def test_a_scatter_holds_points_and_intervals() -> None:
    content = zoo(2)
    axes = first_scatter(content).axes[0]
    points = {(line.get_xdata()[0], line.get_ydata()[0]) for line in axes.lines[2:]}
    wanted = {
        (entry["anchoring"]["value"], entry["corruptions"][0]["fs"]["value"])
        for entry in content["models"]
    }
    assert points == wanted
    bars = [path.vertices.tolist() for c in axes.collections for path in c.get_paths()]
    one = content["models"][0]
    x, y = one["anchoring"], one["corruptions"][0]["fs"]
    assert [[x["low"], y["value"]], [x["high"], y["value"]]] in bars
    assert [[x["value"], y["low"]], [x["value"], y["high"]]] in bars


def test_agreement_stands_in_where_there_are_no_labels() -> None:
    content = report(model(0, labelled=False), model(1, labelled=False))
    assert scatters(content)[0].name == "scatter_agreement_jpeg_q5"
    axes = first_scatter(content).axes[0]
    assert axes.get_ylabel() == "agreement fragility"


def test_suites_are_means_over_their_severities() -> None:
    content = zoo(2)
    for entry in content["models"]:
        own = entry["corruptions"][0]
        entry["corruptions"] = [
            own | {"corruption": f"fog(severity={s})", "column": f"fog_{s}"} for s in (1, 2)
        ]
    (only,) = scatters(content)
    assert (only.name, only.label) == ("scatter_fs_fog_mean", "fog(mean of severities 1-2)")


def test_what_was_not_measured_is_not_drawn() -> None:
    bare = model(0, alphas=(), corruptions=())
    bare["layers"] = []
    assert figures(report(bare)) == {}
    assert figures(report(failures=[{"model": "a", "error": "b"}])) == {}
    still = report(model(3), model(5))  # no signal, and one of convolutions
    assert figure_names(still)[-1] != "alpha"
    only_whole = report(model(0, alphas=(1.0,)))
    assert figure_names(only_whole)[-1] != "alpha"


def test_layers_that_were_not_measured_leave_their_model_out_of_the_depth_figure() -> None:
    bare = model(1)
    bare["layers"] = []
    names = [text.get_text() for text in draw_depth(report(model(0), bare)).texts]
    assert "deit_small" in names
    assert "vit_base_rope" not in names


def test_png_and_svg_have_one_shape_and_no_date() -> None:
    made = figures(report(model(3, corruptions=())))
    with Image.open(io.BytesIO(made["figures/depth.png"])) as image:
        image.load()
        assert image.info.get("Software") is None
        width, height = image.size
    assert b"<dc:date>" not in made["figures/depth.svg"]
    box = ET.fromstring(made["figures/depth.svg"]).attrib["viewBox"].split()
    assert width / height == pytest.approx(float(box[2]) / float(box[3]), rel=0.01)


SCRIPT = """
import hashlib, json, sys
from probe.report.zoo_figures import figures
from probe.report.zoo_markdown import report_markdown
from probe.report.zoo_tables import layers_csv, records_parquet, summary_csv
content = json.load(sys.stdin)
files = figures(content)
for made in (report_markdown, layers_csv, summary_csv):
    files[made.__name__] = made(content).encode()
files["parquet"] = records_parquet(content)
heavy = [name for name in ("torch", "timm", "matplotlib.pyplot") if name in sys.modules]
print(json.dumps([heavy, {k: hashlib.sha256(v).hexdigest() for k, v in files.items()}]))
"""


def test_bytes_are_the_same_in_every_process_and_nothing_heavy_is_imported() -> None:
    content = rich()
    for entry in content["models"]:
        entry["corruptions"] = entry["corruptions"][:1]
    made = figures(content) | {
        "report_markdown": report_markdown(content).encode(),
        "layers_csv": layers_csv(content).encode(),
        "summary_csv": summary_csv(content).encode(),
        "parquet": records_parquet(content),
    }
    assert figures(content).items() <= made.items()
    run = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        input=json.dumps(content),
        env=os.environ | {"PYTHONHASHSEED": "4242", "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
    )
    heavy, found = json.loads(run.stdout)
    assert heavy == []
    assert run.stderr == ""
    assert found == {name: hashlib.sha256(own).hexdigest() for name, own in made.items()}


def test_sixty_models_stay_small() -> None:
    sizes = {name: len(content) for name, content in figures(zoo(60)).items()}
    assert max(sizes.values()) < 1_500_000
    assert sum(sizes.values()) < 5_000_000


def test_labels_keep_off_points_and_each_other() -> None:
    rng = np.random.default_rng(3)
    points = [(float(x), float(y)) for x, y in rng.uniform(0.5, 3.5, (40, 2))]
    area = Box(0, 0, 4, 4)
    placed = place_labels(points, [(0.15, 0.1)] * 40, area, 1.6)
    assert None not in placed
    boxes = [label.box for label in placed if label is not None]
    assert not [1 for a, b in combinations(boxes, 2) if a.meets(b)]
    for box in boxes:
        assert box.inside(area)
        assert not any(box.left < x < box.right and box.bottom < y < box.top for x, y in points)
    assert place_labels(points, [(0.15, 0.1)] * 40, area, 1.6) == placed
    # two models with the same numbers: a label on either side, above the bars
    right, left = place_labels([(2.0, 2.0)] * 2, [(0.8, 0.1)] * 2, area, 0.1)
    assert right is not None
    assert left is not None
    assert right.box.left > 2 > left.box.right
    assert min(right.box.bottom, left.box.bottom) > 2
    # 30 labels at one place cannot all stand within a tenth of an inch
    crowded = place_labels([(2.0, 2.0)] * 30, [(0.8, 0.1)] * 30, area, 0.1)
    assert 0 < crowded.count(None) < 30


def test_correlations_in_words() -> None:
    whole = correlation("anchoring", "fs_jpeg_q5", 12)
    assert correlation_text(whole) == (
        "Spearman rho -.710 [-.920, -.310], permutation p <.001, "
        "leaving one model out -.780 to -.620, over 12 models"
    )
    none = whole | {"rho": None, "reason": "fewer than three models", "models": 1}
    assert correlation_text(none) == (
        "Spearman rho undefined over 1 model: fewer than three models"
    )
    short = whole | {"low": None, "p": None, "loo_low": None}
    assert correlation_text(short) == "Spearman rho -.710, over 12 models"
