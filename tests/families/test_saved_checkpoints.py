"""Every listed architecture of transformers, as the library saves it, loads with its weights."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import transformers

from probe.coverage.build import _save_config
from probe.coverage.listed import read_listing
from probe.errors import ProbeError
from probe.families.hf_quiet import quiet
from probe.loading import load_model
from probe.types import ModelSpec

LISTED = read_listing("transformers").architectures


@pytest.mark.slow
@pytest.mark.parametrize("key", LISTED)
def test_a_saved_checkpoint_loads_whole(tmp_path: Path, key: str) -> None:
    """What is neither loaded nor a part that no token passes would be named, and refused."""
    architecture = LISTED[key]
    _save_config(architecture, tmp_path)
    spec = ModelSpec("mine", f"file:{tmp_path}")
    size = architecture.image_size and tuple(architecture.image_size)
    try:
        load_model(spec, image_size=size, random_init=True, device="cpu")  # type: ignore[arg-type]
    except ProbeError:
        assert architecture.refused
        return
    kind = getattr(transformers, architecture.name)
    with quiet():
        saved = kind(kind.config_class.from_pretrained(tmp_path))
        for tensor in saved.state_dict().values():
            if tensor.is_floating_point():
                tensor.uniform_(0.1, 0.9)  # what starts constant would look right unread
        saved.save_pretrained(tmp_path)
    loaded = load_model(spec, image_size=size, device="cpu")  # type: ignore[arg-type]
    held = saved.state_dict()
    for name, tensor in loaded.module.named_parameters():
        same = [held[key] for key in held if f".{key}".endswith(f".{name}")]
        assert any(torch.equal(one, tensor) for one in same), name
