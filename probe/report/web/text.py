"""The page's words: settings as lines, statistics and hardware as rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from probe.report.format import counted, number, p_text, rpi_text, span

MEASURES = {"anchoring": "anchoring", "delta_ssdc_rpi": "delta SSDC"}
CONVERTED = 1024**3


def shared_facts(report: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What all numbers of the report share, as (label, text)."""
    data, settings = report["data"], report["settings"]
    if not report["models"]:
        return [("data", data["name"]), ("protocol", report["protocol"])]
    split = f", split {data['split']}" if data["split"] else ""
    return [
        ("data", f"{data['name']}{split}: {data['taken']} of {counted(data['total'], 'image')}"),
        ("fingerprint", data["fingerprint"]),
        ("protocol", report["protocol"]),
        ("site", settings["site"]),
        ("distance", settings["distance"]),
        ("average", settings["average"]),
        ("RPI", rpi_text(settings["rpi"])),
        ("seed", str(settings["seed"])),
        ("precision", f"{settings['dtype']} on {settings['device']}"),
        ("interval of SSDC", settings["interval"]),
        ("interval of FS", settings["fs_interval"]),
        ("interval of accuracy", settings["accuracy_interval"]),
        ("versions", ", ".join(f"{k} {v}" for k, v in sorted(settings["versions"].items()))),
    ]


def facts(value: Any) -> list[tuple[str, str]]:
    """Nested settings as lines, (`preprocess.size`, `224, 224`), in alphabetical order."""
    return [(name or "value", text) for name, text in _leaves("", value)]


def statistics_rows(report: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The zoo's rank correlations, as texts; an undefined one has its reason in place of rho."""
    columns = {
        f"{prefix}_{entry['column']}": f"{word} {entry['corruption']}"
        for model in report["models"]
        for entry in model["corruptions"]
        for prefix, word in (("fs", "FS"), ("agreement", "agreement"))
    }
    return [
        {
            "x": MEASURES.get(row["x"], row["x"]),
            "x_key": row["x"],
            "y": columns.get(row["y"], row["y"]),
            "group": row["group"],
            "models": row["models"],
            "rho": None if row["rho"] is None else number(row["rho"]),
            "interval": _range(row["low"], row["high"]),
            "p": None if row["p"] is None else p_text(row["p"]),
            "loo": _range(row["loo_low"], row["loo_high"]),
            "reason": row["reason"],
            "notes": row["notes"],
        }
        for row in report["statistics"]["correlations"]
    ]


def relations(report: Mapping[str, Any]) -> dict[str, str]:
    """`X|Y` of each rank correlation over all models -> a sentence for beside its scatter."""
    found = {}
    for raw, row in zip(report["statistics"]["correlations"], statistics_rows(report), strict=True):
        if raw["group"] is None:
            found[f"{raw['x']}|{raw['y']}"] = (
                f"No rank correlation: {row['reason']}."
                if row["rho"] is None
                else f"Spearman rho {row['rho']} {row['interval'] or '(no interval)'} over "
                f"{counted(row['models'], 'model')}, p {row['p'] or 'undefined'}; leaving one "
                f"model out: {row['loo'] or 'undefined'}."
            )
    return found


def hardware_rows(
    report: Mapping[str, Any], hardware: Mapping[str, Any] | None
) -> list[dict[str, str]] | None:
    """One row of texts per model that was timed, in the report's order; None without `hardware`."""
    if hardware is None:
        return None
    timed = hardware["models"]
    return [
        {"model": model["model"]} | _measured(timed[model["model"]])
        for model in report["models"]
        if model["model"] in timed
    ]


def _measured(entry: Mapping[str, Any]) -> dict[str, str]:
    peak = entry["peak_memory_bytes"]
    return {
        "rate": f"{entry['images_per_second']:.4g}",
        "seconds": f"{entry['seconds']:.4g}",
        "memory": "not measured" if peak is None else f"{peak / CONVERTED:.3g} GiB",
        "batch": str(entry["batch"]),
        "dtype": entry["dtype"],
        "device": entry["device"],
    }


def _range(low: float | None, high: float | None) -> str | None:
    return None if low is None or high is None else span(low, high)


def _leaves(name: str, value: Any) -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping):
        for key, inner in sorted(value.items()):
            yield from _leaves(f"{name}.{key}" if name else str(key), inner)
    elif isinstance(value, list | tuple):
        if any(isinstance(inner, Mapping | list | tuple) for inner in value):
            for place, inner in enumerate(value):
                yield from _leaves(f"{name}[{place}]", inner)
        else:
            yield name, ", ".join(_word(inner) for inner in value) or "none"
    else:
        yield name, _word(value)


def _word(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value)
