from __future__ import annotations

import html
import re
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from probe.report.format import one_line
from probe.report.gfm import code, link, prose, table
from probe.report.zoo_facts import figure_names
from probe.report.zoo_markdown import report_markdown
from tests.report.zoo_reports import HARDWARE, correlation, model, report, rich, zoo

NASTY = (
    "<b>a|b</b> `x` *y*",
    "<script>alert(1)</script>",
    "a\\|b",
    "a``b`",
    "![x](http://x/y.png)",
    "[a]: b",
    "| --- |",
    "_a_ __b__ ~~c~~ $x_1$",
    "# 1. head",
    "1. one",
    "- item",
    "+ item",
    "---",
    "===",
    "&lt;b&gt; &amp;",
    "a\nb\r\n# c",
)


def rendered(text: str) -> str:
    return MarkdownIt("commonmark").enable(["table", "strikethrough"]).render(text)


def words(page: str) -> str:
    return html.unescape(re.sub(r"<[^>]*>", "", page))


@pytest.mark.parametrize("name", ["rich", "plain"])
def test_golden_report(name: str, golden: Callable[[str, str], None]) -> None:
    if name == "rich":
        golden("zoo_rich.md", report_markdown(rich(), HARDWARE))
    else:
        golden("zoo_plain.md", report_markdown(report(model(0, depth=2, alphas=()))))


@pytest.mark.parametrize("text", NASTY)
@pytest.mark.parametrize("how", [code, prose])
def test_text_stays_text(text: str, how: Callable[[str], str]) -> None:
    page = rendered(how(text))
    assert words(page).strip() == one_line(text)
    tags = set(re.findall(r"<(\w+)", page))
    assert tags <= {"p", "code"}


@pytest.mark.parametrize("text", NASTY)
@pytest.mark.parametrize("how", [code, prose])
def test_text_stays_in_its_cell(text: str, how: Callable[[str], str]) -> None:
    page = rendered("\n".join(table(["a", "b", "c"], [["x", how(text), "y"]])))
    cells = [words(cell).strip() for cell in re.findall(r"<td.*?>(.*?)</td>", page, re.DOTALL)]
    assert cells == ["x", one_line(text), "y"]


@given(st.text(st.characters(codec="utf-8"), min_size=1, max_size=30))
def test_any_text_stays_in_its_cell(text: str) -> None:
    wanted = one_line(text).strip()
    for how in (code, prose):
        page = rendered("\n".join(table(["a", "b"], [[how(text), "y"]])))
        cells = [words(cell).strip() for cell in re.findall(r"<td.*?>(.*?)</td>", page, re.DOTALL)]
        assert cells == [wanted, "y"]


def test_names_and_errors_of_a_report_are_shown_as_they_are() -> None:
    content = report(
        *(model(i, name, depth=1) for i, name in enumerate(NASTY)),
        failures=[{"model": name, "error": name} for name in NASTY],
        title="<script>",
    )
    page = rendered(report_markdown(content))
    assert "<script" not in page
    assert "<b>" not in page
    text = words(page)
    for name in NASTY:
        assert one_line(name) in text


def test_the_report_holds_what_a_reader_needs() -> None:
    text = words(rendered(report_markdown(rich(), HARDWARE)))
    for wanted in (
        "Odd & <ends>",
        "5 models, 1 failed, protocol default",
        "photos (fingerprint blake2b:9c1b2d3e4f5a)",
        ".513 [.501, .525]",
        ".675 at layer 6",
        "(1) SSDC under RPI is undefined at layer 3",
        "averages over several grids",
        "56x56 .231 [.211, .251]",
        "FS jpeg(quality=5)",
        "gaussian_blur(sigma=2.5,kernel=5) 1.335",
        "not scaled: digits_none_s0: the model has no positional signal",
        "Not a controlled comparison: pretraining differs between models",
        "-.710 [-.920, -.310]",
        "within deit_in1k",
        "fewer than five models with a number",
        "one group, deit_in1k, holds 3 of 5 models",
        "404: no such <file> | try again `now`",
        "1 of 2 published values inside our interval",
        "published: one permutation per batch; here: one per image",
        "Xeon <8> @ 2.7 GHz",
        "41.25",
        "RegNetY-16GF",
        "a/<broken>.jpg (truncated file)",
        "position tables are interpolated | see #3",
        "labels: 10 classes mapped by WordNet id",
    ):
        assert wanted in text, wanted


def test_evidence_levels_stand_in_sections_of_their_own() -> None:
    heads = re.findall(r"^## (.*)$", report_markdown(rich(), HARDWARE), re.MULTILINE)
    assert heads == [
        "Data and settings",
        "Models, measured on images",
        "Statistics over models",
        "Failures",
        "Published figures",
        "Interface, exact algebra",
        "Read off the architecture, exact",
        "Analytic cost, not measured",
        "Measured on this hardware",
        "How to read this",
        "Provenance",
    ]
    assert "hardware" not in report_markdown(rich())


def test_machines_that_differ_are_named_beside_each_model() -> None:
    facts = {"images_per_second": 1.0, "seconds": 2.0, "peak_memory_bytes": None, "batch": 1}
    facts |= {"dtype": "float32", "device": "cpu"}
    hardware = {
        "machine": {"processor": "x"},
        "models": {
            name: facts | {"machine": {"processor": cpu}}
            for name, cpu in (("deit_small", "x"), ("vit_base_rope", "y"))
        },
    }
    page = rendered(report_markdown(zoo(2), hardware)).split("Measured on this hardware")[1]
    cells = re.findall(r"<td.*?>(.*?)</td>", page)[:14]
    assert (cells[6], cells[13]) == ("processor x", "processor y")


def test_every_figure_is_referenced_once_where_it_lies() -> None:
    for content in (rich(), zoo(3), report(model(3)), report(model(0, alphas=()))):
        text = report_markdown(content)
        shown = re.findall(r"!\[[^\]]*\]\(figures/(.+?)\.svg\)", text)
        assert sorted(shown) == sorted(figure_names(content))


def test_many_corruptions_get_a_table_per_measure_and_suites_are_means() -> None:
    content = zoo(2)
    for entry in content["models"]:
        own = entry["corruptions"][0]
        entry["corruptions"] = [
            own | {"corruption": f"{name}(severity={s})", "column": f"{name}_{s}"}
            for name in ("fog", "snow", "frost", "contrast", "pixelate")
            for s in (1, 2, 3)
        ]
    text = words(rendered(report_markdown(content)))
    assert "FS fog(mean of severities 1-3)" in text
    assert "agreement fragility pixelate(mean of severities 1-3)" in text
    assert "FS fog(severity=1)" not in text.split("Statistics over models")[0].split("scaled")[0]


def test_statistics_name_what_is_undefined() -> None:
    content = zoo(2)
    content["statistics"]["correlations"] = []
    assert "No pair of numbers was measured on enough models" in report_markdown(content)
    low = correlation("anchoring", "fs_jpeg_q5", 4, low=None, high=None)
    content["statistics"]["correlations"] = [low]
    assert "-.710 (1)" in report_markdown(content)


def test_a_report_of_failures_alone_is_a_page() -> None:
    content = report(failures=[{"model": "gone", "error": "why"}])
    content["settings"], content["data"] = {}, {"name": "photos"}
    text = words(rendered(report_markdown(content)))
    assert "0 models, 1 failed" in text
    assert "why" in text
    assert "Statistics" not in text


def test_links_are_web_addresses_alone() -> None:
    assert link("https://github.com/a/b.csv") == "<https://github.com/a/b.csv>"
    assert link("javascript:alert(1)") == "javascript:alert(1)"
    assert "<a" not in rendered(link("https://x.y/> <script>"))


def test_the_same_report_gives_the_same_text() -> None:
    assert report_markdown(rich(), HARDWARE) == report_markdown(rich(), HARDWARE)
    assert report_markdown(zoo(60)).count("\n") < 1500
