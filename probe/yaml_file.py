"""Checked YAML files: YAML 1.2 in, a pydantic model out, every fault with its line.

Tags, anchors and aliases are refused, and so is a key that is given twice or is unknown.
"""

from __future__ import annotations

import types
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, TypeVar, get_args, get_origin

from pydantic import BaseModel, ValidationError
from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq
from ruamel.yaml.error import MarkedYAMLError
from ruamel.yaml.events import AliasEvent, NodeEvent
from ruamel.yaml.reader import ReaderError

from probe.errors import UsageError, did_you_mean

Checked = TypeVar("Checked", bound=BaseModel)
TAGS, ANCHORS = "YAML tags", "anchors and aliases"


@dataclass(frozen=True)
class YamlFile:
    """A YAML file that has been parsed: where each of its values stands.

    `kind` is what the file is called in messages, `error` what is raised.
    """

    path: Path
    tree: Any
    kind: str
    error: type[UsageError]

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
        """Raise `error` with FILE:LINE of the node at `where` in front."""
        raise self.error(f"{self.path}:{self.line(where)}: {message}")

    def checked(self, model: type[Checked]) -> Checked:
        """The content as a `model`.

        Raises:
            UsageError: `FILE:LINE: what is wrong`, the kind that `error` says.
        """
        try:
            return model.model_validate(plain(self.tree))
        except ValidationError as error:
            where, message = explain(model, error, self.line)
            self.fail(where, message)


def read_yaml(path: Path, kind: str, error: type[UsageError]) -> YamlFile:
    """Parse a YAML file.

    Raises:
        UsageError: of the kind `error`, if it cannot be read or is no plain YAML.
    """
    try:
        text = path.read_text(encoding="utf-8")
        if (found := refused(text)) is not None:
            what, line = found
            remedy = f" in a {kind}" if what == ANCHORS else "; write plain values"
            raise error(f"{path}:{line}: {what} are not allowed{remedy}")
        return YamlFile(path, YAML().load(text), kind, error)
    except OSError as fault:
        raise error(f"cannot read the {kind} file {path}: {fault.strerror}") from fault
    except UnicodeDecodeError as fault:
        raise error(f"{path} is not UTF-8 text, so it is no {kind} file") from fault
    except MarkedYAMLError as fault:
        mark = fault.problem_mark or fault.context_mark
        line = mark.line + 1 if mark else 1
        problem = (fault.problem or fault.context or "invalid YAML").splitlines()[0]
        raise error(f"{path}:{line}: {problem}") from fault
    except ReaderError as fault:
        line = text.count("\n", 0, fault.position) + 1
        raise error(f"{path}:{line}: a control character stands there; remove it") from fault
    except ValueError as fault:
        # A date that does not exist, such as 2001-99-99; ruamel gives no line.
        raise error(f"{path}: a value cannot be read ({fault}); put quotes around it") from fault


def refused(text: str) -> tuple[str, int] | None:
    """What of YAML text is no plain value, `TAGS` or `ANCHORS`, and the line of the first.

    Raises:
        YAMLError: if it is no YAML before that.
    """
    for event in YAML().parse(text):
        line = event.start_mark.line + 1 if event.start_mark else 1
        if isinstance(event, AliasEvent) or getattr(event, "anchor", None) is not None:
            return ANCHORS, line
        if isinstance(event, NodeEvent) and getattr(event, "tag", None) is not None:
            return TAGS, line
    return None


def plain(node: Any) -> Any:
    """The value of a parsed node, without what ruamel keeps of how it was written."""
    if isinstance(node, CommentedMap):
        return {key: plain(value) for key, value in node.items()}
    if isinstance(node, CommentedSeq):
        return [plain(value) for value in node]
    for kind in (bool, int, float, str):
        if isinstance(node, kind):
            return kind(node)
    return node


def explain(
    model: type[BaseModel], error: ValidationError, line: Any = lambda where: 0
) -> tuple[tuple[Any, ...], str]:
    """(where, what is wrong in one line) of the first fault, in order of `line`.

    A missing key comes last: it may stand there under a name that is misspelt.
    """
    found = error.errors(include_url=False)
    first = min(found, key=lambda e: (e["type"] == "missing", line(e["loc"])))
    where, kind, given = first["loc"], first["type"], first["input"]
    dotted = ".".join(str(part) for part in where) or "the file"
    if kind == "extra_forbidden":
        fields = _model_at(model, where[:-1]).model_fields
        known = [info.alias or name for name, info in fields.items()]
        near = did_you_mean(str(where[-1]), known) or f" Known keys: {', '.join(known)}"
        return where, f"unknown key '{where[-1]}'.{near}"
    if kind == "missing":
        return where, f"'{dotted}' is missing"
    if kind == "value_error":
        place = f"'{dotted}': " if where else ""
        return where, place + first["msg"].removeprefix("Value error, ")
    shown = "a mapping" if isinstance(given, dict) else repr(given)
    reason = (first["msg"][:1].lower() + first["msg"][1:]).replace("valid tuple", "valid list")
    number = kind == "string_type" and isinstance(given, int | float)
    quote = "; put quotes around it" if number else ""
    return where, f"'{dotted}': {reason}, got {shown}{quote}"


def _model_at(model: type[BaseModel], where: Iterable[Any]) -> type[BaseModel]:
    """The pydantic model that holds the keys at `where` of a file of `model`."""
    kind: Any = model
    for key in where:
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            fields = {info.alias or name: info for name, info in kind.model_fields.items()}
            kind = fields[key].annotation
            if isinstance(kind, types.UnionType):
                kind = next(part for part in get_args(kind) if part is not type(None))
        elif get_origin(kind) in (dict, list):
            kind = get_args(kind)[-1]
    return kind
