"""Tokens out of the order of the grid, against the library's own way back to it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from probe.families.hf_folded import folded
from probe.types import LoadedModel
from tests.families.tiny import fresh, images_for, read


def raw(model: LoadedModel, name: str) -> Tensor:
    """What a module gives out, as the library has it."""
    found: list[Any] = []
    handle = model.module.get_submodule(name).register_forward_hook(
        lambda _m, _a, out: found.append(out)
    )
    with torch.no_grad():
        model.forward(images_for(model))
    handle.remove()
    tokens: Tensor = found[0] if isinstance(found[0], Tensor) else found[0][0]
    return tokens


def test_windows_are_read_row_by_row_and_put_back() -> None:
    """Windows of 2 x 3 tokens, 2 x 2 of them, in the batch or behind it."""
    grid = torch.arange(5 * 24 * 2).view(5, 24, 2)
    cut = grid.view(5, 2, 2, 2, 3, 2).transpose(2, 3)
    windows = folded((2, 2, 2, 3), rows=(0, 2), cols=(1, 3))
    for tokens in (cut.reshape(20, 6, 2), cut.reshape(5, 24, 2), cut.reshape(1, 120, 2)):
        assert torch.equal(windows.split(tokens), grid)
        assert windows.join is not None
        assert torch.equal(windows.join(grid, tokens), tokens)
    first = folded((2, 2, 2, 3), rows=(0, 2), cols=(1, 3), first=True)
    tokens = cut.reshape(5, 4, 6, 2).permute(0, 3, 1, 2)
    assert torch.equal(first.split(tokens), grid)
    assert first.join is not None
    assert torch.equal(first.join(grid, tokens), tokens)
    assert windows.split(torch.zeros(1, 25, 2)).shape == (1, 25, 2)  # for the caller to refuse


def test_hiera_is_read_in_the_order_that_it_rolls_back_to() -> None:
    model = fresh("hf_hiera")
    encoder: Any = model.module.get_submodule("hiera.encoder")
    found = read(model, model.anatomy.block_out)
    grids = set()
    for stage, (site, tokens) in enumerate(found.items()):
        wanted = encoder.reroll(raw(model, site.module), stage_idx=stage)
        assert torch.equal(tokens, wanted.flatten(1, 2))
        grids.add(site.grid)
    assert len(grids) == 4


@pytest.mark.parametrize("name", ["hf_mobilevit", "hf_mobilevitv2"])
def test_mobilevit_is_read_in_the_order_that_it_folds_back_to(name: str) -> None:
    model = fresh(name)
    for site, tokens in read(model, model.anatomy.block_out).items():
        layer: Any = model.module.get_submodule(site.module.partition(".transformer")[0])
        patches, (rows, cols) = raw(model, site.module), (site.grid.rows, site.grid.cols)
        if name == "hf_mobilevit":
            about = {
                "orig_size": (rows, cols),
                "batch_size": len(tokens),
                "channels": tokens.shape[2],
                "interpolate": False,
                "num_patches": rows * cols // 4,
                "num_patches_width": cols // 2,
                "num_patches_height": rows // 2,
            }
            back = layer.folding(patches, about)
        else:
            back = layer.folding(patches, (rows, cols))
        assert torch.equal(tokens, back.flatten(2).mT)


def test_windows_of_a_detectors_backbone_lie_as_in_its_feature_map() -> None:
    model = fresh("hf_lw_detr_vit")
    (tokens,) = read(model, model.anatomy.block_out[-1:]).values()
    with torch.no_grad():
        (feature_map,) = model.forward(images_for(model)).feature_maps
    assert torch.equal(tokens, feature_map.flatten(2).mT)


def test_windows_are_cut_behind_the_norm_that_is_read() -> None:
    """ViTDet with windows of 3 on a grid of 4 x 4: the site has the grid, not padded windows."""
    model = fresh("hf_vitdet")
    layers: Any = model.module.get_submodule("encoder.layer")
    for layer in layers:
        layer.window_size = 3
    embedded = raw(model, "embeddings")
    norm = model.module.get_submodule("encoder.layer.0.norm1")
    (tokens,) = read(model, model.anatomy.attn_in[:1]).values()
    with torch.no_grad():
        wanted = norm(embedded.permute(0, 2, 3, 1)).flatten(1, 2)
    torch.testing.assert_close(tokens, wanted)
