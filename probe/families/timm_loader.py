"""Loading timm models: a name with its pretrained tag, or a local state dict of an architecture."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

from safetensors import SafetensorError
from timm.models import PretrainedCfg, get_arch_name
from torch import nn

from probe.errors import CheckpointError, UsageError
from probe.families.base import RawModel
from probe.families.checkpoint import (
    check_finite,
    check_floating,
    file_sha256,
    local_path,
    mismatch,
    read_content,
    read_state_dict,
    resolved_id,
    wrapping,
)
from probe.families.hub import hub_call
from probe.families.timm_build import blueprint, build, native_size, resized_options
from probe.families.timm_head import class_count
from probe.families.timm_hub import fetch_weights, known_architecture, resolve_name
from probe.families.timm_preprocess import checkpoint_preprocess
from probe.families.weight_files import combined_sha256, weights_files
from probe.types import Identity, ModelSpec

_CHECK = "check the architecture and its options (img_size, patch_size, num_classes)"


@dataclass(frozen=True)
class _Source:
    """What timm is asked for: `name` as its factory takes it, and where the weights are."""

    name: str
    resolved: str
    config: PretrainedCfg | None = None
    revision: str | None = None
    weights: tuple[Path, ...] = ()
    carries_preprocess: bool = True


def load_timm(
    spec: ModelSpec, *, image_size: tuple[int, int] | None, random_init: bool, seed: int
) -> RawModel:
    """Load a timm model in eval mode, without gradients, through timm's own code.

    Args:
        spec: `timm:NAME` (with a pretrained tag, else timm's default one), or `file:PATH` or
            `package:NAME` with `arch`; a folder in timm's hub format needs no `arch`.
            `options` go to the constructor.
        image_size: (height, width) in pixels, None for the checkpoint's own. At another size timm
            resamples tables that depend on the grid, and a note says so.
        random_init: timm's initialisation instead of weights; nothing is downloaded.
        seed: seed of that initialisation. The global generator is left as it was.

    Raises:
        UnknownModel: if timm has no such model; the nearest names are given.
        UsageError: if an option or the image size does not fit the architecture.
        CheckpointError: if the weights cannot be fetched or read, or do not all match.
    """
    source = _hub_source(spec) if spec.source.startswith("timm:") else _file_source(spec)
    options = {k: tuple(v) if isinstance(v, list) else v for k, v in spec.options.items()}
    if not source.weights and "img_size" in options:
        image_size = image_size or _pair(options.pop("img_size"))
    plan = blueprint(source.name, options)
    own = native_size(plan)
    size = image_size or own
    sized = options
    if size != own:
        sized = resized_options(source.name, options, plan, size, keep_windows=not random_init)
    notes: tuple[str, ...] = ()
    module: Any  # timm's own attributes
    if random_init:
        module = build(source.name, sized, seed=seed)
        identity = Identity(source.resolved, None, f"random:{seed}")
    elif not source.weights:
        module, identity = _load_from_hub(source, sized)
    else:
        module, read = _load_from_files(source, sized, plan)
        notes += tuple(read)
        digest = combined_sha256(file_sha256(file) for file in source.weights)
        identity = Identity(source.resolved, None, digest)
    if not random_init:
        check_finite(module, _place(source))
    identity = replace(identity, configuration=_configuration(source, sized))
    if size != own and not random_init:
        notes += (
            f"run at {size[0]} x {size[1]} px; the checkpoint's own size is {own[0]} x {own[1]}, "
            "and timm resamples position tables that depend on it",
        )
    preprocess = None
    if source.carries_preprocess:
        preprocess, reason = checkpoint_preprocess(module, size)
        notes += (reason,) if reason else ()
    module.eval().requires_grad_(False)
    return RawModel(
        module=module,
        library="timm",
        identity=identity,
        image_size=size,
        preprocess=preprocess,
        forward=module,
        classes=class_count(module),
        notes=notes,
        class_names=_class_names(module, class_count(module)),
    )


def _configuration(source: _Source, options: dict[str, Any]) -> str:
    """Hash of the architecture's name, or of its config.json, and of the constructor's options."""
    folder = source.name.removeprefix("local-dir:")
    built = source.name
    if folder != source.name:
        built = (Path(folder) / "config.json").read_text(encoding="utf-8")
    text = json.dumps([built, sorted(options.items())], default=str)
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


def _class_names(module: Any, classes: int | None) -> tuple[str, ...] | None:
    names = module.pretrained_cfg.get("label_names")
    return tuple(map(str, names)) if names and len(names) == classes else None


def _hub_source(spec: ModelSpec) -> _Source:
    name, config = resolve_name(spec.source.removeprefix("timm:"))
    return _Source(name, f"timm:{name}", config, spec.revision)


def _file_source(spec: ModelSpec) -> _Source:
    path = local_path(spec.source)
    folder = path if path.is_dir() else path.parent
    weights = weights_files(path)
    named = _config_architecture(folder / "config.json")
    if named is None:
        if spec.arch is None:
            raise UsageError(
                f"'{path}' does not say its architecture; name a timm one with --arch "
                "(in a zoo file: arch)"
            )
        arch = known_architecture(spec.arch)
        resolved = resolved_id(spec.source)
        return _Source(arch, resolved, weights=weights, carries_preprocess=False)
    if spec.arch is not None and get_arch_name(spec.arch) != get_arch_name(named):
        raise UsageError(f"'{folder}' is a checkpoint of {named}, not of {spec.arch}")
    known_architecture(named)
    return _Source(f"local-dir:{folder}", resolved_id(spec.source), weights=weights)


def _config_architecture(config: Path) -> str | None:
    """The architecture that a config.json in timm's hub format names, None for another or none."""
    if not config.is_file():
        return None
    try:
        fields = json.loads(config.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"'{config}' is not readable JSON: {error}") from error
    named = fields.get("architecture") if isinstance(fields, dict) else None
    return named if isinstance(named, str) else None


def _load_from_hub(source: _Source, options: Mapping[str, Any]) -> tuple[nn.Module, Identity]:
    config = source.config
    if config is None or not config.has_weights:
        raise CheckpointError(
            f"timm has no pretrained weights for {source.name}; name another model or tag, "
            "or use --random-init"
        )
    options = dict(options)
    classes = options.pop("num_classes", config.num_classes)
    if classes not in (0, config.num_classes):
        raise CheckpointError(
            f"{source.name} has a head of width {config.num_classes}; one of {classes} would be "
            "untrained. Leave num_classes out, give 0 for no head, or use --random-init"
        )
    overlay = {}
    if source.revision is not None and config.hf_hub_id:
        overlay["hf_hub_id"] = f"{config.hf_hub_id}@{source.revision}"
    fetched = None
    try:
        fetched, identity = hub_call(
            source.resolved, lambda: fetch_weights(source.resolved, config, source.revision)
        )
        module: Any = hub_call(
            source.resolved, lambda: build(source.name, options, pretrained=True, overlay=overlay)
        )
    except OSError as error:  # the few weights that timm fetches from elsewhere than the hub
        raise CheckpointError(
            f"{source.resolved} cannot be downloaded: {error}; check the connection and the proxy "
            "settings, or give a local path"
        ) from error
    except (CheckpointError, SafetensorError, UnpicklingError):
        if fetched is not None and fetched.suffix != ".npz":
            read_content(fetched)  # of a file that cannot be read, it says why in one line
        raise
    if classes == 0 < config.num_classes:
        module.reset_classifier(0)
    return module, identity


def _load_from_files(
    source: _Source, options: Mapping[str, Any], plan: Any
) -> tuple[nn.Module, list[str]]:
    """The model with the weights of its files, and notes on what was read."""
    expected, place = plan.state_dict(), _place(source)
    notes: list[str] = []
    state = read_state_dict(*source.weights, own=expected, notes=notes)
    check_floating(state, expected, place)
    # timm would resample tables of another size without a word; only a size that was asked for
    # may change them, so the file must fit the model at its own size.
    differing = [
        f"{key} {list(tensor.shape)} for {list(expected[key].shape)}"
        for key, tensor in state.items()
        if key in expected and tensor.numel() != expected[key].numel()
    ]
    problem = mismatch([], [], differing)
    if problem is not None:
        raise CheckpointError(f"{place} does not fit {source.name}: {problem}; {_CHECK}")
    try:
        module: Any = build(
            source.name,
            options,
            pretrained=True,
            overlay={
                "state_dict": state,
                "source": "",
                "input_size": (3, *native_size(plan)),
                "num_classes": plan.num_classes,
            },
        )
    except CheckpointError as error:
        advice = wrapping(state, expected) or _CHECK
        raise CheckpointError(f"{place}: {error}; {advice}") from error
    module.pretrained_cfg.pop("state_dict")  # a second copy of every tensor
    return module, notes


def _place(source: _Source) -> str:
    """Where the weights come from, for messages: the file, the folder of shards, or the id."""
    if not source.weights:
        return source.resolved
    one = len(source.weights) == 1
    return f"'{source.weights[0] if one else source.weights[0].parent}'"


def _pair(size: Any) -> tuple[int, int]:
    height, width = size if isinstance(size, tuple) else (size, size)
    return int(height), int(width)
