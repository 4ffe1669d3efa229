"""The figures of a report, as SVG and PNG."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from matplotlib import style

from probe.report.sheet import STYLE, save
from probe.report.zoo_alpha import draw_alpha
from probe.report.zoo_depth import draw_depth
from probe.report.zoo_facts import curved, scaled, scatters
from probe.report.zoo_scatter import draw_scatter

FOLDER = "figures"


def figures(report: Mapping[str, Any]) -> dict[str, bytes]:
    """File name -> content of every figure that has something to show.

    `figures/depth`: SSDC over layers, a panel per model. `figures/scatter_fs_<corruption>`: FS
    against anchoring, a point per model (`scatter_agreement_` where FS is undefined throughout).
    `figures/alpha`: delta SSDC, anchoring and FS over alpha, for the models that alpha reaches.
    Each ends in `.svg` and `.png`. The same report gives the same bytes with the same versions of
    matplotlib and its fonts.
    """
    files: dict[str, bytes] = {}
    with style.context(["default", STYLE, {"path.simplify": False}]):
        if curved(report):
            files |= save(draw_depth(report), f"{FOLDER}/depth")
        for scatter in scatters(report):
            files |= save(draw_scatter(report, scatter), f"{FOLDER}/{scatter.name}")
        if scaled(report):
            files |= save(draw_alpha(report), f"{FOLDER}/alpha")
    return files
