"""Building a timm architecture from its name and options, and saying plainly why it cannot be."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Mapping
from contextlib import redirect_stdout
from typing import Any

import timm
import torch
from torch import nn

from probe.errors import CheckpointError, UsageError, did_you_mean
from probe.families.checkpoint import mismatch

# What create_model and timm's builder keep for themselves: options are the constructor's.
_RESERVED = frozenset(inspect.signature(timm.create_model).parameters) | {
    "device", "dtype", "feature_cfg", "features_only", "in_chans", "model_cfg", "out_indices",
    "pretrained_filter_fn", "pretrained_model_args", "pretrained_strict", "pruned",
}  # fmt: skip


def build(
    name: str,
    options: Mapping[str, Any],
    *,
    seed: int = 0,
    pretrained: bool = False,
    overlay: dict[str, Any] | None = None,
) -> nn.Module:
    """Run timm's factory; the initialisation is seeded, the global generator left as it was.

    Args:
        name: what `timm.create_model` takes: `arch`, `arch.tag` or `local-dir:FOLDER`.
        options: arguments of the architecture's constructor.
        seed: seed of the initialisation.
        pretrained: whether timm loads the weights that its configuration names.
        overlay: entries put over that configuration.

    Raises:
        UsageError: if the constructor does not take the options.
        CheckpointError: if the weights do not all match.
    """
    for option in sorted(_RESERVED.intersection(options)):
        reason = "images are RGB" if option == "in_chans" else "the loader sets it"
        raise UsageError(f"option '{option}' cannot be given to {name}: {reason}; remove it")
    try:
        # Some of timm's checkpoint filters print; standard output is not theirs.
        with torch.random.fork_rng(devices=[]), redirect_stdout(sys.stderr):
            torch.default_generator.manual_seed(seed)
            return timm.create_model(
                name, pretrained=pretrained, pretrained_cfg_overlay=overlay, **options
            )
    except TypeError as error:
        option = _unknown_option(error)
        if option in options:
            near = did_you_mean(option, _constructor_options(name))
            raise UsageError(f"{name} takes no option '{option}'.{near}") from error
        raise _refusal(name, options, error, pretrained) from error
    except RuntimeError as error:
        lines = _load_mismatch(str(error))
        if lines is None:
            raise _refusal(name, options, error, pretrained) from error
        raise CheckpointError(f"the weights do not fit {name}: {lines}") from error
    except (AssertionError, AttributeError, LookupError, ValueError, ZeroDivisionError) as error:
        raise _refusal(name, options, error, pretrained) from error


def blueprint(name: str, options: Mapping[str, Any]) -> nn.Module:
    """The architecture without storage: shapes, sizes and configuration, in milliseconds.

    Raises:
        UsageError: if the constructor does not take the options.
    """
    with torch.device("meta"):
        return build(name, options)


def native_size(plan: Any) -> tuple[int, int]:
    """The image size (height, width) in pixels that a model is meant for."""
    embed = getattr(plan, "patch_embed", None)
    built_for = getattr(embed, "img_size", None)
    if built_for and getattr(embed, "strict_img_size", True):
        height, width = built_for
    else:
        height, width = plan.pretrained_cfg["input_size"][-2:]
    return int(height), int(width)


def resized_options(
    name: str,
    options: Mapping[str, Any],
    plan: nn.Module,
    size: tuple[int, int],
    *,
    keep_windows: bool,
) -> dict[str, Any]:
    """Options that build the model at another image size (height, width) in pixels.

    Args:
        name: as for `build`.
        options: as for `build`, of the model at its own size.
        plan: its blueprint.
        size: the size that is wanted.
        keep_windows: refuse a size at which a window would differ from the checkpoint's.

    Raises:
        UsageError: if the architecture does not take that size.
    """
    patch = _disjoint_patch(getattr(plan, "patch_embed", None))
    if patch is not None:
        _check_multiple(name, size, patch)
    changed = {**options, "img_size": size}
    try:
        other = blueprint(name, changed)
    except UsageError as error:
        if (
            isinstance(error.__cause__, TypeError)
            and _unknown_option(error.__cause__) == "img_size"
        ):
            return dict(options)  # built for any size
        raise
    if keep_windows and _windows(plan) != _windows(other):
        native = native_size(plan)
        raise UsageError(
            f"{name} has attention windows that do not fit into its grids at {size[0]} x "
            f"{size[1]} px; use {native[0]} x {native[1]} px, or more in both directions"
        )
    return changed


def _disjoint_patch(embed: Any) -> tuple[int, int] | None:
    """The patch (rows, cols) in pixels that must fill the image; None where patches need not."""
    patch = getattr(embed, "patch_size", None)
    if patch is None or getattr(embed, "dynamic_img_pad", False):
        return None
    convolutions = [part for part in embed.modules() if isinstance(part, nn.Conv2d)]
    if len(convolutions) == 1 and convolutions[0].kernel_size != convolutions[0].stride:
        return None
    rows, cols = patch if isinstance(patch, tuple) else (patch, patch)
    return int(rows), int(cols)


def _check_multiple(name: str, size: tuple[int, int], patch: tuple[int, int]) -> None:
    if any(s < p or s % p for s, p in zip(size, patch, strict=True)):
        nearest = [max(p, round(s / p) * p) for s, p in zip(size, patch, strict=True)]
        raise UsageError(
            f"{name} cuts patches of {patch[0]} x {patch[1]} px, which do not fill an image of "
            f"{size[0]} x {size[1]} px; the nearest size is {nearest[0]} x {nearest[1]}"
        )


def _windows(module: nn.Module) -> dict[str, tuple[int, int]]:
    """Window sizes of the blocks that cut their grid (`input_resolution`) into windows."""
    return {
        name: tuple(part.window_size)
        for name, part in module.named_modules()
        if hasattr(part, "input_resolution") and hasattr(part, "window_size")
    }


def _unknown_option(error: TypeError) -> str:
    found = re.search(r"unexpected keyword argument(?:\(s\):)? \[?'(\w+)'", str(error))
    return found[1] if found else ""


def _constructor_options(name: str) -> set[str]:
    with torch.device("meta"):
        kind = type(timm.create_model(name))
    classes = [c for c in kind.__mro__ if issubclass(c, nn.Module) and c is not nn.Module]
    taken = {p for c in classes for p in inspect.signature(c.__init__).parameters}
    return taken - _RESERVED - {"self", "args", "kwargs"}


def _load_mismatch(message: str) -> str | None:
    """The keys in torch's message about a strict load, as one line; None for another message."""

    def quoted(head: str) -> list[str]:
        found = re.search(head + r' key\(s\) in state_dict: ((?:"[^"]+"(?:, )?)+)', message)
        return re.findall(r'"([^"]+)"', found[1]) if found else []

    shape = r"torch\.Size\((\[[^\]]*\])\)"
    pairs = re.findall(
        rf"size mismatch for (\S+): copying a param with shape {shape} from checkpoint, "
        rf"the shape in current model is {shape}",
        message,
    )
    differing = [f"{key} {held} for {wanted}" for key, held, wanted in pairs]
    return mismatch(quoted("Missing"), quoted("Unexpected"), differing)


def _refusal(
    name: str, options: Mapping[str, Any], error: Exception, pretrained: bool
) -> CheckpointError | UsageError:
    reason = str(error).partition("\n")[0] or type(error).__name__
    if pretrained:
        return CheckpointError(f"timm cannot load these weights into {name}: {reason}")
    given = ", ".join(f"{key}={value!r}" for key, value in options.items()) or "its defaults"
    return UsageError(f"timm cannot build {name} with {given}: {reason}")
