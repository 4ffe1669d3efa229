"""Any content of a zoo file that can be written is read as what was written."""

from __future__ import annotations

import json
import tempfile
from io import StringIO
from pathlib import Path
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st
from ruamel.yaml import YAML

from probe.zoo_file import read_zoo_file

# What looks like another type, a tag, an anchor or a comment must come back as the text it is.
AWKWARD = [
    "1", "1.5", "1e3", "true", "no", "null", "~", "0x1f", "2001-01-01", "!tag", "&a", "*a", "#x",
    "a: b", "a #b", "- a", "[", "{", "'", '"', "|", ">", "%", "@", "`", "?", "é", "日本", "a\nb",
    "\t", " a", "a ", "=", "<<", "0o17", "1_000", ".inf", ".nan", "12:30",
]  # fmt: skip
TEXTS = st.sampled_from(AWKWARD) | st.text(
    st.characters(codec="utf-8", exclude_categories=("Cc", "Cs", "Cn", "Co")), min_size=1,
    max_size=12,
)  # fmt: skip
OPTIONS = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**9), 10**9) | st.floats(-1e9, 1e9) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)
ENTRIES = st.fixed_dictionaries(
    {"source": TEXTS},
    optional={
        **dict.fromkeys(("revision", "group", "position", "data"), TEXTS),
        "options": st.dictionaries(TEXTS, OPTIONS, max_size=3),
        "tags": st.lists(TEXTS, max_size=3),
        "provenance": st.fixed_dictionaries(
            {}, optional={"pretraining": TEXTS, "expected": st.floats(0, 1)}
        ),
    },
)


def read(models: dict[str, Any], text: str) -> None:
    """The file's entries have the values in `models`, of the same types."""
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "zoo.yaml"
        path.write_text(text, encoding="utf-8")
        found, _ = read_zoo_file(path)
    again = {name: entry.model_dump(exclude_unset=True) for name, entry in found.models.items()}
    assert json.dumps(again, sort_keys=True) == json.dumps(models, sort_keys=True)


@settings(max_examples=50)
@given(st.dictionaries(TEXTS, ENTRIES, min_size=1, max_size=3))
@example({"a": {"source": "hf:o/x", "options": {t: t for t in AWKWARD}, "tags": AWKWARD}})
def test_a_zoo_comes_back_as_it_was_written(models: dict[str, Any]) -> None:
    text = StringIO()
    yaml = YAML()
    yaml.allow_unicode = True
    yaml.dump({"schema": 1, "models": models}, text)
    read(models, text.getvalue())


@settings(max_examples=50)
@given(st.dictionaries(TEXTS, ENTRIES, min_size=1, max_size=3))
def test_json_is_a_zoo_file_too(models: dict[str, Any]) -> None:
    read(models, json.dumps({"schema": 1, "models": models}, ensure_ascii=False))
