"""What timm's vision transformers have in common: patch embedding, flat trunk, added table."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from timm.layers import Format, HybridEmbed, PatchEmbed
from torch import nn

from probe.errors import AnatomyError
from probe.families.positions import scaled_table, table_kind
from probe.types import (
    Anatomy,
    FeatureSite,
    Grid,
    Layout,
    PatchSite,
    Point,
    PositionSite,
    Side,
    TokenSite,
)
from probe.wiring import AttentionSite

Kind = TypeVar("Kind", bound=nn.Module)

_LAYOUTS: dict[Format, Layout] = {Format.NLC: "NLC", Format.NHWC: "NHWC", Format.NCHW: "NCHW"}

FIXED = "none: timm does not resize this table, so weights load at their own image size alone"


def member(module: nn.Module, kind: type[Kind]) -> Kind:
    """The module itself, known to be of the class that a family reads.

    Raises:
        AnatomyError: if it is not: a family was named that does not fit.
    """
    if not isinstance(module, kind):
        raise AnatomyError(
            f"this family reads {kind.__name__}, but the model is a {type(module).__name__}; "
            "leave the family out"
        )
    return module


def check_size(own: tuple[int, int], image_size: tuple[int, int]) -> None:
    """Check the image size (height, width) of a model that was built for one alone.

    Raises:
        AnatomyError: if it is another.
    """
    if tuple(own) != image_size:
        raise AnatomyError(
            f"the model takes images of {own[0]} x {own[1]} px, not "
            f"{image_size[0]} x {image_size[1]}; load it with that image size"
        )


def patch_site(module: Any, image_size: tuple[int, int]) -> PatchSite:
    """Where the patch projection gives its tokens, at an image size (height, width) in pixels.

    Raises:
        AnatomyError: if the embedding is no plain patch projection, or does not take that size.
    """
    embed = module.patch_embed
    if not isinstance(embed, PatchEmbed | HybridEmbed):
        raise AnatomyError(
            f"patches come from {type(embed).__name__}, which is neither a patch projection nor a "
            "stem of convolutions with one; it cannot be read"
        )
    if embed.strict_img_size and embed.img_size is not None:
        check_size(embed.img_size, image_size)
    grid = Grid(*embed.dynamic_feat_size(image_size))
    if not grid.tokens:
        raise AnatomyError(f"an image of {image_size[0]} x {image_size[1]} px holds no patch")
    layout = "NLC" if embed.flatten else _LAYOUTS[embed.output_fmt]
    return PatchSite("patch_embed", grid, prefix=0, layout=layout)


def added_table(
    module: Any, prefix: int, resampling: str | None = None
) -> tuple[PositionSite, ...]:
    """The table that the model adds to its tokens, `pos_embed`, if it has one.

    Rows beyond the grid that the model was built for belong to prefix tokens: all of them, or none
    where the table is added before the prefix tokens join. `resampling` says how timm maps it to
    another size, None where it does so as for a vision transformer.

    Raises:
        AnatomyError: if the table has some other number of rows.
    """
    table = getattr(module, "pos_embed", None)
    if table is None:
        return ()
    rows = table.shape[1] - module.patch_embed.num_patches
    if rows not in (0, prefix):
        raise AnatomyError(
            f"'pos_embed' has {table.shape[1]} rows for {module.patch_embed.num_patches} patch "
            f"tokens and {prefix} prefix tokens; the table does not fit the model"
        )
    kind = table_kind(table, rows)
    again = (
        " and in every run at another size" if getattr(module, "dynamic_img_size", False) else ""
    )
    return (
        PositionSite(
            kind,
            "pos_embed",
            prefix=rows,
            rescale=scaled_table("pos_embed"),
            grid=Grid(*module.patch_embed.grid_size),
            resampling=resampling
            or f"bicubic, antialiased, when the checkpoint is loaded{again}; prefix rows kept "
            "(timm resample_abs_pos_embed; FlexiViT and RADIO checkpoints: bilinear, not "
            "antialiased)",
        ),
    )


def flat_anatomy(
    module: Any,
    image_size: tuple[int, int],
    attention_norm: Callable[[nn.Module], str | None],
    other_positions: tuple[PositionSite, ...] = (),
) -> Anatomy:
    """Anatomy of a trunk of equal blocks over one sequence: prefix tokens, then the grid.

    `attention_norm(block)` names the norm that feeds the block's attention, None where attention
    takes the block's input.
    """
    patches = patch_site(module, image_size)
    prefix = int(module.num_prefix_tokens)

    def site(layer: int, point: Point, name: str, from_input: bool = False) -> TokenSite:
        side: Side = "input" if from_input else "output"
        return TokenSite(layer, point, name, patches.grid, prefix, "NLC", side)

    attn_in, block_out, attention = [], [], []
    for layer, block in enumerate(module.blocks):
        name = f"blocks.{layer}"
        norm = attention_norm(block)
        fed_by = name if norm is None else f"{name}.{norm}"
        attn_in.append(site(layer, "attn_in", fed_by, from_input=norm is None))
        block_out.append(site(layer, "block_out", name))
        # Parallel blocks compute their attention themselves.
        inner = f"{name}.attn" if isinstance(getattr(block, "attn", None), nn.Module) else name
        attention.append(AttentionSite(layer, inner))
    has_class = getattr(module, "cls_token", None) is not None
    return Anatomy(
        image_size=image_size,
        patches=patches,
        attn_in=tuple(attn_in),
        block_out=tuple(block_out),
        positions=added_table(module, prefix) + other_positions,
        features=FeatureSite("norm", patches.grid, prefix, "NLC", 0 if has_class else None),
        attention=tuple(attention),
    )
