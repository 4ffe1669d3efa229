"""What the transformers families share: finding modules by class, and the anatomy of plain ViTs.

Modules are found by the class they are built from, because transformers moves them between
releases and puts a prefix in front of them in models with a head.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor, nn

from probe.errors import AnatomyError
from probe.families.positions import scaled_table
from probe.types import (
    Anatomy,
    FeatureSite,
    Grid,
    PatchSite,
    PositionKind,
    PositionSite,
    TokenSite,
)
from probe.wiring import AttentionSite


def instances(model: nn.Module, *class_names: str) -> list[tuple[str, Any]]:
    """Dotted name and module of everything built from these transformers classes, in order."""
    wanted = set(class_names)
    return [
        (name, module)
        for name, module in model.named_modules()
        if any(
            kind.__name__ in wanted and kind.__module__.startswith("transformers.models.")
            for kind in type(module).__mro__
        )
    ]


def has(model: nn.Module, *class_names: str) -> bool:
    """Whether any submodule is built from one of these transformers classes."""
    return bool(instances(model, *class_names))


def only(model: nn.Module, *class_names: str) -> tuple[str, Any]:
    """The single module of these classes, with its dotted name.

    Raises:
        AnatomyError: if there is none, or more than one.
    """
    found = instances(model, *class_names)
    if len(found) != 1:
        raise AnatomyError(
            f"expected one {' or '.join(class_names)} in {type(model).__name__}, found "
            f"{len(found)}; this is no model of a single image tower"
        )
    return found[0]


def dotted(*parts: str) -> str:
    """Join name parts by dots, leaving out empty ones."""
    return ".".join(part for part in parts if part)


def part(module: nn.Module, *names: str) -> str:
    """The first of these names under which `module` holds a module or a parameter.

    Raises:
        AnatomyError: if it holds none.
    """
    for name in names:
        if getattr(module, name, None) is not None:
            return name
    raise AnatomyError(f"{type(module).__name__} has none of {', '.join(names)}; check the family")


def parent(name: str) -> str:
    """The dotted name of the module that holds `name`."""
    return name.rpartition(".")[0]


def pair(size: Any) -> tuple[int, int]:
    """(height, width) of a size that a configuration gives as one number or as two."""
    if isinstance(size, int):
        return size, size
    height, width = size
    return int(height), int(width)


def patch_grid(image_size: tuple[int, int], patch_size: Any) -> Grid:
    """The grid that an unpadded patch convolution gives: rest pixels at the edges are not seen.

    Raises:
        AnatomyError: if the image is smaller than a patch.
    """
    height, width = pair(patch_size)
    grid = Grid(image_size[0] // height, image_size[1] // width)
    if grid.tokens == 0:
        raise AnatomyError(
            f"an image of {image_size[0]} x {image_size[1]} pixels holds no patch of "
            f"{height} x {width}; use a larger image size"
        )
    return grid


def check_square(own_size: tuple[int, int], image_size: tuple[int, int], always: bool) -> None:
    """Refuse what transformers' interpolation cannot do: it takes every table for a square one.

    Args:
        own_size: (height, width) that the table was made for.
        image_size: (height, width) that will be run.
        always: whether the model interpolates at its own size too.

    Raises:
        AnatomyError: if a table that is not square would be interpolated.
    """
    if own_size[0] != own_size[1] and (always or own_size != image_size):
        raise AnatomyError(
            f"transformers interpolates square position tables only, and this one is made for "
            f"{own_size[0]} x {own_size[1]} pixels"
            + ("" if always else "; run the model at that image size")
        )


def added_table(
    kind: PositionKind,
    table: str,
    prefix: int,
    own: Grid,
    antialiased: bool = False,
    method: str = "bicubic",
) -> PositionSite:
    """The table that a model adds to its tokens, made for the grid `own` and `prefix` tokens.

    `method` and `antialiased` say how its class interpolates it.
    """
    how = "antialiased" if antialiased else "not antialiased"
    kept = "; prefix rows kept" if prefix else ""
    return PositionSite(
        kind,
        table,
        prefix,
        scaled_table(table),
        grid=own,
        resampling=f"{method}, {how}, in every run at another size{kept} (transformers "
        "interpolate_pos_encoding)",
    )


def interpolates_always(embeddings: nn.Module) -> bool:
    """Whether embeddings interpolate their table unasked, at every image size."""
    return "interpolate_pos_encoding" not in inspect.signature(embeddings.forward).parameters


def plain_anatomy(
    image_size: tuple[int, int],
    patches: PatchSite,
    blocks: Sequence[str],
    norm: str,
    attention: str,
    prefix: int,
    positions: Sequence[PositionSite],
    features: str,
    class_index: int | None,
) -> Anatomy:
    """The anatomy of a pre-norm ViT with one grid, whose blocks hold their first norm as `norm`.

    `attention` is what they call their attention; `prefix` counts the tokens in front of the grid
    at every block; `features` names the module whose output is the last token sequence.
    """
    grid = patches.grid
    return Anatomy(
        image_size=image_size,
        patches=patches,
        attn_in=tuple(
            TokenSite(i, "attn_in", dotted(block, norm), grid, prefix, "NLC")
            for i, block in enumerate(blocks)
        ),
        block_out=tuple(
            TokenSite(i, "block_out", block, grid, prefix, "NLC") for i, block in enumerate(blocks)
        ),
        positions=tuple(positions),
        features=FeatureSite(features, grid, prefix, "NLC", class_index),
        attention=tuple(
            AttentionSite(i, dotted(block, attention)) for i, block in enumerate(blocks)
        ),
    )


def head_width(model: nn.Module) -> int | None:
    """The number of classes of the model's head, None without one."""
    # Set by every classifier of transformers, whatever its head is made of.
    return getattr(model, "num_labels", None) or None


def predict_logits(model: nn.Module) -> Callable[[Any], Tensor] | None:
    """The function from raw output to logits (B, classes); None for a model without a head.

    Where a model has two heads (distilled DeiT), the library's logits are the mean of both.
    """
    if head_width(model) is None:
        return None
    return lambda output: output.logits
