"""The controlled variants agree in everything but their positional signal."""

from __future__ import annotations

import json
import math
import random
import subprocess
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from probe.errors import UsageError
from probe.families.controlled import (
    POSITION,
    TABLE,
    VARIANTS,
    Network,
    Variant,
    build,
    check_variant,
    model_args,
)
from probe.loading import load_model
from probe.zoo import Zoo
from tests.train.tiny_data import in_memory
from train.export import rounded, write_run
from train.parts import Parts
from train.recipe import Recipe, load_recipe

SMALL = Network(16, 4, width=16, depth=2, heads=2, classes=3, linear_init="torch")
TOKENS = 16
WITH_TABLE = ("ape", "spe", "rpt")


@cache
def built(variant: Variant, seed: int = 0, network: Network = SMALL) -> Any:
    return build(network, variant, seed).eval()


def named(variant: Variant, seed: int = 0, network: Network = SMALL) -> dict[str, Tensor]:
    return dict(built(variant, seed, network).named_parameters())


def images(count: int = 2, side: int = 16) -> Tensor:
    return torch.randn(count, 3, side, side, generator=torch.Generator().manual_seed(5))


@pytest.mark.parametrize("init", ["torch", "xavier", "timm"])
def test_variants_of_one_seed_share_parameters_and_values(init: Any) -> None:
    network = replace(SMALL, linear_init=init)
    every = {variant: named(variant, 3, network) for variant in VARIANTS}
    for variant, parameters in every.items():
        expected = set(every["none"]) | ({TABLE} if variant in WITH_TABLE else set())
        assert set(parameters) == expected
        for name, value in every["none"].items():
            assert torch.equal(parameters[name], value), (variant, name)
    assert torch.equal(every["ape"][TABLE], every["rpt"][TABLE])
    # Nothing else is stored: rotary tables follow from the settings.
    assert {v: set(built(v, 3, network).state_dict()) for v in VARIANTS} == {
        v: set(every[v]) for v in VARIANTS
    }


def test_variants_cost_the_same() -> None:
    counted = {}
    for variant in VARIANTS:
        counter = FlopCounterMode(display=False)
        with sdpa_kernel(SDPBackend.MATH), counter, torch.no_grad():
            built(variant)(images(1))
        counted[variant] = counter.get_total_flops()
    width, length = SMALL.width, TOKENS + 1
    block = 2 * length * (width * 3 * width + width * width + 2 * width * 4 * width)
    block += 2 * 2 * length * length * width
    whole = 2 * TOKENS * 3 * 4 * 4 * width + SMALL.depth * block + 2 * width * SMALL.classes
    assert counted == dict.fromkeys(VARIANTS, whole)


def test_another_seed_changes_all_that_is_drawn() -> None:
    for variant in VARIANTS:
        one, other = named(variant, 0), named(variant, 1)
        same = {name for name in one if torch.equal(one[name], other[name])}
        norms = {n for n in one if "norm" in n}
        assert same == norms | ({TABLE} if variant == "spe" else set())


def test_draws_hang_on_the_name_alone() -> None:
    deeper = named("ape", 0, replace(SMALL, depth=3))
    for name, value in named("ape").items():
        assert torch.equal(deeper[name], value), name
    first, second = (deeper[f"blocks.{i}.attn.qkv.weight"] for i in (0, 1))
    assert not torch.equal(first, second)


def test_global_generators_are_left_alone() -> None:
    before = (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state())
    one = build(SMALL, "rope", 0)
    assert random.getstate() == before[0]
    assert np.random.get_state()[1].tolist() == before[1]
    assert torch.equal(torch.get_rng_state(), before[2])
    torch.manual_seed(99)
    again = build(SMALL, "rope", 0)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), again.parameters(), strict=True))
    assert one.training


@pytest.mark.parametrize("init", ["torch", "xavier", "timm"])
def test_initial_values(init: Any) -> None:
    network = Network(16, 4, width=64, depth=1, heads=2, classes=40, linear_init=init)
    model = build(network, "none", 0)
    for name, module in model.named_modules():
        if isinstance(module, nn.LayerNorm):
            assert (module.weight == 1).all()
            assert (module.bias == 0).all()
        if not isinstance(module, nn.Linear | nn.Conv2d):
            continue
        weight, bias = module.weight.detach().double(), module.bias.detach()
        fan_out, fan_in = weight.flatten(1).shape
        drawn = isinstance(module, nn.Conv2d) or init == "torch"
        if not drawn and init == "timm":
            assert weight.std().item() == pytest.approx(0.02, rel=0.05), name
        else:
            bound = 1 / math.sqrt(fan_in) if drawn else math.sqrt(6 / (fan_in + fan_out))
            assert weight.abs().max().item() <= bound
            assert weight.abs().max().item() == pytest.approx(bound, rel=0.02), name
            assert weight.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.05), name
            assert abs(weight.mean().item()) < 0.05 * bound, name
        assert bool((bias == 0).all()) is not drawn, name
        if drawn:
            assert bias.abs().max().item() <= 1 / math.sqrt(fan_in), name
    assert model.cls_token.std().item() == pytest.approx(0.02, rel=0.3)


@pytest.mark.parametrize(("rows", "width", "heads"), [(4, 16, 2), (3, 64, 4)])
def test_the_table_of_spe_is_a_fixed_sine_of_row_and_column(
    rows: int, width: int, heads: int
) -> None:
    network = Network(rows * 4, 4, width, depth=1, heads=heads, classes=3)
    table = named("spe", 0, network)[TABLE]
    quarter = width // 4
    expected = [
        [
            (math.sin, math.sin, math.cos, math.cos)[channel // quarter](
                (row, column, row, column)[channel // quarter]
                / 10000 ** (channel % quarter / quarter)
            )
            for channel in range(width)
        ]
        for row in range(rows)
        for column in range(rows)
    ]
    assert table.shape == (1, rows * rows, width)
    torch.testing.assert_close(
        table[0], torch.tensor(expected, dtype=torch.float32), atol=2e-6, rtol=0
    )
    assert table.requires_grad is False
    assert torch.equal(table, named("spe", 8, replace(network, pos_init_std=3.0))[TABLE])
    others = [value for name, value in named("spe", 0, network).items() if name != TABLE]
    assert all(value.requires_grad for value in others)


@pytest.mark.parametrize("variant", ["ape", "rpt"])
@pytest.mark.parametrize("std", [1.0, 0.02])
def test_the_table_of_ape_starts_at_its_standard_deviation(variant: Variant, std: float) -> None:
    network = Network(64, 4, 64, depth=1, heads=2, classes=3, pos_init_std=std)
    table = named(variant, 0, network)[TABLE].detach()
    assert table.shape == (1, 256, 64)
    assert table.requires_grad is False
    assert table.std().item() == pytest.approx(std, rel=0.02)
    assert abs(table.mean().item()) < 0.02 * std
    # Three and more standard deviations occur: it is a normal distribution.
    assert 0.0015 < (table.abs() > 3 * std).double().mean().item() < 0.004
    assert named(variant, 0, network)[TABLE].requires_grad


@pytest.mark.parametrize("variant", VARIANTS)
def test_what_enters_the_first_block(variant: Variant) -> None:
    """Tables have no row for the class token, and only variants with one add it."""
    model = built(variant)
    seen: dict[str, Tensor] = {}
    hooks = [
        model.patch_embed.register_forward_hook(lambda m, a, out: seen.update(patches=out)),
        model.blocks[0].register_forward_pre_hook(lambda m, args: seen.update(tokens=args[0])),
    ]
    with torch.no_grad():
        model(images())
    for hook in hooks:
        hook.remove()
    table = model.pos_embed if variant in WITH_TABLE else torch.zeros(1, TOKENS, SMALL.width)
    assert torch.equal(seen["tokens"][:, :1], model.cls_token.expand(2, -1, -1))
    assert torch.equal(seen["tokens"][:, 1:], seen["patches"] + table)


def outputs_with_zero_angles(model: Any, blocks: set[int]) -> Tensor:
    hooks = []

    def zero(_module: nn.Module, args: Any, kwargs: Any) -> Any:
        sines, cosines = kwargs["rope"].chunk(2, -1)
        flat = torch.cat([torch.zeros_like(sines), torch.ones_like(cosines)], -1)
        return args, kwargs | {"rope": flat}

    for block in blocks:
        hooks.append(model.blocks[block].register_forward_pre_hook(zero, with_kwargs=True))
    with torch.no_grad():
        found: Tensor = model(images())
    for hook in hooks:
        hook.remove()
    return found


def test_rope_acts_in_every_block() -> None:
    network = replace(SMALL, depth=3)
    model = built("rope", 0, network)
    whole = outputs_with_zero_angles(model, set())
    for block in range(3):
        changed = (outputs_with_zero_angles(model, {block}) - whole).abs().max().item()
        assert changed > 1e-5, block
    # Without angles it is the variant without positions, to the last weight.
    with torch.no_grad():
        none = built("none", 0, network)(images())
    torch.testing.assert_close(outputs_with_zero_angles(model, {0, 1, 2}), none)


def test_rope_rotates_queries_and_keys_by_row_and_column() -> None:
    """Pairs of channels are complex numbers, turned by row or column times a frequency."""
    network = replace(SMALL, rope_temperature=50.0)
    model = built("rope", 0, network)
    attention = model.blocks[1].attn
    x = torch.randn(2, 1 + TOKENS, 16, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        found = attention(x, rope=model.rope.get_embed())
        q, k, v = attention.qkv(x).double().unflatten(2, (3, 2, 8)).permute(2, 0, 3, 1, 4)
        # A head of 8 channels is four pairs: two turn with the row, two with the column.
        frequencies = torch.tensor([1.0, 50**-0.5], dtype=torch.float64)
        row, column = torch.arange(TOKENS) // 4, torch.arange(TOKENS) % 4
        angles = torch.cat([row[:, None] * frequencies, column[:, None] * frequencies], dim=1)
        turn = torch.polar(torch.ones_like(angles), angles)
        turned = []
        for heads in (q, k):
            pairs = torch.view_as_complex(heads.unflatten(3, (4, 2)).contiguous())
            # The class token is not turned.
            pairs = torch.cat([pairs[:, :, :1], pairs[:, :, 1:] * turn], dim=2)
            turned.append(torch.view_as_real(pairs).flatten(3))
        scores = turned[0] @ turned[1].transpose(2, 3) / math.sqrt(8)
        mixed = (scores.softmax(dim=3) @ v).transpose(1, 2).flatten(2)
        expected = attention.proj(mixed.float())
        plain = attention(x)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    assert (found - plain).abs().max() > 1e-3


@pytest.mark.parametrize("variant", VARIANTS)
def test_only_none_is_blind_to_the_order_of_patches(variant: Variant) -> None:
    whole = images()
    patches = whole.unfold(2, 4, 4).unfold(3, 4, 4).flatten(2, 3)
    order = torch.randperm(TOKENS, generator=torch.Generator().manual_seed(2))
    mixed = patches[:, :, order].unflatten(2, (4, 4)).permute(0, 1, 2, 4, 3, 5).flatten(4, 5)
    mixed = mixed.flatten(2, 3)
    with torch.no_grad():
        difference = (built(variant)(whole) - built(variant)(mixed)).abs().max().item()
    assert (difference < 1e-5) is (variant == "none"), difference


@pytest.mark.parametrize("final_norm", [False, True])
def test_final_norm(final_norm: bool) -> None:
    model = built("ape", 0, replace(SMALL, final_norm=final_norm))
    seen: dict[str, Tensor] = {}
    hooks = [
        model.blocks[-1].register_forward_hook(lambda m, a, out: seen.update(tokens=out)),
        model.head.register_forward_pre_hook(lambda m, args: seen.update(read=args[0])),
    ]
    with torch.no_grad():
        model(images())
    for hook in hooks:
        hook.remove()
    token = seen["tokens"][:, 0]
    if final_norm:
        token = (token - token.mean(1, keepdim=True)) / (token.var(1, correction=0) + 1e-6)[
            :, None
        ].sqrt()
    torch.testing.assert_close(seen["read"], token)
    outside = [n for n, _ in model.named_parameters() if "norm" in n and "blocks" not in n]
    assert outside == (["norm.weight", "norm.bias"] if final_norm else [])


def test_dropout_goes_where_it_is_said() -> None:
    network = replace(SMALL, depth=3, dropout=(0.1, 0.2, 0.3), drop_path=0.4)
    model: Any = build(network, "rope", 0)
    rates = {n: m.p for n, m in model.named_modules() if isinstance(m, nn.Dropout)}
    block = {"attn.attn_drop": 0.2, "attn.proj_drop": 0.3, "mlp.drop1": 0.3, "mlp.drop2": 0.3}
    assert rates == {
        "pos_drop": 0.1,
        "head_drop": 0.0,
        **{f"blocks.{i}.{name}": rate for i in range(3) for name, rate in block.items()},
    }
    paths = [getattr(block.drop_path1, "drop_prob", 0.0) for block in model.blocks]
    assert paths == pytest.approx([0.0, 0.2, 0.4])
    assert paths == [getattr(block.drop_path2, "drop_prob", 0.0) for block in model.blocks]


@pytest.mark.parametrize(
    "dropout", [(0.5, 0.0, 0.0), (0.0, 0.5, 0.0), (0.0, 0.0, 0.5), (0.0, 0.0, 0.0)]
)
def test_dropout_acts_in_training_alone(dropout: tuple[float, float, float]) -> None:
    model = build(replace(SMALL, dropout=dropout), "ape", 0)
    with torch.no_grad():
        first, second = model(images()), model(images())
        model.eval()
        calm = model(images())
        assert torch.equal(model(images()), calm)
        bare = built("ape")(images())
    assert torch.equal(first, second) is (not any(dropout))
    assert torch.equal(calm, bare)


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        (
            {"patch_size": 5},
            "patches of 5 px do not fill images of 16 px; choose a patch size that divides the "
            "image size",
        ),
        (
            {"width": 20},
            "a width of 20 cannot be cut into 2 heads of a multiple of 4 channels, which 2-D "
            "rotation needs; choose a multiple of 8",
        ),
    ],
)
def test_sizes_that_do_not_divide(sizes: dict[str, int], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        replace(SMALL, **sizes)
    assert str(caught.value) == message


def test_unknown_variants() -> None:
    message = "unknown variant 'rop'. Did you mean rope, rpt? Variants: ape, spe, rope, none, rpt"
    wrong: Any = "rop"
    for call in (check_variant, lambda v: model_args(SMALL, v), lambda v: build(SMALL, v, 0)):
        with pytest.raises(UsageError) as caught:
            call(wrong)
        assert str(caught.value) == message


# As small as the digits recipe can be made; the table of spe has eight pairs to tell it by.
TINY = ("model.width=16", "model.depth=2", "keep.dtype=float16", "model.rope_temperature=50")


def exported(folder: Path, variant: Variant) -> tuple[Recipe, Any]:
    """A checkpoint as training writes it, and the network in it."""
    recipe = load_recipe("digits", variant, TINY)
    model = build(recipe.network(3), variant, 4)
    part = in_memory(3)
    parts = Parts(part, part, part, ("apple", "bee", "cat"), {})
    weights = rounded(model, recipe)
    write_run(folder, weights, recipe, parts, {"seed": 4})
    model.load_state_dict(weights)
    return recipe, model.eval()


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[Variant, tuple[Path, Any, Any]]:
    root = tmp_path_factory.mktemp("controlled")
    return {variant: (root / variant, *exported(root / variant, variant)) for variant in VARIANTS}


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_trained_folder_loads_as_any_model(
    checkpoints: dict[Variant, tuple[Path, Any, Any]], variant: Variant
) -> None:
    folder, recipe, trained = checkpoints[variant]
    model = load_model(Zoo({}).resolve(str(folder)), device="cpu")
    assert (model.family, model.classes) == ("timm_eva", 3)
    assert model.anatomy.patches.grid.tokens == 64
    assert [site.module for site in model.anatomy.attn_in] == ["blocks.0.norm1", "blocks.1.norm1"]
    kinds = [site.kind for site in model.anatomy.positions]
    assert kinds == ([] if variant == "none" else [POSITION[variant]])
    assert [site.prefix for site in model.anatomy.positions] == [0] * len(kinds)
    assert model.preprocess == recipe.image.preprocess()
    assert model.predict is not None
    with torch.inference_mode():
        found = model.predict(model.forward(images(2, 32)))
        assert torch.equal(found, trained(images(2, 32)))


def test_positions_are_what_a_zoo_entry_calls_them() -> None:
    assert POSITION == {
        "ape": "absolute",
        "spe": "sinusoidal",
        "rope": "rotary",
        "none": "none",
        "rpt": "absolute",
    }


def test_a_trained_folder_needs_no_training_code(
    checkpoints: dict[Variant, tuple[Path, Any, Any]], tmp_path: Path
) -> None:
    script = """
import json, sys
import timm, torch
from probe.loading import load_model
from probe.zoo import Zoo

images = torch.load(sys.argv[1])
found = {}
for folder in sys.argv[2:]:
    model = load_model(Zoo({}).resolve(folder), device="cpu")
    plain = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
    with torch.inference_mode():
        same = torch.equal(plain(images), model.predict(model.forward(images)))
        logits = plain(images).tolist()
    found[folder] = [model.family, [s.kind for s in model.anatomy.positions], same, logits]
print(json.dumps([found, [name for name in sys.modules if name.split(".")[0] == "train"]]))
"""
    torch.save(images(2, 32), tmp_path / "images.pt")
    folders = {str(folder): variant for variant, (folder, _, _) in checkpoints.items()}
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "images.pt"), *folders],
        capture_output=True,
        text=True,
        cwd=Path(__file__).resolve().parents[2],
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found, imported = json.loads(done.stdout.splitlines()[-1])
    assert imported == []
    for folder, (family, kinds, same, logits) in found.items():
        variant = folders[folder]
        assert (family, same) == ("timm_eva", True)
        assert kinds == ([] if variant == "none" else [POSITION[variant]])
        with torch.inference_mode():
            expected = checkpoints[variant][2](images(2, 32))
        torch.testing.assert_close(torch.tensor(logits), expected, atol=1e-6, rtol=1e-6)
