"""Another image size: how positions are mapped to it, and SSDC and accuracy before and after."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from probe.audit.rotary import read_rotation
from probe.derive.curves import Curve, anchoring, curve
from probe.derive.estimate import Estimate, difference
from probe.derive.judged import Judged
from probe.derive.sides import Side, check_comparable, missing
from probe.errors import DataError
from probe.hooks import submodule
from probe.types import LoadedModel, PositionSite, Scalar

LEVEL = "exact algebra"
ASSUMES = (
    "read off the same checkpoint, loaded at both sizes: shapes, values and frequencies; the words "
    "on the mapping are those of the installed library"
)
MEASURED = "measured on images"
MEASURED_ASSUMES = (
    "the same images, resized and cropped for each size; SSDC depends on the grid, which differs, "
    "and RPI permutes each grid by its own permutations"
)


def resolution_facts(own: LoadedModel, other: LoadedModel) -> dict[str, Any]:
    """What another image size does to the positions of a model.

    Args:
        own: the model at its own image size.
        other: the same checkpoint, loaded at another.

    Returns:
        Ready for JSON: `own` and `other`, each {`image_size`, `grids`: the distinct token grids in
        order}; `signals`, one per positional signal: `kind`, `where`, `mapping`, `shapes` [own,
        other], each a list with the shape of every tensor that is stored (of a rotation its
        frequencies), `angles_per_patch` [own, other] (radians of the fastest pair of a rotation;
        null for other kinds), `resampling`; `level`, `assumes`. `mapping` is

        - `resized`: what is stored has another shape or other values;
        - `in every run`: it is stored as before, and interpolated to the grid when the model runs;
        - `made anew`: an MLP gives the bias of another window;
        - `kept`: it is stored and used as before;
        - `same angles`, `other angles`: a rotation made anew, with the same angle per patch or not.

    Raises:
        DataError: if the two do not hold the same signals, so they are no model at two sizes.
    """
    pairs = [(site.kind, site.where) for site in own.anatomy.positions]
    if pairs != [(site.kind, site.where) for site in other.anatomy.positions]:
        raise DataError(
            f"{own.identity.resolved} and {other.identity.resolved} hold different positional "
            "signals; give one model at two image sizes"
        )
    signals = [
        _signal(own, other, before, after)
        for before, after in zip(own.anatomy.positions, other.anatomy.positions, strict=True)
    ]
    return {
        "own": _size(own),
        "other": _size(other),
        "signals": signals,
        "level": LEVEL,
        "assumes": ASSUMES,
    }


def compared(own: Side, other: Side) -> dict[str, Any]:
    """SSDC and accuracy of one model at two image sizes, over the same images.

    Every difference is the other size minus the model's own. Those of SSDC carry a jackknife
    interval over replicates that share their image groups, that of accuracy a paired score
    interval.

    Args:
        own: passes at the model's own size.
        other: passes at the other size; the layers are the same ones.

    Returns:
        Ready for JSON: `own` and `other`, each {`image_size`, `grids` (one per layer), `anchoring`,
        `clean` and `rpi` (one number per layer), `accuracy`}; `difference`, the last four alike;
        `mcnemar_p` of the predictions, null without labels; `level`, `assumes`. Numbers are {value,
        low, high, reason}.

    Raises:
        DataError: if data, number of images, image groups, what SSDC means, or the number of
            layers are not the same.
    """
    sides = other, own  # in this order differences are other minus own
    check_comparable(sides)
    depths = [len(side.clean.layers) for side in sides]
    if depths[0] != depths[1]:
        raise DataError(
            f"{other.name} has {depths[0]} layers and {own.name} {depths[1]}; give one model at "
            "two image sizes"
        )
    judged = Judged(sides).accuracy()
    clean = [curve([side.clean]) for side in sides]
    rpi = [curve(side.rpi) if side.rpi else None for side in sides]
    rows = {
        "anchoring": [_pair(sides, [_anchoring(one) for one in rpi])],
        "clean": [_pair(sides, layer) for layer in zip(*(c.layers for c in clean), strict=True)],
        "rpi": [_pair(sides, layer) for layer in zip(*map(_layers, rpi, clean), strict=True)],
    }
    found: dict[str, Any] = {}
    for place, (name, key) in enumerate(
        (("other", "first"), ("own", "second"), ("difference", "difference"))
    ):
        found[name] = {
            "anchoring": rows["anchoring"][0][place],
            "clean": [row[place] for row in rows["clean"]],
            "rpi": [row[place] for row in rows["rpi"]],
            "accuracy": judged[key],
        }
    for name, side, one in zip(("other", "own"), sides, clean, strict=True):
        found[name] |= {
            "image_size": list(side.clean.settings["image_size"]),
            "grids": [list(grid) for grid in one.grids],
        }
    return found | {
        "mcnemar_p": judged["mcnemar_p"],
        "images": own.clean.images,
        "level": MEASURED,
        "assumes": MEASURED_ASSUMES,
    }


def _pair(sides: tuple[Side, Side], pair: Sequence[Estimate]) -> list[dict[str, Any]]:
    """Both numbers and the first minus the second."""
    first, second = pair
    scalars = first.scalar(), second.scalar()
    why = missing(sides, scalars)
    apart = Scalar(None, reason=why) if why else difference(first, second).scalar()
    return [asdict(one) for one in (*scalars, apart)]


def _anchoring(rpi: Curve | None) -> Estimate:
    return Estimate.undefined("RPI is off") if rpi is None else anchoring(rpi)


def _layers(rpi: Curve | None, clean: Curve) -> Sequence[Estimate]:
    if rpi is None:
        return [Estimate.undefined("RPI is off")] * len(clean.layers)
    return rpi.layers


def _size(model: LoadedModel) -> dict[str, Any]:
    anatomy = model.anatomy
    grids = dict.fromkeys([anatomy.patches.grid, *(site.grid for site in anatomy.attn_in)])
    return {
        "image_size": list(anatomy.image_size),
        "grids": [[grid.rows, grid.cols] for grid in grids],
    }


def _signal(
    own: LoadedModel, other: LoadedModel, before: PositionSite, after: PositionSite
) -> dict[str, Any]:
    angles, stored = None, [_tensors(model.module, before.where) for model in (own, other)]
    shapes = [[list(one.shape) for one in tensors] for tensors in stored]
    if before.kind == "rotary":
        turns = [
            read_rotation(submodule(model.module, before.where), model.anatomy.patches.grid)
            for model in (own, other)
        ]
        shapes = [[list(turn.shape)] for turn in turns]
        angles = [float(turn.speed.max(initial=0)) for turn in turns]
        same = all(
            np.allclose(getattr(turns[0], axis), getattr(turns[1], axis), rtol=1e-6, atol=0)
            for axis in ("rows", "cols")
        )
        mapping = "same angles" if same else "other angles"
    elif not _equal(*stored):
        mapping = "resized"
    elif before.grid != after.grid:
        mapping = "made anew"
    elif _interpolated(own, before) or _interpolated(other, after):
        mapping = "in every run"
    else:
        mapping = "kept"
    return {
        "kind": before.kind,
        "where": before.where,
        "mapping": mapping,
        "shapes": shapes,
        "angles_per_patch": angles,
        "resampling": after.resampling,
    }


def _interpolated(model: LoadedModel, site: PositionSite) -> bool:
    """Whether a table covers another grid than those it may be used on."""
    windows = any(one.window is not None for one in model.anatomy.attention)
    if site.grid is None or (site.kind == "relative_bias" and windows):
        return False
    own = {model.anatomy.patches.grid, *(one.grid for one in model.anatomy.attn_in)}
    return site.grid not in own


def _tensors(module: nn.Module, name: str) -> list[Tensor]:
    """The tensor of that name, or all parameters of the module of that name."""
    owner, _, key = name.rpartition(".")
    found = getattr(submodule(module, owner), key)
    if isinstance(found, nn.Module):
        return [tensor.detach() for tensor in found.parameters()]
    return [found.detach()]


def _equal(first: Sequence[Tensor], second: Sequence[Tensor]) -> bool:
    return len(first) == len(second) and all(
        a.shape == b.shape and torch.equal(a.cpu(), b.cpu())
        for a, b in zip(first, second, strict=True)
    )
