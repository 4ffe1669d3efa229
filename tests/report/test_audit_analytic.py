from __future__ import annotations

import hashlib
import io
import itertools
import xml.etree.ElementTree as ET
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib import style
from matplotlib.backends.backend_agg import FigureCanvasAgg
from PIL import Image

from probe.cli.audit_files import analytic_figures, audit_files
from probe.report.audit_analytic import (
    PairsAt,
    draw_nullity,
    draw_pairs,
    nullity_figure,
    pairs_figure,
)
from probe.report.sheet import STYLE
from tests.report.audit_cards import ENVELOPES
from tests.report.test_audit_figures import labels_of

# Patch side: tokens, global pairs, pairs in 7x7 windows; from the review that the figure redraws.
PUBLISHED = {
    4: (3136, 9834496, 153664),
    8: (784, 614656, 38416),
    16: (196, 38416, 9604),
    32: (49, 2401, 2401),
}
COUNTS = [PairsAt(side, *counts) for side, counts in PUBLISHED.items()]
NULLITY = {width: max(0, 48 - width) for width in range(1, 97)}
NAMES = {"pairs.svg", "pairs.png", "nullity.svg", "nullity.png"}


def texts(svg: bytes) -> list[str]:
    root = ET.fromstring(svg)
    return [node.text or "" for node in root.iter("{http://www.w3.org/2000/svg}text")]


def test_the_published_counts_are_what_the_pairs_are() -> None:
    for side, (tokens, everywhere, windowed) in PUBLISHED.items():
        cut = 224 // side
        assert tokens == cut * cut
        assert everywhere == tokens**2
        # Token by token: those in the same 7x7 window.
        where = [(r // 7, c // 7) for r, c in itertools.product(range(cut), repeat=2)]
        inside = {window: where.count(window) for window in set(where)}
        assert windowed == sum(inside[window] for window in where)


def test_pairs_stand_at_their_values_on_a_log_axis_with_their_numbers() -> None:
    axes = draw_pairs(COUNTS, 224, (7, 7)).axes[0]
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    everywhere, windowed = (one.get_ydata() for one in axes.lines)
    assert list(everywhere) == [counts[1] for counts in PUBLISHED.values()]
    assert list(windowed) == [counts[2] for counts in PUBLISHED.values()]
    found = texts(pairs_figure(COUNTS, 224, (7, 7))["pairs.svg"])
    for number in ("9,834,496", "614,656", "153,664", "9,604", "2,401"):
        assert number in found
    assert found.count("38,416") == 2  # 8 px in windows, 16 px globally
    assert found.count("2,401") == 1  # one window is the whole grid
    for fact in ("global attention", "windows of 7x7 tokens", "196 tokens", "patch side, px",
                 "Attention pairs over patch side [analytic]",
                 "at 32 px the whole grid is one window"):  # fmt: skip
        assert fact in found


def test_the_pictures_that_the_command_draws_hold_the_published_counts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "new" / "figures"
    assert analytic_figures(out) == 0
    assert {path.name for path in out.iterdir()} == NAMES
    told = capsys.readouterr().out
    assert told == f"Written to {out}: nullity.png, nullity.svg, pairs.png, pairs.svg\n"
    assert (out / "pairs.svg").read_bytes() == pairs_figure(COUNTS, 224, (7, 7))["pairs.svg"]
    drawn = nullity_figure(NULLITY, 48, (4, 4, 3))
    assert (out / "nullity.svg").read_bytes() == drawn["nullity.svg"]
    with Image.open(out / "pairs.png") as image:
        assert image.size[0] > 500


@pytest.mark.parametrize("width", [1, 12, 47, 48, 49, 96])
def test_nullity_is_that_of_a_random_matrix_of_full_rank(width: int) -> None:
    matrix = np.random.default_rng(width).standard_normal((width, 48))
    values = np.linalg.svd(matrix, compute_uv=False)
    rank = int((values > 96 * np.finfo(float).eps * values[0]).sum())
    line = draw_nullity(NULLITY, 48, (4, 4, 3)).axes[0].lines[0]
    at = dict(zip(line.get_xdata(), line.get_ydata(), strict=True))
    assert at[width] == 48 - rank


def test_nullity_says_its_formula() -> None:
    found = texts(nullity_figure(NULLITY, 48, (4, 4, 3))["nullity.svg"])
    text = " ".join(found)
    for fact in ("nullity = D - rank >= max(0, D - d), here D = 4 x 4 x 3 = 48",
                 "from d = 48 on", "d = 12: 36", "d = 24: 24", "d = 48: 0", "[analytic]",
                 "token width d"):  # fmt: skip
        assert fact in text


def test_text_lies_inside_and_none_overlaps() -> None:
    with style.context(["default", STYLE]):
        figures = [draw_pairs(COUNTS, 224, (7, 7)), draw_nullity(NULLITY, 48, (4, 4, 3))]
        for figure in figures:
            canvas = FigureCanvasAgg(figure)
            canvas.draw()
            labels = labels_of(figure)
            for axes in figure.axes:
                labels += axes.get_legend().get_texts() if axes.get_legend() else []
            boxes = [
                (t.get_text(), t.get_window_extent(canvas.get_renderer()))
                for t in labels
                if t.get_text()
            ]
            for text, box in boxes:
                assert 0 <= box.x0 <= box.x1 <= figure.bbox.width, text
                assert 0 <= box.y0 <= box.y1 <= figure.bbox.height, text
            for (first, a), (second, b) in itertools.combinations(boxes, 2):
                apart = a.x1 <= b.x0 + 1 or b.x1 <= a.x0 + 1 or a.y1 <= b.y0 or b.y1 <= a.y0
                assert apart, f"{first!r} lies on {second!r}"


def test_the_command_writes_them_beside_cards_only_when_asked() -> None:
    plain = audit_files(ENVELOPES["swin"], figures=False)
    assert set(plain) == {"audit.csv", "blocks.csv", "audit.svg", "audit.png"}
    both = audit_files(ENVELOPES["swin"], figures=True)
    assert set(both) == set(plain) | NAMES
    assert {name: both[name] for name in plain} == plain


def test_bytes_do_not_depend_on_the_users_settings() -> None:
    def digests() -> dict[str, str]:
        files = pairs_figure(COUNTS, 224, (7, 7)) | nullity_figure(NULLITY, 48, (4, 4, 3))
        return {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}

    here = digests()
    with mpl.rc_context({"lines.linewidth": 9, "font.size": 20, "svg.fonttype": "path"}):
        assert digests() == here
    with Image.open(io.BytesIO(pairs_figure(COUNTS, 224, (7, 7))["pairs.png"])) as image:
        assert image.info.get("Software") is None
