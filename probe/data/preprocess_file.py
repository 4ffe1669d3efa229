"""Preprocessing settings from a YAML 1.2 or JSON file, read strictly."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from probe.data.preprocess import STATISTICS, at_size
from probe.errors import UsageError, did_you_mean
from probe.preprocess_fields import PreprocessFields, preprocess_fields
from probe.types import Preprocess
from probe.yaml_file import refused


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
        fields = preprocess_fields(_parse(file))
    except (OSError, UnicodeDecodeError, YAMLError, ValueError) as error:
        raise UsageError(f"preprocessing file '{path}': {_reason(error)}") from error
    return stated_preprocess(fields, image_size, path)


def stated_preprocess(
    fields: PreprocessFields, image_size: tuple[int, int], source: str
) -> Preprocess:
    """The settings as stated, rescaled to (height, width) with `at_size` where they differ."""
    end = fields.crop or (fields.resize[1] if fields.resize is not None else None)
    size = fields.size or (end if isinstance(end, tuple) else image_size)
    given = Preprocess(
        size=size,
        resize=fields.resize,
        crop=fields.crop,
        interpolation=fields.interpolation,
        mean=fields.mean,
        std=fields.std,
        source=source,
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
    problem, mark = getattr(error, "problem", None), getattr(error, "problem_mark", None)
    if problem is not None and mark is not None:
        return f"line {mark.line + 1}: {str(problem).splitlines()[0]}"
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
