"""An architecture of a list with random weights, loaded as a checkpoint of it would be."""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch
from torch import nn

from probe.coverage.listed import Architecture, Library
from probe.coverage.redraw import redraw
from probe.errors import UsageError, did_you_mean
from probe.families.hf_quiet import quiet
from probe.loading import load_model
from probe.types import LoadedModel, ModelSpec


def build(library: Library, architecture: Architecture) -> LoadedModel:
    """The model on the CPU in float32, what starts constant redrawn, so that every part acts.

    Raises:
        ProbeError: if `probe` refuses it, with the reason.
    """
    height, width = architecture.image_size or (0, 0)
    size = (height, width) if architecture.image_size is not None else None
    if library == "timm":
        source = f"timm:{architecture.name}"
        spec = ModelSpec(architecture.name, source, options=architecture.options)
        model = load_model(spec, image_size=size, random_init=True, device="cpu")
    else:
        with tempfile.TemporaryDirectory() as folder:
            _save_config(architecture, Path(folder))
            spec = ModelSpec(architecture.name, f"file:{folder}")
            model = load_model(spec, image_size=size, random_init=True, device="cpu")
    enlarge(redraw(model.module))
    return model


def enlarge(module: nn.Module) -> nn.Module:
    """Scale up, in place, every weight of a linear layer or a convolution that starts small.

    Most libraries draw them with a standard deviation of 0.02. Where attention has no way around
    it, its tokens then differ by less than a float32 can tell; from 1 / sqrt(inputs) on they do.
    """
    with torch.no_grad():
        for part in module.modules():
            if isinstance(part, nn.Linear | nn.Conv2d) and part.weight.numel() > 1:
                spread = float(part.weight.std()) * part.weight[0].numel() ** 0.5
                if 0 < spread < 1:
                    part.weight.div_(spread)
    return module


def _save_config(architecture: Architecture, folder: Path) -> None:
    """The configuration as a checkpoint of this class has it."""
    import transformers

    kind = getattr(transformers, architecture.name, None)
    settings = getattr(kind, "config_class", None)
    if settings is None:
        near = did_you_mean(architecture.name, dir(transformers))
        raise UsageError(f"transformers has no model class '{architecture.name}'.{near}")
    with quiet():
        config = settings(**architecture.options)
        config.architectures = [architecture.name]
        config.save_pretrained(folder)
