"""Corruptions in tables and figures: how their names are written, and suites with severities."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from probe.report.format import number, plain

_SEVERITY = re.compile(r"(\w+)\(severity=(\d+)\)")

Scalars = Mapping[str, Mapping[str, Any]]


def heading(corruption: str) -> str:
    """A corruption's text over several short lines, for the head of a column."""
    return (
        plain(corruption).replace("(", "\n(").replace(",", ",\n").replace("mean of ", "mean of\n")
    )


def sigmas_text(entries: Sequence[Mapping[str, Any]]) -> str:
    """The effective sigmas of the corruptions that are Gaussian blurs; empty without any."""
    sigmas = {
        plain(entry["corruption"]): number(entry["effective_sigma"])
        for entry in entries
        if entry["effective_sigma"] is not None
    }
    listed = "; ".join(f"{text} {sigma}" for text, sigma in sigmas.items())
    return f"effective sigma, px at model resolution: {listed}" if listed else ""


def by_severity(corruptions: Sequence[str]) -> dict[str, dict[int, str]]:
    """Name -> severity -> the corruption's text, where a name is there at two severities or more.

    Severities ascend; names keep their order.
    """
    found: dict[str, dict[int, str]] = {}
    for text in corruptions:
        match = _SEVERITY.fullmatch(text)
        if match is not None:
            found.setdefault(match[1], {})[int(match[2])] = text
    return {name: dict(sorted(texts.items())) for name, texts in found.items() if len(texts) > 1}


def severity_mean(scalars: Mapping[int, Mapping[str, Any]]) -> dict[str, Any]:
    """Unweighted mean over severities, without an interval; undefined if one of them is."""
    label = f"mean of severities {severity_range(list(scalars))}"
    values = [scalar["value"] for scalar in scalars.values()]
    missing = [str(severity) for severity, s in scalars.items() if s["value"] is None]
    if missing:
        why = next(s["reason"] for s in scalars.values() if s["value"] is None)
        reason = f"{label}: undefined at {', '.join(missing)} ({why})"
        if len(missing) == len(values):
            reason = str(why)
        return {"value": None, "low": None, "high": None, "reason": reason}
    mean = sum(values) / len(values)
    return {"value": mean, "low": None, "high": None, "reason": f"{label}, without interval"}


def fold(scalars: Scalars) -> dict[str, Mapping[str, Any]]:
    """One number per corruption: a mean over severities in place of a suite's many."""
    suites = by_severity(list(scalars))
    owner = {text: name for name, texts in suites.items() for text in texts.values()}
    found: dict[str, Mapping[str, Any]] = {}
    for text, scalar in scalars.items():
        if text not in owner:
            found[text] = scalar
            continue
        name = owner[text]
        label = f"{name}(mean of severities {severity_range(list(suites[name]))})"
        if label not in found:
            found[label] = severity_mean({s: scalars[t] for s, t in suites[name].items()})
    return found


def severity_range(severities: Sequence[int]) -> str:
    """`1-5`, or `1, 3` where some are left out."""
    first, last = severities[0], severities[-1]
    whole = list(severities) == list(range(first, last + 1))
    return f"{first}-{last}" if whole else ", ".join(map(str, severities))
