"""YAML files: what is refused, with its line, and what is read as what."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field, Strict, model_validator
from ruamel.yaml import YAML

from probe.errors import UsageError
from probe.yaml_file import YamlFile, plain, read_yaml

STRICT = ConfigDict(extra="forbid", strict=True)


class Inner(BaseModel):
    model_config = STRICT
    rate: float
    kind: Literal["one", "two"] = "one"
    pair: Annotated[tuple[float, float], Strict(False)] = (0.0, 0.0)


class Outer(BaseModel):
    model_config = STRICT
    schema_: Annotated[int, Field(alias="schema")]
    inner: Inner
    maybe: Inner | None = None
    many: list[Inner] = []
    named: dict[str, Inner] = {}
    text: str = ""

    @model_validator(mode="after")
    def _never_three(self) -> Outer:
        if self.schema_ == 3:
            raise ValueError("three is too many")
        return self


class Fault(UsageError):
    """The kind of error that the file is read with."""


def read(tmp_path: Path, content: str | bytes) -> YamlFile:
    path = tmp_path / "file.yaml"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return read_yaml(path, "recipe", Fault)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a: &x 1\nb: 2", ":1: anchors and aliases are not allowed in a recipe"),
        ("a: 1\nb: *x", ":2: anchors and aliases are not allowed in a recipe"),
        ("a: 1\nb: !!str 2", ":2: YAML tags are not allowed; write plain values"),
        ("a: 1\nb: 2\na: 3", ':3: found duplicate key "a" with value "3" (original value: "1")'),
        ("a: 'x\n", ":2: found unexpected end of stream"),
        ("a: 1\nb: \t2", ":2: found character '\\t' that cannot start any token"),
        ("a: 1\nb: \x07", ":2: a control character stands there; remove it"),
        (b"\xff\xfe", " is not UTF-8 text, so it is no recipe file"),
        ("a: 2001-99-99", ": a value cannot be read (month must be in 1..12); put quotes"),
        ("a: 1\n---\nb: 2", ":2: but found another document"),
    ],
)
def test_what_is_no_plain_yaml_is_refused_with_its_line(
    tmp_path: Path, content: str | bytes, message: str
) -> None:
    with pytest.raises(Fault) as caught:
        read(tmp_path, content)
    assert str(caught.value).startswith(f"{tmp_path / 'file.yaml'}{message}")
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(Fault) as caught:
        read_yaml(tmp_path / "no.yaml", "recipe", Fault)
    assert str(caught.value) == (
        f"cannot read the recipe file {tmp_path / 'no.yaml'}: No such file or directory"
    )


GOOD = "schema: 1\ninner:\n  rate: 1\n"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("schema: 1\ninner:\n  rate: 1\n  knd: one\n", ":4: unknown key 'knd'. Did you mean kind?"),
        (
            "schema: 1\ninner:\n  rate: 1\n  zzzz: one\n",
            ":4: unknown key 'zzzz'. Known keys: rate, kind, pair",
        ),
        (GOOD + "maybe:\n  rat: 1\n", ":5: unknown key 'rat'. Did you mean rate?"),
        (GOOD + "many:\n  - rate: 1\n  - rates: 1\n", ":6: unknown key 'rates'. Did you mean rate"),
        (GOOD + "named:\n  x:\n    rate: 1\n    pai: 2\n", ":7: unknown key 'pai'. Did you mean"),
        (GOOD + "shema: 2\n", ":4: unknown key 'shema'. Did you mean schema?"),
        ("schema: 1\ninner:\n  kind: two\n", ":2: 'inner.rate' is missing"),
        ("inner:\n  rate: 1\n", ":1: 'schema' is missing"),
        (GOOD + "  kind: three\n", ":4: 'inner.kind': input should be 'one' or 'two', got 'three'"),
        (GOOD + "  pair: 3\n", ":4: 'inner.pair': input should be a valid list, got 3"),
        (GOOD + "  pair: [1]\n", ":4: 'inner.pair.1' is missing"),
        (GOOD + "text: 5\n", ":4: 'text': input should be a valid string, got 5; put quotes"),
        (GOOD + "text: {a: 1}\n", ":4: 'text': input should be a valid string, got a mapping"),
        ("schema: '1'\ninner: {rate: 1}", ":1: 'schema': input should be a valid integer, got '1'"),
        ("inner: {rate: 1}\nschema: 3\n", ":1: three is too many"),
        ("", ":1: 'the file': input should be a valid dictionary or instance of Outer, got None"),
        # Of two faults the first in the file.
        ("text: 1\nschema: x\ninner: {rate: y}\n", ":1: 'text': input should be a valid string"),
    ],
)
def test_what_does_not_fit_is_named_with_its_line(
    tmp_path: Path, content: str, message: str
) -> None:
    with pytest.raises(Fault) as caught:
        read(tmp_path, content).checked(Outer)
    assert str(caught.value).startswith(f"{tmp_path / 'file.yaml'}{message}")


def test_content_is_checked_into_the_model(tmp_path: Path) -> None:
    found = read(tmp_path, GOOD + "  pair: [1e-1, .5]\ntext: no\nmany: [{rate: 010}]\n").checked(
        Outer
    )
    assert (found.schema_, found.inner.rate, found.inner.pair) == (1, 1.0, (0.1, 0.5))
    # YAML 1.2: `no` is text and 010 is ten.
    assert (found.text, found.many[0].rate) == ("no", 10.0)


def test_lines_of_values_and_of_what_is_not_there(tmp_path: Path) -> None:
    file = read(tmp_path, "a:\n  b: 1\n  c:\n    - 2\n    - 3\n")
    assert [file.line(where) for where in ((), ("a",), ("a", "b"), ("a", "c", 1))] == [1, 1, 2, 5]
    assert [file.line(where) for where in (("a", "x"), ("a", "c", 7), ("a", "b", "y"))] == [1, 3, 2]
    with pytest.raises(Fault, match=r"file\.yaml:5: wrong$"):
        file.fail(("a", "c", 1), "wrong")


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**9), 10**9) | st.floats(-1e9, 1e9),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text("abcdef", min_size=1, max_size=4), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(VALUES)
def test_plain_values_come_back_as_they_were_written(value: object) -> None:
    from io import StringIO

    text = StringIO()
    YAML().dump({"value": value}, text)
    found = plain(YAML().load(text.getvalue()))
    assert found == {"value": value}
    assert repr(found) == repr({"value": value})
