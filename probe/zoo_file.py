"""The content of a zoo file: checked entries out of YAML, every fault with its line."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from probe.errors import ZooError
from probe.inline import InlineAnatomy
from probe.preprocess_fields import preprocess_fields
from probe.yaml_file import YamlFile, read_yaml

_STRICT = ConfigDict(extra="forbid", strict=True)

Text = Annotated[str, Field(min_length=1)]


def _preprocessing(given: Any) -> Any:
    """A name or a file as it is, fields if they are of the right form."""
    if isinstance(given, dict):
        preprocess_fields(given)
    elif not isinstance(given, str) or not given:
        raise ValueError("must be imagenet, half, a file, or the fields of one")
    return given


Preprocessing = Annotated[Any, AfterValidator(_preprocessing)]


class Provenance(BaseModel):
    """Where a checkpoint comes from. `expected` is its published top-1, 0..1; `source` a URL."""

    model_config = _STRICT
    pretraining: Text | None = None
    teacher: Text | None = None
    licence: Text | None = None
    expected: Annotated[float, Field(ge=0, le=1)] | None = None
    source: Text | None = None


class Entry(BaseModel):
    """One model of a zoo file, as it is written there.

    `weights` is the state-dict file of an `import:` source.
    """

    model_config = _STRICT
    source: Text
    arch: Text | None = None
    weights: Text | None = None
    options: dict[str, Any] = {}
    revision: Text | None = None
    family: Text | None = None
    preprocess: Preprocessing | None = None
    data: Text | None = None
    readout: Text | None = None
    labels: Text | None = None
    anatomy: InlineAnatomy | None = None
    group: Text | None = None
    position: Text | None = None
    tags: list[Text] = []
    provenance: Provenance = Provenance()


class ZooFile(BaseModel):
    """A whole zoo file."""

    model_config = _STRICT
    schema_: Annotated[int, Field(alias="schema", ge=1, le=1)]
    models: dict[str, Entry] = {}
    suites: dict[str, list[Text]] = {}


def read_zoo_file(path: Path) -> tuple[ZooFile, YamlFile]:
    """The checked content of a zoo file, and the source that turns its places into lines.

    Raises:
        ZooError: if it cannot be read, is no plain YAML, or does not fit the schema.
    """
    source = read_yaml(path, "zoo", ZooError)
    return source.checked(ZooFile), source
