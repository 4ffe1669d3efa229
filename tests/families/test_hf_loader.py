"""Loading transformers checkpoints: the right class, every key, the library's own numbers."""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from safetensors.torch import load_file, save_file
from torch import Tensor

from probe.errors import CheckpointError, UsageError
from probe.families.base import RawModel
from probe.families.checkpoint import file_sha256
from probe.families.hf_loader import load_hf
from probe.families.hf_quiet import quiet
from tests.families import tiny_hf


def load(folder: Path, random_init: bool = False, seed: int = 0, **options: Any) -> RawModel:
    spec = tiny_hf.spec(folder, options=options)
    return load_hf(spec, image_size=None, random_init=random_init, seed=seed)


def image(size: tuple[int, int], count: int = 2) -> Tensor:
    return torch.randn(count, 3, *size, generator=torch.Generator().manual_seed(3))


def saved(tmp_path: Path, name: str) -> Path:
    return tiny_hf.save(tiny_hf.networks()[name](), tmp_path / name)


def edit_weights(folder: Path, edit: Callable[[dict[str, Tensor]], object]) -> None:
    state = load_file(folder / "model.safetensors")
    edit(state)
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})


def edit_config(folder: Path, **fields: Any) -> None:
    path = folder / "config.json"
    config = json.loads(path.read_text()) | fields
    path.write_text(json.dumps({k: v for k, v in config.items() if v is not None}))


CLASSIFIERS = [
    "vit", "deit", "deit_teacher", "dinov2_classifier", "beit", "swin", "swin_v2",
    "siglip_classifier",
]  # fmt: skip


@pytest.mark.parametrize("name", CLASSIFIERS)
def test_logits_are_the_librarys_own(tmp_path: Path, name: str) -> None:
    network = tiny_hf.networks()[name]()
    model = tiny_hf.tiny_model(name)
    batch = image(model.anatomy.image_size)
    assert model.predict is not None
    with torch.no_grad():
        expected, logits = network(batch).logits, model.predict(model.forward(batch))
    assert torch.equal(logits, expected)
    assert (model.classes, logits.shape) == (5, (2, 5))


@pytest.mark.parametrize("name", ["vit_bare", "dinov2", "dinov2_backbone", "clip", "siglip"])
def test_models_without_a_head_predict_nothing(name: str) -> None:
    model = tiny_hf.tiny_model(name)
    assert model.predict is None
    assert model.classes is None


def test_distilled_deit_predicts_with_the_mean_of_both_heads() -> None:
    model = tiny_hf.tiny_model("deit_teacher")
    with torch.no_grad():
        output = model.forward(image((32, 32)))
    assert model.predict is not None
    mean = (output.cls_logits + output.distillation_logits) / 2
    assert torch.equal(model.predict(output), mean)
    assert not torch.equal(output.cls_logits, output.distillation_logits)


@pytest.mark.parametrize(
    ("name", "tower"), [("clip", "CLIPVisionModel"), ("siglip", "SiglipVisionModel")]
)
def test_a_whole_clip_gives_its_vision_tower(tmp_path: Path, name: str, tower: str) -> None:
    network = tiny_hf.networks()[name]()
    raw = load(tiny_hf.save(network, tmp_path))
    assert type(raw.module).__name__ == tower
    assert raw.notes == ("left out of the checkpoint: text tower and projections",)
    with torch.no_grad():
        expected = network.vision_model(image((32, 32))).last_hidden_state
        assert torch.equal(raw.forward(image((32, 32))).last_hidden_state, expected)


def test_ready_to_run_and_without_gradients(tmp_path: Path) -> None:
    raw = load(saved(tmp_path, "vit"))
    assert not raw.module.training
    assert not any(parameter.requires_grad for parameter in raw.module.parameters())
    assert raw.identity.resolved == "file:vit"
    assert raw.identity.weights == file_sha256(tmp_path / "vit" / "model.safetensors")
    assert (raw.identity.revision, raw.image_size, raw.preprocess) == (None, (32, 32), None)


def test_a_half_precision_checkpoint_is_loaded_in_float32(tmp_path: Path) -> None:
    raw = load(tiny_hf.save(tiny_hf.networks()["vit"]().half(), tmp_path))
    assert {parameter.dtype for parameter in raw.module.parameters()} == {torch.float32}


def test_another_image_size_uses_the_librarys_interpolation(tmp_path: Path) -> None:
    network = tiny_hf.networks()["vit"]()
    model = tiny_hf.tiny_model("vit", (48, 24))
    batch = image((48, 24))
    with torch.no_grad():
        expected = network(batch, interpolate_pos_encoding=True).logits
        assert torch.equal(model.forward(batch).logits, expected)
    assert "interpolated to 48 x 24 by transformers" in model.notes[0]


def test_pixels_that_fall_off_the_grid_are_noted(tmp_path: Path) -> None:
    notes = tiny_hf.tiny_model("vit", (35, 32)).notes
    assert "35 x 32 px is no multiple of the patch size 8 x 8" in notes


def test_random_initialisation_is_the_librarys_and_leaves_the_generator(tmp_path: Path) -> None:
    folder = saved(tmp_path, "vit")
    (folder / "model.safetensors").unlink()
    before = torch.get_rng_state()
    raw = load(folder, random_init=True, seed=7)
    assert torch.equal(torch.get_rng_state(), before)
    assert raw.identity.weights == "random:7"
    expected = tiny_hf.build("ViTForImageClassification", hf.AutoConfig.from_pretrained(folder), 7)
    for name, tensor in expected.state_dict().items():
        assert torch.equal(raw.module.state_dict()[name], tensor), name
    again = load(folder, random_init=True, seed=8)
    assert not torch.equal(again.module.classifier.weight, raw.module.classifier.weight)


def test_a_missing_key_is_named(tmp_path: Path) -> None:
    folder = saved(tmp_path, "vit")
    edit_weights(folder, lambda state: state.pop("vit.layernorm.weight"))
    with pytest.raises(CheckpointError, match=r"ViTForImageClassification: 1 missing: vit\.l"):
        load(folder)


def test_an_extra_key_is_named(tmp_path: Path) -> None:
    folder = saved(tmp_path, "vit")
    edit_weights(folder, lambda state: state.update({"vit.extra.weight": torch.zeros(2)}))
    with pytest.raises(CheckpointError, match=r"1 unexpected: vit\.extra\.weight"):
        load(folder)


def test_a_head_of_another_size_is_named_and_not_drawn_anew(tmp_path: Path) -> None:
    folder = saved(tmp_path, "vit")
    with pytest.raises(
        CheckpointError, match=r"2 of another shape: classifier\.bias \(5 not 7\), classifier\.w"
    ):
        load(folder, num_labels=7)


def test_a_prefix_in_front_of_every_key_is_no_match(tmp_path: Path) -> None:
    folder = saved(tmp_path, "dinov2")
    state = load_file(folder / "model.safetensors")
    wrapped = {f"student.{key}": tensor for key, tensor in state.items()}
    save_file(wrapped, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match=r"do not match Dinov2Model: \d+ missing: embeddings"):
        load(folder)


def test_a_head_that_the_configuration_does_not_name_is_an_error(tmp_path: Path) -> None:
    folder = saved(tmp_path, "vit")
    edit_config(folder, architectures=None)
    with pytest.raises(CheckpointError, match=r"2 unexpected: classifier\.bias, class"):
        load(folder)


@pytest.mark.parametrize(
    ("kind", "config", "note"),
    [
        (
            "BeitForMaskedImageModeling",
            hf.BeitConfig(**tiny_hf.PLAIN, vocab_size=9, use_relative_position_bias=True),
            "head of BeitForMaskedImageModeling",
        ),
        (
            "ViTForMaskedImageModeling",
            hf.ViTConfig(**tiny_hf.PLAIN, encoder_stride=8),
            "head of ViTForMaskedImageModeling, tokens and buffers of pretraining",
        ),
        (
            "CLIPVisionModelWithProjection",
            hf.CLIPVisionConfig(**tiny_hf.PLAIN, projection_dim=8),
            "text tower and projections",
        ),
    ],
)
def test_heads_of_pretraining_are_left_out_with_a_note(
    tmp_path: Path, kind: str, config: Any, note: str
) -> None:
    raw = load(tiny_hf.save(tiny_hf.build(kind, config), tmp_path))
    assert raw.notes == (f"left out of the checkpoint: {note}",)


def test_an_absent_mask_token_is_no_mismatch(tmp_path: Path) -> None:
    folder = saved(tmp_path, "dinov2")
    edit_weights(folder, lambda state: state.pop("embeddings.mask_token"))
    assert load(folder).classes is None


def test_shards_are_read_and_hashed_in_any_order(tmp_path: Path) -> None:
    network = tiny_hf.networks()["vit"]()
    with quiet():
        network.save_pretrained(tmp_path, max_shard_size="20KB")
    shards = sorted(tmp_path.glob("*.safetensors"))
    assert len(shards) > 1
    raw = load(tmp_path)
    assert raw.identity.weights.startswith("sha256:")
    assert raw.identity.weights not in {file_sha256(shard) for shard in shards}
    assert torch.equal(raw.module.classifier.weight, network.classifier.weight)
    shards[0].unlink()
    with pytest.raises(CheckpointError, match=f"lacks the shards {shards[0].name}"):
        load(tmp_path)


def test_a_plain_pickle_is_read(tmp_path: Path) -> None:
    network = tiny_hf.networks()["vit"]()
    folder = tiny_hf.save(network, tmp_path)
    (folder / "model.safetensors").unlink()
    torch.save(network.state_dict(), folder / "pytorch_model.bin")
    raw = load(folder)
    assert torch.equal(raw.module.classifier.weight, network.classifier.weight)
    assert raw.identity.weights == file_sha256(folder / "pytorch_model.bin")


class Hostile:
    """Makes a folder when it is unpickled."""

    def __init__(self, trace: Path) -> None:
        self.trace = str(trace)

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (self.trace,)


def test_a_pickle_that_runs_code_is_refused_and_does_not_run(tmp_path: Path) -> None:
    folder, trace = saved(tmp_path, "vit"), tmp_path / "ran"
    (folder / "model.safetensors").unlink()
    for write in (torch.save, lambda content, path: path.write_bytes(pickle.dumps(content, 2))):
        write({"a": Hostile(trace)}, folder / "pytorch_model.bin")
        with pytest.raises(CheckpointError, match=r"run code from the file \(posix\.mkdir\)"):
            load(folder)
        assert not trace.exists()


def test_damaged_and_missing_files(tmp_path: Path) -> None:
    folder = saved(tmp_path, "vit")
    (folder / "model.safetensors").write_bytes(b"version https://git-lfs")
    with pytest.raises(CheckpointError, match="cannot be read as a checkpoint: ") as caught:
        load(folder)
    assert str(caught.value).endswith("so fetch it anew or save its state dict as safetensors")
    assert "\n" not in str(caught.value)
    (folder / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"holds no weights; expected model\.safetensors"):
        load(folder)
    (folder / "config.json").write_text('{"model_type": "no_such_model"}')
    with pytest.raises(CheckpointError, match=r"cannot read its config\.json: ") as caught:
        load(folder, random_init=True)
    assert "\n" not in str(caught.value)
    (folder / "config.json").unlink()
    with pytest.raises(CheckpointError, match=r"holds no config\.json"):
        load(folder)


def test_the_configuration_is_hashed_wherever_the_folder_lies(tmp_path: Path) -> None:
    """Equal weights fit every number of heads, so they alone do not say which model it is."""
    folder, other = saved(tmp_path, "vit"), saved(tmp_path / "deep" / "er", "vit")
    edit_config(other, _name_or_path="somewhere/else", transformers_version="5.0.0")
    one, same = load(folder).identity, load(other).identity
    assert (one.weights, one.configuration) == (same.weights, same.configuration)
    assert one.configuration.startswith("sha256:")
    assert load(folder, hidden_act="relu").identity.configuration != one.configuration
    edit_config(other, num_attention_heads=4)
    split = load(other).identity
    assert split.weights == one.weights
    assert split.configuration != one.configuration
    assert split.configuration == load(folder, num_attention_heads=4).identity.configuration


def test_code_from_a_repository_is_never_run(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(
        json.dumps({"model_type": "mine", "auto_map": {"AutoConfig": "code.Config"}})
    )
    (tmp_path / "code.py").write_text(f"import os; os.mkdir({str(tmp_path / 'ran')!r})")
    with pytest.raises(CheckpointError, match="needs code from its own repository"):
        load(tmp_path, random_init=True)
    assert not (tmp_path / "ran").exists()


def test_a_language_model_is_no_image_model(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    with pytest.raises(CheckpointError, match="'bert' model, which has no grid of image patches"):
        load(tmp_path, random_init=True)


def test_packed_patches_are_no_batch_of_images(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "cosmos3_edge_vision"}')
    with pytest.raises(
        CheckpointError,
        match=r"'cosmos3_edge_vision' model, which takes packed patches .*grid_thw.*, not images",
    ):
        load(tmp_path, random_init=True)


def test_a_tower_that_stands_in_no_mapping_is_found_in_its_module(tmp_path: Path) -> None:
    assert type(load(saved(tmp_path, "altclip")).module).__name__ == "AltCLIPVisionModel"


def test_a_configuration_without_an_image_size_needs_one(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "segformer"}')
    with pytest.raises(UsageError, match="says no image size; choose one with --image-size"):
        load(tmp_path, random_init=True)


def test_an_unknown_option_is_refused_with_the_nearest_name(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"is no field of ViTConfig\. Did you mean num_labels"):
        load(saved(tmp_path, "vit"), num_label=3)


def test_loading_prints_nothing(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    folder = saved(tmp_path, "clip")
    capfd.readouterr()
    load(folder)
    assert capfd.readouterr() == ("", "")


def test_the_real_dinov2_checkpoint(assets: Path) -> None:
    folder = assets / "checkpoints" / "dinov2-small-backbone"
    model = tiny_hf.load_model(tiny_hf.spec(folder), image_size=(224, 224), device="cpu")
    anatomy = model.anatomy
    assert model.family == "hf_dinov2"
    assert len(anatomy.attn_in) == len(anatomy.block_out) == 12
    assert {(s.grid.rows, s.grid.cols, s.prefix) for s in anatomy.attn_in} == {(16, 16, 1)}
    assert model.identity.weights == file_sha256(folder / "model.safetensors")
    assert (model.predict, model.classes, model.preprocess) == (None, None, None)
    with torch.no_grad():
        output = model.forward(image((224, 224), 1)).last_hidden_state
    assert output.shape == (1, 257, 384)
    assert output.isfinite().all()


def test_the_real_dinov2_checkpoint_at_its_own_size(assets: Path) -> None:
    raw = load(assets / "checkpoints" / "dinov2-small-backbone")
    assert (raw.image_size, raw.notes) == ((518, 518), ())
