"""What single models of transformers do in their own way: signals made in a run, sizes, padding."""

from __future__ import annotations

import pytest
import torch
import transformers as hf
from torch import nn

from probe.coverage.build import enlarge
from probe.errors import AnatomyError
from probe.families import hf_detectors, hf_hiera, hf_radio, hf_swin, hf_vit
from probe.interventions import permute_patches, scale_positions
from tests.families.tiny import fresh, permutations, read
from tests.families.tiny_hf import PLAIN, networks

SWIN = {
    "image_size": 32, "patch_size": 4, "embed_dim": 16, "depths": [2, 2], "num_heads": [2, 2],
    "window_size": 4,
}  # fmt: skip


def test_alpha_takes_off_a_table_that_is_made_in_every_run() -> None:
    """Without it, tokens of AIMv2 move with their patches."""
    model = fresh("hf_aimv2_native")
    enlarge(model.module)
    (table,) = model.anatomy.positions
    assert (table.kind, table.grid) == ("sinusoidal", None)
    order, last = permutations(model, "run")[0], model.anatomy.block_out[-1]

    def apart(alpha: float) -> float:
        with scale_positions(model, alpha):
            clean = read(model, [last])[last]
            with permute_patches(model, order):
                moved = read(model, [last])[last]
        return float((clean[:, order] - moved).abs().max())

    assert apart(0.0) < 1e-4
    assert apart(1.0) > 1e-2


@pytest.mark.parametrize(
    ("family", "model", "size", "message"),
    [
        (hf_radio, networks()["radio"], (20, 16), "20 x 16 px do not fall into patches of 8 px"),
        (
            hf_vit,
            lambda: hf.VitPoseBackbone(
                hf.VitPoseBackboneConfig(**PLAIN, num_experts=2, part_features=8)
            ),
            (32, 32),
            "a ViTPose with experts asks which data set an image is from",
        ),
    ],
)
def test_what_the_library_would_fail_on_is_refused(
    family: object, model: object, size: tuple[int, int], message: str
) -> None:
    with pytest.raises(AnatomyError, match=message):
        family.anatomy(model(), size)  # type: ignore[attr-defined, operator]


def test_windows_of_swin_shrink_where_a_block_decides_so_in_every_run() -> None:
    """As Swin's do; those of Swin V2 keep what they were built with, and pad a smaller grid."""
    swin = hf_swin.anatomy(hf.SwinModel(hf.SwinConfig(**SWIN)), (32, 32))
    assert [(site.window, site.shift) for site in swin.attention[2:]] == [((4, 4), (0, 0))] * 2
    second = hf.Swinv2Model(hf.Swinv2Config(**SWIN))
    smaller = hf_swin.anatomy(second, (24, 24)).attention[2:]
    assert smaller == hf_swin.anatomy(second, (32, 32)).attention[2:]
    assert {site.window for site in smaller} == {(4, 4)}


def test_detection_tokens_count_in_the_length_of_a_sequence() -> None:
    config = hf.YolosConfig(**PLAIN | {"image_size": [32, 32]}, num_detection_tokens=5)
    anatomy = hf_detectors.anatomy(hf.YolosModel(config), (32, 32))
    split = anatomy.attn_in[0].arrangement.split  # type: ignore[union-attr]
    tokens = torch.arange(22.0).reshape(1, 22, 1)
    assert split(tokens).flatten().tolist() == list(range(1, 17))
    assert split(tokens[:, :-1]).shape == (1, 21, 1)  # refused where it is read


def test_tables_of_windows_must_tile_the_grid() -> None:
    model: nn.Module = hf.Sam2HieraDetModel(
        hf.Sam2HieraDetConfig(
            hidden_size=16, num_attention_heads=1, blocks_per_stage=[1, 1, 1, 1],
            embed_dim_per_stage=[16, 32, 64, 128], num_attention_heads_per_stage=[1, 2, 4, 8],
            window_size_per_stage=[8, 4, 4, 2], window_positional_embedding_background_size=[4, 4],
            global_attention_blocks=[2],
        )
    )  # fmt: skip
    with pytest.raises(AnatomyError, match="tokens, which tables of 8 x 8 do not tile"):
        hf_hiera.anatomy(model, (48, 48))
