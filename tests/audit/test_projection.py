"""The patch interface against NumPy's own SVD, by hand, and with planted mistakes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from probe.audit.collision import collide, lost_variance, patches_of
from probe.audit.projection import Projection, overlap_rank, rank_facts, read_projection
from probe.data.preprocess import named_preprocess
from probe.errors import NotApplicable
from probe.hooks import submodule
from probe.types import LoadedModel, PatchSite
from tests.families.tiny import MAKERS, fresh

RNG = np.random.default_rng(0)


def projection(matrix: Any, kernel: tuple[int, int] = (4, 4), **more: Any) -> Projection:
    matrix = np.asarray(matrix, dtype=np.float64)
    fields = {"stride": kernel, "eps": float(np.finfo(np.float32).eps)} | more
    return Projection(matrix, np.zeros(len(matrix)), kernel, **fields)


def photos(model: LoadedModel) -> np.ndarray:
    height, width = model.anatomy.image_size
    pixels = RNG.integers(40, 216, (8, 3, height, width), dtype=np.uint8)
    return patches_of(torch.from_numpy(pixels), read_projection(model).kernel)


@pytest.mark.parametrize("width", [8, 32, 47, 48, 64])
def test_nullity_of_a_random_map_meets_its_bound(width: int) -> None:
    facts = rank_facts(projection(RNG.standard_normal((width, 48))))
    assert facts["rank"] == min(width, 48)
    assert facts["nullity"] == facts["nullity_bound"] == max(0, 48 - width)


def test_the_published_collision() -> None:
    """Keeping two of four coordinates cannot tell (1, 2, 3, 4) from (1, 2, 4, 3)."""
    found = projection([[1, 0, 0, 0], [0, 1, 0, 0]], (2, 2))
    patch, other = np.array([1.0, 2, 3, 4]), np.array([1.0, 2, 4, 3])
    assert np.array_equal(found.matrix @ patch, [1, 2])
    assert np.array_equal(found.matrix @ other, [1, 2])
    difference = other - patch
    assert np.allclose(found.null.T @ (found.null @ difference), difference)
    assert rank_facts(found)["nullity"] == 2


def test_rank_and_singular_values_are_numpys() -> None:
    low = RNG.standard_normal((32, 10)) @ RNG.standard_normal((10, 48))
    found = projection(low)
    facts = rank_facts(found)
    assert facts["rank"] == np.linalg.matrix_rank(low) == 10
    values = np.linalg.svd(low, compute_uv=False)
    assert np.allclose(facts["singular_values"], values)
    assert facts["condition"] == pytest.approx(values[0] / values[9])
    assert facts["tolerance"] == pytest.approx(48 * np.finfo(np.float32).eps * values[0])
    assert facts["nullity"] == 38 > facts["nullity_bound"] == 16
    assert np.abs(low @ found.null.T).max() < 1e-10


def test_a_tolerance_of_zero_would_not_see_the_loss() -> None:
    low = (RNG.standard_normal((64, 10)) @ RNG.standard_normal((10, 48))).astype(np.float32)
    assert rank_facts(projection(low))["rank"] == 10
    assert rank_facts(projection(low, eps=0.0))["rank"] > 10


def test_a_projection_behind_a_stem_is_no_patchs_map() -> None:
    model = fresh("hf_mobilevit")
    behind = PatchSite(
        "mobilevit.encoder.layer.2.conv_1x1", model.anatomy.attn_in[0].grid, 0, "NCHW"
    )
    model = replace(model, anatomy=replace(model.anatomy, patches=behind))
    with pytest.raises(NotApplicable, match="over 8 channels of a stem, not over pixels"):
        read_projection(model)


@pytest.mark.parametrize("name", MAKERS)
def test_every_family_has_a_projection(name: str) -> None:
    model = MAKERS[name]()
    if model.anatomy.patches.refusal is not None:
        with pytest.raises(NotApplicable, match="a convolutional network has no patch tokens"):
            read_projection(model)
        return
    stem = submodule(model.module, model.anatomy.patches.module)
    convolutions = [part for part in stem.modules() if isinstance(part, torch.nn.Conv2d)]
    if len(convolutions) > 1:
        with pytest.raises(NotApplicable, match="tokens come from Conv2d, Conv2d,"):
            read_projection(model)
        return
    if not convolutions:
        with pytest.raises(NotApplicable, match="tokens come from Linear, not from"):
            read_projection(model)
        return
    found = read_projection(model)
    rows, cols = found.kernel
    height, width = model.anatomy.image_size
    overlapping = any(conv.kernel_size > conv.stride for conv in convolutions)
    assert found.stem == ("overlapping" if overlapping else "patch")
    assert found.matrix.shape[1] == 3 * rows * cols
    assert (
        overlapping
        or (height // rows, width // cols)
        == (
            model.anatomy.patches.grid.rows,
            model.anatomy.patches.grid.cols,
        )
        or "swin" in name
    )


@pytest.mark.parametrize("name", ["timm_vit_wide", "timm_swin", "hf_dinov2", "hf_clip_vision"])
def test_the_other_patch_has_the_same_token(name: str) -> None:
    model = MAKERS[name]()
    found, preprocess = (
        read_projection(model),
        named_preprocess("imagenet", model.anatomy.image_size),
    )
    pair = collide(model, found, preprocess, photos(model))
    assert pair is not None
    assert pair.max_pixel_difference > 20
    assert pair.max_pixel_difference == np.abs(pair.patch - pair.other).max()
    assert pair.other.min() >= 0
    assert pair.other.max() <= 255
    assert pair.token_difference < 1e-5
    std, mean = (np.repeat(v, np.prod(found.kernel)) for v in (preprocess.std, preprocess.mean))
    unit = [(p.ravel() / 255 - mean) / std for p in (pair.patch, pair.other)]
    tokens = [found.matrix @ u + found.bias for u in unit]
    assert np.linalg.norm(tokens[0] - tokens[1]) / np.linalg.norm(tokens[0]) < 1e-9


def test_a_null_space_of_raw_pixels_would_not_do() -> None:
    """The planted mistake: forgetting the normalisation moves the token."""
    model = MAKERS["timm_vit"]()
    found, preprocess = read_projection(model), named_preprocess("imagenet", (32, 32))
    wrong = collide(model, found, replace(preprocess, std=(0.1, 0.5, 0.9)), photos(model))
    right = collide(model, found, preprocess, photos(model))
    assert wrong is not None
    assert right is not None
    unit = (wrong.patch - wrong.other).ravel() / 255 / np.repeat(preprocess.std, 64)
    assert np.linalg.norm(found.matrix @ unit) > 0.1
    assert right.token_difference < 1e-5


def test_full_rank_has_no_collision() -> None:
    model = MAKERS["timm_vit"]()
    conv = nn.Conv2d(3, 200, 8, 8)
    model.module.patch_embed.proj = conv
    found = read_projection(model)
    assert len(found.null) == 0
    assert collide(model, found, named_preprocess("half", (32, 32)), photos(model)) is None


def test_lost_variance_by_hand() -> None:
    """Red alone is kept; patches vary by 3, 4 and 12 units in the three colours."""
    keep = np.zeros((1, 3))
    keep[0, 0] = 1
    found = projection(keep, (1, 1))
    signs = np.array(np.meshgrid([-1, 1], [-1, 1], [-1, 1])).reshape(3, -1).T
    patches = (128 + signs * [3.0, 4.0, 12.0]).reshape(-1, 3, 1, 1)
    facts = lost_variance(found, named_preprocess("half", (1, 1)), patches, 0.01)
    assert facts["share_lost"] == pytest.approx((16 + 144) / (9 + 16 + 144))
    assert facts["share_nearly"] == pytest.approx(facts["share_lost"])
    few = lost_variance(found, named_preprocess("half", (1, 1)), patches[:3], 0.01)
    assert few["share_lost"] is None
    assert few["reason"] == (
        "3 patches are too few for the variance in 3 directions; give more images"
    )
    same = lost_variance(found, named_preprocess("half", (1, 1)), patches[:1].repeat(9, 0), 0.01)
    assert same["reason"] == "the patches are all equal, so they have no variance"


def test_patches_are_cut_row_by_row() -> None:
    image = torch.arange(3 * 4 * 6, dtype=torch.uint8).reshape(1, 3, 4, 6)
    found = patches_of(image, (2, 3))
    assert found.shape == (4, 3, 2, 3)
    assert found[1, 0].tolist() == [[3, 4, 5], [9, 10, 11]]
    assert found[2, 0].tolist() == [[12, 13, 14], [18, 19, 20]]


def test_an_overlapping_stem_is_analysed_as_one_map() -> None:
    """Two windows of three pixels, one shared: six rows see five pixels."""
    found = projection(np.eye(3), (1, 3), stride=(1, 2))
    assert found.stem == "overlapping"
    whole = overlap_rank(found)
    assert (whole["dim"], whole["rank"], whole["rows"]) == (10, 10, 12)


@pytest.mark.parametrize(
    ("stem", "words"),
    [
        (
            nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.Conv2d(8, 32, 4, 4)),
            "come from Conv2d, Conv2d",
        ),
        (nn.Identity(), "come from no linear map"),
        (nn.Conv2d(3, 33, 8, 8, groups=3), "grouped, dilated or padded"),
    ],
)
def test_other_stems_say_why(stem: nn.Module, words: str) -> None:
    model = MAKERS["timm_vit"]()
    model.module.patch_embed.proj = stem
    with pytest.raises(NotApplicable, match=words):
        read_projection(model)
