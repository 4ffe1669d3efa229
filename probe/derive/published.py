"""Published figures of the same models, and ours beside them."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

from probe.derive.published_file import Figure, Published, PublishedFile, Study, read_published

_MODE = re.compile(r"rpi\(mode=(\w+)")
_SHARED = {
    "image": "one permutation per image",
    "batch": "one permutation per batch",
    "shared": "one permutation for all images",
}


@lru_cache(maxsize=1)
def _shipped() -> PublishedFile:
    return read_published()


def compare_published(model_entry: Mapping[str, Any], protocol: str) -> list[dict[str, Any]]:
    """A model's numbers beside the published ones of the same checkpoint, in the file's order.

    A checkpoint is told by its resolved id; a variant of a published recipe by its group,
    `RECIPE_controlled`, and its tags, `trained` and the variant. Only what both measured is
    compared: the same layer, corruption or alpha. SSDC at another site, distance, averaging or
    grid than the published one is no counterpart, and is null with that reason.

    Args:
        model_entry: one entry of a report's `models`.
        protocol: `default` or `paper`; it says how permutations were shared where the entry's
            settings do not.

    Returns:
        Entries of `published`: `what`, `protocol` (how both were measured, in words), `source`,
        `ours` (value, low, high, reason), `published`, `difference` (ours minus published) and
        `inside`, whether the published value lies in our interval. The last two are null where
        ours has no value or no interval.
    """
    found = []
    for study in _shipped().studies.values():
        for theirs in study.models:
            if _same(model_entry, study, theirs):
                found += [
                    *_ssdc(model_entry, protocol, study, theirs),
                    *_judged(model_entry, study, theirs),
                    *_doses(model_entry, protocol, study, theirs),
                ]
    return found


def _same(entry: Mapping[str, Any], study: Study, theirs: Published) -> bool:
    if theirs.resolved is not None:
        return bool(entry["resolved"] == theirs.resolved)
    return entry["group"] == f"{study.recipe}_controlled" and {"trained", theirs.variant} <= set(
        entry["tags"]
    )


def _ssdc(
    entry: Mapping[str, Any], protocol: str, study: Study, theirs: Published
) -> Iterator[dict[str, Any]]:
    """Curves by layer, and what follows from them."""
    words = f"published: {study.ssdc}; here: {_ssdc_words(entry, protocol)}"
    other = _other_setting(entry, study, theirs)

    def row(what: str, ours: Mapping[str, Any], value: float) -> dict[str, Any]:
        return _row(what, words, study.source, ours if other is None else _null(other), value)

    if theirs.rpi:
        mean = math.fsum(theirs.rpi) / len(theirs.rpi)
        yield row("anchoring, mean of the published curve", entry["anchoring"], round(mean, 4))
        delta = round(theirs.rpi[1] - theirs.rpi[0], 4)
        yield row("delta SSDC, from the published curve", entry["delta_ssdc_rpi"], delta)
    for kind, curve in (("clean", theirs.clean), ("rpi", theirs.rpi)):
        label = "SSDC clean" if kind == "clean" else "SSDC under RPI"
        for layer, value in enumerate(curve):
            yield row(f"{label}, layer {layer}", _at(entry, kind, layer), value)


def _judged(entry: Mapping[str, Any], study: Study, theirs: Published) -> Iterator[dict[str, Any]]:
    """Accuracy, and FS under the corruptions that both measured."""
    words = _judged_words(entry, study)
    if theirs.accuracy is not None:
        told = words + _remark(theirs.accuracy)
        value = theirs.accuracy.value
        yield _row("accuracy", told, study.source, entry["accuracy"], value)
    ours = {own["corruption"]: own["fs"] for own in entry["corruptions"]}
    for text, figure in theirs.fs.items():
        if text in ours:
            told = words + _remark(figure)
            yield _row(f"FS {text}", told, study.source, ours[text], figure.value)


def _doses(
    entry: Mapping[str, Any], protocol: str, study: Study, theirs: Published
) -> Iterator[dict[str, Any]]:
    """Delta SSDC and FS at the alphas that both measured."""
    other = _other_setting(entry, study, theirs)
    ssdc = f"published: {study.ssdc}; here: {_ssdc_words(entry, protocol)}"
    rows = {float(row["alpha"]): row for row in entry["alphas"]}
    for dose in theirs.alphas:
        if dose.alpha not in rows:
            continue
        own, at = rows[dose.alpha], f"at alpha {dose.alpha:g}"
        if dose.delta_ssdc_rpi is not None:
            ours = own["delta_ssdc_rpi"] if other is None else _null(other)
            told = ssdc + _remark(dose.delta_ssdc_rpi)
            value = dose.delta_ssdc_rpi.value
            yield _row(f"delta SSDC {at}", told, study.source, ours, value)
        for text, figure in dose.fs.items():
            if text in own["fs"]:
                told = _judged_words(entry, study) + _remark(figure)
                yield _row(f"FS {text} {at}", told, study.source, own["fs"][text], figure.value)


def _row(
    what: str, protocol: str, source: str, ours: Mapping[str, Any], value: float
) -> dict[str, Any]:
    own = {key: ours[key] for key in ("value", "low", "high", "reason")}
    bounded = None not in (own["value"], own["low"], own["high"])
    return {
        "what": what,
        "protocol": protocol,
        "source": source,
        "ours": own,
        "published": value,
        "difference": None if own["value"] is None else own["value"] - value,
        "inside": own["low"] <= value <= own["high"] if bounded else None,
    }


def _at(entry: Mapping[str, Any], kind: str, layer: int) -> Mapping[str, Any]:
    layers = entry["layers"]
    if layer < len(layers):
        return layers[layer][kind]
    return _null(f"the model has {len(layers)} layers here")


def _null(reason: str) -> dict[str, Any]:
    return {"value": None, "low": None, "high": None, "reason": reason}


def _other_setting(entry: Mapping[str, Any], study: Study, theirs: Published) -> str | None:
    """Why our SSDC is no counterpart of the published one, None where it is."""
    for name, wanted in study.setting.model_dump().items():
        used = entry["settings"].get(name, "unknown")
        if used != wanted:
            return f"the published SSDC has {name} {wanted}, ours {used}"
    grid = list(entry["grid"])
    if theirs.grid is not None and grid != theirs.grid:
        return f"the published SSDC is on a grid of {_by(theirs.grid)}, ours on {_by(grid)}"
    return None


def _ssdc_words(entry: Mapping[str, Any], protocol: str) -> str:
    settings = entry["settings"]
    modes = dict.fromkeys(m for text in settings.get("rpi", ()) for m in _MODE.findall(text))
    shared = _SHARED["batch" if protocol == "paper" else "image"]
    if modes:
        shared = " and ".join(_SHARED[mode] for mode in modes)
    if settings.get("batch_size") and "per batch" in shared:
        shared += f" of {settings['batch_size']}"
    return f"{shared}, {_images(entry)}"


def _judged_words(entry: Mapping[str, Any], study: Study) -> str:
    return f"published: {study.accuracy}; here: {_images(entry)}"


def _images(entry: Mapping[str, Any]) -> str:
    count = entry["images"]
    name = entry["settings"].get("data", {}).get("name")
    return f"{count:,} image{'' if count == 1 else 's'}" + (f" of {name}" if name else "")


def _remark(figure: Figure) -> str:
    """Seeds and second runs, which our interval over images says nothing about."""
    parts = []
    if figure.seeds is not None and figure.seeds > 1:
        parts.append(f"the published value is a mean of {figure.seeds} training seeds")
        if figure.sd is not None:
            parts[-1] += f" (sd {figure.sd:g})"
    elif figure.seeds == 1:
        parts.append("the published value is of one training seed")
    if figure.again is not None:
        parts.append(f"the authors' second run gave {figure.again:g}")
    return "".join(f"; {part}" for part in parts)


def _by(grid: list[int]) -> str:
    return f"{grid[0]}x{grid[1]}"
