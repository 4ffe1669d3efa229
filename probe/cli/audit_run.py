"""One model's audit: read the photos, make the card, and compare with the model's own size."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from probe.audit.card import Images, audit_card
from probe.audit.resolution import compared, resolution_facts
from probe.audit.three import three_tokens
from probe.audit.translation import patch_side, with_margin
from probe.cards import judged
from probe.data.loader import batches
from probe.derive.sides import Side
from probe.errors import AnatomyError, NotApplicable
from probe.families.base import packages
from probe.loading import load_model, required_preprocess
from probe.plan import Settings, ssdc_conditions, versions
from probe.session import LoadOptions, data_facts, measure_loaded
from probe.types import LoadedModel, Preprocess, Task

if TYPE_CHECKING:
    from probe.data.source import Source


def audited(
    model: LoadedModel,
    source: Source,
    settings: Settings,
    options: LoadOptions,
    *,
    batch: int | None,
) -> dict[str, Any]:
    """The card of a loaded model over the images of `source`, ready for JSON.

    Args:
        model: the loaded model.
        source: the images, few enough to hold.
        settings: how SSDC is measured where sizes are compared; its seed is that of all noise.
        options: how the model was loaded; with an image size it is compared with its own.
        batch: images per pass of the timing; None times nothing.
    """
    preprocess = required_preprocess(model)
    pixels, facts = _pixels(source, preprocess, settings), data_facts(source)
    try:
        wide = _pixels(source, with_margin(preprocess, patch_side(model)), settings)
        images = Images(pixels, wide, facts)
    except (NotApplicable, AnatomyError) as error:
        images = Images(pixels, None, facts, narrow=str(error))
    card = audit_card(model, images, seed=settings.seed, batch=batch)
    card["three_tokens"] = three_tokens(settings.seed)
    used = versions() | packages(model.family, model.module) | dict(source.packages)
    card["settings"] = {"dtype": settings.dtype, "device": _device(model), "versions": used}
    if options.image_size is not None:
        card["resolution"] = _resolution(model, source, settings, options)
    return card


def _device(model: LoadedModel) -> str:
    return next(model.module.parameters()).device.type


def _pixels(source: Source, preprocess: Preprocess, settings: Settings) -> Tensor:
    found = [batch.images for batch in batches(source, preprocess, settings.batch_size)]
    return torch.cat(found)


def _resolution(
    model: LoadedModel, source: Source, settings: Settings, options: LoadOptions
) -> dict[str, Any] | None:
    """The model at its own size against the size it was loaded at; None if they are the same."""
    own = load_model(
        model.spec,
        preprocess=options.preprocess,
        random_init=options.random_init,
        seed=settings.seed,
        dtype=settings.dtype,
        device=options.device,
    )
    if own.anatomy.image_size == model.anatomy.image_size:
        return None
    sides = [_side(one, source, settings) for one in (own, model)]
    return {"positions": resolution_facts(own, model), "measured": compared(*sides)}


def _side(model: LoadedModel, source: Source, settings: Settings) -> Side:
    found = judged(model.spec, source, model)
    clean, rpi = ssdc_conditions("image", 1, settings.seed)
    tasks = [Task(clean, top1=found.model.predict is not None), Task(rpi)]
    measured = measure_loaded(found.model, source, tasks, settings, labels=found.labels)
    records = measured.records
    height, width = model.anatomy.image_size
    return Side(
        name=f"{model.spec.name} at {height} x {width} px",
        clean=records[0],
        rpi=(records[1],),
        predicted=records[0] if found.model.predict is not None else None,
        unjudged=found.reason,
    )
