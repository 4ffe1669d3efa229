"""A run on shapes alone: what it finds, what it leaves as it was, what it says when it fails."""

from __future__ import annotations

import pytest
import torch
from timm.models.levit import Levit
from torch import nn

from probe.errors import AnatomyError
from probe.families.dry_run import Seen, dry_run
from tests.families.tiny import Watch
from tests.families.tiny_timm import LEVIT


class Pair(nn.Module):
    """Gives the image's two halves, and runs a part twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 4, 2, 2), nn.Identity()

    def forward(self, images: torch.Tensor) -> list[torch.Tensor]:
        tokens = self.first(images)
        return [self.second(tokens), self.second(tokens)[:, :, :1]]


def test_parts_come_in_order_of_execution_with_their_shapes() -> None:
    module = Levit((64, 96), **LEVIT).eval()
    seen = dry_run(module, (64, 96), ["stages.1.blocks.0", "stem", "stages.0.blocks.0.attn"])
    assert list(seen.values()) == [
        Seen("stem", (1, 3, 64, 96), (1, 32, 4, 6)),
        Seen("stages.0.blocks.0.attn", (1, 24, 32), (1, 24, 32)),
        Seen("stages.1.blocks.0", (1, 6, 64), (1, 6, 64)),
    ]


def test_nothing_is_computed_and_nothing_is_left_behind() -> None:
    module = Levit((64, 96), **LEVIT).eval()
    kept = {"cpu": torch.ones(1)}
    module.stages[0].blocks[0].attn.attention_bias_cache = kept
    watch = Watch(module)
    dry_run(module, (64, 96), ["stem"])
    assert watch.changes() == []
    assert module.stages[0].blocks[0].attn.attention_bias_cache is kept
    assert module.stages[1].blocks[0].attn.attention_bias_cache == {}


def test_shapes_are_found_without_storage() -> None:
    with torch.device("meta"):
        module = Levit((64, 96), **LEVIT)
    assert dry_run(module.eval(), (64, 96), ["stem"])["stem"].given == (1, 32, 4, 6)


def test_one_of_several_outputs_is_meant() -> None:
    module = Pair()
    assert dry_run(module, (8, 8), [""], element=0)[""].given == (1, 4, 4, 4)
    assert dry_run(module, (8, 8), [""], element=1)[""].given == (1, 4, 1, 4)


def test_a_part_that_runs_twice_is_no_layer() -> None:
    with pytest.raises(AnatomyError, match="'second' runs more than once, so it is no layer of"):
        dry_run(Pair(), (8, 8), ["second"])


def test_a_size_that_does_not_run_is_named(capfd: pytest.CaptureFixture[str]) -> None:
    module = Levit((64, 96), **LEVIT).eval()
    with pytest.raises(AnatomyError, match=r"not run on images of 64 x 64 px: .*; use its own"):
        dry_run(module, (64, 64), ["stem"])
    assert capfd.readouterr().err == ""
