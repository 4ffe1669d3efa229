"""The checked-in lists: one entry per model class of timm, one per model_type of transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from probe.errors import UsageError
from probe.yaml_file import read_yaml

Library = Literal["timm", "transformers"]
LIBRARIES: tuple[Library, ...] = ("timm", "transformers")

_STRICT = ConfigDict(extra="forbid", strict=True, frozen=True)
_Text = Annotated[str, Field(min_length=1)]
_Side = Annotated[int, Field(ge=1)]


class Architecture(BaseModel):
    """How the smallest variant is built.

    `name` is a timm architecture or a transformers class; `options` are arguments of the
    constructor, or fields of the configuration, that cut depth, width and input; `image_size` is
    (height, width) in pixels where they do not imply it. `refused` says in a line why `probe`
    refuses a model that does have a token grid.
    """

    model_config = _STRICT
    name: _Text
    options: dict[str, Any] = {}
    image_size: Annotated[list[_Side], Field(min_length=2, max_length=2)] | None = None
    refused: _Text | None = None


class Listing(BaseModel):
    """One library: its architectures with patch tokens on a grid, and why others are left out."""

    model_config = _STRICT
    schema_: Annotated[int, Field(alias="schema", ge=1, le=1)]
    library: Library
    architectures: dict[str, Architecture]
    excluded: dict[str, _Text] = {}


def read_listing(library: Library) -> Listing:
    """The checked-in list of a library, in the file's order."""
    path = Path(__file__).with_name(f"{library}.yaml")
    listing = read_yaml(path, "list of architectures", UsageError).checked(Listing)
    both = sorted(listing.architectures.keys() & listing.excluded.keys())
    if listing.library != library or both:
        what = f"{both[0]} is listed and excluded" if both else f"it is of {listing.library}"
        raise UsageError(f"{path.name}: {what}; mend the list")
    return listing
