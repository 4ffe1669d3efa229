"""Preprocessing settings from a YAML 1.2 or JSON file, read strictly."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from probe.data.preprocess import STATISTICS, at_size
from probe.errors import UsageError, did_you_mean
from probe.types import Preprocess
from probe.yaml_file import refused

Pixels = Annotated[int, Field(gt=0, le=16384)]
Size = tuple[Pixels, Pixels]
Finite = Annotated[float, Field(allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class PreprocessFile(BaseModel):
    """The fields of such a file; `size` and `crop` are (height, width)."""

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


def read_preprocess(path: str, image_size: tuple[int, int]) -> Preprocess:
    """The settings in `path`, rescaled to (height, width) with `at_size` where they differ.

    A file has the fields of `Preprocess` without `source`: `resize` is `[short, PIXELS]`,
    `[squash, [HEIGHT, WIDTH]]` or null; `size` may be left out.

    Raises:
        UsageError: if there is no such file, or it is not of this form.
    """
    file = Path(path).expanduser()
    if not file.is_file():
        raise UsageError(
            f"--preprocess '{path}' is neither imagenet, half nor a file."
            f"{did_you_mean(path, STATISTICS)}"
        )
    try:
        # Strict JSON mode takes lists for tuples and whole numbers for floats, and nothing else.
        text = json.dumps(_parse(file))
        fields = PreprocessFile.model_validate_json(text, strict=True)
    except (
        OSError,
        UnicodeDecodeError,
        YAMLError,
        ValidationError,
        ValueError,
        TypeError,
    ) as error:
        raise UsageError(f"preprocessing file '{path}': {_reason(error)}") from error
    end = fields.crop or (fields.resize[1] if fields.resize is not None else None)
    size = fields.size or (end if isinstance(end, tuple) else image_size)
    given = Preprocess(
        size=size,
        resize=fields.resize,
        crop=fields.crop,
        interpolation=fields.interpolation,
        mean=fields.mean,
        std=fields.std,
        source=path,
    )
    return at_size(given, image_size)


def _parse(file: Path) -> Any:
    if file.suffix.lower() == ".json":
        return json.loads(file.read_text("utf-8"), object_pairs_hook=_unique)
    text = file.read_text("utf-8")
    if (strange := refused(text)) is not None:
        raise ValueError(f"line {strange[1]}: {strange[0]} are not allowed; write plain values")
    return YAML(typ="safe", pure=True).load(text)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"field '{twice}' stands there twice")
    return fields


def _reason(error: Exception) -> str:
    """One line on what is wrong with the file."""
    if isinstance(error, ValidationError):
        first = error.errors()[0]
        where = str(first["loc"][0]) if first["loc"] else ""
        if first["type"] == "extra_forbidden":
            return f"unknown field '{where}'.{did_you_mean(where, PreprocessFile.model_fields)}"
        if first["type"] == "missing":
            return f"field '{where}' is missing"
        if where == "resize":
            return "field 'resize' must be [short, PIXELS], [squash, [HEIGHT, WIDTH]] or null"
        text = str(first["msg"]).removeprefix("Value error, ")
        return f"field '{where}': {text}" if where else text
    problem, mark = getattr(error, "problem", None), getattr(error, "problem_mark", None)
    if problem is not None and mark is not None:
        return f"line {mark.line + 1}: {str(problem).splitlines()[0]}"
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
