"""The weights of a transformers checkpoint in its model: which must match, which are left out."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from probe.errors import CheckpointError
from probe.families.checkpoint import (
    check_finite,
    check_floating,
    mismatch,
    read_state_dict,
    wrapping,
)
from probe.families.hf_quiet import quiet
from probe.families.hf_sites import head_width

# Parts of whole image-and-text checkpoints that a vision tower does not have.
TEXT_TOWER = ("text_model.", "text_projection.", "visual_projection.", "logit_scale", "logit_bias")
# Never on the way of a token: a token for masked training, a buffer of 0..N-1.
IDLE = ("mask_token", "position_ids")


def named_class(config: Any) -> str | None:
    """The class that saved the checkpoint, None where the configuration does not say."""
    return (config.architectures or [None])[0]


def initialised(model_class: Any, config: Any, seed: int) -> nn.Module:
    """The model in float32 with the library's own initialisation, without a pooler.

    The global generator is left as it was.
    """
    for part in (config, getattr(config, "vision_config", config)):
        part.dtype = torch.float32
    with quiet(), torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        module: nn.Module = model_class._from_config(config, **_constructor(model_class))
    return module


def pretrained(
    model_class: Any, config: Any, files: tuple[Path, ...], resolved: str
) -> tuple[nn.Module, list[str]]:
    """The model in float32 with the weights in `files`, and notes on what was read and left out.

    The files are read here and not by the library, which would convert integers silently, follow a
    file name in config.json, and put an adapter over the weights.

    Raises:
        CheckpointError: if the files cannot be read, or anything of them or of the model found no
            partner, or a weight is no finite number.
    """
    if getattr(config, "quantization_config", None) is not None:
        raise CheckpointError(
            f"{resolved}: its config.json asks for quantised weights (quantization_config), which "
            "are not supported; choose a checkpoint in floating point"
        )
    saved_by = named_class(config)
    where = f"'{files[0] if len(files) == 1 else files[0].parent}'"
    expected = _expected(model_class, config)
    notes: list[str] = []
    state = read_state_dict(*files, own=expected, notes=notes)
    check_floating(state, expected, where)
    try:
        with quiet(), torch.random.fork_rng(devices=[]):
            module, info = model_class.from_pretrained(
                None,
                config=config,
                state_dict=state,
                dtype=torch.float32,
                local_files_only=True,
                output_loading_info=True,
                # So that the differing keys are listed; any of them is an error below.
                ignore_mismatched_sizes=True,
                **_constructor(model_class),
            )
    except (OSError, ValueError, RuntimeError, KeyError, TypeError, ImportError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise CheckpointError(
            f"{resolved}: transformers cannot load its weights: {reason}; check config.json"
        ) from error
    notes += _matched(module, info, saved_by, resolved, wrapping(state, expected))
    check_finite(module, where)
    return module, notes


def _constructor(model_class: Any) -> dict[str, Any]:
    takes_pooler = "add_pooling_layer" in inspect.signature(model_class.__init__).parameters
    return {"add_pooling_layer": False} if takes_pooler else {}


def _expected(model_class: Any, config: Any) -> dict[str, Tensor]:
    """The names and kinds of what the model wants, without storage."""
    with quiet(), torch.device("meta"):
        plan = model_class._from_config(config, **_constructor(model_class))
    return dict(plan.state_dict())


def _matched(
    module: nn.Module,
    info: Mapping[str, Any],
    saved_by: str | None,
    resolved: str,
    advice: str | None,
) -> list[str]:
    """Notes on what was left out on purpose.

    Raises:
        CheckpointError: if anything else of the checkpoint or of the model found no partner.
    """
    unused = {key: _why_unused(module, key, saved_by) for key in info["unexpected_keys"]}
    problem = mismatch(
        [key for key in info["missing_keys"] if not key.endswith(IDLE)],
        [key for key, why in unused.items() if why is None],
        [f"{key} ({_x(file)} not {_x(model)})" for key, file, model in info["mismatched_keys"]],
    )
    problem = problem or "; ".join(str(message).splitlines()[0] for message in info["error_msgs"])
    if problem:
        raise CheckpointError(
            f"{resolved}: the weights do not match {type(module).__name__}: {problem}; "
            f"{advice or 'check config.json'}"
        )
    reasons = sorted({why for why in unused.values() if why})
    return [f"left out of the checkpoint: {', '.join(reasons)}"] if reasons else []


def _x(size: Any) -> str:
    return "x".join(str(side) for side in size)


def _why_unused(module: nn.Module, key: str, saved_by: str | None) -> str | None:
    """What part of a larger checkpoint a key without partner belongs to, None if of no known one.

    A head of pretraining is one where the configuration names another class than was built, and
    the key stands outside every part of the built model.
    """
    if head_width(module) is None and key.startswith(TEXT_TOWER):
        return "text tower and projections"
    if key.endswith(IDLE):
        return "tokens and buffers of pretraining"
    part = key.partition(".")[0]
    if part == "pooler" and getattr(module, "pooler", None) is None:
        return "pooler"
    parts = {name.partition(".")[0] for name, _ in module.named_parameters()}
    if saved_by not in (None, type(module).__name__) and part not in parts:
        return f"head of {saved_by}"
    return None
