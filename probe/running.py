"""One pass under way: its statistics, how far it is, what it had to leave out."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from probe.errors import DataError
from probe.hooks import StopForward
from probe.metrics.added import ImageMeans, MeanOverImages, find_metrics
from probe.metrics.grids import GridRanks
from probe.metrics.ssdc import LayerSSDC, SSDCStatistic
from probe.metrics.top1 import Top1
from probe.plan import Settings
from probe.records import LayerRecord, MetricRecord, PassRecord
from probe.store import State
from probe.types import Grid, Pass, TokenSite


@dataclass
class RunningPass:
    """The running sums of one pass.

    Attributes:
        work: the pass.
        sites: where its tokens are read; empty when it measures no SSDC.
        groups: number of jackknife groups.
        ssdc: sums for SSDC, None when it is not measured.
        top1: predictions, None when they are not kept.
        means: sums for metrics of other packages, None when there are none.
        done: positions below this one are dealt with.
        whole: False while a batch is only half in the sums, which must not be saved then.
        skipped: (name, reason) of the images left out.
        unreadable: how many of these could not be read; a corruption failed on the others.
        reason: why the condition does not apply to the model, else None.
    """

    work: Pass
    sites: tuple[TokenSite, ...]
    groups: int
    ssdc: SSDCStatistic | None
    top1: Top1 | None
    means: ImageMeans | None = None
    done: int = 0
    whole: bool = True
    skipped: list[tuple[str, str]] = field(default_factory=list)
    unreadable: int = 0
    reason: str | None = None

    @classmethod
    def start(
        cls,
        work: Pass,
        sites: Sequence[TokenSite],
        settings: Settings,
        groups: int,
        shared: dict[Grid, GridRanks],
    ) -> RunningPass:
        """A pass with no image yet; passes share their ranked grids through `shared`."""
        last = work.task.last_layer
        read = tuple(sites) if last is None else tuple(s for s in sites if s.layer <= last)
        permutation = work.condition.permutation
        statistic = None
        if work.task.ssdc:
            statistic = SSDCStatistic(
                [site.grid for site in read],
                distance=settings.distance,
                average=settings.average,
                groups=groups,
                seed=settings.seed,
                draw=permutation.draw if permutation else 0,
                shared=shared,
            )
        means = None
        if work.task.ssdc and settings.metrics:
            grids = [site.grid for site in read]
            means = ImageMeans(find_metrics(settings.metrics), grids, groups)
        top1 = Top1() if work.task.top1 else None
        return cls(work, read if work.task.ssdc else (), groups, statistic, top1, means)

    def read(
        self,
        site: TokenSite,
        tokens: Tensor,
        positions: NDArray[np.int64],
        indices: NDArray[np.int64],
    ) -> None:
        """Add one layer's tokens of a batch; ends the forward pass after the last wanted layer."""
        if self.ssdc is not None:
            self.ssdc.update(site.layer, tokens, positions % self.groups, indices)
        if self.means is not None:
            self.means.update(site.layer, tokens, positions % self.groups)
        if site.layer == self.work.task.last_layer:
            raise StopForward

    def state(self) -> State:
        """All sums as arrays, for the store."""
        state: State = {
            "done": np.array(self.done),
            "skipped": np.array(json.dumps(self.skipped)),
            "unreadable": np.array(self.unreadable),
        }
        for statistic in (self.ssdc, self.top1, self.means):
            if statistic is not None:
                state |= statistic.state()
        return state

    def merge(self, state: State, device: torch.device) -> None:
        """Add sums of other images: of an earlier run, or of another process."""
        self.done = max(self.done, int(state["done"]))
        self.skipped += [(name, reason) for name, reason in json.loads(str(state["skipped"]))]
        self.unreadable += int(state["unreadable"])
        if self.ssdc is not None:
            self.ssdc.merge(state, device)
        if self.top1 is not None:
            self.top1.merge(state)
        if self.means is not None:
            self.means.merge(state)

    @property
    def finished(self) -> SSDCStatistic | None:
        """The sums of SSDC, if this pass has any to finalise."""
        return self.ssdc if self.reason is None else None

    def finish(self, settings: Settings, measured: Sequence[LayerSSDC]) -> PassRecord:
        """The record of the finished pass.

        Args:
            settings: how it was measured.
            measured: what its `finished` sums come to; nothing without them.

        Raises:
            DataError: if no image is left.
        """
        applies = self.reason is None
        images = self.done - len(self.skipped) if applies else 0
        if applies and images < 1:
            name, why = self.skipped[0]
            raise DataError(f"every image had to be left out, the first, '{name}', since {why}")
        condition = self.work.condition
        mapped = condition.alpha == 1 and condition.corruption is None
        predicted, correct = None, None
        if applies and self.top1 is not None:
            predicted, correct = self.top1.finalise(self.done)
        return PassRecord(
            key=self.work.key,
            model=self.work.model,
            condition=str(self.work.condition),
            settings=dict(self.work.settings),
            machine={"batch_size": settings.batch_size, "workers": settings.workers},
            images=images,
            skipped=tuple(self.skipped) if applies else (),
            layers=tuple(
                _layer_record(layer, m, mapped, self._means(layer))
                for layer, m in enumerate(measured)
            ),
            predicted=predicted,
            correct=correct,
            reason=self.reason,
        )

    def _means(self, layer: int) -> dict[str, MetricRecord] | None:
        if self.means is None:
            return None
        return {name: _metric_record(m) for name, m in self.means.finalise(layer).items()}


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _metric_record(mean: MeanOverImages) -> MetricRecord:
    replicates = tuple(_finite(float(v)) for v in mean.leave_one_out)
    return MetricRecord(value=_finite(mean.value), leave_one_out=replicates, reason=mean.reason)


def _layer_record(
    layer: int, measured: LayerSSDC, mapped: bool, means: dict[str, MetricRecord] | None
) -> LayerRecord:
    return LayerRecord(
        layer=layer,
        grid=(measured.grid.rows, measured.grid.cols),
        value=_finite(measured.value),
        leave_one_out=tuple(_finite(float(v)) for v in measured.leave_one_out),
        null=measured.null.astype(np.float32),
        pairs=measured.pairs,
        subset=measured.subset,
        reason=measured.reason,
        maps=measured.maps.ravel() if mapped and measured.maps is not None else None,
        metrics=means,
    )
