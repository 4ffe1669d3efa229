"""A zoo file with one entry, as text."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from probe.types import ModelSpec


def entry_text(spec: ModelSpec, anatomy: Mapping[str, Any]) -> str:
    """YAML that `--zoo` takes: the entry of `spec` with an inline anatomy instead of a family."""
    fields: dict[str, Any] = {"source": spec.source}
    for key in ("arch", "revision", "group", "position"):
        if getattr(spec, key) is not None:
            fields[key] = getattr(spec, key)
    if spec.options:
        fields["options"] = dict(spec.options)
    for key in ("weights", "preprocess", "readout", "labels"):
        given = getattr(spec, key)
        if given is not None:
            fields[key] = _beside(given, spec.folder) if isinstance(given, str) else dict(given)
    if spec.provenance:
        fields["provenance"] = dict(spec.provenance)
    fields["anatomy"] = dict(anatomy)
    yaml = YAML(typ="safe", pure=True)
    yaml.default_flow_style = None
    yaml.sort_base_mapping_type_on_output = False  # type: ignore[assignment]
    yaml.width = 100
    text = io.StringIO()
    yaml.dump({"schema": 1, "models": {entry_name(spec.name): fields}}, text)
    return text.getvalue()


def entry_name(name: str) -> str:
    """A name that a zoo file takes, from one that may be a source or a path."""
    plain = re.sub(r"[^A-Za-z0-9._-]+", "_", name.removeprefix("timm:").removeprefix("hf:"))
    return plain.strip("._-") or "model"


def _beside(file: str, folder: str | None) -> str:
    path = Path(file)
    inside = folder is not None and path.is_relative_to(folder)
    return str(path.relative_to(folder)) if inside and folder is not None else file
