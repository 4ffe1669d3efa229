"""A model with a readout for its head."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch import Tensor

from probe.data.preprocess import describe
from probe.errors import UsageError
from probe.readout.features import choose_pool, pooled_features
from probe.readout.file import Readout
from probe.types import LoadedModel

REFIT = "fit one with `probe readout`"


def with_readout(model: LoadedModel, readout: Readout) -> LoadedModel:
    """`model` with `readout` as its head, in place of its own if it has one.

    `forward(images)` gives the pooled features (B, F) by running the unmodified module, so that
    hooks and interventions act at every site; `predict(features)` gives logits (B, classes). A
    note says which readout it is and how it was fitted, another if it was fitted under other
    preprocessing.

    Raises:
        UsageError: if the readout was fitted for other weights, another image size, or a pool that
            the model lacks. Features of another size are refused in the first forward pass.
        AnatomyError: if the model has no features for a readout.
    """
    meta = readout.meta
    _check_same_model(model, readout)
    pool = choose_pool(model, readout.pool)
    size = list(model.anatomy.image_size)
    if meta["image_size"] != size:
        raise UsageError(
            f"the readout was fitted at image size {_by(meta['image_size'])}, but the model runs "
            f"at {_by(size)}; choose --image-size {_by(meta['image_size'])}, or {REFIT}"
        )
    notes = (
        f"classes come from a linear readout ({readout.sha256[:19]}), not from a head of the "
        f"model: {meta['fitted']}",
        *meta["notes"],
    )
    if model.preprocess is not None and describe(model.preprocess) != meta["preprocess"]:
        notes += (
            "the readout was fitted under other preprocessing, which costs accuracy "
            f"({meta['preprocess']['source']}, and now {model.preprocess.source})",
        )

    def forward(images: Tensor) -> Tensor:
        features = pooled_features(model, images, pool)
        readout.check(features)
        return features

    def predict(features: Any) -> Tensor:
        return readout.logits(features)

    return replace(
        model,
        forward=forward,
        predict=predict,
        classes=len(readout.class_names),
        notes=model.notes + notes,
    )


def _check_same_model(model: LoadedModel, readout: Readout) -> None:
    ours, theirs = model.identity, readout.meta
    same = ours.weights == theirs["weights"]
    if ours.weights.startswith("random:"):  # a seed alone names no weights
        same = same and ours.resolved == theirs["resolved"]
    if not same:
        raise UsageError(
            f"the readout was fitted for {theirs['resolved']} ({theirs['weights'][:19]}), not for "
            f"{ours.resolved} ({ours.weights[:19]}); {REFIT}"
        )


def _by(size: Any) -> str:
    return "x".join(map(str, size))
