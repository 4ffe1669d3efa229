"""Reach over depth, against perturbation."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from probe.audit.connectivity import connectivity, perturbation
from probe.audit.graph import reach, read_graphs
from tests.families.tiny import anatomy_of, attending, fresh, named, windowed


@pytest.mark.parametrize("name", named(attending))
def test_nothing_moves_that_no_path_reaches(name: str) -> None:
    found = connectivity(fresh(name))
    for one in found["perturbation"]:
        assert one["beyond"] == 0
        assert one["moved"][0] > 0
        assert all(m <= c for m, c in zip(one["moved"], one["reachable"], strict=True))
    shares = found["share_reached"]
    assert shares == sorted(shares)
    if not windowed(anatomy_of(name)):
        assert found["blocks_until_all_reached"] == 1
        assert one["moved"] == one["reachable"]


def test_stages_are_grouped_by_grid() -> None:
    found = connectivity(fresh("timm_swin"))
    assert [stage["grid"] for stage in found["stages"]] == [[8, 8], [4, 4]]
    kinds = [[block["kind"] for block in stage["blocks"]] for stage in found["stages"]]
    assert kinds == [["window", "shifted"], ["window", "window"]]
    assert all(block["as_expected"] for stage in found["stages"] for block in stage["blocks"])
    assert found["blocks_until_all_reached"] == 3
    assert found["share_reached"][0] == 16 / 64


def test_a_path_that_is_not_declared_shows() -> None:
    """Half of the windows' graph is hidden: what moves beyond it is counted."""
    model = fresh("timm_vit")
    graphs = read_graphs(model)
    allowed = graphs[0].allowed.copy()
    allowed[:, :, 9:] = False
    hidden = [replace(graph, allowed=allowed & np.eye(17, dtype=bool)) for graph in graphs]
    held = reach(hidden, ())
    found = perturbation(model, hidden, held)
    assert all(one["beyond"] > 0 for one in found)
