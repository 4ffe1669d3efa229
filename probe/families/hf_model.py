"""Which transformers class is built for a configuration, and how it wants to be called."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from functools import partial
from math import isqrt
from typing import Any

import torch
from torch import Tensor, nn

from probe.errors import CheckpointError
from probe.families.hf_sites import pair
from probe.families.hf_weights import named_class

# Arguments of towers that take patches, cut row by row, with a mask and their grid.
PACKED = frozenset({"pixel_attention_mask", "spatial_shapes"})


def model_class(config: Any, resolved: str) -> tuple[Any, Any]:
    """The class to build and the configuration that it takes: of the image tower, if bare.

    The classifier that the configuration names, else the bare image model, else the backbone.

    Raises:
        CheckpointError: if it has no model that takes images alone.
    """
    from transformers import MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING

    classifiers: Any = MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING.get(type(config), ())
    for head in classifiers if isinstance(classifiers, tuple) else (classifiers,):
        if head.__name__ == named_class(config):
            return _of_images(head, config, resolved), config
    tower = image_config(config)
    return _of_images(_bare(tower, resolved), tower, resolved), tower


def image_config(config: Any) -> Any:
    """The part of a configuration that describes its image tower; itself, if it has no towers."""
    for part in ("vision_config", "image_config"):
        if hasattr(config, part):
            return getattr(config, part)
    return config


def own_size(config: Any) -> tuple[int, int] | None:
    """(height, width) in pixels that a configuration is made for, None where it does not say."""
    tower = image_config(config)
    size = getattr(tower, "image_size", None)
    if size is None and isinstance(getattr(tower, "pretrained_cfg", None), dict):  # timm's
        size = tower.pretrained_cfg.get("input_size", ())[-2:] or None
    if size is None and hasattr(tower, "num_patches"):  # a square table for patches of any grid
        return pair(isqrt(tower.num_patches) * tower.patch_size)
    return None if size is None else pair(size)


def own_patch(config: Any) -> tuple[int, int] | None:
    """(height, width) in pixels of a patch, None where the grid shrinks by stages."""
    size = getattr(image_config(config), "patch_size", None)
    return pair(size) if isinstance(size, int) or (size and len(size) == 2) else None


def _bare(tower: Any, resolved: str) -> Any:
    from transformers import MODEL_FOR_BACKBONE_MAPPING, MODEL_MAPPING, PreTrainedModel

    for mapping in (MODEL_MAPPING, MODEL_FOR_BACKBONE_MAPPING):
        found = mapping.get(type(tower), None)
        if found is not None:
            return found
    # Towers of some two-tower models stand in no mapping; their module has them.
    module = importlib.import_module(
        type(tower).__module__.replace("configuration_", "modeling_", 1)
    )
    for kind in vars(module).values():
        fits = isinstance(kind, type) and issubclass(kind, PreTrainedModel)
        if fits and kind.__name__.endswith("Model") and kind.config_class is type(tower):
            return kind
    raise CheckpointError(
        f"{resolved}: transformers has no bare model for '{tower.model_type}'; choose another"
    )


def _of_images(kind: Any, config: Any, resolved: str) -> Any:
    """The class itself, if it takes images and nothing else.

    Raises:
        CheckpointError: if it does not.
    """
    takes = inspect.signature(kind.forward).parameters
    if "pixel_values" not in takes or "input_ids" in takes:
        raise CheckpointError(
            f"{resolved} is a '{config.model_type}' model, which has no grid of image patches; "
            "choose a vision transformer"
        )
    needed = [
        name
        for name, parameter in takes.items()
        if name not in ("self", "pixel_values")
        and parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
    ]
    if needed and not PACKED.issuperset(needed):
        raise CheckpointError(
            f"{resolved} is a '{config.model_type}' model, which takes packed patches "
            f"({', '.join(needed)}), not images; choose a model that takes a batch of images"
        )
    return kind


def forward_at(
    module: nn.Module, image_size: tuple[int, int], own: tuple[int, int] | None
) -> Callable[[Tensor], Any]:
    """How the library wants the model called at `image_size`, when it is made for `own`."""
    embeddings = next((m for m in module.modules() if hasattr(m, "interpolate_pos_encoding")), None)
    takes = inspect.signature(embeddings.forward).parameters if embeddings is not None else {}
    called = inspect.signature(module.forward).parameters
    if PACKED.issubset(called):
        return partial(_forward_patches, module)
    if hasattr(embeddings, "random_masking") and "noise" in called:
        return partial(_forward_in_order, module, image_size != own)
    if image_size != own and "interpolate_pos_encoding" in takes:
        return lambda images: module(pixel_values=images, interpolate_pos_encoding=True)
    return lambda images: module(pixel_values=images)


def _forward_in_order(module: nn.Module, interpolate: bool, images: Tensor) -> Any:
    """A masked autoencoder sorts its patches by noise: rising noise keeps them in order."""
    _, patch = next((n, m) for n, m in module.named_modules() if n.endswith("patch_embeddings"))
    height, width = pair(patch.patch_size)
    patches = (images.shape[2] // height) * (images.shape[3] // width)
    noise = torch.arange(patches, device=images.device).expand(len(images), -1)
    return module(pixel_values=images, noise=noise, interpolate_pos_encoding=interpolate)


def _forward_patches(module: nn.Module, images: Tensor) -> Any:
    """A model that takes patches instead of images gets all of an image, in order, none masked."""
    holders: list[Any] = [part for part in module.modules() if hasattr(part, "patch_embedding")]
    side = int(holders[0].patch_size)
    rows, cols = (size // side for size in images.shape[2:])
    whole = images[..., : rows * side, : cols * side]
    cut = whole.unflatten(3, (cols, side)).unflatten(2, (rows, side)).permute(0, 2, 4, 3, 5, 1)
    patches = cut.flatten(3).flatten(1, 2)
    return module(
        pixel_values=patches,
        pixel_attention_mask=torch.ones(patches.shape[:2], dtype=torch.long, device=images.device),
        spatial_shapes=torch.tensor([[rows, cols]] * len(images), device=images.device),
    )
