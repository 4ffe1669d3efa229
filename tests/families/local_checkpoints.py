"""Local checkpoints of every loader, written in any shape that training leaves behind."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from probe.errors import CheckpointError
from probe.families.base import RawModel
from probe.families.hf_loader import load_hf
from probe.families.import_loader import load_import
from probe.types import ModelSpec
from tests.families import tiny_hf, unseen
from tests.families.timm_specs import ARCH, FILE, load, refusal, trained

SQUARE: dict[str, Any] = {
    "image_size": [32, 32],
    "patches": {"module": "proj", "grid": [4, 4], "layout": "NCHW"},
    "blocks": [
        {"pattern": "layers.*", "attn_in": "norm1", "grid": [4, 4], "prefix": 1, "layout": "NLC"}
    ],
    "head": "tensor",
}
OPTIONS = {"width": 32, "tokens": 16}


@dataclass(frozen=True)
class Host:
    """A model of a library, or of the user's own, and how its checkpoints are written and loaded.

    `library` is timm, hf, or import for one of the user's own.
    `state` holds its weights under the names that its files use; `norm` and `head` are two of
    them, of 32 values and of one value per class. `config` is the text of its config.json.
    """

    library: str
    module: nn.Module
    state: Mapping[str, Tensor]
    side: int
    norm: str
    head: str
    safe: str
    pickled: str
    config: str | None

    def copy(self) -> dict[str, Tensor]:
        """Its weights, free to be changed."""
        return {name: tensor.clone() for name, tensor in self.state.items()}

    def write(self, folder: Path, content: Any, *, safe: bool = False) -> Path:
        """Write `content` as the checkpoint in `folder`; returns the file."""
        path = self.settled(folder) / (self.safe if safe else self.pickled)
        if safe:
            save_file(content, path, metadata={"format": "pt"})
        else:
            torch.save(content, path)
        return path

    def settled(self, folder: Path) -> Path:
        """The folder, made, with what stands beside the weights."""
        folder.mkdir(parents=True, exist_ok=True)
        if self.config is not None:
            (folder / "config.json").write_text(self.config)
        return folder

    def write_shards(self, folder: Path, names: tuple[str, str]) -> Path:
        """Two shards under `names`, safetensors or pickles, and their index, which is returned."""
        self.settled(folder)
        parts: list[dict[str, Tensor]] = [{}, {}]
        for number, (name, tensor) in enumerate(self.state.items()):
            parts[number % 2][name] = tensor.contiguous()
        safe = names[0].endswith(".safetensors")
        for name, part in zip(names, parts, strict=True):
            if safe:
                save_file(part, folder / name, metadata={"format": "pt"})
            else:
                torch.save(part, folder / name)
        placed = {key: name for name, part in zip(names, parts, strict=True) for key in part}
        index = folder / f"{'model.safetensors' if safe else 'pytorch_model.bin'}.index.json"
        index.write_text(json.dumps({"metadata": {}, "weight_map": placed}))
        return index

    def spec(self, place: Path) -> ModelSpec:
        """The spec of the checkpoint at `place`."""
        if self.library == "hf":
            return ModelSpec("mine", f"file:{place}")
        if self.library == "import":
            return ModelSpec(
                "mine", "import:unseen:Net", options=OPTIONS, weights=str(place), anatomy=SQUARE,
                folder=str(Path(__file__).parent),
            )  # fmt: skip
        return ModelSpec("mine", f"file:{place}", arch=ARCH, options=FILE)

    def load(self, place: Path) -> RawModel:
        """The checkpoint at `place`."""
        if self.library == "hf":
            return load_hf(self.spec(place), image_size=None, random_init=False, seed=0)
        if self.library == "import":
            size = (self.side, self.side)
            return load_import(self.spec(place), image_size=size, random_init=False, seed=0)
        return load(self.spec(place))

    def refused(self, place: Path) -> str:
        """Why the checkpoint at `place` is refused."""
        return refusal(CheckpointError, lambda: self.load(place))

    def logits(self, found: Any) -> Tensor:
        """What a module, or a loaded model, answers to two fixed images."""
        generator = torch.Generator().manual_seed(0)
        images = torch.randn(2, 3, self.side, self.side, generator=generator)
        with torch.no_grad():
            output = found.forward(images) if isinstance(found, RawModel) else found(images)
        logits: Tensor = output.logits if self.library == "hf" else output
        return logits

    def assert_same(self, raw: RawModel, dtype: torch.dtype = torch.float32) -> None:
        """The loaded model is the original, as far as `dtype` has kept it: tensors and logits."""
        expected = deepcopy(self.module).to(dtype).float()
        one, other = raw.module.state_dict(), expected.state_dict()
        assert one.keys() == other.keys()
        assert [name for name in one if not torch.equal(one[name], other[name])] == []
        assert {tensor.dtype for tensor in raw.module.parameters()} == {torch.float32}
        assert torch.equal(self.logits(raw), self.logits(expected))


class Hostile:
    """Makes a folder when it is unpickled."""

    def __init__(self, trace: Path) -> None:
        self.trace = str(trace)

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (self.trace,)


@cache
def host(library: str) -> Host:
    """The model of a library, made once."""
    if library == "import":
        torch.manual_seed(0)
        own = unseen.Net(**OPTIONS).eval()
        return Host(
            library, own, own.state_dict(), 32, "norm.weight", "head.bias",
            "mine.safetensors", "mine.pth", None,
        )  # fmt: skip
    if library == "timm":
        module = trained().eval()
        return Host(
            library, module, module.state_dict(), 64, "norm.weight", "head.bias",
            "mine.safetensors", "mine.pth", None,
        )  # fmt: skip
    network = tiny_hf.networks()["vit"]()
    with tempfile.TemporaryDirectory() as place:
        folder = tiny_hf.save(network, Path(place))
        state = {k: v.clone() for k, v in load_file(folder / "model.safetensors").items()}
        config = (folder / "config.json").read_text()
    return Host(
        library, network.eval(), state, 32, "vit.layernorm.weight", "classifier.bias",
        "model.safetensors", "pytorch_model.bin", config,
    )  # fmt: skip
