"""The preprocessing that a file or a zoo entry states, read strictly.

Nothing here imports torch.
"""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from probe.errors import did_you_mean

Pixels = Annotated[int, Field(gt=0, le=16384)]
Size = tuple[Pixels, Pixels]
Finite = Annotated[float, Field(allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class PreprocessFields(BaseModel):
    """What a preprocessing file or a zoo entry states; `size` and `crop` are (height, width)."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    size: Size | None = None
    resize: tuple[Literal["short"], Pixels] | tuple[Literal["squash"], Size] | None
    crop: Size | None
    interpolation: Literal["nearest", "bilinear", "bicubic", "lanczos"]
    mean: tuple[Finite, Finite, Finite]
    std: tuple[Positive, Positive, Positive]

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        """The steps must end at one size, without padding."""
        if self.resize is not None and self.resize[0] == "short":
            if self.crop is None:
                raise ValueError("resize [short, PIXELS] needs a crop")
            if self.resize[1] < min(self.crop):
                raise ValueError("the crop is larger than the resized short side")
        elif self.resize is not None and self.crop is not None:
            height, width = self.resize[1]
            if self.crop[0] > height or self.crop[1] > width:
                raise ValueError("the crop is larger than the squashed image")
        end = self.crop or (self.resize[1] if self.resize is not None else None)
        if self.size is not None and end not in (None, self.size):
            raise ValueError("size differs from what resize and crop give")
        return self


def preprocess_fields(given: Any) -> PreprocessFields:
    """The fields, from plain YAML or JSON values.

    Raises:
        ValueError: in one line, if they are not of this form.
    """
    try:
        # Strict JSON mode takes lists for tuples and whole numbers for floats, and nothing else.
        return PreprocessFields.model_validate_json(json.dumps(given), strict=True)
    except TypeError as error:
        raise ValueError(str(error)) from error
    except ValidationError as error:
        raise ValueError(_reason(error)) from error


def _reason(error: ValidationError) -> str:
    # A missing field may stand there under a name that is misspelt.
    first = min(error.errors(), key=lambda fault: fault["type"] == "missing")
    where = str(first["loc"][0]) if first["loc"] else ""
    if first["type"] == "extra_forbidden":
        return f"unknown field '{where}'.{did_you_mean(where, PreprocessFields.model_fields)}"
    if first["type"] == "missing":
        return f"field '{where}' is missing"
    if where == "resize":
        return "field 'resize' must be [short, PIXELS], [squash, [HEIGHT, WIDTH]] or null"
    text = str(first["msg"]).removeprefix("Value error, ")
    return f"field '{where}': {text}" if where else text
