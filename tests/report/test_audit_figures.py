from __future__ import annotations

import base64
import hashlib
import io
import json
import os
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from itertools import combinations
from typing import Any

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib import style
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image

from probe.report.audit import audit_figures
from probe.report.audit_collisions import draw_collisions
from probe.report.audit_panels import SERIES
from probe.report.audit_plot import draw_audit
from probe.report.sheet import STYLE
from tests.report.audit_cards import (
    ANEW,
    BROKEN,
    ENVELOPES,
    EPS,
    FULL,
    UNREAD,
    card,
    odd,
    patch,
    rotary,
    swin,
    wrap,
)

Json = dict[str, Any]
SVG = "{http://www.w3.org/2000/svg}"


def texts(svg: bytes) -> list[str]:
    return [node.text or "" for node in ET.fromstring(svg).iter(f"{SVG}text")]


def drawn(results: Sequence[Json]) -> Figure:
    with style.context(["default", STYLE]):
        return draw_audit(results, [])


def line(figure: Figure, panel: int, color: str) -> Any:
    found = [one for one in figure.axes[panel].lines if one.get_color() == color]
    return found[0]


def test_every_panel_says_its_level_and_every_model_its_name() -> None:
    found = " ".join(texts(audit_figures(ENVELOPES["several"])["audit.svg"]))
    for title in ("singular values / largest", "permutation defect", "share of pairs reached"):
        assert found.count(f"{title} [exact algebra]") == 4
    traced = "rounding of a defect from 7.6e-6: deit_small, swin_tiny, rope_small"
    for fact in ("deit_small", "swin_tiny", "rope_small", "[red]x[/red] :smile: $a_b$ <b>&",
                 "rank 384, nullity 384", "rank 48, nullity 0", "all after 11 blocks",
                 "grids 56x56, 28x28, 14x14, 7x7", "failed: broken", "seed 7",
                 "patch assumes: the projection is linear", f"{ANEW}: rope_small", traced,
                 f"left out attention: {UNREAD}: [red]x[/red]",
                 "photos (fingerprint 9c1b2d3e4f5a)"):  # fmt: skip
        assert fact in found, fact


def test_singular_values_are_relative_and_the_lost_part_is_marked() -> None:
    made = card("vit")
    values = np.array(made["patch"]["singular_values"])
    figure = drawn([made])
    axes = figure.axes[0]
    assert axes.get_yscale() == "log"
    kept, weak, tolerance = (one.get_ydata() for one in axes.lines[:3])
    relative = values / values[0]
    np.testing.assert_array_equal(kept, np.where(relative >= 0.01, relative, np.nan))
    np.testing.assert_array_equal(weak, np.where(relative < 0.01, relative, np.nan))
    assert np.isfinite(weak).sum() == made["patch"]["nearly_lost"] > 0
    assert tolerance[0] == made["patch"]["tolerance"] / values[0]
    (shade,) = axes.patches
    assert shade.get_extents().transformed(axes.transData.inverted()).x0 == pytest.approx(384.5)
    assert axes.get_xlim()[1] == 769
    assert drawn([swin()]).axes[0].patches[:] == []  # nothing is lost


def test_defects_are_the_cards_and_rounding_grows_with_the_network() -> None:
    made = card("vit")
    figure = drawn([made])
    axes = figure.axes[1]
    rounding = axes.lines[0]
    np.testing.assert_allclose(rounding.get_ydata(), [EPS * (i + 1) for i in range(12)])
    for key in ("defect_without_position", "defect_with_position", "defect_joint"):
        found = line(figure, 1, SERIES[key][0])
        np.testing.assert_array_equal(found.get_ydata(), [row[key] for row in made["symmetry"]])
    windowed = drawn([swin()])
    np.testing.assert_allclose(windowed.axes[1].lines[0].get_ydata(), [EPS] * 12)
    inside = line(windowed, 1, SERIES["defect_within_windows"][0])
    np.testing.assert_array_equal(inside.get_ydata(), [1e-07] * 12)


def test_a_defect_of_zero_stays_visible_and_is_told() -> None:
    made = card("vit")
    made["symmetry"][5]["defect_joint"] = 0.0
    figure = drawn([made])
    found = line(figure, 1, SERIES["defect_joint"][0]).get_ydata()[5]
    assert figure.axes[1].get_ylim()[0] < found < EPS / 100
    with_note = " ".join(texts(audit_figures(wrap(made))["audit.svg"]))
    assert "defects of 0, or nearly, are drawn at the lower edge" in with_note
    without = " ".join(texts(audit_figures(ENVELOPES["vit"])["audit.svg"]))
    assert "of 0, or nearly" not in without


def test_undefined_defects_are_crosses() -> None:
    axes = drawn([rotary()]).axes[1]
    crosses = [one for one in axes.lines if one.get_marker() == "x" and len(one.get_xdata())]
    assert [list(one.get_xdata()) for one in crosses] == [[0, 1, 2, 3]]
    assert "a defect is not defined" in texts(audit_figures(ENVELOPES["rotary"])["audit.svg"])


def test_reach_is_the_cards_and_stages_are_told_apart() -> None:
    made = swin()
    axes = drawn([made]).axes[2]
    curve = next(one for one in axes.lines if one.get_marker() == "o")
    np.testing.assert_array_equal(curve.get_ydata(), made["attention"]["share_reached"])
    upright = [one.get_xdata()[0] for one in axes.lines if one.get_linestyle() == "--"]
    assert upright == [1.5, 3.5, 9.5]


def test_collisions_show_the_pixels_of_the_card() -> None:
    made = card("vit")
    first, second, difference = draw_collisions([made]).axes
    collision = made["patch"]["collision"]
    patches = [np.transpose(collision[key], (1, 2, 0)) for key in ("patch", "other")]
    for axes, wanted in zip((first, second), patches, strict=True):
        (image,) = axes.images
        assert image.get_interpolation() == "nearest"
        np.testing.assert_array_equal(image.get_array(), np.round(wanted))
    apart = patches[1] - patches[0]
    stretched = np.round(127.5 * (1 + apart / 87.25)).clip(0, 255)
    np.testing.assert_array_equal(difference.images[0].get_array(), stretched)
    assert stretched.max() == 255


def test_collisions_say_how_far_apart_and_who_has_none() -> None:
    files = audit_figures(ENVELOPES["several"])
    found = texts(files["collisions.svg"])
    text = " ".join(found)
    assert found.count("patch of a photo") == 2  # deit_small and rope_small
    assert "max_pixel_difference 87.250 of 255 levels, token_difference 3.2e-7" in text
    assert f"swin_tiny: {FULL}" in text
    assert "nullity 384 [exact algebra]" in text


def test_pixels_are_enlarged_without_interpolation() -> None:
    svg = ET.fromstring(audit_figures(ENVELOPES["vit"])["collisions.svg"])
    pictures = [
        node.attrib["{http://www.w3.org/1999/xlink}href"] for node in svg.iter(f"{SVG}image")
    ]
    assert len(pictures) == 3
    wanted = card("vit")["patch"]["collision"]["patch"]
    levels = {tuple(rgb) for rgb in np.round(np.transpose(wanted, (1, 2, 0))).reshape(-1, 3)}
    with Image.open(io.BytesIO(base64.b64decode(pictures[0].partition(",")[2]))) as image:
        inside = np.asarray(image.convert("RGB"))[4:-4, 4:-4].reshape(-1, 3)
    assert {tuple(rgb) for rgb in inside.tolist()} <= levels


def test_no_collision_no_picture() -> None:
    assert sorted(audit_figures(ENVELOPES["swin"])) == ["audit.png", "audit.svg"]
    names = ["audit.png", "audit.svg", "collisions.png", "collisions.svg"]
    assert sorted(audit_figures(ENVELOPES["vit"])) == names
    assert audit_figures(wrap(failures=[BROKEN])) == {}


def test_a_card_without_a_projection_or_with_zero_weights_is_drawn() -> None:
    left = [{"item": "patch", "reason": "tokens come from Conv2d, Conv2d"}]
    dead = patch(16, 8, collision=False) | {"rank": 0, "nullity": 768, "condition": None}
    dead["singular_values"] = [0.0] * 8
    results = [card("a", patch=None, left_out=left), card("b", patch=dead)]
    found = " ".join(texts(audit_figures(wrap(*results))["audit.svg"]))
    assert "left out: tokens come from Conv2d, Conv2d" in found
    assert "every singular value is 0" in found


def many(count: int) -> list[Json]:
    names = ["deit_small", "timm:vit_large_patch14_clip_336.openai_ft_in12k_in1k",
             "/home/user/" + "checkpoints/" * 9 + "W" * 60 + ".safetensors"]  # fmt: skip
    makes = (card, swin, rotary, odd)
    return [makes[i % 4](f"{names[i % 3]}{i}") for i in range(count)]


def labels_of(figure: Figure) -> list[Any]:
    labels = list(figure.texts)
    for legend in figure.legends:
        labels += legend.get_texts()
    for axes in figure.axes:
        labels += [*axes.texts, axes._left_title]
        if axes.axison:
            labels += [axes.xaxis.label, axes.yaxis.label]
            for axis, (low, high) in (
                (axes.xaxis, axes.get_xlim()),
                (axes.yaxis, axes.get_ylim()),
            ):
                ticks = zip(axis.get_majorticklocs(), axis.get_ticklabels(), strict=True)
                labels += [label for at, label in ticks if low <= at <= high]
    return labels


@pytest.mark.parametrize("draw", [draw_audit, lambda results, _: draw_collisions(results)])
@pytest.mark.parametrize("count", [1, 4])
def test_all_text_lies_inside_the_figure_and_none_overlaps(draw: Any, count: int) -> None:
    with style.context(["default", STYLE]):
        figure = draw(many(count), [{"model": "f" * 300, "error": ""}])
        canvas = FigureCanvasAgg(figure)
        canvas.draw()
        renderer = canvas.get_renderer()
        boxes = [(t.get_text(), t.get_window_extent(renderer)) for t in labels_of(figure)]
    boxes = [(text, box) for text, box in boxes if text]
    assert len(boxes) > 10
    for text, box in boxes:
        assert 0 <= box.x0 <= box.x1 <= figure.bbox.width, text
        assert 0 <= box.y0 <= box.y1 <= figure.bbox.height, text
    for (first, a), (second, b) in combinations(boxes, 2):
        apart = a.x1 <= b.x0 + 1 or b.x1 <= a.x0 + 1 or a.y1 <= b.y0 + 1 or b.y1 <= a.y0 + 1
        assert apart, f"{first!r} lies on {second!r}"


def test_png_is_an_image_of_the_same_shape() -> None:
    files = audit_figures(ENVELOPES["vit"])
    for name in ("audit", "collisions"):
        with Image.open(io.BytesIO(files[f"{name}.png"])) as image:
            assert image.info.get("Software") is None
            width, height = image.size
        box = ET.fromstring(files[f"{name}.svg"]).attrib["viewBox"].split()
        assert width / height == pytest.approx(float(box[2]) / float(box[3]), rel=0.01)


SCRIPT = """
import hashlib, json, sys
from probe.report.audit import audit_figures
figures = audit_figures(json.load(sys.stdin))
heavy = [name for name in ("torch", "timm", "matplotlib.pyplot") if name in sys.modules]
print(json.dumps([heavy, {k: hashlib.sha256(v).hexdigest() for k, v in figures.items()}]))
"""


def test_bytes_are_the_same_in_every_process_and_under_any_settings() -> None:
    envelope = wrap(card("deit_small"), swin())

    def digests() -> dict[str, str]:
        return {k: hashlib.sha256(v).hexdigest() for k, v in audit_figures(envelope).items()}

    here = digests()
    with mpl.rc_context({"lines.linewidth": 9, "font.size": 20, "svg.fonttype": "path"}):
        assert digests() == here
    run = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        input=json.dumps(envelope),
        env=os.environ | {"PYTHONHASHSEED": "4242", "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(run.stdout) == [[], here]
