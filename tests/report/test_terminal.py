from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from rich.cells import cell_len
from rich.console import Console

from probe.report.terminal import ssdc_screen

Json = dict[str, Any]
Make = Callable[..., Json]


def screen(envelope: Json, width: int = 120) -> str:
    file = io.StringIO()
    Console(width=width, file=file, force_terminal=False).print(ssdc_screen(envelope))
    return "".join(f"{line.rstrip()}\n" for line in file.getvalue().splitlines())


def joined(text: str) -> str:
    """A screen without its line breaks, so that wrapping hides no sentence."""
    return " ".join(text.split())


def short(value: float) -> str:
    text = f"{value:.3f}"
    return text.replace("0.", ".", 1) if text.lstrip("-").startswith("0.") else text


def cell(scalar: Json) -> str:
    return f"{short(scalar['value'])} [{short(scalar['low'])}, {short(scalar['high'])}]"


def rows(text: str, layer: int) -> str:
    """All table rows of one layer, joined."""
    found = [line for line in text.splitlines() if line.split("  ")[0] == str(layer)]
    assert found, f"no row for layer {layer}"
    return " ".join(found)


def scalars(entry: Json) -> Iterator[Json]:
    yield from (entry["delta_ssdc_rpi"], entry["anchoring"], entry["final"])
    if len(entry["anchoring_by_grid"]) > 1:
        yield from entry["anchoring_by_grid"]


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("name", ["one", "several"])
def test_golden_screens(
    name: str, width: int, request: pytest.FixtureRequest, golden: Callable[[str, str], None]
) -> None:
    text = screen(request.getfixturevalue(name), width)
    assert max(map(cell_len, text.splitlines())) <= width
    golden(f"{name}_{width}.txt", text)


@pytest.mark.parametrize("width", [80, 120])
def test_every_number_of_one_model_is_shown(one: Json, width: int) -> None:
    text = screen(one, width)
    entry = one["results"][0]
    for layer, sd in zip(entry["layers"], entry["rpi_draw_sd"], strict=True):
        row = rows(text, layer["layer"])
        assert f"{layer['grid'][0]}x{layer['grid'][1]}" in row
        for kind in ("clean", "rpi", "ratio"):
            if layer[kind]["value"] is None:
                assert "— (1)" in row
            else:
                assert cell(layer[kind]) in row
                assert short(layer[kind].get("p", layer[kind]["value"])) in row
        assert sd is None or short(sd) in row
    assert cell(entry["delta_ssdc_rpi"]) in text
    assert cell(entry["final"]) in text
    for fact in ("deit_small_patch16_224.fb_in1k", "photos", "9c1b2d3e4f5a", "images 48", "seed 7",
                 "attn_in", "distance l1", "average similarity", "image, 4 draws", "float32 on cpu",
                 "224x224", "preprocessing checkpoint", "revision 0f3a77", "sha256:0123456789ab",
                 "left out 1 unreadable: a/broken.jpg (truncated file)",
                 "note: the head was dropped"):  # fmt: skip
        assert fact in joined(text)


def test_null_bands_are_columns_where_they_fit_and_a_line_where_not(make: Make, wrap: Make) -> None:
    entry = make()
    wide, narrow = (screen(wrap(entry), width) for width in (120, 80))
    for layer in entry["layers"]:
        point = layer["rpi"]
        bounds = f"[{short(point['null_low'])}, {short(point['null_high'])}]"
        assert rows(wide, layer["layer"]).count(bounds) == 2
        assert bounds not in rows(narrow, layer["layer"])
    assert "clean within [-.051, .052], RPI within [-.051, .052]" in joined(narrow)


@pytest.mark.parametrize("width", [80, 120])
def test_every_number_of_several_models_is_shown(several: Json, width: int) -> None:
    text = screen(several, width)
    for entry in several["results"]:
        assert entry["resolved"] in joined(text)
        for scalar in scalars(entry):
            if scalar["value"] is not None:
                assert short(scalar["value"]) in text
            if scalar["low"] is not None:
                assert f"[{short(scalar['low'])}, {short(scalar['high'])}]" in text
        peak = entry["peak"]
        assert peak["value"] is None or f"{short(peak['value'])} at {peak['layer']}" in text


@pytest.mark.parametrize("width", [80, 120])
def test_missing_numbers_show_a_dash_and_their_reason(several: Json, width: int) -> None:
    text = joined(screen(several, width))
    for entry in several["results"]:
        points = [layer[kind] for layer in entry["layers"] for kind in ("clean", "rpi")]
        for scalar in [*scalars(entry), entry["peak"], *points]:
            assert scalar["reason"] is None or f") {scalar['reason']}" in text
    assert "— (1)" in text
    assert re.search(r"\b(nan|inf|None)\b", text) is None


def test_values_inside_their_null_band_carry_a_mark_that_is_explained(one: Json) -> None:
    text = screen(one)
    inside = [
        layer["layer"]
        for layer in one["results"][0]["layers"]
        if layer["rpi"]["value"] is not None
        and layer["rpi"]["null_low"] <= layer["rpi"]["value"] <= layer["rpi"]["null_high"]
    ]
    assert inside == [7, 8]
    marked = [layer for layer in range(12) if "]~" in rows(text, layer)]
    assert marked == inside
    assert "~ inside its own null band" in text


def test_the_mark_is_not_explained_where_nothing_carries_it(make: Make, wrap: Make) -> None:
    assert "~" not in screen(wrap(make(fall=0.0)))


def test_models_with_several_grids_are_marked(several: Json) -> None:
    text = screen(several, 80)
    assert "swin_tiny †" in text
    assert text.count("†") == 2
    assert "† swin_tiny: anchoring mixes grids; on each: 56x56 .222 [.199, .246]" in text
    assert "28x28 .322 [.299, .346]" in text


def test_facts_that_differ_name_their_models(several: Json) -> None:
    text = joined(screen(several))
    assert "data differs: digits (fingerprint 9c1b2d3e4f5a): digits_tiny; photos" in text
    assert "RPI differs: off: plain_vit; image, 1 draw: the other 5" in text


@pytest.mark.parametrize("name", ["one", "several"])
def test_failures_come_last_in_one_line(name: str, request: pytest.FixtureRequest) -> None:
    envelope = request.getfixturevalue(name)
    envelope["failures"] = [{"model": "broken", "error": "weights do not match:\nhead.bias"}]
    assert screen(envelope).splitlines()[-1] == "failed  broken: weights do not match: head.bias"


def test_failures_alone() -> None:
    failures = [{"model": "a", "error": "no such file"}, {"model": "b", "error": "gated"}]
    text = screen({"schema": 1, "results": [], "failures": failures})
    assert text == "failed  a: no such file\nfailed  b: gated\n"


def test_rpi_off_leaves_its_columns_out(make: Make, wrap: Make) -> None:
    text = screen(wrap(make(draws=0)))
    assert "SSDC under RPI  " not in text
    assert "ratio" not in text
    assert "anchoring   — (1)" in text
    assert "(1) RPI is off" in text


def test_sampled_pairs_are_said(make: Make, wrap: Make) -> None:
    text = screen(wrap(make(grids=((96, 96),))))
    assert "grid 96x96: 2,048 of 9,216 tokens ranked (2,096,128 pairs)" in text


@pytest.mark.parametrize("copies", [1, 2])
def test_names_are_text_and_never_markup(copies: int, make: Make, wrap: Make) -> None:
    name = "[red]x[/red] :smile: $a_b$ <b>&"
    text = screen(wrap(*[make(name, "file:/tmp/[bold]y[/bold]") for _ in range(copies)]))
    assert name in text
    assert "file:/tmp/[bold]y[/bold]" in text


def test_control_characters_are_shown_as_escapes(make: Make, wrap: Make) -> None:
    text = screen(wrap(make("a\x1b[31mb\udc80")))
    assert "a\\x1b[31mb\\udc80" in text
    assert "\x1b" not in text


@pytest.mark.parametrize("name", ["one", "several"])
def test_other_encodings_get_ascii(name: str, request: pytest.FixtureRequest) -> None:
    envelope = request.getfixturevalue(name)
    envelope["results"][0]["model"] = "größe"
    file = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    Console(width=80, file=file, force_terminal=False).print(ssdc_screen(envelope))
    file.flush()
    text = file.buffer.getvalue().decode("ascii")  # type: ignore[attr-defined]
    assert "gr\\xf6\\xdfe" in text
    assert "-- (1)" in text
    assert max(map(len, text.splitlines())) <= 80


def test_narrow_consoles_break_cells_and_lose_no_number(one: Json) -> None:
    text = joined(screen(one, 50))
    for layer in one["results"][0]["layers"]:
        assert short(layer["clean"]["value"]) in text
        assert short(layer["clean"]["high"]) + "]" in text


def test_the_same_input_gives_the_same_screen(several: Json) -> None:
    assert screen(several) == screen(several)
