"""Specs of small timm models, and what loading them gives or refuses."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from torch import Tensor, nn

from probe.errors import ProbeError
from probe.families.base import RawModel
from probe.families.timm_loader import load_timm
from probe.types import ModelSpec

ARCH = "deit_tiny_patch16_224"
SMALL: dict[str, Any] = {"embed_dim": 32, "depth": 2, "num_heads": 2}
FILE = SMALL | {"img_size": 64, "num_classes": 7}
SWIN = {"embed_dim": 16, "depths": (1, 1), "num_heads": (1, 2)}


def hub_spec(name: str = ARCH, **options: Any) -> ModelSpec:
    return ModelSpec(name, f"timm:{name}", options=SMALL | options)


def file_spec(path: Path, arch: str | None = ARCH, **options: Any) -> ModelSpec:
    return ModelSpec("mine", f"file:{path}", arch=arch, options=FILE | options)


def load(
    spec: ModelSpec,
    image_size: tuple[int, int] | None = None,
    random_init: bool = False,
    seed: int = 0,
) -> RawModel:
    return load_timm(spec, image_size=image_size, random_init=random_init, seed=seed)


def untrained(
    spec: ModelSpec, image_size: tuple[int, int] | None = None, seed: int = 0
) -> RawModel:
    return load(spec, image_size, random_init=True, seed=seed)


def refusal(kind: type[ProbeError], call: Callable[[], Any]) -> str:
    with pytest.raises(kind) as caught:
        call()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def trained(**options: Any) -> nn.Module:
    """What somebody's own training left: every parameter drawn anew."""
    torch.manual_seed(11)
    module = timm.create_model(ARCH, **(FILE | options))
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.1)
    return module


def equal_states(one: nn.Module, other: nn.Module) -> bool:
    a, b = one.state_dict(), other.state_dict()
    return a.keys() == b.keys() and all(torch.equal(a[key], b[key]) for key in a)


def images(size: tuple[int, int]) -> Tensor:
    return torch.randn(2, 3, *size, generator=torch.Generator().manual_seed(0))
