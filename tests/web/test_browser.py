"""The page in a real browser: its table, its themes, its safety, its size on a phone.

The `show` fixture also holds every page to a silent console and to no request but its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from tests.web.driving import (
    HEAD,
    NAMES,
    Show,
    busy_ms,
    chips,
    console,
    fill,
    one,
    point_at,
    press,
    sort_by,
    texts,
)
from tests.web.reports import hardware_of, make_report

EVIL = '<img src=x onerror="window.hit=1"><script>window.hit=1</script>'


def values_of(report: dict[str, Any], key: str) -> list[tuple[str, float]]:
    """Names with their defined values, highest first."""
    pairs = [(m["model"], m[key]["value"]) for m in report["models"]]
    return sorted((p for p in pairs if p[1] is not None), key=lambda pair: -pair[1])


def test_sorting_puts_undefined_last_in_both_directions(show: Show) -> None:
    report = make_report(12)
    driver = show(report)
    head = sort_by(driver, "anchoring")
    assert head.get_attribute("aria-sort") == "descending"
    ordered = [name for name, _ in values_of(report, "anchoring")]
    undefined = [m["model"] for m in report["models"] if m["anchoring"]["value"] is None]
    assert undefined
    assert texts(driver, NAMES) == ordered + undefined
    sort_by(driver, "anchoring")
    assert head.get_attribute("aria-sort") == "ascending"
    assert texts(driver, NAMES) == ordered[::-1] + undefined
    sort_by(driver, "model")
    assert head.get_attribute("aria-sort") == "none"
    assert texts(driver, NAMES)[:3] == ["beit_large_4", "beit_large_10", "deit_small"]


def test_sorting_by_keyboard(show: Show) -> None:
    report = make_report(5)
    driver = show(report)
    button = driver.find_element(By.XPATH, HEAD.format("params") + "/button")
    driver.execute_script("arguments[0].focus()", button)
    press(driver, Keys.ENTER)
    assert texts(driver, NAMES)[0] == report["models"][-1]["model"]
    outline = "return getComputedStyle(document.activeElement).outlineStyle"
    assert driver.execute_script(outline) == "solid"


def test_filtering(show: Show) -> None:
    report = make_report(12)
    driver = show(report)
    fill(driver, "#filter", "SWIN tiny")
    assert texts(driver, NAMES) == ["swin_tiny_2", "swin_tiny_8"]
    assert one(driver, "#shown").text == "2 of 12 shown"
    fill(driver, "#filter", "")
    fill(driver, "#position", "rotary")
    assert texts(driver, NAMES) == ["vit_base_1", "vit_base_7"]
    fill(driver, "#position", "")
    fill(driver, "#group", "naver_in1k")
    wanted = [m["model"] for m in report["models"] if m["group"] == "naver_in1k"]
    assert texts(driver, NAMES) == wanted
    one(driver, "#choose-none").click()
    assert chips(driver) == []
    one(driver, "#choose-shown").click()
    assert chips(driver) == wanted
    fill(driver, "#filter", "no such model")
    assert texts(driver, NAMES) == []


def test_choosing_by_click_changes_every_chart(show: Show) -> None:
    driver = show(make_report(8))
    names = texts(driver, NAMES)
    assert chips(driver) == names[:5]
    rows = driver.find_elements(By.CSS_SELECTOR, "#table tbody tr")
    rows[6].find_elements(By.TAG_NAME, "td")[0].click()
    rows[0].find_elements(By.TAG_NAME, "td")[0].click()
    assert chips(driver) == [*names[1:5], names[6]]
    pressed = [
        button.get_attribute("aria-pressed")
        for button in driver.find_elements(By.CSS_SELECTOR, NAMES)
    ]
    assert pressed == ["false", *["true"] * 4, "false", "true", "false"]
    for chart in ("depth-chart", "alpha-delta", "alpha-anchoring", "alpha-fs"):
        count = f"return Chart.getChart('{chart}').data.datasets.length"
        assert driver.execute_script(count) == 5
    driver.find_elements(By.CSS_SELECTOR, "#depth .chip")[0].click()
    assert chips(driver) == [*names[2:5], names[6]]


def test_choosing_by_keyboard(show: Show) -> None:
    driver = show(make_report(5))
    names = texts(driver, NAMES)
    driver.execute_script("document.querySelector(arguments[0]).focus()", NAMES)
    press(driver, Keys.ARROW_DOWN, Keys.ARROW_DOWN, Keys.ARROW_UP, Keys.SPACE)
    assert driver.switch_to.active_element.text == names[1]
    assert chips(driver) == [names[0], *names[2:]]
    press(driver, Keys.ENTER)
    assert chips(driver) == names


def test_theme(show: Show) -> None:
    driver = show(make_report(1))
    button = one(driver, "#theme")
    background = "return getComputedStyle(document.body).backgroundColor"
    ticks = "return Chart.getChart('depth-chart').config.options.scales.x.ticks.color"
    light, light_ticks = driver.execute_script(background), driver.execute_script(ticks)
    assert (light, button.text) == ("rgb(255, 255, 255)", "Dark theme")
    button.click()
    assert (driver.execute_script(background), button.text) == ("rgb(20, 23, 27)", "Light theme")
    assert driver.execute_script(ticks) != light_ticks
    driver.refresh()
    assert driver.execute_script(background) == "rgb(20, 23, 27)"
    one(driver, "#theme").click()
    assert driver.execute_script(background) == light


def test_the_system_theme_and_closed_storage(show: Show) -> None:
    closed = "Object.defineProperty(window, 'localStorage', {get() { throw new Error('closed') }})"
    driver = show(make_report(1))
    added = driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": closed})
    driver = show(make_report(1), dark=True)
    background = "return getComputedStyle(document.body).backgroundColor"
    assert driver.execute_script(background) == "rgb(20, 23, 27)"
    one(driver, "#theme").click()
    assert driver.execute_script(background) == "rgb(255, 255, 255)"
    driver.execute_cdp_cmd("Page.removeScriptToEvaluateOnNewDocument", added)


def test_a_link_opens_the_model_s_section(show: Show) -> None:
    driver = show(make_report(3))
    one(driver, '#table a[href="#model-1"]').click()
    driver.execute_async_script("setTimeout(arguments[0], 50)")
    assert one(driver, "#model-1").get_attribute("open") == "true"
    assert "timm:vit_base_patch16_224.fb_in1k_1" in one(driver, "#model-1").text
    assert "img_017.png: truncated file" in one(driver, "#model-1").text


def test_html_in_names_and_errors_is_text(show: Show) -> None:
    report = make_report(2, failures=1)
    model = report["models"][0]
    for key in ("model", "position", "group", "resolved"):
        model[key] = EVIL
    model["notes"] = [EVIL]
    report["failures"][0] = {"model": EVIL, "error": f"{EVIL}\nmore"}
    model["corruptions"][0]["corruption"] = EVIL
    model["layers"][1]["rpi"] |= {"value": None, "low": None, "high": None, "reason": EVIL}
    driver = show(report)
    assert texts(driver, NAMES)[0] == EVIL
    assert chips(driver)[0] == EVIL
    assert one(driver, "#failures pre").text == f"{EVIL}\nmore"
    assert EVIL in one(driver, "#depth-undefined").text
    point_at(driver, "depth-chart", 0, 0)
    assert one(driver, "#tip strong").text == EVIL
    counts = "return [document.images.length, document.scripts.length, window.hit ?? null]"
    assert driver.execute_script(counts) == [0, 4, None]


def test_the_policy_stops_what_would_leave_the_page(show: Show) -> None:
    driver = show(make_report(1))
    stopped = driver.execute_async_script(
        "const done = arguments[0];"
        "addEventListener('securitypolicyviolation', (e) => done(e.effectiveDirective));"
        "fetch('http://127.0.0.1:9/').catch(() => {});"
    )
    assert stopped == "connect-src"
    lines = console(driver)
    assert "Connecting to 'http://127.0.0.1:9/' violates" in lines[0]
    assert all("http://127.0.0.1:9/" in line for line in lines)


@pytest.mark.parametrize("count", [0, 1, 5])
def test_pages_of_all_kinds_open_quietly(show: Show, count: int) -> None:
    report = make_report(count, failures=2, accuracy=count != 1, alphas=count != 5)
    driver = show(report, hardware_of(report))
    assert len(driver.find_elements(By.CSS_SELECTOR, "#failures pre")) == 2
    if count == 1:
        assert one(driver, "#relation-y").get_attribute("value") == "agreement_fs"
    if count == 5:
        assert len(texts(driver, "#alpha-undefined li")) == 5
        assert one(driver, "#alpha-undefined li").text == "deit_small: no alpha was measured"


def test_a_phone_scrolls_down_only(show: Show) -> None:
    report = make_report(4, failures=1)
    report["models"][0]["model"] = "x" * 200
    report["failures"][0]["error"] = "/a/very/long/path" * 20
    driver = show(report, hardware_of(report), size=(390, 844))
    driver.execute_script("for (const d of document.querySelectorAll('details')) d.open = true")
    widths: Sequence[int] = driver.execute_script(
        "return [document.documentElement.scrollWidth, document.body.scrollWidth, innerWidth]"
    )
    assert widths == [390, 390, 390]
    box = "const b = document.querySelector('.box.models'); return b.scrollWidth > b.clientWidth"
    assert driver.execute_script(box)


def test_sixty_models_sort_and_scroll_without_a_pause(show: Show) -> None:
    driver = show(make_report(60))
    one(driver, "#choose-shown").click()
    assert len(chips(driver)) == 60
    styles = (
        "return new Set(Chart.getChart('depth-chart').data.datasets"
        ".map(d => d.borderColor + d.pointStyle)).size"
    )
    assert driver.execute_script(styles) == 60
    head = driver.find_element(By.XPATH, HEAD.format("anchoring") + "/button")
    before = busy_ms(driver)
    driver.execute_script(
        "for (let i = 0; i < 10; i += 1) {"
        "arguments[0].click(); document.body.getBoundingClientRect(); }",
        head,
    )
    sort = (busy_ms(driver) - before) / 10
    assert sort < 100
    before = busy_ms(driver)
    driver.execute_async_script(
        "const done = arguments[0]; let at = 0;"
        "const next = () => { scrollTo({top: 200 * (at % 30), behavior: 'instant'}); at += 1;"
        "if (at < 60) requestAnimationFrame(next); else done(); };"
        "requestAnimationFrame(next)"
    )
    assert (busy_ms(driver) - before) / 60 < 50
