"""The comparison over seeds as a Markdown table and a figure: pure functions of its JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib import style
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from probe.report.format import number, span
from probe.report.gfm import table
from probe.report.sheet import BAND, STYLE, TICK, save

# Okabe and Ito's colours, which colour-blind readers tell apart; the markers differ too.
LOOKS = {
    "ape": ("#0072B2", "o"),
    "spe": ("#009E73", "s"),
    "rope": ("#D55E00", "^"),
    "none": ("#555555", "D"),
    "rpt": ("#CC79A7", "v"),
}


def experiment_markdown(result: Mapping[str, Any]) -> str:
    """Tables: accuracy and fragility, SSDC by layer, and what alpha does; mean ± sd over seeds."""
    variants = result["variants"]
    shifted = list(next(iter(variants.values()))["fs"])
    head = ["variant", "seeds", "accuracy", *(f"FS {name}" for name in shifted)]
    head += ["anchoring", "delta SSDC"]
    rows = [
        [
            name,
            ", ".join(map(str, one["seeds"])),
            cell(one["accuracy"]),
            *(cell(one["fs"][corruption]) for corruption in shifted),
            cell(one["anchoring"]),
            cell(one["delta_ssdc_rpi"]),
        ]
        for name, one in variants.items()
    ]
    parts = [_lines(head, rows)]
    for kind, title in (("clean", "SSDC clean"), ("rpi", "SSDC under RPI")):
        depth = max(len(one["layers"]) for one in variants.values())
        head = [title, *(f"layer {layer}" for layer in range(depth))]
        rows = [[n, *(cell(y[kind]) for y in one["layers"])] for n, one in variants.items()]
        parts.append(_lines(head, rows))
    scaled = {name: one for name, one in variants.items() if one["alphas"]}
    if scaled:
        alphas = [row["alpha"] for row in next(iter(scaled.values()))["alphas"]]
        for key, title in (
            ("delta_ssdc_rpi", "delta SSDC"),
            ("anchoring", "anchoring"),
            ("accuracy", "accuracy"),
        ):
            rows = [[n, *(cell(r[key]) for r in one["alphas"])] for n, one in scaled.items()]
            parts.append(_lines([f"{title} at alpha", *(f"{a:g}" for a in alphas)], rows))
        for corruption in next(iter(scaled.values()))["alphas"][0]["fs"]:
            rows = [
                [n, *(cell(r["fs"][corruption]) for r in one["alphas"])]
                for n, one in scaled.items()
            ]
            parts.append(_lines([f"FS {corruption} at alpha", *(f"{a:g}" for a in alphas)], rows))
    if result["claims"]:
        rows = [
            [one["claim"], _interval(one["difference"]), one["verdict"]] for one in result["claims"]
        ]
        parts.append(_lines(["claim", "difference", "verdict"], rows))
    return "\n".join(parts)


def cell(value: Mapping[str, Any]) -> str:
    """`.612 ± .010`, without the sd of one seed; a dash where a seed has no value."""
    if value["mean"] is None:
        return "-"
    mean = number(value["mean"])
    return mean if value["sd"] is None else f"{mean} ± {number(value['sd'])}"


def _interval(value: Mapping[str, Any] | None) -> str:
    if value is None or value["mean"] is None:
        return "-"
    if value["low"] is None:
        return number(value["mean"])
    return f"{number(value['mean'])} {span(value['low'], value['high'])}"


def _lines(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return "".join(f"{line}\n" for line in table(head, rows))


def experiment_figure(result: Mapping[str, Any]) -> dict[str, bytes]:
    """`experiment.svg` and `.png`: SSDC over layers, clean and under RPI, and what alpha does."""
    variants = result["variants"]
    with style.context(["default", STYLE]):
        figure = Figure(figsize=(9.2, 2.9))
        clean, rpi, anchor, fs = figure.subplots(1, 4)
        _band(rpi, variants)
        for name, one in variants.items():
            layers = list(range(len(one["layers"])))
            _line(clean, name, layers, [layer["clean"] for layer in one["layers"]])
            _line(rpi, name, layers, [layer["rpi"] for layer in one["layers"]])
            if one["alphas"]:
                alphas = [row["alpha"] for row in one["alphas"]]
                corruption = next(iter(one["alphas"][0]["fs"]))
                _line(anchor, name, alphas, [row["anchoring"] for row in one["alphas"]])
                _line(fs, name, alphas, [row["fs"][corruption] for row in one["alphas"]])
                fs.set_title(f"FS, {corruption}", fontsize=TICK + 1)
        for axes, title, label in (
            (clean, "SSDC clean", "layer"),
            (rpi, "SSDC under RPI", "layer"),
            (anchor, "anchoring", "alpha"),
            (fs, None, "alpha"),
        ):
            if title:
                axes.set_title(title, fontsize=TICK + 1)
            axes.set_xlabel(label, fontsize=TICK, labelpad=1)
            axes.tick_params(labelsize=TICK, length=2.5, width=0.6)
            axes.axhline(0, color="#888888", linewidth=0.5, zorder=0)
            if label == "alpha":
                axes.invert_xaxis()
        low = min(clean.get_ylim()[0], rpi.get_ylim()[0])
        high = max(clean.get_ylim()[1], rpi.get_ylim()[1])
        for axes in (clean, rpi):
            axes.set_ylim(low, high)
        handles, names = clean.get_legend_handles_labels()
        figure.legend(
            handles, names, loc="lower center", ncols=len(names), fontsize=TICK, frameon=False
        )
        figure.subplots_adjust(left=0.045, right=0.99, top=0.9, bottom=0.24, wspace=0.27)
        return save(figure, "experiment")


def _line(axes: Axes, name: str, x: Sequence[float], values: Sequence[Mapping[str, Any]]) -> None:
    """Means, with a band from the lowest to the highest seed."""
    color, marker = LOOKS[name]
    shown = [(at, value) for at, value in zip(x, values, strict=True) if value["mean"] is not None]
    if not shown:
        return
    places = [at for at, _ in shown]
    axes.plot(
        places,
        [value["mean"] for _, value in shown],
        color=color,
        marker=marker,
        markersize=3.5,
        linewidth=1.2,
        label=name,
    )
    axes.fill_between(
        places,
        [min(value["values"]) for _, value in shown],
        [max(value["values"]) for _, value in shown],
        color=color,
        alpha=0.18,
        linewidth=0,
    )


def _band(axes: Axes, variants: Mapping[str, Any]) -> None:
    low = min(one["null"][0] for one in variants.values())
    high = max(one["null"][1] for one in variants.values())
    axes.axhspan(low, high, color=BAND, linewidth=0, zorder=0)
