from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probe.report.format import (
    Footnotes,
    identity_text,
    in_null_band,
    labels_text,
    number,
    p_text,
    pack,
    plain,
    rpi_text,
    shared_facts,
)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.6119, ".612"), (-0.041, "-.041"), (1.0772, "1.077"), (-1.0, "-1.000"), (0.0, ".000"),
        (-0.0002, ".000"), (10.5, "10.500"), (0.9999, "1.000"), (-10.04, "-10.040"),
    ],
)  # fmt: skip
def test_number(value: float, text: str) -> None:
    assert number(value) == text


@given(st.floats(-50, 50))
def test_number_reads_back(value: float) -> None:
    assert float(number(value)) == pytest.approx(value, abs=0.00051)


@pytest.mark.parametrize(("p", "text"), [(0.001, ".001"), (0.0004, "<.001"), (1.0, "1.000")])
def test_p_text(p: float, text: str) -> None:
    assert p_text(p) == text


def test_plain_escapes_what_no_output_can_hold() -> None:
    assert plain("größe 模型 [x] $y$") == "größe 模型 [x] $y$"
    assert plain("a\x1b[0m\n\x00\udc80\u202e") == "a\\x1b[0m\\n\\x00\\udc80\\u202e"


@given(st.text(st.characters()))
def test_plain_text_can_be_written_anywhere(text: str) -> None:
    assert plain(text).isprintable()
    plain(text).encode("utf-8")


def test_footnotes_number_each_reason_once() -> None:
    notes = Footnotes()
    missing = {"value": None, "low": None, "high": None, "reason": "constant"}
    assert notes.with_interval(missing) == "— (1)"
    open_ended = {"value": 0.5, "low": None, "high": None, "reason": "one image"}
    assert notes.with_interval(open_ended) == ".500 (2)"
    assert notes.with_interval(missing) == "— (1)"
    whole = {"value": 0.5, "low": 0.4, "high": 0.6, "reason": None}
    assert notes.with_interval(whole) == ".500 [.400, .600]"
    assert notes.with_interval(whole, "\n") == ".500\n[.400, .600]"
    assert notes.lines() == ["(1) constant", "(2) one image"]


@pytest.mark.parametrize(
    ("value", "inside"), [(0.0, True), (0.04, True), (-0.05, False), (0.0401, False), (None, False)]
)
def test_in_null_band(value: float | None, inside: bool) -> None:
    assert in_null_band({"value": value, "null_low": -0.04, "null_high": 0.04}) is inside


@pytest.mark.parametrize(
    ("conditions", "text"),
    [
        ([], "off"),
        (["rpi(mode=image,seed=0,draw=0)"], "image, 1 draw"),
        ([f"rpi(mode=shared,seed=3,draw={i})" for i in range(8)], "shared, 8 draws"),
        (["rpi(mode=batch,seed=0,draw=0)+alpha=0.5"], "batch+alpha=0.5, 1 draw"),
        (
            [f"rpi(mode=image,seed=0,draw={d})+alpha={a}" for d in (0, 1) for a in (1, 0.5, 0)],
            "image, 2 draws",
        ),
    ],
)
def test_rpi_text(conditions: list[str], text: str) -> None:
    assert rpi_text(conditions) == text


def test_random_weights_are_said(make: Callable[..., dict[str, Any]]) -> None:
    entry = make(resolved="timm:x")
    assert identity_text(entry) == "timm:x"
    entry["settings"]["weights"] = "random:3"
    assert identity_text(entry) == "timm:x (random:3 weights)"


def test_shared_facts_split_what_differs(make: Callable[..., dict[str, Any]]) -> None:
    first, second, third = make("a"), make("b"), make("c")
    second["settings"]["seed"] = 8
    shared, differing = shared_facts([first, second, third])
    assert "site attn_in" in shared
    assert differing == ["seed differs: 8: b; 7: the other 2"]
    assert shared_facts([first, third])[1] == []


def test_pack_never_breaks_a_part() -> None:
    assert pack(["aa", "bb", "cccccc", "d"], " ", lambda line: len(line) <= 5) == [
        "aa bb",
        "cccccc",
        "d",
    ]


def test_labels_text() -> None:
    labels = {"kind": "file", "map": {"a": 3, "b": 3}, "note": "from\nreal.json", "by_name": None}
    assert labels_text({"labels": None}) == "none"
    assert labels_text({"labels": labels}) == "file, 1 class mapped; from real.json"
    hashed = labels | {"map": {}, "by_name": "0123456789abcdef"}
    assert labels_text({"labels": hashed}) == (
        "file, by image name (sha256 0123456789ab); from real.json"
    )
