"""Planted tokens whose SSDC is known: what is read must be the grid, whole and in order."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr
from timm.models.deit import VisionTransformerDistilled
from timm.models.swin_transformer import SwinTransformer
from timm.models.swin_transformer_v2 import SwinTransformerV2
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn
from torch.nn.functional import layer_norm

from probe.hooks import observe
from probe.interventions import permute_patches, rpi_permutations
from probe.types import Grid, LoadedModel, Permutation, Point, TokenSite
from tests.families.tiny_timm import STAGED, STAGED_V2, load_tiny

# Rounding breaks the ties of equal distances; only on a grid this large that costs under .002.
SIZE, GRID, WIDTH = (48, 64), Grid(12, 16), 192
VIT = {"img_size": SIZE, "patch_size": 4, "embed_dim": WIDTH, "depth": 3, "num_heads": 2}
PLANTED = {
    "vit": partial(VisionTransformer, **VIT),
    "distilled": partial(VisionTransformerDistilled, **VIT),
    "registers": partial(VisionTransformer, **VIT, reg_tokens=4),
    "registers_not_embedded": partial(VisionTransformer, **VIT, reg_tokens=4, no_embed_class=True),
    "no_class": partial(VisionTransformer, **VIT, class_token=False, global_pool="avg"),
    "dynamic": partial(VisionTransformer, **VIT, dynamic_img_size=True),
}


def distances(grid: Grid) -> np.ndarray:
    """L1 between all tokens of a row-major grid (N, N), by a double loop."""
    places = [(r, c) for r in range(grid.rows) for c in range(grid.cols)]
    return np.array([[abs(a - c) + abs(b - d) for c, d in places] for a, b in places], float)


def ssdc(tokens: Tensor, grid: Grid) -> float:
    """Rank correlation of cosine with -L1 over i < j, for the tokens (N, C) of one image."""
    unit = tokens.double().numpy()
    unit = unit / np.linalg.norm(unit, axis=1, keepdims=True)
    pairs = np.triu_indices(grid.tokens, k=1)
    return float(spearmanr((unit @ unit.T)[pairs], -distances(grid)[pairs]).statistic)


def silence(module: nn.Module) -> None:
    """Zero the patch projection and every residual branch, so that the table is all there is."""
    with torch.no_grad():
        for name, part in module.named_modules():
            if name.endswith(("patch_embed.proj", "attn.proj", "mlp.fc2")):
                part.weight.zero_()
                part.bias.zero_()


def planted_vit(build: Callable[[], nn.Module]) -> tuple[LoadedModel, Tensor]:
    """A model whose patch tokens are rows of a Cholesky factor of exp(-L1/3), and these rows."""
    model = load_tiny(build(), SIZE)
    table = torch.from_numpy(np.linalg.cholesky(np.exp(-distances(GRID) / 3))).float()
    silence(model.module)
    with torch.no_grad():
        model.module.pos_embed.normal_(0, 3, generator=torch.Generator().manual_seed(2))
        model.module.pos_embed[0, -GRID.tokens :] = table
    return model, table


def tokens_at(
    model: LoadedModel, point: Point, rpi: bool = False
) -> list[tuple[TokenSite, Tensor]]:
    found: list[tuple[TokenSite, Tensor]] = []
    images = torch.rand(2, 3, *model.anatomy.image_size)
    order = rpi_permutations(model.anatomy.patches.grid, range(2), Permutation("image", seed=0))
    identity = torch.arange(order.shape[1])

    def keep(site: TokenSite, tokens: Tensor) -> None:
        found.append((site, tokens.clone()))

    with (
        torch.no_grad(),
        permute_patches(model, order if rpi else identity),
        observe(model.module, model.anatomy.sites(point), keep),
    ):
        model.forward(images)
    return found


@pytest.mark.parametrize("rpi", [False, True])
@pytest.mark.parametrize("name", list(PLANTED))
def test_block_out_is_the_planted_table(name: str, rpi: bool) -> None:
    model, table = planted_vit(PLANTED[name])
    found = tokens_at(model, "block_out", rpi)
    assert len(found) == 3
    for site, tokens in found:
        assert site.grid == GRID
        for image in tokens:
            torch.testing.assert_close(image, table, rtol=0, atol=1e-6)
            assert ssdc(image, GRID) > 0.998


@pytest.mark.parametrize("rpi", [False, True])
@pytest.mark.parametrize("name", list(PLANTED))
def test_attn_in_is_the_normed_table(name: str, rpi: bool) -> None:
    model, table = planted_vit(PLANTED[name])
    for site, tokens in tokens_at(model, "attn_in", rpi):
        norm = model.module.blocks[site.layer].norm1
        normed = layer_norm(
            table.double(), (WIDTH,), norm.weight.double(), norm.bias.double(), norm.eps
        )
        expected = ssdc(normed, GRID)
        assert 0.5 < expected < 0.998
        for image in tokens:
            assert ssdc(image, GRID) == pytest.approx(expected, abs=1e-6)


WINDOW, FULL = Grid(4, 4), Grid(8, 12)


class WindowTokens(nn.Module):
    """In place of the patch projection: smooth inside windows of 4 x 4, unrelated between them."""

    def __init__(self, width: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(4)
        root = torch.from_numpy(np.linalg.cholesky(np.exp(-distances(WINDOW) / 3))).float()
        grid = torch.empty(FULL.rows, FULL.cols, width)
        for top in range(0, FULL.rows, 4):
            for left in range(0, FULL.cols, 4):
                directions = torch.linalg.qr(torch.randn(width, 16, generator=generator)).Q
                window = (root @ directions.T).view(4, 4, width)
                grid[top : top + 4, left : left + 4] = window
        self.register_buffer("grid", grid)

    def forward(self, images: Tensor) -> Tensor:
        return self.grid.expand(len(images), -1, -1, -1)


def planted_swin(build: Callable[..., nn.Module], options: dict[str, object]) -> LoadedModel:
    model = load_tiny(build(img_size=(32, 48), **options | {"embed_dim": 32}), (32, 48))
    silence(model.module)
    with torch.no_grad():
        for stage in model.module.layers:
            for block in stage.blocks:
                if build is SwinTransformerV2:  # its norms come after the branches
                    block.norm1.weight.zero_()
                    block.norm1.bias.zero_()
                    block.norm2.weight.zero_()
                    block.norm2.bias.zero_()
    model.module.patch_embed = WindowTokens(32)
    return model


@pytest.mark.parametrize("point", ["attn_in", "block_out"])
@pytest.mark.parametrize(
    ("build", "options"), [(SwinTransformer, STAGED), (SwinTransformerV2, STAGED_V2)]
)
def test_swin_is_read_on_the_whole_grid(
    build: Callable[..., nn.Module], options: dict[str, object], point: Point
) -> None:
    model = planted_swin(build, options)
    planted = model.module.patch_embed.grid
    for site, tokens in tokens_at(model, point)[:2]:
        assert site.grid == FULL
        expected = planted
        if point == "attn_in" and build is SwinTransformer:
            norm = model.module.layers[0].blocks[site.layer].norm1
            expected = norm(planted)
        whole = ssdc(expected.reshape(FULL.tokens, 32), FULL)
        one_window = ssdc(expected[:4, :4].reshape(WINDOW.tokens, 32), WINDOW)
        assert one_window > 0.8
        assert whole < 0.5
        for image in tokens:
            assert ssdc(image, FULL) == pytest.approx(whole, abs=1e-6)
