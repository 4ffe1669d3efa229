"""Positions at another image size: the words against what the libraries do, and the comparison."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from safetensors.torch import save_file
from timm.models import beit as timm_beit
from timm.models.beit import Beit
from timm.models.eva import Eva
from timm.models.swin_transformer import SwinTransformer
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

from probe.audit.resolution import compared, resolution_facts
from probe.coverage.redraw import redraw
from probe.derive.sides import Side
from probe.errors import DataError
from probe.families.base import family_of
from probe.hooks import submodule
from probe.interventions import scale_positions
from probe.records import LayerRecord, PassRecord
from probe.types import LoadedModel
from tests.derive.by_hand import a_pass, half_width, layer, predictions
from tests.families.timm_specs import FILE, file_spec, load, trained
from tests.families.tiny import fresh, images_for
from tests.families.tiny_hf import tiny_model
from tests.families.tiny_timm import DINOV3, FLAT, ROTARY, STAGED, load_tiny

Size = tuple[int, int]


def interpolated(patches: Tensor, own: Size, new: Size, words: str) -> Tensor:
    """Patch rows (N, C) on another grid, by the method that the words name."""
    mode = words.split()[0].rstrip(",")
    square = patches.unflatten(0, own).permute(2, 0, 1)[None]
    smooth = "not antialiased" not in words
    found = F.interpolate(square, size=new, mode=mode, antialias=smooth, align_corners=False)
    return found[0].permute(1, 2, 0).flatten(0, 1)


def first_input(model: LoadedModel) -> Tensor:
    """The tokens (B, prefix + N, C) that enter block 0."""
    seen: list[Tensor] = []
    block = submodule(model.module, model.anatomy.block_out[0].module)

    def keep(_module: nn.Module, args: Any, kwargs: Any) -> None:
        seen.append(args[0] if args else kwargs["hidden_states"])

    handle = block.register_forward_pre_hook(keep, with_kwargs=True)
    with torch.no_grad():
        model.forward(images_for(model))
    handle.remove()
    return seen[0]


class TestWords:
    @pytest.mark.parametrize(
        "name",
        [
            "hf_vit_48x24", "hf_deit_teacher_24x40", "hf_vit_mae_40x40", "hf_dinov2_42x28",
            "hf_dinov2_registers_35x49", "hf_beit_shared_24x24", "hf_swin_absolute_40x40",
            "hf_siglip_24x48",
        ],
    )  # fmt: skip
    def test_transformers_interpolates_tables_as_said(self, name: str) -> None:
        model = fresh(name)
        site, grid = model.anatomy.positions[0], model.anatomy.patches.grid
        with scale_positions(model, 0.0, signal=site.kind):
            bare = first_input(model)
        added = (first_input(model) - bare)[0]
        owner, _, key = site.where.rpartition(".")
        table = getattr(submodule(model.module, owner), key).detach().flatten(0, -2)
        assert site.grid is not None
        own = (site.grid.rows, site.grid.cols)
        assert own != (grid.rows, grid.cols)
        expected = interpolated(table[site.prefix :], own, (grid.rows, grid.cols), site.resampling)
        torch.testing.assert_close(added[-grid.tokens :], expected, atol=2e-6, rtol=0)
        torch.testing.assert_close(added[: site.prefix], table[: site.prefix], atol=2e-6, rtol=0)
        assert ("prefix rows kept" in site.resampling) is (site.prefix > 0)
        assert "in every run" in site.resampling
        how = "antialiased" if "not antialiased" in site.resampling else "not antialiased"
        wrong = interpolated(table[site.prefix :], own, (grid.rows, grid.cols), f"bicubic, {how}")
        assert (added[-grid.tokens :] - wrong).abs().max() > 1e-2 * table.std()

    def test_timm_resamples_tables_when_it_loads_them(self, tmp_path: Path) -> None:
        module = trained()
        save_file(module.state_dict(), tmp_path / "w.safetensors")
        size = (96, 48)
        new: Any = load(file_spec(tmp_path / "w.safetensors"), image_size=size).module
        (site,) = family_of(new, "timm").anatomy(new, size).positions
        assert site.resampling.startswith("bicubic, antialiased, when the checkpoint is loaded;")
        side = FILE["img_size"] // 16
        table: Tensor = module.state_dict()["pos_embed"][0]
        expected = interpolated(table[1:], (side, side), (6, 3), "bicubic, antialiased")
        torch.testing.assert_close(new.pos_embed[0, 1:], expected, atol=1e-6, rtol=0)
        assert torch.equal(new.pos_embed[0, :1], table[:1])
        assert site.grid is not None
        assert (site.grid.rows, site.grid.cols) == (6, 3)

    def test_timm_resamples_a_dynamic_table_in_every_run(self) -> None:
        module = VisionTransformer((32, 32), **FLAT, dynamic_img_size=True)
        redraw(module).eval()
        model = at_size(module, (48, 24))
        (site,) = model.anatomy.positions
        assert "and in every run at another size" in site.resampling
        with scale_positions(model, 0.0):
            bare = first_input(model)
        table = module.pos_embed[0].detach()
        expected = interpolated(table[1:], (4, 4), (6, 3), "bicubic, antialiased")
        torch.testing.assert_close((first_input(model) - bare)[0, 1:], expected, atol=2e-6, rtol=0)

    def test_timm_resizes_bias_tables_linearly_between_geometric_offsets(self) -> None:
        options = FLAT | {"use_abs_pos_emb": False, "use_rel_pos_bias": True}
        old, new = Beit((32, 32), **options), Beit((48, 24), **options)
        redraw(old)
        name = "blocks.1.attn.relative_position_bias_table"
        found = timm_beit.checkpoint_filter_fn(old.state_dict(), new)[name]
        table = old.state_dict()[name].double().numpy()
        for head in range(2):
            square = table[:-3, head].reshape(7, 7)
            expected = geometric(square, (11, 5))
            np.testing.assert_allclose(found[:-3, head].reshape(11, 5), expected, atol=2e-4)
        assert torch.equal(found[-3:], torch.from_numpy(table[-3:]).float())
        site = family_of(new, "timm").anatomy(new, (48, 24)).positions[1]
        assert "linear between offsets in geometric progression" in site.resampling
        assert "the class token's 3 entries kept" in site.resampling

    def test_transformers_resizes_beits_bias_bilinearly_in_every_run(self) -> None:
        model = fresh("hf_beit_40x24")
        site = next(s for s in model.anatomy.positions if s.kind == "relative_bias")
        owner: Any = submodule(model.module, site.where.rpartition(".")[0])
        table = owner.relative_position_bias_table.detach()
        offsets = interpolated(table[:-3], (7, 7), (9, 5), site.resampling)
        with torch.no_grad():
            bias = owner((5, 3))[0]  # (heads, 1 + 15, 1 + 15)
        # Offset (row of i - row of j, column of i - column of j) = (2, -1): tokens 3 * 2 and 1.
        place = (2 + 4) * 5 + (-1 + 2)
        torch.testing.assert_close(bias[:, 1 + 6, 1 + 1], offsets[place], atol=1e-6, rtol=0)
        assert torch.equal(bias[:, 0, 0], table[-1])
        assert site.resampling.startswith("bilinear over the offsets, not antialiased, in every")


def geometric(square: NDArray[np.float64], size: Size) -> NDArray[np.float64]:
    """A square table (S, S) at other offsets: its own lie in geometric progression.

    The ratio brings the own outermost offset to the new one, as far as 1.01 to 1.5 reaches.
    """
    found = square
    for axis, side in enumerate(size):
        half, reach = square.shape[axis] // 2, side // 2
        low, high = 1.01, 1.5
        while high - low > 1e-6:
            ratio = (low + high) / 2
            if sum(ratio**k for k in range(half)) > reach:
                high = ratio
            else:
                low = ratio
        own = np.cumsum([ratio**k for k in range(half)])
        own = np.concatenate([-own[::-1], [0], own])
        found = np.apply_along_axis(
            lambda line, own=own, reach=reach: np.interp(np.arange(-reach, reach + 1), own, line),
            axis,
            found,
        )
    return found


def at_size(module: nn.Module, size: Size) -> LoadedModel:
    """A module as it is, declared at an image size."""
    model = load_tiny(copy.deepcopy(module), size)
    model.module.load_state_dict(module.state_dict())
    return model


def resized(build: type[nn.Module], options: dict[str, Any], size: Size) -> list[LoadedModel]:
    """One timm model at 32 x 32 px and, by timm's own resizing, at `size`."""
    torch.manual_seed(2)
    own: Any = redraw(build(img_size=(32, 32), **options))
    other = copy.deepcopy(own)
    other.set_input_size(img_size=size)
    return [at_size(own, (32, 32)), at_size(other, size)]


class TestFacts:
    @pytest.mark.parametrize(
        ("build", "options", "mapping"),
        [
            (VisionTransformer, FLAT, "resized"),
            (Eva, FLAT | ROTARY, "same angles"),
            (Eva, FLAT | ROTARY | {"rope_type": "mixed"}, "same angles"),
            (Eva, FLAT | ROTARY | {"ref_feat_shape": (4, 4)}, "other angles"),
            (Eva, FLAT | DINOV3, "other angles"),
            (Beit, FLAT | {"use_abs_pos_emb": False, "use_rel_pos_bias": True}, "resized"),
        ],
    )
    def test_timm(self, build: type[nn.Module], options: dict[str, Any], mapping: str) -> None:
        own, other = resized(build, options, (48, 32))
        found = resolution_facts(own, other)
        assert {signal["mapping"] for signal in found["signals"]} == {mapping}
        assert len(found["signals"]) == len(own.anatomy.positions) > 0
        assert found["own"] == {"image_size": [32, 32], "grids": [[4, 4]]}
        assert found["other"] == {"image_size": [48, 32], "grids": [[6, 4]]}
        rotary = "angles" in mapping
        for signal, site in zip(found["signals"], other.anatomy.positions, strict=True):
            assert signal["resampling"] == site.resampling
            assert (signal["angles_per_patch"] is not None) is rotary
        assert found["level"] == "exact algebra"

    @pytest.mark.parametrize(
        ("options", "words"),
        [
            (ROTARY, "RotaryEmbeddingCat): one step per patch as before"),
            (ROTARY | {"ref_feat_shape": (4, 3)}, "span the reference grid of 4 x 3 patches"),
            (DINOV3, "RotaryEmbeddingDinoV3): patch centres lie in -1..1 along each side"),
            (ROTARY | {"rope_type": "mixed"}, "RotaryEmbeddingMixed): one step per patch"),
        ],
    )
    def test_the_words_on_a_rotation(self, options: dict[str, Any], words: str) -> None:
        (site,) = at_size(Eva((32, 32), **FLAT | options), (32, 32)).anatomy.positions
        assert words in site.resampling

    def test_shapes_are_both(self) -> None:
        own, other = resized(VisionTransformer, FLAT, (48, 32))
        (signal,) = resolution_facts(own, other)["signals"]
        assert signal["shapes"] == [[[1, 17, 32]], [[1, 25, 32]]]

    def test_angles_are_both(self) -> None:
        own, other = resized(Eva, FLAT | DINOV3, (64, 64))
        (signal,) = resolution_facts(own, other)["signals"]
        assert signal["angles_per_patch"] == pytest.approx([np.pi, np.pi / 2])

    def test_swin_keeps_its_windows(self) -> None:
        own = fresh("timm_swin")
        module = SwinTransformer(img_size=(48, 48), **STAGED)
        module.load_state_dict(own.module.state_dict())
        found = resolution_facts(own, at_size(module, (48, 48)))
        assert {signal["mapping"] for signal in found["signals"]} == {"kept"}
        assert found["other"]["grids"] == [[12, 12], [6, 6]]

    @pytest.mark.parametrize(
        ("name", "size", "mappings"),
        [
            ("vit", (48, 24), {"in every run"}),
            ("dinov2", (42, 28), {"in every run"}),
            ("siglip", (24, 48), {"in every run"}),
            ("beit", (40, 24), {"in every run"}),
            ("swin", (44, 36), {"kept"}),
            ("swin_v2", (35, 44), {"kept"}),
        ],
    )
    def test_transformers(self, name: str, size: Size, mappings: set[str]) -> None:
        found = resolution_facts(tiny_model(name), tiny_model(name, size))
        assert {signal["mapping"] for signal in found["signals"]} == mappings
        assert found["other"]["image_size"] == list(size)

    def test_two_models_are_no_model_at_two_sizes(self) -> None:
        with pytest.raises(DataError, match="hold different positional signals; give one model"):
            resolution_facts(fresh("timm_vit"), fresh("timm_swin"))


UP, DOWN = [0.01, -0.02, 0.03, 0.0, -0.02], [0.02, -0.03, 0.04, 0.01, -0.04]
COMMON: dict[str, Any] = {
    "distance": "l1", "average": "similarity", "seed": 0, "weights": "sha256:00",
    "data": {"name": "digits", "fingerprint": "blake2b:0123456789abcdef", "taken": 10},
}  # fmt: skip


def settled(record: PassRecord, size: Size, **changes: Any) -> PassRecord:
    settings = record.settings | COMMON | {"image_size": list(size)} | changes
    return record.model_copy(update={"settings": settings})


def side(
    size: Size,
    clean: Sequence[LayerRecord],
    rpi: Sequence[LayerRecord] | None,
    right: Sequence[int] | None = None,
    **changes: Any,
) -> Side:
    shuffled = () if rpi is None else (settled(a_pass(rpi, "rpi(seed=0)"), size, **changes),)
    judged = None if right is None else settled(predictions(right), size, **changes)
    plain = settled(a_pass(clean), size, **changes)
    name = f"vit at {size[0]} x {size[1]} px"
    return Side(name, plain, shuffled, judged, unjudged=None if right else "no head")


def pair(**changes: Any) -> tuple[Side, Side]:
    own = side(
        (32, 32),
        [layer(0, 0.5, UP), layer(1, 0.6, DOWN)],
        [layer(0, 0.1, UP), layer(1, 0.3, UP)],
        [1, 1, 1, 1, 0, 0, 0, 0, 0, 0],
    )
    other = side(
        (48, 32),
        [layer(0, 0.4, DOWN, grid=(3, 3)), layer(1, 0.7, DOWN, grid=(3, 3))],
        [layer(0, 0.2, DOWN, grid=(3, 3)), layer(1, 0.5, UP, grid=(3, 3))],
        [1, 1, 0, 0, 0, 0, 0, 0, 0, 0],
        **changes,
    )
    return own, other


class TestCompared:
    def test_every_number_and_the_other_minus_the_own(self) -> None:
        found = compared(*pair())
        assert found["own"]["image_size"] == [32, 32]
        assert found["other"]["image_size"] == [48, 32]
        assert (found["own"]["grids"], found["other"]["grids"]) == ([[2, 3]] * 2, [[3, 3]] * 2)
        values = {
            size: [[one["value"] for one in found[size][kind]] for kind in ("clean", "rpi")]
            for size in ("own", "other")
        }
        assert values == {"own": [[0.5, 0.6], [0.1, 0.3]], "other": [[0.4, 0.7], [0.2, 0.5]]}
        apart = found["difference"]
        assert [one["value"] for one in apart["clean"]] == pytest.approx([-0.1, 0.1])
        assert [one["value"] for one in apart["rpi"]] == pytest.approx([0.1, 0.2])
        assert found["own"]["anchoring"]["value"] == pytest.approx(0.2)
        assert found["other"]["anchoring"]["value"] == pytest.approx(0.35)
        assert apart["anchoring"]["value"] == pytest.approx(0.15)
        assert found["images"] == 10
        assert found["level"] == "measured on images"

    def test_intervals_are_paired_by_group(self) -> None:
        apart = compared(*pair())["difference"]
        up, down = np.array(UP), np.array(DOWN)
        for one, spread in (
            (apart["rpi"][0], down - up),
            (apart["rpi"][1], 0 * up),  # the same images moved both alike
            (apart["anchoring"], (down - up) / 2),
            (apart["clean"][0], down - up),
        ):
            assert one["high"] - one["value"] == pytest.approx(half_width(spread))
            assert one["value"] - one["low"] == pytest.approx(half_width(spread))

    def test_accuracy_before_and_after(self) -> None:
        found = compared(*pair())
        assert found["own"]["accuracy"]["value"] == 0.4
        assert found["other"]["accuracy"]["value"] == 0.2
        apart = found["difference"]["accuracy"]
        assert apart["value"] == pytest.approx(-0.2)
        assert apart["low"] < -0.2 < apart["high"]
        assert found["mcnemar_p"] == pytest.approx(0.5)  # two images, both lost

    def test_without_rpi_and_without_head(self) -> None:
        clean = [layer(0, 0.5), layer(1, 0.6)]
        found = compared(side((32, 32), clean, None), side((48, 32), clean, None))
        for size in ("own", "other", "difference"):
            assert found[size]["anchoring"]["reason"] == "RPI is off"
            assert [one["reason"] for one in found[size]["rpi"]] == ["RPI is off"] * 2
            assert found[size]["accuracy"]["value"] is None
            assert found[size]["accuracy"]["reason"] == "no head"
        assert found["mcnemar_p"] is None
        assert [one["value"] for one in found["difference"]["clean"]] == [0, 0]

    def test_an_undefined_layer_says_at_which_size(self) -> None:
        own, _ = pair()
        other = side(
            (48, 32), [layer(0, None, reason="constant"), layer(1, 0.7)], own.rpi[0].layers
        )
        apart = compared(own, other)["difference"]["clean"]
        assert apart[0]["value"] is None
        assert apart[0]["reason"] == "vit at 48 x 32 px: constant"
        assert apart[1]["value"] == pytest.approx(0.1)

    def test_other_images_do_not_compare(self) -> None:
        with pytest.raises(DataError, match="were measured on different images"):
            compared(*pair(data=COMMON["data"] | {"fingerprint": "blake2b:fedcba9876543210"}))

    def test_other_depths_do_not_compare(self) -> None:
        own, _ = pair()
        short = side((48, 32), [layer(0, 0.5)], [layer(0, 0.5)])
        with pytest.raises(DataError, match=r"vit at 48 x 32 px has 1 layers and .* 2; give one"):
            compared(own, short)
