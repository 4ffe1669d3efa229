"""SSDC over depth, a panel per model of a report."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from matplotlib.figure import Figure

from probe.report.format import number, plain, span
from probe.report.panel import COLORS, FACES, MARKERS, stages
from probe.report.sheet import BAND, GREY, TICK
from probe.report.typeset import text_width
from probe.report.zoo_canvas import Canvas, Curve, Panel
from probe.report.zoo_facts import MIXED, curved, grids_text, listed
from probe.report.zoo_legend import cross_key, curve_key, patch_key, reason_lines
from probe.report.zoo_panels import Sheet, draw_sheet, ends

CURVES = {kind: Curve(COLORS[kind], MARKERS[kind], FACES[kind], 3.2) for kind in ("clean", "rpi")}

Json = Mapping[str, Any]


def draw_depth(report: Json) -> Figure:
    """SSDC over layers, clean and under RPI, a panel per model; there is one at least."""
    models = curved(report)
    points = [layer[kind] for m in models for kind in _shown(m) for layer in m["layers"]]
    found = ends(points, ("value", "low", "high", "null_low", "null_high"))
    keys = [
        curve_key(CURVES["clean"], "clean, 95 % interval"),
        curve_key(CURVES["rpi"], "under RPI, 95 % interval"),
        patch_key(BAND, "null band under RPI"),
    ]
    if any(point["value"] is None for point in points):
        keys.append(cross_key("undefined"))
    places = [
        (layer[kind]["reason"], f"{model['model']} ({'clean' if kind == 'clean' else 'RPI'})")
        for model in models
        for kind in ("clean", "rpi")
        for layer in model["layers"]
    ]
    notes = reason_lines(places)
    mixed = [m["model"] for m in models if len(m["grids"]) > 1]
    if mixed:
        notes.append(f"† {MIXED}: {listed(mixed)}")

    return draw_sheet(
        report,
        Sheet(
            models=models,
            limits=(min([0.0, *found]) - 0.04, max([1.0, *found]) + 0.03),
            x_label="layer",
            y_label="SSDC",
            details=_details,
            frame=_frame,
            draw=_draw,
            keys=keys,
            notes=notes,
        ),
    )


def _frame(model: Json, width: float) -> tuple[float, float, dict[float, str]]:
    count = len(model["layers"])
    label = text_width("0" * len(str(count - 1)), TICK) + 0.1
    step = next((s for s in (1, 2, 5, 10, 20, 50) if s * width / count >= label), count)
    return -0.5, count - 0.5, {float(i): str(i) for i in range(0, count, step)}


def _shown(model: Json) -> list[str]:
    """The curves with a value; RPI has none where it is off."""
    kinds = ("clean", "rpi")
    return [k for k in kinds if any(layer[k]["value"] is not None for layer in model["layers"])]


def _details(model: Json) -> list[str]:
    anchor = model["anchoring"]
    mark = "†" if len(model["grids"]) > 1 else ""
    if anchor["value"] is None:
        told = f"anchoring{mark} undefined"
    else:
        bounds = "" if anchor["low"] is None else f" {span(anchor['low'], anchor['high'])}"
        told = f"anchoring{mark} {number(anchor['value'])}{bounds}"
    return [f"{plain(model['position'])}, {grids_text(model)}", told]


def _draw(canvas: Canvas, panel: Panel, model: Json) -> None:
    zero = [panel.at(panel.left, 0), panel.at(panel.right, 0)]
    canvas.stroke(zero, GREY, 0.4)
    shown = _shown(model)
    for layer in model["layers"] if shown else ():
        point = layer[shown[-1]]
        if point["null_low"] is not None:
            canvas.null_band(panel, layer["layer"], point["null_low"], point["null_high"])
    for first, _, _ in stages(model)[1:]:
        edge = [panel.at(first - 0.5, panel.bottom), panel.at(first - 0.5, panel.top)]
        canvas.stroke(edge, GREY, 0.5, dashed=True)
    xs = [float(layer["layer"]) for layer in model["layers"]]
    room = 0.45 * 72 * panel.width / len(xs)
    for kind in shown:
        size = min(CURVES[kind].size, max(1.5, round(room, 1)))
        points = [layer[kind] for layer in model["layers"]]
        canvas.curve(panel, xs, points, replace(CURVES[kind], size=size))
