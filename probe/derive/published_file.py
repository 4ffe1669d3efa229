"""The file of published figures that the package ships, checked when it is read."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, model_validator

from probe.corruptions import parse
from probe.errors import UsageError
from probe.yaml_file import read_yaml

_FILE = Path(__file__).resolve().parent.parent / "published.yaml"
_STRICT = ConfigDict(extra="forbid", strict=True)

Text = Annotated[str, Field(min_length=1)]
Ssdc = Annotated[float, Field(ge=-1, le=1)]


def _hold_to_canonical(text: str) -> None:
    try:
        canonical = str(parse(text))
    except UsageError as error:
        raise ValueError(str(error)) from error  # so that pydantic tells its place
    if text != canonical:
        raise ValueError(f"write '{text}' as {canonical}")


class Figure(BaseModel):
    """A published number; `sd` is over training seeds, `again` the authors' second run."""

    model_config = _STRICT
    value: float
    sd: Annotated[float, Field(ge=0)] | None = None
    seeds: Annotated[int, Field(ge=1)] | None = None
    again: float | None = None


class Dose(BaseModel):
    """What was published at one alpha; `fs` by the corruption's canonical text."""

    model_config = _STRICT
    alpha: Annotated[float, Field(ge=0)]
    delta_ssdc_rpi: Figure | None = None
    fs: dict[str, Figure] = {}


class Published(BaseModel):
    """The figures of one model: a checkpoint by its resolved id, or a variant of a recipe."""

    model_config = _STRICT
    resolved: Text | None = None
    variant: Text | None = None
    grid: Annotated[list[int], Field(min_length=2, max_length=2)] | None = None
    clean: list[Ssdc] = []
    rpi: list[Ssdc] = []
    accuracy: Figure | None = None
    fs: dict[str, Figure] = {}
    alphas: list[Dose] = []

    @model_validator(mode="after")
    def _check(self) -> Published:
        if (self.resolved is None) == (self.variant is None):
            raise ValueError("give either 'resolved' or 'variant'")
        if self.clean and self.rpi and len(self.clean) != len(self.rpi):
            raise ValueError("'clean' and 'rpi' must have as many layers")
        if (self.clean or self.rpi) and self.grid is None:
            raise ValueError("curves need the 'grid' that they were measured on")
        for text in (*self.fs, *(text for dose in self.alphas for text in dose.fs)):
            _hold_to_canonical(text)
        return self


class Setting(BaseModel):
    """What SSDC was measured with, in the words of our own settings."""

    model_config = _STRICT
    site: Text
    distance: Text
    average: Text


class Study(BaseModel):
    """One source; `ssdc` and `accuracy` say in words how its numbers were measured."""

    model_config = _STRICT
    source: Text
    recipe: Text | None = None
    setting: Setting
    ssdc: Text
    accuracy: Text
    models: Annotated[list[Published], Field(min_length=1)]

    @model_validator(mode="after")
    def _check(self) -> Study:
        if self.recipe is None and any(model.variant is not None for model in self.models):
            raise ValueError("variants need the 'recipe' that they belong to")
        return self


class PublishedFile(BaseModel):
    """The whole file."""

    model_config = _STRICT
    schema_: Annotated[int, Field(alias="schema", ge=1, le=1)]
    studies: dict[str, Study]


def read_published(path: Path = _FILE) -> PublishedFile:
    """The published figures that the package ships, or those of another such file.

    Raises:
        UsageError: `FILE:LINE: what is wrong`.
    """
    return read_yaml(path, "published figures", UsageError).checked(PublishedFile)
