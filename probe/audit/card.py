"""The card of one model: every item with its level of evidence, and what is left out, and why."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from probe.audit import budget as budgets
from probe.audit import collision as collisions
from probe.audit import connectivity as connections
from probe.audit import hardware, projection, symmetry
from probe.audit.contract import position_contract
from probe.audit.translation import translation
from probe.data.preprocess import normalise
from probe.errors import AnatomyError, NotApplicable
from probe.loading import required_preprocess
from probe.types import LoadedModel

UNKNOWN = "unknown"
PIXELS = 4 * 224 * 224  # of a forward pass over shifted images
SHIFTED = 8  # images that are shifted: a dozen passes over each
RANKS = ("stem", "dim", "width", "rank", "nullity", "nullity_bound", "tolerance", "condition")
EXPOSURE = ("pretraining", "teacher", "licence")
LEVELS: dict[str, tuple[str, str]] = {
    "patch": (projection.LEVEL, projection.ASSUMES),
    "variance": (
        "measured on images",
        "depends on the images; variance of normalised patches about their mean",
    ),
    "symmetry": (symmetry.LEVEL, symmetry.ASSUMES),
    "attention": (connections.LEVEL, connections.ASSUMES),
    "perturbation": (connections.LEVEL, connections.PERTURBED),
    "budget": (budgets.LEVEL, budgets.ASSUMES),
    "exposure": ("stated by others", "what the zoo file states, with its source; not checked here"),
    "hardware": (hardware.LEVEL, hardware.ASSUMES),
}


@dataclass(frozen=True, eq=False)
class Images:
    """What the items that look at images look at.

    `pixels` is uint8 (B, height, width, 3) at the model's size; `wide` the same images with a
    margin around the crop, None where there can be none, for the reason in `narrow`. `facts` say
    which images they are.
    """

    pixels: Tensor
    wide: Tensor | None
    facts: Mapping[str, Any]
    narrow: str = "the images have no margin"


def audit_card(
    model: LoadedModel, images: Images, *, seed: int = 0, batch: int | None = None
) -> dict[str, Any]:
    """Audit a loaded model; the result is ready for JSON.

    Args:
        model: the loaded model; it must carry a preprocessing.
        images: the photos.
        seed: of noise images and permutations.
        batch: images per pass of the timing; None times nothing.
    """
    items = _Items()
    item = items.take
    preprocess = required_preprocess(model)
    parameter = next(model.module.parameters())
    ready = normalise(images.pixels, preprocess, parameter.dtype, parameter.device)
    height, width = model.anatomy.image_size
    grid = model.anatomy.patches.grid
    defects = item("symmetry", lambda: symmetry.symmetry(model, seed))
    card = {
        "model": model.spec.name,
        "resolved": model.identity.resolved,
        "revision": model.identity.revision,
        "weights": model.identity.weights,
        "family": model.family,
        "group": model.spec.group,
        "image_size": [height, width],
        "grid": [grid.rows, grid.cols],
        "seed": seed,
        "data": dict(images.facts),
        "patch": item("patch", lambda: _patch(model, images)),
        "symmetry": None if defects is None else [one.entry() for one in defects],
        "symmetry_tolerance": symmetry.tolerance(model, 0),
        "attention": item("attention", lambda: connections.connectivity(model, seed)),
        "positions": item("positions", lambda: position_contract(model, ready)),
        "budget": budgets.budget(model),
        "exposure": _exposure(model),
        "translation": item("translation", lambda: _translation(model, images)),
        "resolution": None,
        "hardware": None if batch is None else hardware.measure(model, batch),
        "left_out": items.left_out,
        "notes": list(model.notes),
    }
    return card | {"evidence": {k: {"level": a, "assumes": b} for k, (a, b) in LEVELS.items()}}


def interface(model: LoadedModel, seed: int) -> dict[str, Any]:
    """The exact items that need no image, in short: what a report says of every model.

    Returns:
        `patch`: rank and nullity; `symmetry`: the largest defect over blocks of each kind, and what
        remains; `attention`: as in a card; `left_out`.
    """
    items = _Items()
    facts = items.take("patch", lambda: projection.rank_facts(projection.read_projection(model)))
    defects = items.take("symmetry", lambda: symmetry.symmetry(model, seed, 1))
    found = {
        "patch": None if facts is None else {k: v for k, v in facts.items() if k in RANKS},
        "symmetry": None if defects is None else _largest(defects),
        "tolerance": symmetry.tolerance(model, len(model.anatomy.block_out) - 1),
        "attention": items.take("attention", lambda: connections.connectivity(model, seed)),
        "left_out": items.left_out,
    }
    return found


def _largest(defects: Sequence[symmetry.Defects]) -> dict[str, Any]:
    rows = [one.entry() for one in defects]
    names = [name for name in rows[0] if name.startswith("defect_")]
    known = {name: [row[name] for row in rows if row[name] is not None] for name in names}
    return {name: max(values, default=None) for name, values in known.items()} | {
        "remains": next((row["remains"] for row in rows if row["remains"]), None),
        "reason": next((row["reason"] for row in rows if row["reason"]), None),
    }


class _Items:
    """Items of a card; one that an architecture does not have is left out, with its reason."""

    def __init__(self) -> None:
        self.left_out: list[dict[str, str]] = []

    def take(self, name: str, make: Callable[[], Any]) -> Any:
        try:
            return make()
        except (NotApplicable, AnatomyError) as error:
            self.left_out.append({"item": name, "reason": " ".join(str(error).split())})
            return None


def _translation(model: LoadedModel, images: Images) -> dict[str, Any]:
    if images.wide is None:
        raise NotApplicable(images.narrow)
    height, width = model.anatomy.image_size
    batch = max(1, PIXELS // (height * width))  # what its activations need grows with them
    return translation(model, images.wide[:SHIFTED], batch_size=batch)


def _patch(model: LoadedModel, images: Images) -> dict[str, Any]:
    found = projection.read_projection(model)
    facts = projection.rank_facts(found) | {"collision": None, "variance": None}
    if found.stem == "overlapping":
        reason = "patches overlap, so a token is no map of one patch alone"
        return facts | {"overlap": projection.overlap_rank(found), "reason": reason}
    preprocess = required_preprocess(model)
    pixels = images.pixels.permute(0, 3, 1, 2)
    patches = collisions.patches_of(pixels, found.kernel)
    pair = collisions.collide(model, found, preprocess, patches)
    facts["variance"] = collisions.lost_variance(found, preprocess, patches, projection.NEARLY)
    if pair is None:
        return facts | {"reason": "no collision exists: the map has full rank on its patches"}
    facts["collision"] = {
        "max_pixel_difference": pair.max_pixel_difference,
        "token_difference": pair.token_difference,
        "patch": _levels(pair.patch),
        "other": _levels(pair.other),
    }
    return facts | {"reason": None}


def _levels(pixels: np.ndarray) -> list[Any]:
    """Levels to a thousandth, (3, rows, cols) as nested lists."""
    levels: list[Any] = np.round(pixels, 3).tolist()
    return levels


def _exposure(model: LoadedModel) -> dict[str, str]:
    """Training facts from the zoo; what nobody stated is unknown."""
    stated = model.spec.provenance
    if model.identity.weights.startswith("random:"):
        return {"pretraining": "none, random weights", "teacher": "none", "source": "probe"}
    facts = {name: str(stated.get(name) or UNKNOWN) for name in EXPOSURE}
    if "teacher" not in stated and facts["pretraining"] != UNKNOWN:
        facts["teacher"] = "none"
    return facts | {"source": str(stated.get("source") or UNKNOWN)}
