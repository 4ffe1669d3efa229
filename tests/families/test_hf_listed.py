"""The list of transformers' architectures against the library: nothing is left out or twice."""

from __future__ import annotations

import re
from collections import Counter

import transformers as hf
import yaml
from transformers.models.auto import modeling_auto

from tests.families.tiny_hf import LIST, LISTED

EXCLUDED = yaml.safe_load(LIST.read_text(encoding="utf-8"))["excluded"]
MAPPINGS = (
    modeling_auto.MODEL_MAPPING_NAMES,
    modeling_auto.MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES,
    modeling_auto.MODEL_FOR_BACKBONE_MAPPING_NAMES,
)


def test_every_model_type_of_the_library_is_listed_or_excluded_once() -> None:
    known = {model_type for mapping in MAPPINGS for model_type in mapping}
    text = LIST.read_text(encoding="utf-8")
    written = Counter(re.findall(r"^  ([\w.-]+):", text, flags=re.MULTILINE))
    assert set(written) == known
    assert set(written.values()) == {1}
    assert not LISTED.keys() & EXCLUDED.keys()


def test_every_reason_is_a_line_and_every_class_exists() -> None:
    for reason in (*EXCLUDED.values(), *(e["refused"] for e in LISTED.values() if "refused" in e)):
        assert 10 < len(reason) < 130
        assert "\n" not in reason
    for entry in LISTED.values():
        assert hasattr(hf, entry["name"])
        assert entry["options"]
