"""transformers FocalNet: focal modulation by convolutions of growing reach, no attention."""

from __future__ import annotations

from math import ceil

from torch import nn

from probe.families.base import Family
from probe.families.hf_sites import dotted, has, instances, only, pair, predict_logits
from probe.families.timm_layers import Layers, convolved, from_convolutions
from probe.types import Anatomy, Grid, PatchSite

EMBEDDINGS, STAGE = "FocalNetEmbeddings", "FocalNetStage"


def claims(model: nn.Module) -> bool:
    """Whether the model is built from FocalNet's embeddings and stages."""
    return has(model, EMBEDDINGS) and has(model, STAGE)


def anatomy(model: nn.Module, image_size: tuple[int, int]) -> Anatomy:
    """Sites at `image_size` (height, width); images and grids are padded to whole patches.

    Raises:
        AnatomyError: if the model has no single trunk.
    """
    name, embeddings = only(model, EMBEDDINGS)
    projection = embeddings.patch_embeddings
    height, width = pair(projection.patch_size)
    whole = Grid(ceil(image_size[0] / height) * height, ceil(image_size[1] / width) * width)
    grid = convolved(projection.projection, whole)
    layers = Layers(PatchSite(dotted(name, "patch_embeddings"), grid, 0, "NLC"))
    positions = []
    for where, stage in instances(model, STAGE):
        for number, block in enumerate(stage.layers):
            inner = dotted(where, f"layers.{number}")
            # Post-norm blocks modulate their input as it is.
            layers.block(inner, norm=None if block.use_post_layernorm else "norm1")
            positions += [
                from_convolutions(dotted(inner, f"modulation.focal_layers.{level}"))
                for level in range(len(block.modulation.focal_layers))
            ]
        if stage.downsample is not None:
            layers.merge(stage.downsample.projection, filled=True)
    trunk = name.rpartition(".")[0]
    norm = dotted(trunk, "layernorm")
    known = norm in dict(model.named_modules())
    last = layers.last(inner, norm if known else None)
    return layers.anatomy(image_size, tuple(positions), last)


FAMILY = Family("hf_focalnet", "hf", claims, anatomy, predict_logits)
