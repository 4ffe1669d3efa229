"""What the renderings of a report share: its settings in words, corruptions, planned figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from probe.report.format import counted, grid_text, plain, rpi_text
from probe.report.severity import fold

MEASURES = {"fs": "FS", "agreement_fs": "agreement fragility"}
COLUMNS = {"fs": "fs", "agreement_fs": "agreement"}  # measure -> start of its columns
INTERVALS = {
    "SSDC interval": "interval",
    "FS interval": "fs_interval",
    "accuracy interval": "accuracy_interval",
}
MIXED = "anchoring averages over several grids, and does not rank beside single-grid models"

Json = Mapping[str, Any]


@dataclass(frozen=True)
class Scatter:
    """One planned scatter: fragility under a corruption against anchoring.

    `label` is the corruption's text or, for a suite, the mean over its severities; `column` is the
    same as a column's name says it.
    """

    measure: str
    label: str
    column: str

    @property
    def name(self) -> str:
        """The figure's name, without folder and ending."""
        return f"scatter_{self.column}"


def report_facts(report: Json) -> dict[str, str]:
    """What every number of the report is traced by: label -> text, as far as it is known.

    A report whose models all failed knows little.
    """
    data, settings = report["data"], report["settings"]
    found = {"data": data["name"]}
    if "fingerprint" in data:
        found["data"] += f" (fingerprint {str(data['fingerprint'])[:20]})"
        found["data"] += f", split {data['split']}" if data["split"] else ""
        of = "" if data["total"] is None else f" of {data['total']}"
        found["images"] = f"{data['taken']}{of}"
    found["protocol"] = report["protocol"]
    if settings:
        found |= {label: settings[label] for label in ("site", "distance", "average")}
        found["RPI"] = rpi_text(settings["rpi"])
        found["seed"] = str(settings["seed"])
        found["precision"] = f"{settings['dtype']} on {settings['device']}"
        found |= {label: settings[key] for label, key in INTERVALS.items()}
        versions = settings["versions"]
        found["versions"] = ", ".join(f"{name} {versions[name]}" for name in versions)
    return {label: plain(text) for label, text in found.items()}


def corruption_columns(report: Json) -> dict[str, str]:
    """Column name -> the corruption's text, of all models, in order of first appearance."""
    return {
        entry["column"]: entry["corruption"]
        for model in report["models"]
        for entry in model["corruptions"]
    }


def by_corruption(model: Json, measure: str) -> dict[str, Json]:
    """Corruption -> scalar of `measure`, suites as means over their severities."""
    return fold({entry["corruption"]: entry[measure] for entry in model["corruptions"]})


def sigmas(report: Json) -> dict[str, float]:
    """Corruption -> effective sigma of those that are Gaussian blurs."""
    return {
        entry["corruption"]: entry["effective_sigma"]
        for model in report["models"]
        for entry in model["corruptions"]
        if entry["effective_sigma"] is not None
    }


def scatters(report: Json) -> list[Scatter]:
    """The scatters that have a point: FS, or agreement fragility where FS is never defined."""
    columns = {text: column for column, text in corruption_columns(report).items()}
    found: list[Scatter] = []
    seen: set[str] = set()
    for measure in MEASURES:
        tables = [(model["anchoring"], by_corruption(model, measure)) for model in report["models"]]
        for label in dict.fromkeys(label for _, table in tables for label in table):
            shown = [
                anchor["value"] is not None and table[label]["value"] is not None
                for anchor, table in tables
                if label in table
            ]
            if any(shown) and label not in seen:
                seen.add(label)
                name = columns.get(label, f"{label.partition('(')[0]}_mean")
                found.append(Scatter(measure, label, f"{COLUMNS[measure]}_{name}"))
    return found


def curved(report: Json) -> list[Json]:
    """The models whose SSDC was measured."""
    return [model for model in report["models"] if model["layers"]]


def scaled(report: Json) -> list[Json]:
    """The models whose positional signal alpha reaches: at alpha 1 nothing is scaled."""
    return [
        model
        for model in report["models"]
        if any(row["reason"] is None for row in model["alphas"] if row["alpha"] != 1)
    ]


def unscaled(report: Json) -> dict[str, list[str]]:
    """Reason -> names of the models that alpha was tried on, and does not reach."""
    found: dict[str, list[str]] = {}
    for model in report["models"]:
        reasons = [row["reason"] for row in model["alphas"] if row["alpha"] != 1]
        if reasons and None not in reasons:
            found.setdefault(reasons[0], []).append(model["model"])
    return found


def figure_names(report: Json) -> list[str]:
    """The figures that there are, without folder and ending, in the order of the page."""
    return [
        *(["depth"] if curved(report) else []),
        *(scatter.name for scatter in scatters(report)),
        *(["alpha"] if scaled(report) else []),
    ]


def grids_text(model: Json) -> str:
    """The grids from first to last: `14x14`, `56x56 to 7x7`."""
    first, last = grid_text(model["grids"][0]), grid_text(model["grids"][-1])
    return " to ".join(dict.fromkeys([first, last]))


def model_words(report: Json) -> str:
    """`5 models, 1 failed`."""
    failed = f", {len(report['failures'])} failed" if report["failures"] else ""
    return counted(len(report["models"]), "model") + failed


def listed(names: Sequence[str], most: int = 6) -> str:
    """Names with commas, the first `most` of them."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(plain(name) for name in names[:most]) + more
