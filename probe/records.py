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

from probe.errors import StoreError
from probe.types import Grid

VERSION: Literal[3] = 3


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
Maps = Annotated[NDArray[np.uint8] | None, *_packed("u1")]
Verdicts = Annotated[NDArray[np.int8] | None, *_packed("<i1")]


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, arbitrary_types_allowed=True)


class MetricRecord(_Model):
    """The mean over images of another package's metric at one layer; see `probe.metrics.added`."""

    value: float | None
    leave_one_out: tuple[float | None, ...]
    reason: str | None


class LayerRecord(_Model):
    """SSDC of one layer under one condition, as `probe.metrics.ssdc.LayerSSDC` explains it.

    `null` is float32, little-endian, base64 in JSON. Undefined numbers are None. `maps` (uint8,
    flat, 3 x rows x cols, base64 in JSON) is kept of clean and RPI passes alone.
    `metrics` are those of other packages, None where none was asked for.
    """

    layer: int
    grid: tuple[int, int]
    value: float | None
    leave_one_out: tuple[float | None, ...]
    null: Floats
    pairs: int
    subset: int | None
    reason: str | None
    maps: Maps = None
    metrics: dict[str, MetricRecord] | None = None

    @property
    def shape(self) -> Grid:
        """The layer's grid."""
        return Grid(*self.grid)


class ModelCard(_Model):
    """What a report needs of one model over one data set, known without loading the model again.

    Attributes:
        key: hash of everything that decides what the card says, hub weights apart.
        model: the name in the zoo, or as it was asked for; `source` holds no folder's name.
        hub: repository of the weights and the revision that was asked for; None for others.
        position: kinds of positional signal, joined by `+`, or `none`.
        grids: the token grid of every layer.
        macs: multiply-adds of one image; None, with `macs_reason`, where they cannot be counted.
        signals: kinds of signal that alpha reaches; `unscaled` says why there is none.
        head: whether the model predicts, by a head of its own or a readout.
        unjudged: why its predictions are not compared with labels, None where they are.
        readout: which readout predicts, None for the model's own head.
        common: everything that can change a pass's numbers but its condition.
        interface: the exact items of the audit; None in cards of version 1.
    """

    version: Literal[1, 2] = 2
    key: str
    model: str
    source: str
    group: str | None
    tags: tuple[str, ...]
    provenance: dict[str, Any]
    hub: tuple[str, str | None] | None
    position: str
    grids: tuple[tuple[int, int], ...]
    params: int
    macs: int | None
    macs_reason: str | None
    signals: tuple[str, ...]
    unscaled: str | None
    head: bool
    unjudged: str | None
    readout: str | None
    common: dict[str, Any]
    interface: dict[str, Any] | None = None

    @property
    def data(self) -> dict[str, Any]:
        """The images: name, kind, fingerprint, total, split, revision, taken."""
        return dict(self.common["data"])

    @property
    def judged(self) -> bool:
        """Whether predictions are compared with labels."""
        return self.unjudged is None

    def to_json(self) -> str:
        """Canonical JSON, with a final newline."""
        return json.dumps(self.model_dump(mode="json"), allow_nan=False) + "\n"

    @classmethod
    def from_json(cls, text: str | bytes) -> ModelCard:
        """Read a card; raises ValueError for anything else."""
        return cls.model_validate(json.loads(text))


class PassRecord(_Model):
    """One model, one data set, one condition: its settings, its numbers, where they come from.

    `settings` holds everything that can change a number, and `key` is their hash. `machine` holds
    what cannot (workers, and the batch size where it names no permutation). `predicted` and
    `correct` (1, 0, -1 without a label) hold one entry per image taken, -1 in both for one that was
    left out; None where no predictions were kept. `reason` is set, and there are no numbers, when
    the condition does not apply to the model. Version 1 had no similarity maps,
    version 2 no metrics of other packages.
    """

    version: Literal[1, 2, 3] = VERSION
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
        """Read a record of this version or an older one.

        Raises:
            StoreError: for a record of a version that is not known here.
            ValueError: for anything else.
        """
        fields = json.loads(text)
        version = fields.get("version") if isinstance(fields, dict) else None
        if isinstance(version, int) and version > VERSION:
            raise StoreError(
                f"a record of {fields.get('model')} has version {version}, and this probe reads up "
                f"to {VERSION}; use the newer probe that wrote it, or another --runs folder"
            )
        return cls.model_validate(fields)
