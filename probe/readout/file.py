"""A fitted readout, and the one safetensors file that holds it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as as_safetensors
from torch import Tensor

from probe.errors import UsageError
from probe.readout.features import POOLS, Pool
from probe.store import write_atomically

VERSION = 1
TENSORS = ("weight", "bias", "mean", "std")
KEY = "probe readout"


@dataclass(frozen=True, eq=False)
class Readout:
    """A linear head: logits are `((features - mean) / std) @ weight.T + bias`, in float32.

    `weight` is (classes, F), `bias` (classes,), `mean` and `std` (F,). `class_names` name the rows
    of `weight`, in the order of the training data's classes; other data maps to them by name.
    `meta` says of which model and data this is and how it was fitted (JSON values).
    """

    weight: Tensor
    bias: Tensor
    mean: Tensor
    std: Tensor
    pool: Pool
    class_names: tuple[str, ...]
    meta: Mapping[str, Any]

    def logits(self, features: Tensor) -> Tensor:
        """Logits float32 (B, classes) of features (B, F), on the features' device.

        Raises:
            UsageError: if the features are of another size.
        """
        self.check(features)
        weight, bias, mean, std = (getattr(self, name).to(features.device) for name in TENSORS)
        return torch.addmm(bias, (features.float() - mean) / std, weight.T)

    def check(self, features: Tensor) -> None:
        """Refuse features (B, F) of another size than the readout was fitted to.

        Raises:
            UsageError: if they are.
        """
        if features.ndim != 2 or features.shape[1] != len(self.mean):
            raise UsageError(
                f"the readout takes {len(self.mean)} features per image, but the model gives "
                f"{features.shape[-1]}; fit one for this model with `probe readout`"
            )

    @property
    def sha256(self) -> str:
        """`sha256:...` of the file that `save` writes."""
        return f"sha256:{hashlib.sha256(_to_bytes(self)).hexdigest()}"


def save(readout: Readout, path: Path) -> None:
    """Write one safetensors file, whole or not at all; equal readouts give equal bytes.

    Raises:
        StoreError: if it cannot be written.
    """
    write_atomically(path, _to_bytes(readout))


def load_readout(path: Path) -> Readout:
    """Read what `save` wrote.

    Raises:
        UsageError: if there is no such file, or it is no readout.
    """
    if not path.is_file():
        raise UsageError(f"there is no readout file '{path}'; fit one with `probe readout`")
    try:
        with safe_open(path, framework="pt") as file:
            text = (file.metadata() or {}).get(KEY)
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        reason = str(error).splitlines()[0]
        raise UsageError(f"'{path}' cannot be read as a readout: {reason}") from error
    if text is None:
        raise UsageError(f"'{path}' is a safetensors file, but no readout of `probe readout`")
    try:
        return _checked(json.loads(text), tensors)
    except (KeyError, TypeError, ValueError) as error:
        raise UsageError(f"'{path}' is a damaged readout ({error}); fit it again") from error


def _to_bytes(readout: Readout) -> bytes:
    fields = {
        "version": VERSION,
        "pool": readout.pool,
        "class_names": list(readout.class_names),
        "meta": dict(readout.meta),
    }
    tensors = {name: getattr(readout, name).contiguous() for name in TENSORS}
    # One key, since safetensors writes several in no fixed order.
    return as_safetensors(tensors, {KEY: json.dumps(fields, sort_keys=True, allow_nan=False)})


def _checked(fields: Any, tensors: Mapping[str, Tensor]) -> Readout:
    if fields["version"] != VERSION:
        raise ValueError(f"format {fields['version']}, and this version of probe reads {VERSION}")
    names, size = tuple(fields["class_names"]), len(tensors["mean"])
    shapes = {"weight": (len(names), size), "bias": (len(names),), "mean": (size,), "std": (size,)}
    for name, shape in shapes.items():
        found = tensors[name]
        if found.dtype != torch.float32 or tuple(found.shape) != shape:
            raise ValueError(f"'{name}' is {found.dtype} {tuple(found.shape)}, not float32 {shape}")
    pool = next((known for known in POOLS if known == fields["pool"]), None)
    if pool is None:
        raise ValueError(f"pool '{fields['pool']}'")
    parts = {name: tensors[name] for name in TENSORS}
    return Readout(**parts, pool=pool, class_names=names, meta=fields["meta"])
