from __future__ import annotations

import copy
import io
import re
from collections.abc import Callable
from typing import Any

import pytest
from rich.cells import cell_len
from rich.console import Console

from probe.report.audit import audit_screen, card_groups
from probe.report.audit_numbers import (
    by_block,
    common_part,
    large,
    lined_up,
    memory,
    ranges,
    share,
    written,
)
from probe.report.format import Footnotes
from tests.report.audit_cards import (
    ANEW,
    BROKEN,
    ENVELOPES,
    FULL,
    HOSTILE,
    LEVELS,
    OVERLAP,
    UNREAD,
    card,
    odd,
    rotary,
    swin,
    wrap,
)

Json = dict[str, Any]
HEADING = re.compile(r"^(\S.*) \[([a-z ]+)\]$")


def screen(envelope: Json, width: int = 120) -> str:
    file = io.StringIO()
    Console(width=width, file=file, force_terminal=False).print(audit_screen(envelope))
    return "".join(f"{line.rstrip()}\n" for line in file.getvalue().splitlines())


def joined(text: str) -> str:
    return " ".join(text.split())


def sections(text: str) -> dict[str, tuple[str, str]]:
    """Title -> level and the joined lines up to the next empty line before a heading."""
    found: dict[str, tuple[str, str]] = {}
    title = None
    for line in text.splitlines():
        match = HEADING.match(line)
        if match:
            title = match[1]
            found[title] = (match[2], "")
        elif title is not None:
            level, so_far = found[title]
            found[title] = (level, f"{so_far} {line}")
    return {title: (level, joined(body)) for title, (level, body) in found.items()}


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("name", ENVELOPES)
def test_golden_screens(name: str, width: int, golden: Callable[[str, str], None]) -> None:
    text = screen(ENVELOPES[name], width)
    assert max(map(cell_len, text.splitlines())) <= width
    assert re.search(r"\b(nan|inf|None)\b", text) is None
    golden(f"audit_{name}_{width}.txt", text)


@pytest.mark.parametrize("make", [lambda: card("deit_small"), swin, rotary, odd])
def test_every_group_names_a_level_and_what_it_assumes(make: Callable[[], Json]) -> None:
    made = make()
    groups = list(card_groups(made, Footnotes()))
    assert {group.level for group in groups} <= set(LEVELS)
    text = joined(screen(wrap(made, three=False), 200))
    for group in groups:
        assert group.assumes, group.title
        head = f"{group.title} [{group.level}] assumes: {joined(group.assumes[0])}"
        assert text.count(head) == 1
    for item, entry in made["evidence"].items():
        if item == "hardware" and made["hardware"] is None:
            continue
        key = {"variance": "patch", "perturbation": "attention"}.get(item, item)
        if made[key] is not None and (item != "variance" or made["patch"]["variance"]):
            assert any((g.level, list(g.assumes)) == (entry["level"], [entry["assumes"]])
                       for g in groups), item  # fmt: skip


def test_budget_and_hardware_stand_apart() -> None:
    found = sections(screen(ENVELOPES["vit"]))
    level, budget = found["Budget"]
    assert level == "analytic"
    for fact in ("22.05 M (22,050,664)", "196 and 1 prefix token", "4.60 GMACs", "117.7 MiB",
                 "counted: one multiply-add counts once"):  # fmt: skip
        assert fact in budget
    level, hardware = found["Hardware"]
    assert level == "measured on this hardware"
    assert "images per second 45.678" in hardware
    assert "1.15 GiB resident, of the whole process so far" in hardware
    assert "cpu, float32, batch 32, 2 threads, median of 5 passes, torch 2.14.1" in hardware
    assert "second" not in budget
    assert "MACs" not in hardware
    level, exposure = found["Training exposure"]
    assert level == "stated by others"
    assert "pretraining ImageNet-1k, supervised teacher none licence apache-2.0" in exposure


def test_the_interface_of_a_vit() -> None:
    found = sections(screen(ENVELOPES["vit"]))
    level, text = found["Patch interface"]
    assert level == "exact algebra"
    for fact in ("16x16 px, 3 channels, disjoint", "768 into a token of width d = 384",
                 "rank 384; singular values above .001 count",
                 "384 = D - rank, at least max(0, D - d) = 384",
                 "differ by up to 87.250 of 255 levels, and their tokens by 3.2e-7"):  # fmt: skip
        assert fact in text
    level, text = found["Variance in lost directions"]
    assert level == "measured on images"
    assert "lost .021 of the variance of 3,136 patches" in text
    assert "lost or nearly .035" in text


def test_full_rank_has_no_collision_and_says_so() -> None:
    _, text = sections(screen(ENVELOPES["swin"]))["Patch interface"]
    assert f"collision {FULL}" in text
    assert "nullity 0 = D - rank" in text


def test_an_overlapping_stem_gets_its_own_map() -> None:
    _, text = sections(screen(ENVELOPES["odd"]))["Patch interface"]
    assert "7x7 px, 3 channels, overlapping, every 4x4 px" in text
    assert "2x2 tokens rank 256 of the 363 coordinates under them, in 256 numbers" in text
    assert f"per patch {OVERLAP}" in text
    assert "collision" not in text


@pytest.mark.parametrize("width", [80, 120])
def test_what_is_left_out_is_listed_with_its_reason(width: int) -> None:
    text = joined(screen(ENVELOPES["odd"], width))
    _, _, left = text.partition("Left out ")
    assert left.startswith(
        "symmetry a block takes no tokens attention "
        f"{UNREAD} positions the table is not where the family says translation patches are not"
    )
    assert "multiply-adds — (1)" in text
    assert "(1) not counted: no kernel" in text
    for title in ("Permutation symmetry", "Connectivity", "Position contract", "Shifts"):
        assert title not in text


def test_defects_below_rounding_are_zero_and_say_what_rounding_is() -> None:
    level, text = sections(screen(ENVELOPES["vit"]))["Permutation symmetry"]
    assert level == "exact algebra"
    assert "without position at most 0 (below rounding 9.2e-5)" in text  # 64 eps * 12 blocks
    assert "joint at most 0 (below rounding 9.2e-5)" in text
    assert "with position at most .982" in text
    assert " 11 0 .982 0 " in f" {text} "
    assert "0: below rounding, 7.6e-6 for each block so far" in text


@pytest.mark.parametrize("key", ["defect_without_position", "defect_joint"])
@pytest.mark.parametrize("value", [4e-05, 0.25])
def test_a_defect_above_rounding_is_a_number(key: str, value: float) -> None:
    made = card("vit")
    made["symmetry"][2][key] = value  # rounding there is 2.3e-5
    _, text = sections(screen(wrap(made)))["Permutation symmetry"]
    label = "joint" if key == "defect_joint" else "without position"
    assert f"{label} at most {written(value)}" in text
    row = f"2 {written(value)} .532 0" if key != "defect_joint" else f"2 0 .532 {written(value)}"
    assert row in text


def test_windows_keep_place_and_blocks_stand_by_themselves() -> None:
    _, text = sections(screen(ENVELOPES["swin"]))["Permutation symmetry"]
    assert "what keeps place without position: window partition (blocks 0-9)" in text
    assert "every block by itself" in text
    assert "inside windows at most 0 (below rounding 7.6e-6)" in text
    assert "without position at most .876" in text


def test_a_rotation_that_cannot_be_carried_has_its_reason() -> None:
    text = joined(screen(ENVELOPES["rotary"]))
    assert "joint at most — (1)" in text
    assert f"(1) {ANEW}" in text


def test_pairs_of_every_stage_are_shown_and_alike_blocks_share_a_row() -> None:
    text = screen(ENVELOPES["swin"])
    rows = [line.split() for line in text.splitlines() if re.match(r"(56|28|14|7)x", line)]
    wanted = [
        ["56x56", "0", "window", "7x7", "0x0", "153,664", "153,664", "equal"],
        ["56x56", "1", "shifted", "7x7", "3x3", "153,664", "135,424", "equal"],
        ["28x28", "2", "window", "7x7", "0x0", "38,416", "38,416", "equal"],
        ["28x28", "3", "shifted", "7x7", "3x3", "38,416", "29,584", "equal"],
        ["14x14", "4,", "6,", "8", "window", "7x7", "0x0", "9,604", "9,604", "equal"],
        ["14x14", "5,", "7,", "9", "shifted", "7x7", "3x3", "9,604", "5,476", "equal"],
        ["7x7", "10-11", "window", "7x7", "0x0", "2,401", "2,401", "equal"],
    ]
    assert rows == wanted
    assert "wrapped, prefix, padding: 0 in every block" in joined(text)
    assert "all reached after 11 blocks every token depends on every patch" in joined(text)
    assert "share by block 0: .016, 1: .043" in joined(text)
    assert "10-11: 1.000" in joined(text)


def test_prefix_and_padding_are_counted_apart() -> None:
    made = card("vit")
    made["attention"]["stages"][0]["blocks"][3]["padding"] = 55
    text = screen(wrap(made))
    (row,) = [line.split() for line in text.splitlines() if line.startswith("14x14  3 ")]
    assert row == ["14x14", "3", "global", "38,416", "38,416", "393", "55", "equal"]
    assert "prefix: allowed with a prefix token, apart from the pairs" in joined(text)


def test_a_count_that_contradicts_the_formula_is_told() -> None:
    made = card("vit")
    made["attention"]["stages"][0]["blocks"][3] |= {"allowed": 38415, "as_expected": False}
    text = joined(screen(wrap(made)))
    assert "38,416/38,416" in text
    assert "counts and formula differ in blocks 3" in text
    assert "differ in blocks" not in screen(ENVELOPES["vit"])
    compared = joined(screen(wrap(made, card("other"))))
    assert "differs" in compared


def test_reach_that_falls_short_and_a_token_that_should_not_have_moved() -> None:
    made = card("vit")
    made["attention"] |= {"blocks_until_all_reached": None, "share_reached": [0.5] * 11 + [0.9999]}
    made["attention"]["perturbation"][1] |= {"beyond": 4, "moved": [196] * 11 + [200]}
    text = joined(screen(wrap(made)))
    assert "all reached never; after the last block >.999 of all pairs" in text
    assert "token (7, 7) 0-11: 196 of 196" in text
    assert "token (0, 0) 0-10: 196 of 196, 11: 200 of 196" in text
    assert "moved beyond reach 4, against the masks" in text
    assert "moved beyond reach 0, as the masks say" in joined(screen(ENVELOPES["vit"]))


def test_position_contracts() -> None:
    found = sections(screen(ENVELOPES["vit"]))
    level, text = found["Position contract: absolute"]
    assert level == "exact algebra"
    assert "pos_embed 1x197x384 14x14 1 1.219 .654" in text
    assert "to another size bicubic, antialiased (timm resample_abs_pos_embed)" in text
    level, text = found["Positional table against patch tokens"]
    assert level == "measured on images"
    assert "mean L2 norm 9.877 on 16 images" in text
    assert "pos_embed row norm / token norm .123" in text


@pytest.mark.parametrize("width", [80, 120])
def test_biases_of_many_blocks_show_what_differs_in_their_names(width: int) -> None:
    text = screen(ENVELOPES["swin"], width)
    _, body = sections(text)["Position contract: relative bias"]
    assert "signals: layers.*.attn.relative_position_bias_table" in body
    assert "all: shape 169x3, made for 7x7, prefix rows 0" in body
    rows = [line for line in text.splitlines() if line.startswith("2.blocks.5")]
    numbers = [".712", "-4.500", "2.250", ".480"]
    assert [n for row in rows for n in row.split() if n in numbers] == numbers
    assert "Positional table against" not in text  # a bias is no table


def test_rotations_say_where_they_wrap() -> None:
    _, text = sections(screen(ENVELOPES["rotary"]))["Position contract: rotary"]
    assert "32 pairs, 2 of them inert, axial, shared by all blocks and heads" in text
    assert "radians per patch .018 to 1.000" in text
    assert "after 6.283 patches (fastest) to 353.000 (slowest); inside the grid" in text


def test_no_positional_signal_is_a_fact() -> None:
    text = joined(screen(wrap(card("vit", positions=[]))))
    assert "Position contract [exact algebra]" in text
    assert "signal none: the family declares no positional signal" in text


@pytest.mark.parametrize("width", [80, 120])
def test_shifts(width: int) -> None:
    found = sections(screen(ENVELOPES["vit"], width))
    level, text = found["Whole-patch shifts at the patch projection"]
    assert level == "exact algebra"
    assert "equal up to rounding: largest change 2.1e-7, tolerance 3.8e-6" in text
    level, text = found["Shifts of the view"]
    assert level == "measured on images"
    assert "8 no .470 [.459, .481]" in text
    assert ".282 [.251, .313]" in text
    assert ".250 [.200, .300]" in text
    made = card("vit")
    made["translation"]["exact"] |= {"holds": False, "largest": 0.02}
    assert "NOT equal: largest change .020" in joined(screen(wrap(made)))


@pytest.mark.parametrize("width", [80, 120])
def test_another_image_size(width: int) -> None:
    found = sections(screen(ENVELOPES["rotary"], width))
    level, text = found["Another image size: positions"]
    assert level == "exact algebra"
    assert "own size 224x224 px, grid 14x14 audited size 160x272 px, grid 10x17" in text
    assert "rope rotary same angles 16 16" in text
    level, text = found["Another image size: SSDC and accuracy"]
    assert level == "measured on images"
    assert "accuracy 224x224 .750 [.660, .840], 160x272 .770 [.680, .860], difference -.062" in text
    assert "exact McNemar p .688" in text
    for number in (".510 [.490, .530]", ".530 [.510, .550]", ".022 [.002, .042]", "-.033 [-.053"):
        assert number in text
    assert "undefined at one size" in joined(screen(ENVELOPES["rotary"], width))


@pytest.mark.parametrize("width", [80, 120])
def test_several_models_get_a_card_each_and_a_comparison(width: int) -> None:
    text = screen(ENVELOPES["several"], width)
    cards, compared = text.split("4 models compared", 1)
    assert cards.count("Patch interface [exact algebra]") == 4
    assert cards.count("Budget [analytic]") == 4
    assert cards.count("Hardware [measured on this hardware]") == 1
    for title in ("Patch interface", "Permutation symmetry", "Connectivity", "Position contract"):
        assert compared.count(f"{title} [exact algebra]") == 1
    assert compared.count("Variance in lost directions [measured on images]") == 1
    assert compared.count("Budget [analytic]") == 1
    assert compared.count("Training exposure [stated by others]") == 1
    assert compared.count("Hardware [measured on this hardware]") == 1
    flat = joined(compared)
    assert f") {UNREAD}" in flat
    assert f") {FULL}" in flat
    assert "image size differs: 160x272: rope_small; 224x224: the other 3" in flat
    assert "deit_small 8, 16 .282 [.251, .313]" in flat
    assert "swin_tiny 2, 4 .210 [.179, .241]" in flat


def test_pairs_are_summed_over_blocks() -> None:
    swin_pairs = 2 * 153664 + 2 * 38416 + 6 * 9604 + 2 * 2401
    swin_allowed = (153664 + 135424) + (38416 + 29584) + 3 * (9604 + 5476) + 2 * 2401
    text = screen(ENVELOPES["several"], 160)
    compared = text.split("4 models compared", 1)[1]
    assert f"{swin_pairs:,}" in compared
    assert f"{swin_allowed:,}" in compared
    assert f"{12 * 38416:,}" in compared


def test_three_tokens_come_once_with_their_level() -> None:
    for name, times in (("vit", 1), ("several", 1), ("swin", 0)):
        text = joined(screen(ENVELOPES[name]))
        assert text.count("Three tokens, all 6 permutations [exact algebra]") == times
    found = sections(screen(ENVELOPES["vit"]))["Three tokens, all 6 permutations"][1]
    assert "without position 0 (below rounding 1.4e-14)" in found
    assert "with a table 1.23" in found
    assert "with a bias .988 joint 0 (below" in found


def test_failures_come_last_and_stand_alone() -> None:
    assert screen(ENVELOPES["several"]).splitlines()[-1] == (
        "failed  broken: weights do not match: head.bias"
    )
    assert screen(wrap(failures=[BROKEN])) == "failed  broken: weights do not match: head.bias\n"


@pytest.mark.parametrize("name", ["odd", "several"])
def test_names_are_text_and_control_characters_escapes(name: str) -> None:
    text = screen(ENVELOPES[name], 160)
    assert "[red]x[/red] :smile: $a_b$ <b>&\\x1b\\udc80" in text
    assert "file:/models/[bold]odd[/bold].safetensors" in text
    assert "\x1b" not in text
    assert HOSTILE not in text


@pytest.mark.parametrize("name", ENVELOPES)
def test_other_encodings_get_ascii(name: str) -> None:
    file = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    Console(width=80, file=file, force_terminal=False).print(audit_screen(ENVELOPES[name]))
    file.flush()
    text = file.buffer.getvalue().decode("ascii")  # type: ignore[attr-defined]
    assert max(map(len, text.splitlines())) <= 80
    assert "Patch interface [exact algebra]" in text


def test_the_screen_changes_nothing() -> None:
    envelope = copy.deepcopy(ENVELOPES["several"])
    screen(envelope)
    assert envelope == ENVELOPES["several"]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (0.6123, ".612"),
        (-0.041, "-.041"),
        (0.0005, ".001"),
        (0.000499, "5e-4"),
        (7.63e-06, "7.6e-6"),
        (2e-05, "2e-5"),
        (-3.21e-07, "-3.2e-7"),
        (999.5, "999.500"),
        (12345.6, "12,346"),
        (1.25e6, "1.2e6"),
    ],
)
def test_numbers_are_short_and_never_rounded_to_zero(value: float, text: str) -> None:
    assert written(value) == text


def test_shares_are_never_rounded_to_none_or_all() -> None:
    assert [share(v) for v in (0, 1e-4, 0.5, 0.9996, 1)] == [
        ".000", "<.001", ".500", ">.999", "1.000"
    ]  # fmt: skip


def test_sizes() -> None:
    assert large(4_603_183_104, "MACs") == "4.60 GMACs"
    assert large(1_234_567, "MACs") == "1.23 MMACs"
    assert large(999, "MACs") == "999 MACs"
    assert memory(123_456_789) == "117.7 MiB"
    assert memory(2**31) == "2.00 GiB"


@pytest.mark.parametrize(
    ("numbers", "text"),
    [
        ([0], "0"),
        ([0, 1, 2, 7], "0-2, 7"),
        ([4, 6, 8], "4, 6, 8"),
        ([4, 6, 8, 10], "4-10 even"),
        ([5, 7, 9, 11], "5-11 odd"),
        ([1, 3, 4, 6], "1, 3-4, 6"),
    ],
)
def test_ranges(numbers: list[int], text: str) -> None:
    assert ranges(numbers) == text


def test_runs_of_equal_texts_are_joined() -> None:
    assert by_block([".1", ".2", ".2", ".1"]) == "0: .1, 1-2: .2, 3: .1"


def test_decimal_points_line_up() -> None:
    cells = lined_up(["0", ".412", "-1.250", "7.6e-6", "— (1)", "1,234"])
    assert cells == ["    0", "     .412", "   -1.250", "    7.6e-6", "— (1)", "1,234"]


def test_common_parts_of_names() -> None:
    names = ["layers.0.blocks.0.attn.t", "layers.0.blocks.1.attn.t", "layers.1.blocks.0.attn.t"]
    parts = ["0.blocks.0", "0.blocks.1", "1.blocks.0"]
    assert common_part(names) == ("layers.*.attn.t", parts)
    assert common_part(["a.b"]) == ("", ["a.b"])
    assert common_part(["a", "b"]) == ("", ["a", "b"])
    assert common_part(["a.t", "a.b.t"]) == ("", ["a.t", "a.b.t"])
    assert common_part([]) == ("", [])
