"""The text of a zoo file: YAML 1.2 in, checked entries out, every fault with its line.

Tags, anchors and aliases are refused, and so is a key that is given twice or is unknown.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NoReturn

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq
from ruamel.yaml.error import MarkedYAMLError
from ruamel.yaml.events import AliasEvent, NodeEvent

from probe.errors import ZooError, did_you_mean

_STRICT = ConfigDict(extra="forbid", strict=True)

Text = Annotated[str, Field(min_length=1)]


class Provenance(BaseModel):
    """Where a checkpoint comes from. `expected` is its published top-1, 0..1; `source` a URL."""

    model_config = _STRICT
    pretraining: Text | None = None
    teacher: Text | None = None
    licence: Text | None = None
    expected: Annotated[float, Field(ge=0, le=1)] | None = None
    source: Text | None = None


class Entry(BaseModel):
    """One model of a zoo file, as it is written there."""

    model_config = _STRICT
    source: Text
    arch: Text | None = None
    options: dict[str, Any] = {}
    revision: Text | None = None
    family: Text | None = None
    preprocess: Text | None = None
    data: Text | None = None
    readout: Text | None = None
    labels: Text | None = None
    anatomy: dict[str, Any] | None = None
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


@dataclass(frozen=True)
class Source:
    """A zoo file that has been parsed: where each of its values stands."""

    path: Path
    tree: Any

    def line(self, where: Iterable[Any]) -> int:
        """The line of the deepest node of the path `where` that exists, counted from 1."""
        line, node = 0, self.tree
        for key in where:
            if isinstance(node, CommentedMap) and key in node:
                line = node.lc.key(key)[0]
            elif isinstance(node, CommentedSeq) and isinstance(key, int) and key < len(node):
                line = node.lc.item(key)[0]
            else:
                break
            node = node[key]
        return line + 1

    def fail(self, where: Iterable[Any], message: str) -> NoReturn:
        """Raise a ZooError that starts with FILE:LINE of the node at `where`."""
        raise ZooError(f"{self.path}:{self.line(where)}: {message}")


def read_zoo_file(path: Path) -> tuple[ZooFile, Source]:
    """The checked content of a zoo file, and the source that turns its places into lines.

    Raises:
        ZooError: if it cannot be read, is no plain YAML, or does not fit the schema.
    """
    source = Source(path, _parse(path))
    try:
        return ZooFile.model_validate(_plain(source.tree)), source
    except ValidationError as error:
        _explain(source, error)


def _parse(path: Path) -> Any:
    try:
        text = path.read_text(encoding="utf-8")
        for event in YAML().parse(text):
            line = event.start_mark.line + 1 if event.start_mark else 1
            if isinstance(event, AliasEvent) or getattr(event, "anchor", None) is not None:
                raise ZooError(f"{path}:{line}: anchors and aliases are not allowed in a zoo")
            if isinstance(event, NodeEvent) and getattr(event, "tag", None) is not None:
                raise ZooError(f"{path}:{line}: YAML tags are not allowed; write plain values")
        return YAML().load(text)
    except OSError as error:
        raise ZooError(f"cannot read the zoo file {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ZooError(f"{path} is not UTF-8 text, so it is no zoo file") from error
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else 1
        problem = (error.problem or error.context or "invalid YAML").splitlines()[0]
        raise ZooError(f"{path}:{line}: {problem}") from error


def _plain(node: Any) -> Any:
    if isinstance(node, CommentedMap):
        return {key: _plain(value) for key, value in node.items()}
    if isinstance(node, CommentedSeq):
        return [_plain(value) for value in node]
    # ruamel keeps how a number was written in subclasses; the value alone matters here.
    for kind in (bool, int, float, str):
        if isinstance(node, kind):
            return kind(node)
    return node


def _explain(source: Source, error: ValidationError) -> NoReturn:
    first = min(error.errors(include_url=False), key=lambda e: source.line(e["loc"]))
    where, kind, given = first["loc"], first["type"], first["input"]
    dotted = ".".join(str(part) for part in where) or "the file"
    if kind == "extra_forbidden":
        models: dict[int, type[BaseModel]] = {1: ZooFile, 3: Entry, 4: Provenance}
        known = [info.alias or name for name, info in models[len(where)].model_fields.items()]
        near = did_you_mean(str(where[-1]), known) or f" Known keys: {', '.join(known)}"
        source.fail(where, f"unknown key '{where[-1]}'.{near}")
    if kind == "missing":
        source.fail(where, f"'{dotted}' is missing")
    shown = "a mapping" if isinstance(given, dict) else repr(given)
    reason = first["msg"][:1].lower() + first["msg"][1:]
    number = kind == "string_type" and isinstance(given, int | float)
    quote = "; put quotes around it" if number else ""
    source.fail(where, f"'{dotted}': {reason}, got {shown}{quote}")
