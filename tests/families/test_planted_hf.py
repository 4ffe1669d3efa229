"""A planted order that is known in advance comes out of transformers ViT and DeiT as it went in."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers as hf
from scipy.stats import spearmanr
from torch import Tensor

from probe.hooks import observe
from probe.interventions import permute_patches, rpi_permutations, scale_positions
from probe.types import LoadedModel, Permutation, Point
from tests.families import tiny_hf

SIDE, WIDTH, PATCH = 16, 256, 4
CONFIG = tiny_hf.PLAIN | {
    "hidden_size": WIDTH,
    "image_size": PATCH * SIDE,
    "patch_size": PATCH,
    "num_hidden_layers": 3,
}
CELLS = [(row, col) for row in range(SIDE) for col in range(SIDE)]
DISTANCE = np.array([[abs(a - c) + abs(b - d) for c, d in CELLS] for a, b in CELLS], dtype=float)
PAIRS = tuple(np.array(list(combinations(range(SIDE**2), 2))).T)


def table() -> Tensor:
    """Rows whose inner products are exp(-L1 / 3), in float64: (256, 256)."""
    factor = np.linalg.cholesky(np.exp(-DISTANCE / 3))
    return torch.from_numpy(np.pad(factor, ((0, 0), (0, WIDTH - SIDE**2))))


def ssdc(tokens: Tensor) -> float:
    unit = torch.nn.functional.normalize(tokens.double(), dim=-1)
    similarity = (unit @ unit.T).numpy()
    return float(spearmanr(similarity[PAIRS], -DISTANCE[PAIRS]).statistic)


def planted(kind: str, config: Any, prefix: int, folder: Path) -> LoadedModel:
    """Patches that show nothing, blocks that add nothing, and the table."""
    network = tiny_hf.build(kind, config)
    trunk = getattr(network, network.base_model_prefix, network)
    with torch.no_grad():
        for parameter in trunk.embeddings.patch_embeddings.parameters():
            parameter.zero_()
        for layer in trunk.layers:
            for branch in (layer.attention.o_proj, layer.mlp.fc2):
                branch.weight.zero_()
                branch.bias.zero_()
        trunk.embeddings.position_embeddings[0, prefix:] = table()
    return tiny_hf.load_model(tiny_hf.spec(tiny_hf.save(network, folder)), device="cpu")


def measure(model: LoadedModel, point: Point) -> list[float]:
    """SSDC of every layer, for the first of two images."""
    found: list[float] = []
    images = torch.randn(
        2, 3, *model.anatomy.image_size, generator=torch.Generator().manual_seed(4)
    )
    with (
        torch.no_grad(),
        observe(
            model.module, model.anatomy.sites(point), lambda _site, t: found.append(ssdc(t[0]))
        ),
    ):
        model.forward(images)
    assert len(found) == 3
    return found


CASES = {
    "vit": ("ViTForImageClassification", hf.ViTConfig(**CONFIG, num_labels=3), 1),
    "deit": ("DeiTForImageClassification", hf.DeiTConfig(**CONFIG, num_labels=3), 2),
    "deit_teacher": ("DeiTForImageClassificationWithTeacher", hf.DeiTConfig(**CONFIG), 2),
}


@pytest.mark.parametrize("case", CASES)
def test_planted_order(case: str, tmp_path: Path) -> None:
    model = planted(*CASES[case], tmp_path)
    grid = model.anatomy.patches.grid
    permutations = rpi_permutations(grid, [0, 1], Permutation("image", seed=0))
    normed = ssdc(torch.nn.functional.layer_norm(table(), (WIDTH,), eps=1e-12))
    assert 0.5 < normed < 0.998
    for intervene in (False, True):
        context = permute_patches(model, permutations) if intervene else torch.no_grad()
        with context:
            assert min(measure(model, "block_out")) > 0.998
        context = permute_patches(model, permutations) if intervene else torch.no_grad()
        with context:
            np.testing.assert_allclose(measure(model, "attn_in"), normed, rtol=0, atol=1e-6)


@pytest.mark.parametrize("case", CASES)
def test_without_its_table_the_planted_order_is_gone(case: str, tmp_path: Path) -> None:
    """At alpha 0 all patch tokens are equal, so no rank correlation is defined."""
    model = planted(*CASES[case], tmp_path)
    with scale_positions(model, 0.0), pytest.warns(match="constant"):
        assert np.isnan(measure(model, "block_out")).all()
