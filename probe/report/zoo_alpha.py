"""Delta SSDC, anchoring and FS over alpha, a panel per model of a report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from matplotlib.figure import Figure

from probe.report.format import plain
from probe.report.panel import COLORS, FACES
from probe.report.scale_plot import SERIES, SHAPES
from probe.report.severity import fold
from probe.report.sheet import GREY, TICK
from probe.report.typeset import text_width
from probe.report.zoo_canvas import Canvas, Curve, Panel
from probe.report.zoo_facts import listed, scaled, unscaled
from probe.report.zoo_legend import cross_key, curve_key, reason_lines
from probe.report.zoo_panels import Sheet, draw_sheet, ends

MOST_FS = 4  # curves of FS in a panel
DELTA = Curve(COLORS["clean"], "o", FACES["clean"], 3.2)
ANCHORING = Curve("#000000", "None", "none", 0.0, dashed=True)

Json = Mapping[str, Any]


def draw_alpha(report: Json) -> Figure:
    """Delta SSDC, anchoring and FS over alpha, a panel per model that alpha reaches."""
    models = scaled(report)
    tables = {id(model): _doses(model) for model in models}
    titles = dict.fromkeys(t for table in tables.values() for t in table if t.startswith("FS "))
    drawn = list(titles)[:MOST_FS]
    styles = {"delta SSDC": DELTA, "anchoring": ANCHORING}
    for i, title in enumerate(drawn):
        styles[title] = Curve(SERIES[i], SHAPES[i], SERIES[i], 3.2)
    present = [t for t in styles if any(t in table for table in tables.values())]
    shown = [s for table in tables.values() for t in present for _, s in table.get(t, ())]
    found = ends(shown, ("value", "low", "high"))
    low, high = min([0.0, *found]), max([0.1, *found])
    alphas = sorted({row["alpha"] for model in models for row in model["alphas"]}, reverse=True)
    edge = 0.05 * (alphas[0] - alphas[-1]) or 0.1
    keys = [curve_key(styles[title], title) for title in present]
    if any(scalar["value"] is None for scalar in shown):
        keys.append(cross_key("undefined"))
    notes = ["bands: 95 % intervals over images, jackknife for SSDC, paired bootstrap for FS"]
    if len(titles) > len(drawn):
        notes.append(f"not drawn: {listed(list(titles)[MOST_FS:])}")
    rotary = [m["model"] for m in models if "rotary" in m["position"]]
    if rotary:
        notes.append(
            f"rotary angles are scaled, an extension of the paper's definition: {listed(rotary)}"
        )
    notes += reason_lines(
        (scalar["reason"], f"{model['model']} ({title})")
        for model in models
        for title in present
        for _, scalar in tables[id(model)].get(title, ())
    )
    notes += [f"not scaled: {listed(who)}: {plain(why)}" for why, who in unscaled(report).items()]

    def frame(_: Json, width: float) -> tuple[float, float, dict[float, str]]:
        ticks = _ticks(alphas, width / (alphas[0] - alphas[-1] + 2 * edge))
        return alphas[0] + edge, alphas[-1] - edge, ticks

    def draw(canvas: Canvas, panel: Panel, model: Json) -> None:
        canvas.stroke([panel.at(panel.left, 0), panel.at(panel.right, 0)], GREY, 0.4)
        for title in present:
            pairs = sorted(tables[id(model)].get(title, ()), key=lambda pair: -pair[0])
            if pairs:
                xs = [alpha for alpha, _ in pairs]
                canvas.curve(panel, xs, [scalar for _, scalar in pairs], styles[title])

    room = 0.06 * (high - low)
    return draw_sheet(
        report,
        Sheet(
            models=models,
            limits=(low - room, high + room),
            x_label="alpha",
            y_label="",  # several measures, which the legend names
            details=lambda model: [plain(model["position"])],
            frame=frame,
            draw=draw,
            keys=keys,
            notes=notes,
        ),
    )


def _doses(model: Json) -> dict[str, list[tuple[float, Json]]]:
    """Title -> (alpha, scalar) of every curve that has a value; suites as means."""
    found: dict[str, list[tuple[float, Json]]] = {}
    for row in model["alphas"]:
        own = {"delta SSDC": row["delta_ssdc_rpi"], "anchoring": row["anchoring"]}
        own |= {f"FS {plain(text)}": scalar for text, scalar in fold(row["fs"]).items()}
        for title, scalar in own.items():
            found.setdefault(title, []).append((row["alpha"], scalar))
    return {t: p for t, p in found.items() if any(s["value"] is not None for _, s in p)}


def _ticks(alphas: Sequence[float], inch: float) -> dict[float, str]:
    """Every alpha as a tick; labels at every one, or every second, third, ... that fits."""
    texts = [f"{alpha:g}" for alpha in alphas]
    for every in range(1, len(alphas) + 1):
        chosen = range(0, len(alphas), every)
        if all(
            (alphas[i] - alphas[j]) * inch
            >= (text_width(texts[i], TICK) + text_width(texts[j], TICK)) / 2 + 0.06
            for i, j in pairwise(chosen)
        ):
            break
    return {alpha: texts[i] if i in chosen else "" for i, alpha in enumerate(alphas)}
