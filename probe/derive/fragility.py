"""Accuracy, fragility and agreement from the stored predictions of passes over the same images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probe.corruptions import Corruption
from probe.numerics.proportions import RESAMPLES, bootstrap_fragility, wilson
from probe.records import PassRecord
from probe.types import Scalar

NO_LABELS = "the images have no labels"
NOT_JUDGED = "predictions were not compared with labels"


def verdicts(record: PassRecord) -> tuple[NDArray[np.int32], NDArray[np.int8]]:
    """Predictions and correctness (n,) of a pass.

    Raises:
        ValueError: if the pass kept none; it was planned without them.
    """
    if record.predicted is None or record.correct is None:
        raise ValueError(f"the pass under '{record.condition}' holds no predictions")
    return record.predicted, record.correct


def shared_images(records: Sequence[PassRecord]) -> NDArray[np.bool_]:
    """(n,) which images every pass has read: only those are compared."""
    sizes = {len(verdicts(record)[0]) for record in records}
    if len(sizes) != 1:
        raise ValueError(f"passes over different numbers of images: {sorted(sizes)}")
    return np.all([verdicts(record)[0] >= 0 for record in records], axis=0)


def accuracy(record: PassRecord, among: NDArray[np.bool_]) -> tuple[Scalar, int, int]:
    """(top-1 accuracy with its Wilson interval, number correct, number of labelled images)."""
    if record.reason is not None:
        return Scalar(None, reason=record.reason), 0, 0
    correct = verdicts(record)[1][among]
    labelled = int((correct >= 0).sum())
    if labelled == 0:
        return Scalar(None, reason=_unlabelled(record)), 0, 0
    right = int((correct == 1).sum())
    return Scalar(right / labelled, *wilson(right, labelled)), right, labelled


def _unlabelled(record: PassRecord) -> str:
    return NO_LABELS if record.settings.get("labels") else NOT_JUDGED


def fragility(
    clean: PassRecord, shifted: PassRecord, among: NDArray[np.bool_], seed: int
) -> Scalar:
    """FS = 1 - A_shift / A_clean, counted over images, with a paired bootstrap interval.

    Negative when the corruption helps; undefined when no clean prediction is right. Two models
    with the same FS can differ much in accuracy: it is a share of what the model could do.
    Source: arXiv 2606.00124.
    """
    for record in (clean, shifted):
        if record.reason is not None:
            return Scalar(None, reason=record.reason)
    before, after = verdicts(clean)[1][among], verdicts(shifted)[1][among]
    labelled = before >= 0
    if not labelled.any():
        return Scalar(None, reason=_unlabelled(clean))
    right, still = before[labelled] == 1, after[labelled] == 1
    if not right.any():
        return Scalar(None, reason="no clean prediction is right")
    value = float(1 - still.sum() / right.sum())
    found = bootstrap_fragility(right, still, seed)
    if found is None:
        return Scalar(value, reason="no interval from one image")
    low, high, dropped = found
    reason = (
        f"{dropped} of {RESAMPLES} resamples had no right clean prediction" if dropped else None
    )
    return Scalar(value, low, high, reason)


def agreement_fragility(clean: PassRecord, shifted: PassRecord, among: NDArray[np.bool_]) -> Scalar:
    """1 - share of images whose top-1 equals the clean top-1, with its Wilson interval."""
    for record in (clean, shifted):
        if record.reason is not None:
            return Scalar(None, reason=record.reason)
    before, after = verdicts(clean)[0][among], verdicts(shifted)[0][among]
    if len(before) == 0:
        return Scalar(None, reason="no image was read under both conditions")
    changed = int((before != after).sum())
    return Scalar(changed / len(before), *wilson(changed, len(before)))


def fragility_result(
    name: str,
    clean: PassRecord,
    shifted: Sequence[tuple[Corruption, PassRecord]],
    *,
    notes: Sequence[str] = (),
) -> dict[str, Any]:
    """One model's entry in the output of `probe fragility`.

    Args:
        name: the model as the user named it.
        clean: its clean pass.
        shifted: its passes under corruptions.
        notes: remarks of the loader.
    """
    seed = int(clean.settings["seed"])
    among = shared_images([clean, *(record for _, record in shifted)])
    value, right, labelled = accuracy(clean, among)
    rows = []
    for corruption, record in shifted:
        under, still, _ = accuracy(record, among)
        rows.append(
            {
                "corruption": str(corruption),
                "effective_sigma": corruption.effective_sigma,
                "accuracy": asdict(under),
                "correct": still if under.value is not None else None,
                "fs": asdict(fragility(clean, record, among, seed)),
                "agreement_fs": asdict(agreement_fragility(clean, record, among)),
            }
        )
    return {
        "model": name,
        "resolved": clean.settings["resolved"],
        "family": clean.settings["family"],
        "images": int(among.sum()),
        "labelled": labelled,
        "settings": {
            k: v
            for k, v in clean.settings.items()
            if k not in ("condition", "measures", "notes", "labels")
        }
        | {
            "machine": clean.machine,
            "fs_interval": f"95 %, paired bootstrap over images, percentile, {RESAMPLES} resamples",
            "accuracy_interval": "95 %, Wilson",
        },
        "labels": clean.settings.get("labels"),
        "accuracy": asdict(value),
        "correct": right if value.value is not None else None,
        "corruptions": rows,
        "skipped": sorted(
            {tuple(entry) for r in (clean, *(r for _, r in shifted)) for entry in r.skipped}
        ),
        "notes": list(notes),
    }
