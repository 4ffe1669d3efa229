"""What a zoo says as a whole: rank correlations over its models, and whether they compare.

Models here are the entries of a report's `models`.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from probe.numerics.association import (
    EXACT_MODELS,
    PERMUTATIONS,
    bootstrap_spearman,
    leave_one_out_range,
    permutation_p,
    spearman,
)
from probe.numerics.proportions import RESAMPLES

POSITIONAL = ("anchoring", "delta_ssdc_rpi")
FEWEST = 3  # two models are always in order, or in reverse
FEW = 5
NAMED = 8  # with more models than this, a note counts them
KINDS = 4
SEED = re.compile(r",? seed \d+\b")  # in the pretraining of what `probe train` makes
METHOD = (
    f"rho: Spearman rank correlation over models; [low, high]: 95 % percentile bootstrap over "
    f"models, {RESAMPLES} resamples; p: two-sided permutation of models, exact up to "
    f"{EXACT_MODELS} models, else {PERMUTATIONS} permutations; leave-one-out: smallest and largest "
    "rho without one of the models"
)
CAUTION = (
    "models of one recipe or family are not independent, so intervals and p over several recipes "
    "are too small; correlations within a group compare models of one recipe"
)

Model = Mapping[str, Any]


def zoo_statistics(models: Sequence[Model], seed: int = 0) -> dict[str, Any]:
    """The `statistics` of a report: anchoring and delta SSDC against every FS and agreement.

    Over all models, then within each group of at least three. What is undefined for a model leaves
    it out of that correlation, and is named there. A correlation over pretrained checkpoints is no
    experiment: see `controlled`.

    Args:
        models: entries of the report's `models`.
        seed: seed of resamples and permutations.
    """
    sizes = Counter(model["group"] for model in models if model["group"] is not None)
    groups = [None, *(group for group, size in sizes.items() if size >= FEWEST)]
    columns = dict.fromkeys(
        f"{kind}_{entry['column']}"
        for kind in ("fs", "agreement")
        for model in models
        for entry in model["corruptions"]
    )
    correlations = [
        _correlation(models, x, y, group, seed)
        for group in groups
        for x in POSITIONAL
        for y in columns
    ]
    found = sum(entry["rho"] is not None for entry in correlations)
    notes = [METHOD, CAUTION] if found else []
    if found > 1:
        notes.append(
            f"{found} correlations are listed and their p is not corrected for that: of 20 without "
            "any relation one is expected below .05"
        )
    if len(models) < FEWEST:
        notes.append("fewer than three models: there is no rank correlation")
    return {"correlations": correlations, "notes": notes}


def controlled(models: Sequence[Model]) -> dict[str, Any]:
    """Whether pretraining, teacher and training recipe (group) are known to be equal, in words.

    What is unknown counts as possibly different. A teacher that is left out where the pretraining
    is stated means that there was none, as in the zoo file; untrained models have neither. A
    training seed is a replicate and no difference of training, but is mentioned. Equal facts do
    not make size or architecture equal.

    Args:
        models: {"model", "provenance", "group", "weights"}: entries of a report's `models`, say.
    """
    if len(models) < 2:
        return {"controlled": True, "note": "one model: nothing is compared"}
    if all(_untrained(model) for model in models):
        return {"controlled": True, "note": "random weights: no pretraining or teacher differs"}
    facts = {
        "pretraining": [_pretraining(model) for model in models],
        "teacher": [_teacher(model) for model in models],
        "training recipe": [_group(model) for model in models],
    }
    phrases = [_differing(label, models, values) for label, values in facts.items()]
    told = [phrase for phrase in phrases if phrase]
    if told:
        return {"controlled": False, "note": f"not a controlled comparison: {'; '.join(told)}"}
    same = [f"{label} ({values[0]})" for label, values in facts.items()]
    note = f"controlled comparison: the same {', '.join(same[:-1])} and {same[-1]}"
    stated = [str(model["provenance"].get("pretraining")) for model in models]
    if len({tuple(SEED.findall(text)) for text in stated}) > 1:
        note += "; training seeds differ"
    return {"controlled": True, "note": note}


def _correlation(
    models: Sequence[Model], x: str, y: str, group: str | None, seed: int
) -> dict[str, Any]:
    members = [model for model in models if group in (None, model["group"])]
    pairs, without = [], dict[str, list[str]]()
    for model in members:
        scalars = {x: model[x], y: _outcome(model, y)}
        missing = [name for name, scalar in scalars.items() if scalar["value"] is None]
        for name in missing[:1]:
            reason = f"{name}: {scalars[name]['reason'] or 'undefined'}"
            without.setdefault(reason, []).append(str(model["model"]))
        if not missing:
            pairs.append((model, float(scalars[x]["value"]), float(scalars[y]["value"])))
    entry: dict[str, Any] = {"x": x, "y": y, "group": group, "models": len(pairs)}
    entry |= dict.fromkeys(("rho", "low", "high", "p", "loo_low", "loo_high", "reason"))
    notes = [f"left out for want of {why}: {', '.join(names)}" for why, names in without.items()]
    first, second = (np.array([pair[i] for pair in pairs], dtype=np.float64) for i in (1, 2))
    rho = spearman(first, second)
    if len(pairs) < FEWEST:
        entry["reason"] = f"fewer than three models have both {x} and {y}"
    elif math.isnan(rho):
        constant = x if len(set(first)) == 1 else y
        entry["reason"] = f"{constant} is the same in all {len(pairs)} models"
    else:
        entry |= {"rho": rho, "p": permutation_p(first, second, seed)}
        bounds = bootstrap_spearman(first, second, seed)
        if bounds is not None:
            entry["low"], entry["high"], dropped = bounds
            if dropped:
                notes.append(
                    f"{dropped} of {RESAMPLES} resamples of models gave no correlation and were "
                    "dropped"
                )
        found = leave_one_out_range(first, second)
        if found is not None:
            entry["loo_low"], entry["loo_high"] = found
        elif len(pairs) > FEWEST:
            notes.append("without one of the models rho is undefined: no leave-one-out range")
        notes += _warnings([model for model, _, _ in pairs], x, group)
    return entry | {"notes": notes}


def _outcome(model: Model, column: str) -> Mapping[str, Any]:
    """The scalar of a column such as `fs_jpeg_q5` or `agreement_jpeg_q5`."""
    kind, _, slug = column.partition("_")
    name = "fs" if kind == "fs" else "agreement_fs"
    for entry in model["corruptions"]:
        if entry["column"] == slug:
            scalar: Mapping[str, Any] = entry[name]
            return scalar
    return {"value": None, "reason": "not measured"}


def _warnings(models: Sequence[Model], x: str, group: str | None) -> list[str]:
    """What makes a correlation over these models say less than its number."""
    found, total = [], len(models)
    if total < FEW:
        least = f"{2 / math.factorial(total):.3f}".removeprefix("0")
        found.append(f"fewer than five models ({total}): p cannot fall below {least}")
    sizes = Counter(model["group"] for model in models if model["group"] is not None)
    if group is None and sizes:
        largest, size = sizes.most_common(1)[0]
        if size == total:
            found.append(f"all {total} models belong to one group, {largest}")
        elif 2 * size > total:
            found.append(f"one group dominates: {size} of {total} models belong to {largest}")
    several = [str(model["model"]) for model in models if len(model["grids"]) > 1]
    if 0 < len(several) < total:
        mixed = "; anchoring averages over all of them" if x == "anchoring" else ""
        found.append(
            f"models with several grids ({listed(several)}) are ranked with models of one{mixed}"
        )
    return found


def listed(names: Sequence[str], most: int = 4) -> str:
    """`a, b, c and 5 more`."""
    rest = len(names) - most
    return ", ".join(names[:most]) + (f" and {rest} more" if rest > 0 else "")


def _untrained(model: Model) -> bool:
    return str(model.get("weights") or "").startswith("random:")


def _known(value: object) -> str | None:
    """The fact in words; None where it is unknown."""
    text = "" if value is None else " ".join(str(value).split())
    return None if text.lower() in ("", "unknown") else text


def _pretraining(model: Model) -> str | None:
    if _untrained(model):
        return "none, random weights"
    stated = _known(model["provenance"].get("pretraining"))
    return None if stated is None else SEED.sub("", stated)


def _teacher(model: Model) -> str | None:
    provenance = model["provenance"]
    if _untrained(model) or ("teacher" not in provenance and _pretraining(model) is not None):
        return "none"
    return _known(provenance.get("teacher"))


def _group(model: Model) -> str | None:
    group = _known(model["group"])
    return "none, random weights" if _untrained(model) else group and f"group {group}"


def _differing(label: str, models: Sequence[Model], values: Sequence[str | None]) -> str | None:
    """In what way the values differ, or may; None where all are known and equal."""
    owners: dict[str | None, list[str]] = {}
    for model, value in zip(models, values, strict=True):
        owners.setdefault(value, []).append(str(model["model"]))
    unknown = owners.pop(None, [])

    def who(names: Sequence[str]) -> str:
        few = len(models) <= NAMED or len(names) == 1
        return ", ".join(names) if few else f"{len(names)} models"

    whose = "all" if len(unknown) == len(models) else who(unknown)
    if len(owners) > 1:
        kinds = sorted(owners.items(), key=lambda item: -len(item[1]))[:KINDS]
        parts = [f"{value}: {who(names)}" for value, names in kinds]
        parts += [f"and {len(owners) - KINDS} more kinds"] if len(owners) > KINDS else []
        parts += [f"unknown: {whose}"] if unknown else []
        return f"{label} differs ({'; '.join(parts)})"
    return f"{label} may differ (unknown for {whose})" if unknown else None
