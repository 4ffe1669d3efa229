"""The content of `report.json`: a pure function of model cards and pass records."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from probe.corruptions import Corruption, parse
from probe.derive.fragility import fragility_result
from probe.derive.maps import similarity_maps
from probe.derive.scale import Dose, scale_result
from probe.derive.ssdc import ssdc_result
from probe.derive.zoo import controlled, zoo_statistics
from probe.numerics.proportions import RESAMPLES
from probe.records import ModelCard, PassRecord
from probe.types import Failure, Scalar

SCHEMA = 1
NOT_MEASURED = "not measured"
MACS = "multiply-adds of matrix products and convolutions, attention included, of one image"
FS_INTERVAL = f"95 %, paired bootstrap over images, percentile, {RESAMPLES} resamples"
ACCURACY_INTERVAL = "95 %, Wilson"


@dataclass(frozen=True)
class Asked:
    """What the report was asked for: `dosed` are the corruptions at every alpha."""

    title: str
    protocol: str
    corruptions: tuple[str, ...]
    dosed: tuple[str, ...]
    alphas: tuple[float, ...]


def report(
    models: Sequence[tuple[ModelCard, Sequence[PassRecord]]],
    failures: Sequence[Failure],
    asked: Asked,
    data_name: str,
    *,
    published: Callable[[dict[str, Any]], list[dict[str, Any]]] | None = None,
) -> dict[str, Any]:
    """The report over `models`, which share their images.

    Args:
        models: each model's card and the records of its passes, in any order.
        failures: models that could not be measured.
        asked: title, protocol, conditions.
        data_name: what to call the data.
        published: gives the rows of published figures for one model's entry.

    Raises:
        ValueError: if the models were measured on different images.
    """
    facts = [{k: v for k, v in card.data.items() if k != "name"} for card, _ in models]
    if any(one != facts[0] for one in facts):
        raise ValueError("models of one report must be measured on the same images")
    entries = [_model(card, records, asked, data_name) for card, records in models]
    for entry in entries:
        entry["published"] = [] if published is None else published(entry)
    return {
        "schema": SCHEMA,
        "title": asked.title,
        "protocol": asked.protocol,
        "data": {"name": data_name, **(facts[0] if facts else {})},
        "settings": _settings(models),
        "models": entries,
        "failures": [{"model": f.model, "error": f.error} for f in failures],
        "statistics": zoo_statistics(entries, seed=_seed(models)),
        "controlled": controlled(entries),
    }


def _settings(models: Sequence[tuple[ModelCard, Sequence[PassRecord]]]) -> dict[str, Any]:
    if not models:
        return {}
    common = models[0][0].common
    names = ("site", "distance", "average", "seed", "dtype", "device", "interval", "versions")
    rpi = dict.fromkeys(
        record.condition for _, records in models for record in records if _is_rpi(record)
    )
    plugged = {
        name: value
        for _, records in models
        for record in records
        for name, value in record.settings.get("versions", {}).items()
        if name.startswith("plugin ")
    }
    return {name: common[name] for name in names} | {
        "versions": common["versions"] | plugged,
        "rpi": sorted(rpi),
        "fs_interval": FS_INTERVAL,
        "accuracy_interval": ACCURACY_INTERVAL,
    }


def _seed(models: Sequence[tuple[ModelCard, Sequence[PassRecord]]]) -> int:
    return int(models[0][0].common["seed"]) if models else 0


@dataclass(frozen=True)
class _Parts:
    """A condition's text, taken apart."""

    rpi: bool
    alpha: float
    corruption: str | None


def _parts(record: PassRecord) -> _Parts:
    texts = [] if record.condition == "clean" else record.condition.split("+")
    alpha = next((t.removeprefix("alpha=") for t in texts if t.startswith("alpha=")), "1")
    shift = next((t for t in texts if not t.startswith(("rpi(", "alpha="))), None)
    return _Parts(any(t.startswith("rpi(") for t in texts), float(alpha.split(",")[0]), shift)


def _is_rpi(record: PassRecord) -> bool:
    return _parts(record) == _Parts(True, 1.0, None)


def _model(
    card: ModelCard, records: Sequence[PassRecord], asked: Asked, data_name: str
) -> dict[str, Any]:
    by_parts: dict[_Parts, list[PassRecord]] = {}
    for record in sorted(records, key=lambda r: r.condition):
        by_parts.setdefault(_parts(record), []).append(record)
    clean = next(iter(by_parts.get(_Parts(False, 1.0, None), ())), None)
    draws = by_parts.get(_Parts(True, 1.0, None), [])
    common = card.common
    settings = {k: v for k, v in common.items() if k not in ("labels", "notes", "versions")}
    settings |= {"data": {"name": data_name}, "rpi": [draw.condition for draw in draws]}
    if draws and "batch_size" in draws[0].settings:
        settings["batch_size"] = draws[0].settings["batch_size"]  # it shared out permutations
    entry: dict[str, Any] = {
        "model": card.model,
        "resolved": common["resolved"],
        "revision": common["revision"],
        "weights": common["weights"],
        "family": common["family"],
        "group": card.group,
        "tags": list(card.tags),
        "position": card.position,
        "grid": list(card.grids[0]),
        "grids": [list(grid) for grid in dict.fromkeys(card.grids)],
        "depth": len(card.grids),
        "image_size": list(common["image_size"]),
        "params": card.params,
        "macs": card.macs,
        "macs_convention": MACS,
        "interface": card.interface,
        "provenance": dict(card.provenance),
        "readout": card.readout,
        "images": clean.images if clean is not None else 0,
        "settings": settings | ({} if clean is None else {"machine": clean.machine}),
        "labels": _labels(common["labels"]),
        "notes": [*common["notes"], *_halved(records)],
        "skipped": [list(e) for e in sorted({tuple(s) for r in records for s in r.skipped})],
    }
    entry |= _curves(card, clean, draws)
    entry |= _predictions(card, clean, by_parts, asked)
    entry["alphas"] = _alphas(card, clean, draws, by_parts, asked)
    entry["maps"] = similarity_maps(card, clean, [d for d in draws if d.reason is None])
    return entry


def _halved(records: Sequence[PassRecord]) -> list[str]:
    """A remark where a batch did not fit into memory."""
    machines = [r.machine for r in records if "halved_from" in r.machine]
    sizes = sorted({(one["halved_from"], one["batch_size"]) for one in machines})
    return [
        f"out of memory with {asked} images per forward pass: run with {ran}"
        for asked, ran in sizes
    ]


def _labels(labels: Mapping[str, Any] | None) -> str | None:
    """How labels were mapped, in a line."""
    return None if labels is None else str(labels["note"])


def _curves(
    card: ModelCard, clean: PassRecord | None, draws: Sequence[PassRecord]
) -> dict[str, Any]:
    if clean is not None and clean.layers:
        found = ssdc_result(card.model, clean, draws)
        kept = ("anchoring", "anchoring_by_grid", "final", "peak", "delta_ssdc_rpi", "layers")
        return {name: found[name] for name in kept}
    none = asdict(Scalar(None, reason=NOT_MEASURED))
    return {
        "anchoring": none,
        "anchoring_by_grid": [{"grid": list(g)} | none for g in dict.fromkeys(card.grids)],
        "final": none,
        "peak": {"layer": None, "value": None, "reason": NOT_MEASURED},
        "delta_ssdc_rpi": none,
        "layers": [],
    }


def _predictions(
    card: ModelCard,
    clean: PassRecord | None,
    by_parts: Mapping[_Parts, Sequence[PassRecord]],
    asked: Asked,
) -> dict[str, Any]:
    wanted = [parse(text) for text in asked.corruptions]
    found = [(one, by_parts.get(_Parts(False, 1.0, str(one)), ())) for one in wanted]
    passes = [(one, records[0]) for one, records in found if records]
    rows: dict[str, dict[str, Any]] = {}
    value: dict[str, Any] = asdict(Scalar(None, reason=card.unjudged or NOT_MEASURED))
    correct = labelled = None
    if clean is not None and clean.predicted is not None:
        result = fragility_result(card.model, clean, passes)
        rows = {row["corruption"]: row for row in result["corruptions"]}
        value, correct, labelled = result["accuracy"], result["correct"], result["labelled"]
        if card.unjudged is not None:
            value["reason"] = card.unjudged
            for row in rows.values():
                row["accuracy"]["reason"] = row["fs"]["reason"] = card.unjudged
    none = {"accuracy": value | _NOTHING, "correct": None, "fs": value | _NOTHING}
    none |= {"agreement_fs": asdict(Scalar(None, reason=_unpredicted(card)))}
    return {
        "accuracy": value,
        "correct": correct,
        "labelled": labelled if card.judged else None,
        "corruptions": [
            {
                "corruption": str(one),
                "column": one.slug,
                "effective_sigma": one.effective_sigma,
                **{name: rows.get(str(one), none)[name] for name in none},
            }
            for one in wanted
        ],
    }


_NOTHING: dict[str, Any] = {"value": None, "low": None, "high": None}


def _unpredicted(card: ModelCard) -> str:
    return NOT_MEASURED if card.head else card.unjudged or NOT_MEASURED


def _alphas(
    card: ModelCard,
    clean: PassRecord | None,
    draws: Sequence[PassRecord],
    by_parts: Mapping[_Parts, Sequence[PassRecord]],
    asked: Asked,
) -> list[dict[str, Any]]:
    dosed = [parse(text) for text in asked.dosed]
    doses = []
    for alpha in asked.alphas:
        if alpha == 1:
            judged = clean if card.judged and clean and clean.correct is not None else None
            shifted = _shifted(by_parts, 1.0, dosed) if judged is not None else ()
            doses.append(Dose(1.0, tuple(draws), judged, shifted))
        else:
            rpi = tuple(by_parts.get(_Parts(True, alpha, None), ()))
            plain = next(iter(by_parts.get(_Parts(False, alpha, None), ())), None)
            doses.append(Dose(alpha, rpi, plain, _shifted(by_parts, alpha, dosed)))
    if not any(dose.rpi or dose.clean for dose in doses):
        return []
    rows = scale_result(card.model, doses, unjudged=card.unjudged)["alphas"]
    for row, dose in zip(rows, doses, strict=True):
        if dose.alpha != 1 and card.unscaled is not None:
            _undefine(row, card.unscaled)
        row["fs"] = {str(one): row["fs"].get(str(one), row["accuracy"] | _NOTHING) for one in dosed}
    return list(rows)


def _undefine(row: dict[str, Any], reason: str) -> None:
    for name in ("delta_ssdc_rpi", "anchoring", "accuracy"):
        row[name] = asdict(Scalar(None, reason=reason))
    row["reason"] = reason


def _shifted(
    by_parts: Mapping[_Parts, Sequence[PassRecord]], alpha: float, dosed: Sequence[Corruption]
) -> tuple[tuple[Corruption, PassRecord], ...]:
    found = [(one, by_parts.get(_Parts(False, alpha, str(one)), ())) for one in dosed]
    return tuple((one, records[0]) for one, records in found if records)
