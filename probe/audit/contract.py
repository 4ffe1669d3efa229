"""Position contract: what each positional signal is, how large, and what it says of distance."""

from __future__ import annotations

import math
from contextlib import ExitStack, suppress
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from probe.audit.rotary import ASSUMES as ROTARY_ASSUMES
from probe.audit.rotary import read_rotation, rotary_facts
from probe.errors import AnatomyError
from probe.hooks import StopForward, first_tensor, observe, submodule
from probe.metrics.grids import GridRanks
from probe.metrics.ssdc import CONSTANT
from probe.numerics.association import spearman
from probe.numerics.similarity import image_similarities
from probe.types import Grid, LoadedModel, PositionSite, TokenSite

LEVEL, MEASURED = "exact algebra", "measured on images"
TABLE_ASSUMES = (
    "read off the stored table on its own grid; its similarity is the cosine of its rows as they "
    "are, and its size is compared before any norm between patch projection and table"
)
MADE_ASSUMES = TABLE_ASSUMES.replace("the stored table on its own grid", "what a module adds")
BIAS_ASSUMES = (
    "read off the bias as attention scores get it, over ordered pairs of different tokens of one "
    "window; what attention makes of it depends on the scores of the content"
)
NO_TABLE: dict[str, str] = {
    "relative_bias": "a bias is added to attention scores, not to tokens",
    "rotary": "a rotation keeps the length of what it turns",
    "convolutional": "position comes from convolutions, which hold no table",
    "mixing": "position is in the weights that mix tokens by their index",
    "gated": "position has an attention of its own, mixed with that of the content by a gate",
}
UNREAD = "it is stored in another order than that of the tokens of one grid or window"
FLAT = "the bias is the same at every offset, or not finite"
ADDED = ("absolute", "sinusoidal")  # kinds of signal that are added to the tokens
_BOUND = 16.0  # Swin V2's bias is 16 sigmoid of what its MLP gives


def position_contract(model: LoadedModel, images: Tensor | None = None) -> list[dict[str, Any]]:
    """Every positional signal of a model, in the order in which its family declares them.

    Args:
        model: the loaded model.
        images: normalised images (B, 3, height, width), as `model.forward` takes them, on which
            patch tokens are measured; None leaves `token_norm` and `ratio` out.

    Returns:
        One entry per signal, ready for JSON; none for a model without position. Numbers are
        {"value", "reason"}, the value null with a reason where there is none.

        - `kind`, `where`, `shape` of the table (of an MLP its output, of a rotation its
          frequencies), `grid` that it was made for (of a bias the window), `prefix_rows` (of a bias
          the entries) of prefix tokens, and `prefix`: whether there are any.
        - `norm`: mean L2 norm of the table's patch rows; `token_norm`: mean L2 norm of patch tokens
          at the patch projection, with `images`, their number; `ratio` of the two. These two are
          measured on the images.
        - `bias`: `heads`, and `sd`, `low`, `high` of the bias, in units of attention scores: the
          standard deviation over pairs, averaged over heads, is its size, since a constant changes
          no attention. Null for other kinds.
        - `table_ssdc`: SSDC of the signal itself. Of a table: Spearman correlation between the
          cosines of its patch rows and negated L1 distance. Of a bias: between the mean over heads
          of the bias and negated L1 distance inside the window; `heads` holds that of each head.
          Null for a rotation, whose table is no similarity.
        - `rotary`: see `rotary_facts`; null for other kinds.
        - `resampling`: how the library maps the signal to another image size.
        - `level`, `assumes`.

    Raises:
        AnatomyError: if a table is not as its family declares it.
    """
    tokens = _token_norm(model, images)
    outputs = _made_by_modules(model)
    found = []
    for site in model.anatomy.positions:
        if site.grid is None and site.kind in (*ADDED, "relative_bias"):
            own = {"shape": None, "assumes": UNREAD}
        elif site.kind in ADDED:
            own = _table(model, site, outputs.get(site.where))
        elif site.kind == "relative_bias":
            own = _bias(model, site, outputs.get(site.where))
        elif site.kind == "rotary":
            own = _rotation(model, site)
        else:
            own = {"shape": None, "assumes": NO_TABLE[site.kind]}
        found.append(_entry(site, own, tokens))
    return found


def _entry(site: PositionSite, own: dict[str, Any], tokens: dict[str, Any]) -> dict[str, Any]:
    why = NO_TABLE.get(site.kind, UNREAD)
    norm = own.get("norm", {"value": None, "reason": why})
    prefix_rows = own.get("prefix_rows", 0)
    return {
        "kind": site.kind,
        "where": site.where,
        "shape": own["shape"],
        "grid": None if site.grid is None else [site.grid.rows, site.grid.cols],
        "prefix_rows": prefix_rows,
        "prefix": prefix_rows > 0,
        "norm": norm,
        "token_norm": tokens,
        "ratio": _ratio(norm, tokens),
        "bias": own.get("bias"),
        "resampling": site.resampling,
        "table_ssdc": own.get("table_ssdc", {"value": None, "reason": own.get("no_ssdc", why)}),
        "rotary": own.get("rotary"),
        "level": LEVEL,
        "assumes": own["assumes"],
    }


def _ratio(norm: dict[str, Any], tokens: dict[str, Any]) -> dict[str, Any]:
    for part in (norm, tokens):
        if part["value"] is None:
            return {"value": None, "reason": part["reason"], "level": MEASURED}
    if tokens["value"] == 0:
        return {"value": None, "reason": "patch tokens have no length", "level": MEASURED}
    return {"value": norm["value"] / tokens["value"], "reason": None, "level": MEASURED}


def _table(model: LoadedModel, site: PositionSite, output: Tensor | None) -> dict[str, Any]:
    """An added table: stored, or, where `output` is given, what a module makes in a run."""
    table = _stored(model, site.where) if output is None else output
    channels_last = table.movedim(1, -1) if site.layout == "NCHW" else table
    rows = channels_last.reshape(-1, channels_last.shape[-1])[site.prefix :]
    assert site.grid is not None
    if len(rows) != site.grid.tokens:
        raise AnatomyError(
            f"'{site.where}' holds {len(rows)} patch rows, which its declared grid does not have; "
            "check the family"
        )
    return {
        "shape": list(table.shape),
        "prefix_rows": site.prefix,
        "norm": _defined(float(rows.norm(dim=1).mean()), "the table is not finite"),
        "table_ssdc": _defined(table_ssdc(rows, site.grid), CONSTANT),
        "assumes": TABLE_ASSUMES if output is None else MADE_ASSUMES,
    }


def table_ssdc(rows: Tensor, grid: Grid) -> float:
    """SSDC of the patch rows (N, C) of a table; NaN where it is undefined."""
    ranks = GridRanks(grid, "l1", seed=0)
    (cosines,) = image_similarities(ranks.half, ranks.unit(rows[None]))
    return ranks.ranker.correlation(cosines)


def _bias(model: LoadedModel, site: PositionSite, output: Tensor | None) -> dict[str, Any]:
    """A bias by its offsets: a table, or, where `output` is given, what an MLP makes of them."""
    bounded = None if output is None else _BOUND * torch.sigmoid(output).squeeze(0)
    stored = _stored(model, site.where) if bounded is None else bounded
    assert site.grid is not None
    down, across = 2 * site.grid.rows - 1, 2 * site.grid.cols - 1
    rows = stored.reshape(-1, stored.shape[-1])
    extra = len(rows) - down * across
    if extra < 0:
        raise AnatomyError(
            f"'{site.where}' holds {len(rows)} offsets, fewer than its declared window has; check "
            "the family"
        )
    values = rows[: down * across].cpu().numpy()
    distance, pairs = window_offsets(site.grid)
    whole = _bias_ssdc(values.mean(axis=1), distance, pairs)
    heads = [_bias_ssdc(head, distance, pairs) for head in values.T]
    return {
        "shape": list(stored.shape),
        "prefix_rows": extra,
        "bias": _spread(values, pairs),
        "table_ssdc": _defined(whole, FLAT)
        | {"heads": [_defined(one, FLAT)["value"] for one in heads]},
        "assumes": BIAS_ASSUMES,
    }


def window_offsets(window: Grid) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """L1 length of every offset of a window, and how many ordered token pairs lie that far apart.

    Both are (2 rows - 1) * (2 cols - 1) long, in the order of the rows of a bias table; the offset
    0 counts no pair.
    """
    down = np.abs(np.arange(1 - window.rows, window.rows))
    across = np.abs(np.arange(1 - window.cols, window.cols))
    distance = down[:, None] + across[None, :]
    pairs = (window.rows - down)[:, None] * (window.cols - across)[None, :]
    return distance.ravel(), np.where(distance == 0, 0, pairs).ravel()


def _bias_ssdc(
    bias: NDArray[np.float64], distance: NDArray[np.int64], pairs: NDArray[np.int64]
) -> float:
    if not np.isfinite(bias).all():
        return math.nan
    return spearman(bias, -distance.astype(np.float64), pairs)


def _spread(values: NDArray[np.float64], pairs: NDArray[np.int64]) -> dict[str, Any] | None:
    """Size of a bias (offsets, heads) over ordered pairs; None where there is none, or NaN."""
    if pairs.sum() == 0 or not np.isfinite(values).all():
        return None
    mean = np.average(values, axis=0, weights=pairs)
    variance = np.average((values - mean) ** 2, axis=0, weights=pairs)
    used = values[pairs > 0]
    return {
        "heads": values.shape[1],
        "sd": float(np.sqrt(variance).mean()),
        "low": float(used.min()),
        "high": float(used.max()),
    }


def _rotation(model: LoadedModel, site: PositionSite) -> dict[str, Any]:
    grid = model.anatomy.patches.grid
    try:
        rotation = read_rotation(submodule(model.module, site.where), grid)
    except AnatomyError as unread:
        return {"shape": None, "no_ssdc": str(unread), "assumes": str(unread)}
    return {
        "shape": list(rotation.shape),
        "no_ssdc": "a rotation turns queries and keys; its table is no similarity between places",
        "rotary": rotary_facts(rotation, grid),
        "assumes": ROTARY_ASSUMES,
    }


def _defined(value: float, otherwise: str) -> dict[str, Any]:
    if math.isfinite(value):
        return {"value": value, "reason": None}
    return {"value": None, "reason": otherwise}


def _stored(model: LoadedModel, name: str) -> Tensor:
    """A parameter or buffer, in float64."""
    owner, _, key = name.rpartition(".")
    tensor = getattr(submodule(model.module, owner), key, None)
    if not isinstance(tensor, Tensor):
        raise AnatomyError(f"the model has no tensor '{name}'; check the family")
    return tensor.detach().cpu().double()


def _token_norm(model: LoadedModel, images: Tensor | None) -> dict[str, Any]:
    """Mean L2 norm of patch tokens at the patch projection."""
    if images is None or len(images) == 0:
        why = "no images were given to measure patch tokens on"
        return {"value": None, "reason": why, "images": 0, "level": MEASURED}
    place = model.anatomy.patches
    where = (place.module, place.grid, place.prefix, place.layout)
    site = TokenSite(0, "attn_in", *where, arrangement=place.arrangement)
    seen: list[float] = []

    def read(_site: TokenSite, tokens: Tensor) -> None:
        seen.append(float(tokens.cpu().double().norm(dim=-1).mean()))
        raise StopForward

    with torch.inference_mode(), observe(model.module, [site], read), suppress(StopForward):
        model.forward(images)
    found = _defined(seen[0], "patch tokens are not finite; try --dtype float32")
    return found | {"images": len(images), "level": MEASURED}


def _made_by_modules(model: LoadedModel) -> dict[str, Tensor]:
    """The output of every module that makes an added table or a bias, from one run.

    It depends on places alone, so that any image does.
    """
    modules = dict(model.module.named_modules())
    made = [s.where for s in model.anatomy.positions if s.kind in (*ADDED, "relative_bias")]
    names = [name for name in made if name in modules]
    found: dict[str, Tensor] = {}
    if not names:
        return found
    with ExitStack() as stack, torch.inference_mode():
        for name in names:

            def keep(_module: nn.Module, _args: Any, output: Any, name: str = name) -> None:
                found[name] = first_tensor(output, name).cpu().double()

            stack.callback(modules[name].register_forward_hook(keep).remove)
        weight = next(model.module.parameters())
        model.forward(weight.new_zeros(1, 3, *model.anatomy.image_size))
    return found
