"""Attention graphs against brute force over independently built windows, and planted mistakes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from timm.models.swin_transformer import SwinTransformer

from probe.audit.graph import (
    AttentionGraph,
    count_pairs,
    expected_pairs,
    noise,
    reach,
    read_graphs,
)
from probe.errors import AnatomyError, NotApplicable
from probe.hooks import edit_patches, observe
from probe.types import Grid, LoadedModel
from probe.wiring import Merge
from tests.families.tiny import MAKERS, attending, fresh, named, windowed
from tests.families.tiny_timm import STAGED, load_tiny
from tests.small_runs import strong

WINDOWED = named(windowed)
ATTENDING = named(attending)
SWIN_T = {
    "patch_size": 4, "embed_dim": 8, "depths": (2, 2, 2, 2), "num_heads": (1, 1, 1, 1),
    "window_size": 7, "num_classes": 7,
}  # fmt: skip


def brute_force(grid: Grid, window: tuple[int, int], shift: tuple[int, int]) -> tuple[int, int]:
    """(plain, allowed) pairs by a loop over all pairs of tokens: padded, then rolled."""
    whole = [
        -(-side // cut) * cut for side, cut in zip((grid.rows, grid.cols), window, strict=True)
    ]
    places = [(r, c) for r in range(grid.rows) for c in range(grid.cols)]

    def seat(place: tuple[int, int]) -> tuple[tuple[int, int], tuple[bool, bool]]:
        rolled = [(p - s) % w for p, s, w in zip(place, shift, whole, strict=True)]
        box = tuple(r // cut for r, cut in zip(rolled, window, strict=True))
        wrapped = tuple(p < s for p, s in zip(place, shift, strict=True))
        return box, wrapped  # type: ignore[return-value]

    seats = [seat(place) for place in places]
    plain = sum(a[0] == b[0] for a in seats for b in seats)
    allowed = sum(a == b for a in seats for b in seats)
    return plain, allowed


@pytest.mark.parametrize(
    ("grid", "window", "shift"),
    [
        (Grid(8, 8), (4, 4), (0, 0)),
        (Grid(8, 8), (4, 4), (2, 2)),
        (Grid(14, 7), (7, 7), (3, 3)),
        (Grid(10, 12), (4, 4), (2, 2)),
        (Grid(9, 5), (4, 3), (1, 2)),
        (Grid(7, 7), (7, 7), (0, 0)),
    ],
)
def test_the_formula_agrees_with_a_loop_over_pairs(
    grid: Grid, window: tuple[int, int], shift: tuple[int, int]
) -> None:
    assert expected_pairs(grid, window, shift) == brute_force(grid, window, shift)


def test_the_published_counts_at_224() -> None:
    for side, pairs, inside in ((4, 9834496, 153664), (8, 614656, 38416), (16, 38416, 9604)):
        grid = Grid(224 // side, 224 // side)
        assert expected_pairs(grid) == (pairs, pairs)
        assert expected_pairs(grid, (7, 7)) == (inside, inside)
    shifted = [(56, 135424), (28, 29584), (14, 5476)]
    assert [expected_pairs(Grid(n, n), (7, 7), (3, 3))[1] for n, _ in shifted] == [
        allowed for _, allowed in shifted
    ]


def test_a_swin_at_224_has_the_published_pairs() -> None:
    model = load_tiny(SwinTransformer(img_size=(224, 224), **SWIN_T), (224, 224))
    counts = [count_pairs(graph, (7, 7)) for graph in read_graphs(model)]
    assert [(count.pairs, count.allowed) for count in counts] == [
        *((153664, 153664), (153664, 135424)),
        *((38416, 38416), (38416, 29584)),
        *((9604, 9604), (9604, 5476)),
        *((2401, 2401), (2401, 2401)),
    ]
    assert all((c.prefix, c.padding, c.wrapped) == (0, 0, 0) for c in counts)


@pytest.mark.parametrize("name", [name for name in MAKERS if name not in ATTENDING])
def test_who_compares_no_tokens_with_all_declares_no_attention(name: str) -> None:
    model = MAKERS[name]()
    assert model.anatomy.attention == ()
    with pytest.raises(NotApplicable, match=f"{model.family} does not say which tokens attend"):
        read_graphs(model)


@pytest.mark.parametrize("name", ATTENDING)
def test_attention_holds_every_token_once(name: str) -> None:
    model = MAKERS[name]()
    graphs = read_graphs(model)
    assert [graph.layer for graph in graphs] == list(range(len(model.anatomy.attn_in)))
    for graph, site in zip(graphs, model.anatomy.attn_in, strict=True):
        assert (graph.grid, graph.prefix) == (site.grid, site.prefix)
        held = np.sort(graph.slots[graph.slots >= 0])
        assert np.array_equal(held, np.arange(site.prefix + site.grid.tokens))


@pytest.mark.parametrize("name", [name for name in ATTENDING if name not in WINDOWED])
def test_global_attention_compares_everything(name: str) -> None:
    model = MAKERS[name]()
    for graph in read_graphs(model):
        count, tokens = count_pairs(graph), graph.grid.tokens
        assert graph.kind == "global"
        assert (count.pairs, count.allowed) == (tokens**2, tokens**2)
        assert count.prefix == (tokens + graph.prefix) ** 2 - tokens**2


@pytest.mark.parametrize("name", [n for n in WINDOWED if n != "timm_swin_padded"])
def test_windows_hold_what_the_formula_says(name: str) -> None:
    model = MAKERS[name]()
    kinds = set()
    for graph, site in zip(read_graphs(model), model.anatomy.attention, strict=True):
        count = count_pairs(graph, site.window)
        kinds.add(graph.kind)
        assert (count.pairs, count.allowed) == brute_force(
            graph.grid, site.window or (0, 0), site.shift
        )
        whole = all(
            side % cut == 0
            for side, cut in zip(
                (graph.grid.rows, graph.grid.cols), site.window or (1, 1), strict=True
            )
        )
        assert (count.padding == 0) == whole
        assert count.wrapped == 0
    assert "window" in kinds


def test_padding_is_counted_apart_and_timms_mask_lets_edges_meet() -> None:
    """timm rolls before it pads, and its mask fits the padded grid: opposite edges are joined."""
    model = MAKERS["timm_swin_padded"]()
    graphs, sites = read_graphs(model), model.anatomy.attention
    assert [graph.grid for graph in graphs[1:]] == [Grid(10, 12), Grid(5, 6), Grid(5, 6)]
    counts = [count_pairs(g, site.window) for g, site in zip(graphs, sites, strict=True)]
    # The first row of a window of two rows meets the last one: 5 rows, rolled by 2, cut by 4.
    assert [(c.pairs, c.allowed, c.wrapped) for c in counts] == [
        (1728, 1728, 0), (1728, 1440, 0), (340, 340, 0), (340, 340, 40),
    ]  # fmt: skip
    assert all(count.padding > 0 for count in counts)
    assert expected_pairs(Grid(5, 6), (4, 4), (2, 2)) == brute_force(Grid(5, 6), (4, 4), (2, 2))
    assert expected_pairs(Grid(5, 6), (4, 4), (2, 2)) == (260, 260)


def rolled_then_padded(
    grid: Grid, window: tuple[int, int], shift: tuple[int, int]
) -> tuple[int, int]:
    """(plain, allowed) pairs by a loop, in timm's order, with the mask of the padded grid."""
    sides = (grid.rows, grid.cols)
    whole = [-(-side // cut) * cut for side, cut in zip(sides, window, strict=True)]
    seats = []
    for place in ((r, c) for r in range(grid.rows) for c in range(grid.cols)):
        rolled = [(p - s) % side for p, s, side in zip(place, shift, sides, strict=True)]
        box = [r // cut for r, cut in zip(rolled, window, strict=True)]
        ends = [
            (w - cut, w - s) if s else (w, w)
            for w, cut, s in zip(whole, window, shift, strict=True)
        ]
        regions = [(r >= a) + (r >= b) for r, (a, b) in zip(rolled, ends, strict=True)]
        seats.append((box, regions))
    plain = sum(a[0] == b[0] for a in seats for b in seats)
    return plain, sum(a == b for a in seats for b in seats)


@pytest.mark.parametrize("size", [(112, 448), (160, 272)])
def test_rectangular_images(size: tuple[int, int]) -> None:
    """Whole windows and padded ones, one window high, with and without a shift."""
    model = load_tiny(SwinTransformer(img_size=size, **SWIN_T), size)
    graphs, sites = read_graphs(model), model.anatomy.attention
    for graph, site in list(zip(graphs, sites, strict=True))[2:]:
        count = count_pairs(graph, site.window)
        assert site.window is not None
        found = rolled_then_padded(graph.grid, site.window, site.shift)
        assert (count.pairs, count.allowed) == found
    held = reach(graphs, model.anatomy.merges)
    assert [one.shape[0] for one in held] == [graph.grid.tokens for graph in graphs]
    # The last stage is one window high, and never shifted that way.
    assert [site.shift for site in sites][-2:] == [(0, 0), (0, 3)]


def planted(change: Any) -> LoadedModel:
    model = load_tiny(SwinTransformer(img_size=(32, 32), **STAGED), (32, 32))
    change(model.module)
    return model


def test_an_off_by_one_mask_is_caught() -> None:
    def shift_mask(module: Any) -> None:
        block = module.layers[0].blocks[1]
        block.attn_mask = block.attn_mask.roll(1, dims=-1)

    model = planted(shift_mask)
    graph, site = read_graphs(model)[1], model.anatomy.attention[1]
    count = count_pairs(graph, site.window)
    assert (count.pairs, count.allowed) != expected_pairs(graph.grid, site.window, site.shift) or (
        count.wrapped > 0
    )


def test_a_wrong_shift_is_caught() -> None:
    model = planted(lambda module: None)
    sites = list(model.anatomy.attention)
    sites[1] = replace(sites[1], shift=(1, 1))
    graph = read_graphs(model)[1]
    count = count_pairs(graph, sites[1].window)
    wrong = expected_pairs(graph.grid, sites[1].window, sites[1].shift)
    assert (count.pairs, count.allowed) != wrong


def test_a_wrong_window_is_refused() -> None:
    model = planted(lambda module: None)
    sites = [replace(site, window=(2, 2)) for site in model.anatomy.attention]
    wrong = replace(model, anatomy=replace(model.anatomy, attention=tuple(sites)))
    with pytest.raises(
        AnatomyError, match=r"does not hold every token once in windows of \(2, 2\)"
    ):
        read_graphs(wrong)


def test_a_graded_mask_is_refused() -> None:
    def grade(module: Any) -> None:
        block = module.layers[0].blocks[1]
        block.attn_mask = block.attn_mask / 10

    with pytest.raises(AnatomyError, match="grades pairs instead of forbidding them"):
        read_graphs(planted(grade))


def test_a_model_without_declared_attention_is_left_out() -> None:
    model = MAKERS["timm_vit"]()
    silent = replace(model, anatomy=replace(model.anatomy, attention=()))
    with pytest.raises(NotApplicable, match="does not say which tokens attend to which"):
        read_graphs(silent)


def test_a_wide_merge_and_a_late_prefix_token_by_hand() -> None:
    """Four tokens in a row meet nobody, are pooled by three with one overlapping, then a token
    joins in front and sees both.
    """
    alone = AttentionGraph(
        0, "window", Grid(1, 4), 0, np.arange(4)[:, None], np.ones((1, 1, 1), bool)
    )
    after = AttentionGraph(
        1, "window", Grid(1, 2), 0, np.arange(2)[:, None], np.ones((1, 1, 1), bool)
    )
    joined = AttentionGraph(
        2, "global", Grid(1, 2), 1, np.arange(3)[None], np.eye(3, dtype=bool)[None]
    )
    sees = joined.allowed.copy()
    sees[0, 0] = True
    found = reach([alone, after, replace(joined, allowed=sees)], [Merge(1, 1, 2, overlap=1)])
    assert found[1].tolist() == [[1, 1, 0, 0], [0, 1, 1, 1]]
    assert found[2].tolist() == [[1, 1, 1, 1], [1, 1, 0, 0], [0, 1, 1, 1]]


def test_reach_by_hand() -> None:
    """Four tokens in a row, windows of two, then merged to two tokens of one window."""
    apart = AttentionGraph(
        0, "window", Grid(1, 4), 0, np.array([[0, 1], [2, 3]]), np.ones((1, 2, 2), dtype=bool)
    )
    joined = AttentionGraph(
        1, "global", Grid(1, 2), 0, np.array([[0, 1]]), np.ones((1, 2, 2), dtype=bool)
    )
    first, second = reach([apart, joined], [Merge(1, 1, 2)])
    assert first.tolist() == [[1, 1, 0, 0], [1, 1, 0, 0], [0, 0, 1, 1], [0, 0, 1, 1]]
    assert second.all()
    with pytest.raises(AnatomyError, match="the grid changes before layer 1, but not by a merge"):
        reach([apart, joined], [])


@pytest.mark.parametrize(
    "name",
    [
        "timm_swin",
        "timm_swin_padded",
        "timm_swin_v2_wide",
        "timm_vit_registers",
        "hf_swin_v2",
        "hf_swin_44x36",
    ],
)
def test_reach_is_the_support_of_the_gradient(name: str) -> None:
    """A token depends on a patch, by autograd, just where a path of the masks leads."""
    model = strong(fresh(name))
    layer, sizes = 1, model.anatomy.patches.grid.tokens
    held = reach(read_graphs(model), model.anatomy.merges)[layer]
    change = torch.zeros(1, sizes, 1, requires_grad=True)
    generator = torch.Generator().manual_seed(0)

    def add(patches: torch.Tensor) -> torch.Tensor:
        # Along a random direction: a norm would take a shift of all channels out again.
        return patches + change * torch.randn(patches.shape[-1], generator=generator)

    found: list[torch.Tensor] = []
    site = model.anatomy.block_out[layer]
    with (
        torch.enable_grad(),
        edit_patches(model.module, model.anatomy.patches, add),
        observe(model.module, [site], lambda _site, tokens: found.append(tokens[0])),
    ):
        model.forward(noise(model, 1))
    (tokens,) = found
    weights = torch.randn(tokens.shape[-1], generator=generator)
    grads = torch.stack(
        [
            torch.autograd.grad((token * weights).sum(), change, retain_graph=True)[0][0, :, 0]
            for token in tokens
        ]
    ).abs()
    # A masked pair keeps a weight of exp(-100), which float32 can still hold.
    support = (grads > 1e-20 * grads.max()).numpy()
    assert np.array_equal(support, held[site.prefix :])
