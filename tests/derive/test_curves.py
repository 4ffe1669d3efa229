"""Delta SSDC, anchoring, ratios and intervals, from records written by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from probe.derive.curves import Curve, anchoring, curve, delta_ssdc, layer_ratio
from probe.derive.estimate import Estimate, combine, difference, ratio
from probe.errors import NotApplicable
from probe.records import LayerRecord
from tests.derive.by_hand import NARROW, G, a_pass, half_width, layer, values


def test_a_condition_that_could_not_be_run_has_no_curve() -> None:
    why = "RPI does not apply: a convolutional network has no patch tokens"
    with pytest.raises(NotApplicable, match=f"^{why}$"):
        curve([a_pass([]).model_copy(update={"reason": why})])


class TestDelta:
    def test_is_layer_one_minus_layer_zero(self) -> None:
        spread = [0.01, -0.02, 0.03, 0.0, -0.01]
        rpi = curve([a_pass([layer(0, 0.2), layer(1, 0.5, spread), layer(2, 0.9)])])
        found = delta_ssdc(rpi, "attn_in").scalar()
        assert found.value == pytest.approx(0.3)
        assert found.high == pytest.approx(0.3 + half_width(spread))
        assert found.low == pytest.approx(0.3 - half_width(spread))
        assert found.reason is None

    def test_is_paired_by_image_group(self) -> None:
        """Layers that move together have a difference that hardly moves."""
        common = np.array([0.05, -0.06, 0.02, 0.03, -0.04])
        own = np.array([0.001, -0.001, 0.002, 0.0, -0.002])
        rpi = curve([a_pass([layer(0, 0.2, list(common)), layer(1, 0.5, list(common + own))])])
        found = delta_ssdc(rpi, "attn_in").scalar()
        assert found.high is not None
        assert found.high - 0.3 == pytest.approx(half_width(list(own)))
        independent = math.hypot(half_width(list(common)), half_width(list(common + own)))
        assert found.high - 0.3 < independent / 20

    @pytest.mark.parametrize(
        ("layers", "site", "reason"),
        [
            (values(0.1, 0.2), "block_out", "delta SSDC is defined at attn_in, not at block_out"),
            (values(0.1), "attn_in", "the model has one block"),
            (
                [layer(0, 0.1, grid=(4, 4)), layer(1, 0.2, grid=(2, 2))],
                "attn_in",
                "layers 0 and 1 have different grids",
            ),
            ([layer(0, 0.1), layer(1, None, reason="constant")], "attn_in", "constant"),
            ([layer(0, None, reason="constant"), layer(1, 0.1)], "attn_in", "constant"),
        ],
    )
    def test_is_null_with_its_reason(
        self, layers: list[LayerRecord], site: str, reason: str
    ) -> None:
        found = delta_ssdc(curve([a_pass(layers)]), site).scalar()
        assert (found.value, found.low, found.high, found.reason) == (None, None, None, reason)


class TestAnchoring:
    def test_is_the_unweighted_mean_of_layers(self) -> None:
        spreads = [[0.01, 0, 0, 0, 0], [0, 0.03, 0, 0, 0], [0, 0, 0, 0, -0.03]]
        layers = [layer(i, v, spreads[i]) for i, v in enumerate([0.1, 0.3, 0.8])]
        found = anchoring(curve([a_pass(layers)])).scalar()
        assert found.value == pytest.approx(0.4)
        replicates = np.mean(spreads, axis=0)
        assert found.high == pytest.approx(0.4 + half_width(list(replicates)))

    def test_one_null_layer_makes_it_null(self) -> None:
        layers = [layer(0, 0.1), layer(1, None, reason="constant"), layer(2, 0.3)]
        found = anchoring(curve([a_pass(layers)])).scalar()
        assert (found.value, found.low) == (None, None)
        assert found.reason == "SSDC under RPI is undefined at layer 1: constant"

    def test_by_grid_keeps_the_grids_apart(self) -> None:
        layers = [
            layer(0, 0.1, grid=(4, 4)),
            layer(1, 0.2, grid=(4, 4)),
            layer(2, 0.9, grid=(2, 2)),
            layer(3, None, grid=(1, 1), reason="one token"),
        ]
        rpi = curve([a_pass(layers)])
        assert anchoring(rpi, (4, 4)).scalar().value == pytest.approx(0.15)
        assert anchoring(rpi, (2, 2)).scalar().value == pytest.approx(0.9)
        assert anchoring(rpi, (1, 1)).scalar().value is None
        assert anchoring(rpi).scalar().value is None


class TestRatio:
    def test_is_paired(self) -> None:
        common = [0.05, -0.06, 0.02, 0.03, -0.04]
        clean = curve([a_pass([layer(0, 0.8, common)])])
        rpi = curve([a_pass([layer(0, 0.4, [c / 2 for c in common])])])
        found = layer_ratio(clean, rpi, 0).scalar()
        assert found.value == pytest.approx(0.5)
        # The ratio is one half in every replicate.
        assert found.low == pytest.approx(0.5)
        assert found.high == pytest.approx(0.5)

    @pytest.mark.parametrize("value", [0.0, 0.015, -0.015])
    def test_is_null_where_clean_is_chance(self, value: float) -> None:
        clean = curve([a_pass(values(value))])
        found = layer_ratio(clean, curve([a_pass(values(0.5))]), 0).scalar()
        assert (found.value, found.reason) == (None, "clean SSDC lies inside its null band")

    @pytest.mark.parametrize("value", [0.03, -0.03])
    def test_is_defined_just_outside_the_band(self, value: float) -> None:
        found = layer_ratio(curve([a_pass(values(value))]), curve([a_pass(values(0.06))]), 0)
        assert found.scalar().value == pytest.approx(0.06 / value)

    def test_takes_the_reason_of_an_undefined_side(self) -> None:
        none = curve([a_pass([layer(0, None, reason="constant")])])
        some = curve([a_pass(values(0.5))])
        assert layer_ratio(none, some, 0).scalar().reason == "constant"
        assert layer_ratio(some, none, 0).scalar().reason == "constant"

    def test_over_zero_is_null(self) -> None:
        some, zero = Estimate(0.5, np.ones(G)), Estimate(0.0, np.zeros(G))
        assert ratio(some, zero).scalar().value is None
        assert ratio(some, zero).scalar().reason == "undefined"


class TestDraws:
    def two(self) -> Curve:
        one = layer(0, 0.2, [0.02, 0, 0, 0, -0.02], null=NARROW)
        other = layer(0, 0.5, [0.04, 0, 0, 0, -0.02], null=NARROW + 0.1)
        return curve([a_pass([one], "rpi 0"), a_pass([other], "rpi 1")])

    def test_mean_of_values_replicates_and_null_values(self) -> None:
        found = self.two()
        scalar = found.layers[0].scalar()
        assert scalar.value == pytest.approx(0.35)
        assert scalar.high == pytest.approx(0.35 + half_width([0.03, 0, 0, 0, -0.02]))
        low, high = np.quantile(NARROW + 0.05, [0.025, 0.975])
        assert found.band(0) == pytest.approx((low, high), abs=1e-6)

    def test_sd_over_draws_is_the_sample_sd(self) -> None:
        assert self.two().draw_sd == (pytest.approx(np.std([0.2, 0.5], ddof=1)),)
        assert curve([a_pass(values(0.2))]).draw_sd == (None,)

    def test_a_layer_undefined_in_one_draw_is_undefined(self) -> None:
        found = curve([a_pass(values(0.2)), a_pass([layer(0, None, reason="constant")])])
        assert found.layers[0].scalar().reason == "constant"
        assert found.band(0) == (None, None)
        assert found.draw_sd == (None,)


class TestIntervals:
    def test_one_image_has_none(self) -> None:
        scalar = Estimate.of(layer(0, 0.4, [None])).scalar()
        assert (scalar.value, scalar.low, scalar.high) == (0.4, None, None)
        assert scalar.reason == "no interval from one image"

    def test_an_undefined_replicate_leaves_none(self) -> None:
        scalar = Estimate.of(layer(0, 0.4, [0.1, None, 0.2])).scalar()
        assert (scalar.value, scalar.low) == (0.4, None)
        assert scalar.reason == "no interval: undefined without one of the image groups"

    def test_different_groups_do_not_pair(self) -> None:
        five, four = Estimate(0.4, np.full(5, 0.4)), Estimate(0.1, np.full(4, 0.1))
        found = difference(five, four)
        assert found.value == pytest.approx(0.3)
        assert len(found.replicates) == 0

    def test_combine_passes_the_first_reason_on(self) -> None:
        parts = [Estimate(1.0, np.ones(2)), Estimate.undefined("a"), Estimate.undefined("b")]
        found = combine(parts, lambda rows: rows.sum(axis=0))
        assert math.isnan(found.value)
        assert found.reason == "a"
