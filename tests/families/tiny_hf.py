"""Tiny random-weight transformers models of every family, saved and loaded like real ones."""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers as hf
import yaml

import probe
from probe.coverage.build import enlarge
from probe.coverage.redraw import redraw
from probe.families.hf_quiet import quiet
from probe.loading import load_model
from probe.types import LoadedModel, ModelSpec

PLAIN: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 48,
    "image_size": 32,
    "patch_size": 8,
}
DINO: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "mlp_ratio": 2,
    "image_size": 28,
    "patch_size": 7,
}
SWIN: dict[str, Any] = {
    "image_size": 32,
    "patch_size": 2,
    "embed_dim": 16,
    "depths": [2, 2],
    "num_heads": [2, 2],
    "window_size": 4,
    "mlp_ratio": 2.0,
}
RADIO: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "image_size": 32,
    "patch_size": 8,
    "max_img_size": 48,
}
TEXT: dict[str, Any] = {
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 16,
    "vocab_size": 20,
    "bos_token_id": 0,
    "eos_token_id": 1,
}


LIST = Path(probe.__file__).parent / "coverage" / "transformers.yaml"
LISTED: dict[str, Any] = yaml.safe_load(LIST.read_text(encoding="utf-8"))["architectures"]
# Of families that no network below belongs to, one or more, as the list of architectures has them.
BASELINE: dict[str, Any] = {
    "resnet": {
        "name": "ResNetForImageClassification",
        "options": {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1]},
    }
}
FROM_LIST = (
    "vitpose_backbone", "vitdet", "sam3_vit_model", "donut-swin", "swin2sr", "pvt", "cvt",
    "segformer", "poolformer", "focalnet", "levit", "mobilevit", "mobilevitv2", "swiftformer",
    "hiera", "sam2_hiera_det_model", "timm_wrapper", "siglip2", "yolos", "lw_detr_vit",
    "rf_detr_dinov2", "pixtral",
)  # fmt: skip


def build(kind: str, config: Any, seed: int = 0) -> Any:
    """A transformers model of class `kind`, with the library's own initialisation."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return getattr(hf, kind)(config).eval()


def networks() -> dict[str, Callable[[], Any]]:
    """Every architecture of these families, what starts constant redrawn: name -> builder."""
    labels = {"num_labels": 5}
    two_towers = {"text_config": TEXT, "vision_config": PLAIN}
    beit = PLAIN | labels
    plain = {
        "vit": lambda: build("ViTForImageClassification", hf.ViTConfig(**PLAIN, **labels)),
        "vit_bare": lambda: build("ViTModel", hf.ViTConfig(**PLAIN)),
        "vit_msn": lambda: build("ViTMSNModel", hf.ViTMSNConfig(**PLAIN)),
        "vit_mae": lambda: build(
            "ViTMAEForPreTraining",
            hf.ViTMAEConfig(
                **PLAIN,
                decoder_hidden_size=16,
                decoder_num_hidden_layers=1,
                decoder_num_attention_heads=2,
                decoder_intermediate_size=16,
            ),
        ),
        "deit": lambda: build("DeiTForImageClassification", hf.DeiTConfig(**PLAIN, **labels)),
        "deit_teacher": lambda: build(
            "DeiTForImageClassificationWithTeacher", hf.DeiTConfig(**PLAIN, **labels)
        ),
        "dinov2": lambda: build("Dinov2Model", hf.Dinov2Config(**DINO)),
        "dinov2_backbone": lambda: build("Dinov2Backbone", hf.Dinov2Config(**DINO)),
        "dinov2_classifier": lambda: build(
            "Dinov2ForImageClassification", hf.Dinov2Config(**DINO, **labels)
        ),
        "dinov2_registers": lambda: build(
            "Dinov2WithRegistersModel", hf.Dinov2WithRegistersConfig(**DINO, num_register_tokens=3)
        ),
        "beit": lambda: build(
            "BeitForImageClassification", hf.BeitConfig(**beit, use_relative_position_bias=True)
        ),
        "beit_shared": lambda: build(
            "BeitModel",
            hf.BeitConfig(
                **beit,
                use_shared_relative_position_bias=True,
                use_absolute_position_embeddings=True,
                use_mean_pooling=False,
            ),
        ),
        "swin": lambda: build("SwinForImageClassification", hf.SwinConfig(**SWIN, **labels)),
        "swin_absolute": lambda: build(
            "SwinModel", hf.SwinConfig(**SWIN, use_absolute_embeddings=True)
        ),
        "swin_v2": lambda: build("Swinv2ForImageClassification", hf.Swinv2Config(**SWIN, **labels)),
        "clip": lambda: build("CLIPModel", hf.CLIPConfig(**two_towers, projection_dim=16)),
        "clip_vision": lambda: build("CLIPVisionModel", hf.CLIPVisionConfig(**PLAIN)),
        "siglip": lambda: build("SiglipModel", hf.SiglipConfig(**two_towers)),
        "siglip_classifier": lambda: build(
            "SiglipForImageClassification", hf.SiglipConfig(**two_towers, **labels)
        ),
        "ijepa": lambda: build("IJepaForImageClassification", hf.IJepaConfig(**PLAIN, **labels)),
        "data2vec": lambda: build(
            "Data2VecVisionForImageClassification",
            hf.Data2VecVisionConfig(**PLAIN, **labels, use_relative_position_bias=True),
        ),
        "tips": lambda: build("Tipsv2VisionModel", hf.Tipsv2VisionConfig(**PLAIN)),
        "altclip": lambda: build("AltCLIPVisionModel", hf.AltCLIPVisionConfig(**PLAIN)),
        "aimv2": lambda: build("Aimv2VisionModel", hf.Aimv2VisionConfig(**PLAIN)),
        "aimv2_native": lambda: build(
            "Aimv2VisionModel", hf.Aimv2VisionConfig(**PLAIN, is_native=True)
        ),
        "idefics3": lambda: build("Idefics3VisionTransformer", hf.Idefics3VisionConfig(**PLAIN)),
        "dinov3": lambda: build(
            "DINOv3ViTModel", hf.DINOv3ViTConfig(**PLAIN, num_register_tokens=3)
        ),
        "mlcd": lambda: build("MLCDVisionModel", hf.MLCDVisionConfig(**PLAIN)),
        "radio": lambda: build("RadioModel", hf.RadioConfig(**RADIO)),
    }
    return {name: partial(_redrawn, make) for name, make in plain.items()}


def listed(name: str) -> Any:
    """An architecture as the list has it."""
    entry = (LISTED | BASELINE)[name]
    kind = getattr(hf, entry["name"])
    return build(entry["name"], kind.config_class(**copy.deepcopy(entry["options"])))


def _redrawn(make: Callable[[], Any]) -> Any:
    return redraw(make())


def save(model: Any, folder: Path) -> Path:
    """Save a model as transformers does, without its progress bars; returns the folder."""
    with quiet():
        model.save_pretrained(folder)
    return folder


def spec(folder: Path, **fields: Any) -> ModelSpec:
    """The spec of a local folder."""
    return ModelSpec("tiny", f"file:{folder}", **fields)


def tiny_model(
    name: str,
    image_size: tuple[int, int] | None = None,
    change: Callable[[Any], None] | None = None,
) -> LoadedModel:
    """One of `networks()`, changed, saved and loaded back as any checkpoint is."""
    if name in (*FROM_LIST, *BASELINE):
        network = enlarge(_redrawn(partial(listed, name)))
    else:
        network = networks()[name]()
    if change is not None:
        with torch.no_grad():
            change(network)
    with tempfile.TemporaryDirectory() as folder:
        return load_model(spec(save(network, Path(folder))), image_size=image_size, device="cpu")


def tiny_models() -> dict[str, Callable[[], LoadedModel]]:
    """Every model at its own size, and one of each kind at another, by name."""
    models = {name: partial(tiny_model, name) for name in networks()}
    for name, size in {
        "vit": (48, 24),
        "deit_teacher": (24, 40),
        "vit_mae": (40, 40),
        "dinov2": (42, 28),
        "dinov2_registers": (35, 49),
        "beit": (40, 24),
        "beit_shared": (24, 24),
        "swin": (44, 36),
        "swin_absolute": (40, 40),
        "swin_v2": (35, 44),
        "clip": (40, 24),
        "siglip": (24, 48),
        "idefics3": (40, 24),
        "dinov3": (24, 40),
        "mlcd": (40, 32),
        "radio": (24, 40),
    }.items():
        models[f"{name}_{size[0]}x{size[1]}"] = partial(tiny_model, name, size)
    return {f"hf_{name}": make for name, make in models.items()}


def listed_models() -> dict[str, Callable[[], LoadedModel]]:
    """Every model of `FROM_LIST` at the list's size, and one of each kind at another, by name."""
    own = {name: tuple(LISTED[name].get("image_size", ())) or None for name in FROM_LIST}
    models = {name: partial(tiny_model, name, size) for name, size in own.items()}
    models |= {name: partial(tiny_model, name, (64, 48)) for name in BASELINE}
    for name, size in {
        "vitdet": (24, 40),
        "cvt": (64, 96),
        "focalnet": (30, 44),
        "hiera": (96, 64),
        "mobilevit": (64, 128),
    }.items():
        models[f"{name}_{size[0]}x{size[1]}"] = partial(tiny_model, name, size)
    return {f"hf_{name}": make for name, make in models.items()}
