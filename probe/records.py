"""What a finished pass leaves behind, and its JSON.

A record holds every layer's leave-one-out and null values, so that whatever is derived later
(differences, ratios, means over draws or layers) uses the same replicates and needs no model.
"""

from __future__ import annotations

import base64
import json
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, BeforeValidator, ConfigDict, PlainSerializer

from probe.types import Grid


def _packed(dtype: str) -> tuple[BeforeValidator, PlainSerializer]:
    """Arrays of one little-endian dtype, as base64 in JSON."""

    def decode(value: Any) -> Any:
        if isinstance(value, str):
            return np.frombuffer(base64.b64decode(value, validate=True), dtype=dtype)
        return None if value is None else np.asarray(value, dtype=dtype)

    def encode(value: Any) -> str | None:
        packed = None if value is None else np.ascontiguousarray(value, dtype=dtype).tobytes()
        return None if packed is None else base64.b64encode(packed).decode("ascii")

    return BeforeValidator(decode), PlainSerializer(encode)


Floats = Annotated[NDArray[np.float32], *_packed("<f4")]
Classes = Annotated[NDArray[np.int32] | None, *_packed("<i4")]
Verdicts = Annotated[NDArray[np.int8] | None, *_packed("<i1")]


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, arbitrary_types_allowed=True)


class LayerRecord(_Model):
    """SSDC of one layer under one condition, as `probe.metrics.ssdc.LayerSSDC` explains it.

    `null` is float32, little-endian, base64 in JSON. Undefined numbers are None.
    """

    layer: int
    grid: tuple[int, int]
    value: float | None
    leave_one_out: tuple[float | None, ...]
    null: Floats
    pairs: int
    subset: int | None
    reason: str | None

    @property
    def shape(self) -> Grid:
        """The layer's grid."""
        return Grid(*self.grid)


class PassRecord(_Model):
    """One model, one data set, one condition: its settings, its numbers, where they come from.

    `settings` holds everything that can change a number, and `key` is their hash. `machine` holds
    what cannot (workers, and the batch size where it names no permutation). `predicted` and
    `correct` (1, 0, -1 without a label) hold one entry per image taken, -1 in both for one that was
    left out; None where no predictions were kept. `reason` is set, and there are no numbers, when
    the condition does not apply to the model.
    """

    version: Literal[1] = 1
    key: str
    model: str
    condition: str
    settings: dict[str, Any]
    machine: dict[str, Any]
    images: int
    skipped: tuple[tuple[str, str], ...] = ()
    layers: tuple[LayerRecord, ...] = ()
    predicted: Classes = None
    correct: Verdicts = None
    reason: str | None = None

    def to_json(self) -> str:
        """Canonical JSON, one line, with a final newline."""
        # Not pydantic's own writer: names of files that are not UTF-8 hold lone surrogates.
        return json.dumps(self.model_dump(mode="json"), allow_nan=False) + "\n"

    @classmethod
    def from_json(cls, text: str | bytes) -> PassRecord:
        """Read a record; raises ValueError for anything else."""
        return cls.model_validate(json.loads(text))
