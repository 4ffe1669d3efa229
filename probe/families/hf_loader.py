"""Loading transformers models: which class, which weights, what must match, how it is called."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from probe.errors import CheckpointError, UsageError, did_you_mean
from probe.families.base import RawModel
from probe.families.checkpoint import resolved_id
from probe.families.hf_files import CheckpointFiles, locate
from probe.families.hf_model import forward_at, model_class, own_patch, own_size
from probe.families.hf_preprocess import checkpoint_preprocess
from probe.families.hf_quiet import quiet
from probe.families.hf_sites import head_width, pair
from probe.families.hf_weights import initialised, pretrained
from probe.types import Identity, ModelSpec


def load_hf(
    spec: ModelSpec, *, image_size: tuple[int, int] | None, random_init: bool, seed: int
) -> RawModel:
    """Load a transformers image model in float32 and eval mode, without gradients.

    The class is the classifier that the configuration names, else the bare image model: the vision
    tower of a CLIP or SigLIP checkpoint, the encoder of a masked autoencoder (run without masking).
    Bare models are built without a pooler, which no token passes.

    Args:
        spec: `hf:ID` or a folder with config.json. `options` are fields of the configuration.
        image_size: (height, width) in pixels. None takes what the checkpoint's image processor
            gives, else the configuration's. A processor that `Preprocess` cannot express is left
            out, and a note says why. At another size than the configuration's, position
            tables are interpolated by the library's own method, and a note says so.
        random_init: the library's initialisation instead of weights; nothing but settings is
            fetched.
        seed: seed of that initialisation. The global generator is left as it was.

    Raises:
        CheckpointError: if files cannot be fetched or read, or the weights do not all match.
        UsageError: if an option is no field of the configuration.
    """
    files = locate(spec, weights=not random_init)
    kind, config = model_class(_config(files, spec), spec.source)
    notes = [*files.notes, *_apply_options(config, spec.options)]
    own, patch = own_size(config), own_patch(config)
    preprocess = None
    if files.processor:
        try:
            preprocess = checkpoint_preprocess(files.folder, spec.source)
        except CheckpointError as refused:  # another preprocessing may have been chosen
            notes.append(str(refused))
    size = image_size or (preprocess.size if preprocess is not None else own)
    if size is None:
        raise UsageError(
            f"the configuration of {spec.source} says no image size; choose one with --image-size"
        )
    if image_size is None and own is not None and size != own:
        notes.append(
            f"run at {_by(size)} px, to which the checkpoint's image processor brings "
            f"images; its configuration says {_by(own)}"
        )
    if own is not None and size != own:
        notes.append(
            f"the model is made for {_by(own)} px; position tables that depend on the image size "
            f"are interpolated to {_by(size)} by transformers"
        )
    if patch is not None and any(side % p for side, p in zip(size, patch, strict=True)):
        notes.append(f"{_by(size)} px is no multiple of the patch size {_by(patch)}")
    try:
        if random_init:
            module = initialised(kind, config, seed)
            weights = f"random:{seed}"
        else:
            module, left_out = pretrained(kind, config, files.weights, spec.source)
            notes.extend(left_out)
            weights = files.digest
    except ImportError as error:
        raise CheckpointError(
            f"transformers cannot build {kind.__name__} here: {' '.join(str(error).split())}"
        ) from error
    module.eval().requires_grad_(False)
    return RawModel(
        module=module,
        library="hf",
        identity=Identity(
            resolved_id(spec.source), files.revision, weights, _configuration(config)
        ),
        image_size=size,
        preprocess=preprocess,
        forward=forward_at(module, size, own),
        classes=head_width(module),
        notes=tuple(notes),
        class_names=_class_names(config, head_width(module)),
    )


def _configuration(config: Any) -> str:
    """Hash of every field of the configuration but where it was read and by which version."""
    fields = {
        name: value
        for name, value in config.to_dict().items()
        if name not in ("_name_or_path", "transformers_version")
    }
    text = json.dumps(fields, sort_keys=True, default=str)
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


def _class_names(config: Any, classes: int | None) -> tuple[str, ...] | None:
    """The configuration's names of the head's classes, None where it only numbers them."""
    names = getattr(config, "id2label", None) or {}
    if classes is None or set(names) != set(range(classes)):
        return None
    found = tuple(str(names[index]) for index in range(classes))
    numbered = all(name == f"LABEL_{index}" for index, name in enumerate(found))
    return None if numbered else found


def _by(size: Any) -> str:
    height, width = pair(size)
    return f"{height} x {width}"


def _config(files: CheckpointFiles, spec: ModelSpec) -> Any:
    from transformers import AutoConfig

    try:
        with quiet():
            return AutoConfig.from_pretrained(
                files.folder, trust_remote_code=False, local_files_only=True
            )
    except (OSError, ValueError, KeyError, TypeError) as error:
        text = str(error).strip() or type(error).__name__
        if "trust_remote_code" in text:
            raise CheckpointError(
                f"{spec.source} needs code from its own repository, which is never run; choose a "
                "checkpoint that transformers has the architecture of"
            ) from error
        raise CheckpointError(
            f"{spec.source}: transformers cannot read its config.json: {text.splitlines()[0]}"
        ) from error


def _apply_options(config: Any, options: Mapping[str, Any]) -> list[str]:
    for name, value in options.items():
        known = [*config.to_dict(), "num_labels"]
        if name not in known:
            raise UsageError(
                f"'{name}' is no field of {type(config).__name__}.{did_you_mean(name, known)}"
            )
        setattr(config, name, value)
    if getattr(config, "mask_ratio", 0):
        config.mask_ratio = 0.0
        return ["run without the masking of its pretraining: every patch, in order"]
    return []
