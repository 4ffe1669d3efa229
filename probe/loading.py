"""From a ModelSpec to a model ready to run: fetch it, let its family declare it, place it."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast, get_args

import torch

from probe.data.preprocess import at_size, named_preprocess, paper_preprocess
from probe.data.preprocess_file import stated_preprocess
from probe.errors import AnatomyError, CheckpointError, UsageError, did_you_mean
from probe.families.base import Library, RawModel, family_of
from probe.families.checkpoint import check_finite
from probe.families.declared import declare, inline_anatomy, stated_size
from probe.preprocess_fields import preprocess_fields
from probe.types import DType, LoadedModel, ModelSpec, Preprocess


def load_model(
    spec: ModelSpec,
    *,
    image_size: tuple[int, int] | None = None,
    preprocess: str | None = None,
    paper: bool = False,
    random_init: bool = False,
    seed: int = 0,
    dtype: DType = "float32",
    device: str = "auto",
) -> LoadedModel:
    """Load `spec`, unmodified, in eval mode, with what its family declares.

    Args:
        spec: which model.
        image_size: (height, width) in pixels; None for the checkpoint's own.
        preprocess: `imagenet`, `half` or a file; None for the spec's, else the checkpoint's own.
        paper: squash the image to the model's size, bilinear, as arXiv 2606.00124 does.
        random_init: the library's own initialisation instead of weights; nothing is downloaded
            but, for `hf:` ids, the configuration.
        seed: seed of that initialisation.
        dtype: precision of weights and activations. Cosines and ranks are float32 or better.
        device: `auto`, `cpu`, `cuda`, `cuda:1`, `mps`.

    Raises:
        CheckpointError: if the weights cannot be fetched, read or matched.
        AnatomyError: if no family reads the architecture, or it has no grid of two tokens or more.
    """
    if dtype not in get_args(DType):
        near = did_you_mean(str(dtype), get_args(DType))
        raise UsageError(f"dtype must be one of {', '.join(get_args(DType))}; got '{dtype}'.{near}")
    place = pick_device(device)
    inline = inline_anatomy(spec)
    if inline is None:
        raw = load_raw(spec, image_size=image_size, random_init=random_init, seed=seed)
        family = family_of(raw.module, raw.library, spec.family)
    else:
        size = stated_size(inline, image_size, spec.name)
        raw = load_raw(spec, image_size=size, random_init=random_init, seed=seed)
        raw, family = declare(raw, inline, spec.name)
    anatomy = family.anatomy(raw.module, raw.image_size)
    if anatomy.patches.grid.tokens < 2:
        raise AnatomyError(
            f"{raw.identity.resolved} has a grid of one token at image size "
            f"{raw.image_size[0]}x{raw.image_size[1]}; choose a larger --image-size"
        )
    raw.module.to(device=place, dtype=getattr(torch, dtype))
    if dtype != "float32":
        too_large = "some are too large for it, so choose --dtype float32"
        check_finite(raw.module, f"{raw.identity.resolved} in {dtype}", too_large)
    predict = family.predict(raw.module)
    return LoadedModel(
        spec=spec,
        identity=raw.identity,
        family=family.name,
        module=raw.module,
        anatomy=anatomy,
        preprocess=_preprocess(raw, preprocess or spec.preprocess, paper),
        forward=raw.forward,
        predict=predict,
        classes=raw.classes if predict is not None else None,
        notes=raw.notes,
        class_names=raw.class_names if predict is not None else None,
    )


def required_preprocess(model: LoadedModel) -> Preprocess:
    """The model's preprocessing.

    Raises:
        CheckpointError: if the checkpoint carries none and none was chosen.
    """
    if model.preprocess is None:
        raise CheckpointError(
            f"{model.identity.resolved} carries no preprocessing; "
            "choose --preprocess imagenet, half or a FILE"
        )
    return model.preprocess


def pick_device(device: str) -> torch.device:
    """The torch device meant by `device`; `auto` takes CUDA, else MPS, else the CPU.

    Raises:
        UsageError: if there is no such device here.
    """
    if device == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        place = torch.device(device)
        torch.empty(0, device=place)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise UsageError(f"--device {device} is not available here: {reason}") from error
    return place


def source_library(spec: ModelSpec) -> Library:
    """Which library loads `spec`: its prefix says so, or a folder's config.json does."""
    kind, _, place = spec.source.partition(":")
    if kind in ("timm", "hf", "import"):
        return cast(Library, kind)
    config = Path(place) / "config.json"
    if not os.path.isfile(config):  # False too for what can be no path
        return "timm"
    try:
        fields = json.loads(config.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{config} is not readable JSON: {error}") from error
    return "hf" if isinstance(fields, dict) and "model_type" in fields else "timm"


def load_raw(
    spec: ModelSpec, *, image_size: tuple[int, int] | None, random_init: bool, seed: int
) -> RawModel:
    """The module as its library loads it, before anything has looked at its anatomy.

    Arguments and errors are those of `load_model`.
    """
    library = source_library(spec)
    if library == "import":
        from probe.families.import_loader import load_import

        return load_import(spec, image_size=image_size, random_init=random_init, seed=seed)
    if library == "hf":
        from probe.families.hf_loader import load_hf

        return load_hf(spec, image_size=image_size, random_init=random_init, seed=seed)
    from probe.families.timm_loader import load_timm

    return load_timm(spec, image_size=image_size, random_init=random_init, seed=seed)


def _preprocess(
    raw: RawModel, chosen: str | Mapping[str, Any] | None, paper: bool
) -> Preprocess | None:
    if isinstance(chosen, str):
        found: Preprocess | None = named_preprocess(chosen, raw.image_size)
    elif chosen is not None:
        found = stated_preprocess(preprocess_fields(chosen), raw.image_size, "the zoo entry's own")
    else:
        found = raw.preprocess
    if found is None:
        return None
    if found.size != raw.image_size:
        found = at_size(found, raw.image_size)
    return paper_preprocess(found, raw.image_size) if paper else found
