"""What the head of a timm model says: how many classes, or none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from timm.data import infer_imagenet_subset
from timm.models import get_arch_pretrained_cfgs
from torch import Tensor, nn

from probe.errors import AnatomyError


def class_count(module: Any) -> int | None:
    """The number of classes that the head tells apart, None when it is no classifier.

    timm gives image towers of CLIP models an embedding projection as their head, with its width as
    `num_classes`; nothing in the module tells it from a classifier. So a width that timm's registry
    has for the architecture counts as classes where timm knows labels for it (an ImageNet set, or
    labels in the checkpoint's own configuration); any other width is the caller's own, and counts.
    """
    width = int(getattr(module, "num_classes", 0))
    classifier: Any = module.get_classifier() if hasattr(module, "get_classifier") else ()
    heads = classifier if isinstance(classifier, tuple) else (classifier,)
    if width < 1 or not heads or any(isinstance(head, nn.Identity) for head in heads):
        return None
    if not getattr(module, "global_pool", "avg"):  # one output per token, no logits per image
        return None
    config: dict[str, Any] = getattr(module, "pretrained_cfg", None) or {}
    if config.get("label_names") or config.get("label_descriptions"):
        return width
    if infer_imagenet_subset({"num_classes": width}) is not None:
        return width
    registered = get_arch_pretrained_cfgs(config.get("architecture", ""))
    return None if width in {c.num_classes for c in registered.values()} else width


def predict(module: nn.Module) -> Callable[[Any], Tensor] | None:
    """The function from the module's raw output to logits (B, classes), None without a classifier.

    Raises (when called):
        AnatomyError: if the output is not (B, classes).
    """
    classes = class_count(module)
    if classes is None:
        return None

    def logits(output: Any) -> Tensor:
        if not isinstance(output, Tensor) or output.ndim != 2 or output.shape[1] != classes:
            kind = tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__
            raise AnatomyError(f"the model should give logits (B, {classes}), but gave {kind}")
        return output

    return logits
