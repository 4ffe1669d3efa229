"""Metrics of other packages: one number per image and layer, averaged over images.

A package lists a `TokenMetric` in the entry point group `probe.metrics`; see docs/plugins.md. Its
sums are additive over images and kept per jackknife group, so that its means have the intervals,
and pair across layers and conditions, as SSDC does.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from probe import plugins
from probe.errors import DataError, UsageError, did_you_mean, is_out_of_memory
from probe.metrics.grids import check_rows
from probe.types import Grid

NAME = re.compile(r"[a-z][a-z0-9_]*")
RESERVED = frozenset(("ssdc", "top1"))


@dataclass(frozen=True)
class TokenMetric:
    """What a package measures of the patch tokens of one layer.

    `measure(tokens, grid)` takes the patch tokens (B, N, C) of a batch, row-major, in the model's
    precision, and gives one real number per image, (B,), that depends on that image alone; NaN
    where it is undefined. It must not write to the tokens. `about` says in a line what the number
    is, with its unit and range.
    """

    name: str
    about: str
    measure: Callable[[Tensor, Grid], Tensor]


def find_metrics(names: Sequence[str]) -> tuple[TokenMetric, ...]:
    """The metrics of these names, in order.

    Raises:
        UsageError: if no package offers one, it cannot be used, or it is named twice.
    """
    found = []
    for name, plugin in zip(names, _plugins(names), strict=True):
        metric = plugin.load(TokenMetric)
        if not NAME.fullmatch(name):
            raise UsageError(f"{plugin} cannot be used: a metric is named as [a-z][a-z0-9_]*")
        found.append(metric)
    if len(set(names)) < len(names):
        raise UsageError(f"--metric: one is given twice in {', '.join(names)}; give each once")
    return tuple(found)


def metric_packages(names: Sequence[str]) -> dict[str, str]:
    """The packages of these metrics, with version and code."""
    return {key: value for one in _plugins(names) for key, value in one.identity.items()}


def _plugins(names: Sequence[str]) -> list[plugins.Plugin]:
    registry, found = plugins.registry(plugins.METRICS, RESERVED), []
    for name in names:
        plugin = registry.find(name)
        if plugin is None:
            known = list(registry.plugins)
            near = did_you_mean(name, known) or (f" There are: {', '.join(known)}" if known else "")
            raise UsageError(
                f"no installed package adds the metric '{name}'.{near} See docs/plugins.md"
            )
        found.append(plugin)
    return found


@dataclass(frozen=True)
class MeanOverImages:
    """A finished mean (NaN and a reason where undefined) with its leave-one-group-out values."""

    value: float
    leave_one_out: NDArray[np.float64]
    reason: str | None = None


class ImageMeans:
    """Running sums of metrics, by metric, layer and jackknife group."""

    def __init__(self, metrics: Sequence[TokenMetric], grids: Sequence[Grid], groups: int) -> None:
        """Start with no image."""
        self.metrics, self.grids = tuple(metrics), tuple(grids)
        self._sums = np.zeros((len(metrics), len(grids), groups))
        self._undefined = np.zeros((len(metrics), len(grids)), dtype=np.int64)
        self._counts = np.zeros((len(grids), groups), dtype=np.int64)

    def update(self, layer: int, tokens: Tensor, groups: NDArray[np.int64]) -> None:
        """Add a batch: patch tokens (B, N, C) of a layer, and the group (B,) of every image.

        Raises:
            AnatomyError: if the tokens are not of B images.
            DataError: if a metric fails or gives something else than one number per image.
        """
        check_rows(layer, tokens, len(groups))
        for row, metric in enumerate(self.metrics):
            values = _values(metric, tokens.detach(), self.grids[layer])
            defined = np.isfinite(values)
            np.add.at(self._sums[row, layer], groups[defined], values[defined])
            self._undefined[row, layer] += np.count_nonzero(~defined)
        np.add.at(self._counts[layer], groups, 1)

    def state(self) -> dict[str, NDArray[np.generic]]:
        """The running sums as arrays, to be saved and given to `merge`."""
        return {
            "metric_sums": self._sums,
            "metric_undefined": self._undefined,
            "metric_counts": self._counts,
        }

    def merge(self, state: dict[str, NDArray[np.generic]]) -> None:
        """Add the running sums of other images."""
        self._sums += state["metric_sums"].astype(np.float64)
        self._undefined += state["metric_undefined"].astype(np.int64)
        self._counts += state["metric_counts"].astype(np.int64)

    def finalise(self, layer: int) -> dict[str, MeanOverImages]:
        """The mean of every metric at a layer."""
        counts = self._counts[layer]
        used, images = np.flatnonzero(counts), int(counts.sum())
        found = {}
        for row, metric in enumerate(self.metrics):
            lost = int(self._undefined[row, layer])
            if lost or not images:
                why = f"undefined for {lost} of {images} images" if images else "no image was read"
                found[metric.name] = MeanOverImages(math.nan, np.empty(0), why)
                continue
            sums = self._sums[row, layer]
            with np.errstate(invalid="ignore", divide="ignore"):  # one group alone: 0 / 0
                without = (sums.sum() - sums[used]) / (images - counts[used])
            found[metric.name] = MeanOverImages(float(sums.sum() / images), without)
        return found


def _values(metric: TokenMetric, tokens: Tensor, grid: Grid) -> NDArray[np.float64]:
    try:
        found = metric.measure(tokens, grid)
    except Exception as error:
        if is_out_of_memory(error):  # smaller batches mend it
            raise
        raise DataError(
            f"the metric '{metric.name}' raised {plugins.first_line(error)}; report it to the "
            "package that adds it"
        ) from error
    fits = isinstance(found, Tensor) and found.shape == (len(tokens),) and not found.is_complex()
    if not fits:
        kind = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
        raise DataError(
            f"the metric '{metric.name}' gives {kind}, not one real number for each of "
            f"{len(tokens)} images; report it to the package that adds it"
        )
    values: NDArray[np.float64] = found.to("cpu", torch.float64).numpy()
    return values
