"""What commands that judge predictions share: corruptions, a readout, labels."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from probe.errors import UsageError

if TYPE_CHECKING:
    from probe.corruptions import Corruption
    from probe.data.labels import LabelMap
    from probe.data.source import Source
    from probe.types import LoadedModel, ModelSpec


def distinct(corruptions: Sequence[Corruption]) -> list[Corruption]:
    """The corruptions, once it is sure that each is there once and can be run.

    Raises:
        UsageError: naming what is there twice, or the optional extra that is missing.
    """
    names = [str(one) for one in corruptions]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise UsageError(f"{', '.join(twice)} is asked for more than once")
    for one in corruptions:
        one.require()
    return list(corruptions)


def with_head(
    spec: ModelSpec, model: LoadedModel, readout: Path | None
) -> tuple[LoadedModel, Sequence[str] | None]:
    """The model with a readout, if one is named or the zoo entry has one, and its class names.

    Raises:
        UsageError: if the model has no head and no readout is named.
    """
    from probe.readout import load_readout, with_readout

    file = readout or (Path(spec.readout) if spec.readout else None)
    if file is not None:
        fitted = load_readout(file)
        return with_readout(model, fitted), fitted.class_names
    if model.predict is None:
        raise UsageError(
            f"{model.identity.resolved} has no head to predict with; fit one with "
            "`probe readout` and give it as --readout FILE"
        )
    return model, model.class_names


def labels_of(
    spec: ModelSpec,
    source: Source,
    model: LoadedModel,
    names: Sequence[str] | None,
    file: Path | None,
) -> LabelMap:
    """The labels that judge the model: a file's, the zoo entry's file's, or the data's own.

    Raises:
        ProbeError: if the images have none, or they cannot be mapped to the head.
    """
    from probe.data.labels import map_labels

    if model.classes is None:
        raise UsageError(f"the head of {model.identity.resolved} tells no classes apart")
    return map_labels(source, None, model.classes, names, str(file) if file else spec.labels)
