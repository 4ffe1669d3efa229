"""Charts and similarity maps in a real browser: what they draw, and what pointing at them says."""

from __future__ import annotations

import base64

import pytest
from selenium.webdriver import ActionChains
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait

from tests.web.driving import (
    Show,
    bring,
    chips,
    fill,
    one,
    point_at,
    press,
    texts,
)
from tests.web.reports import make_report


def test_depth_curves(show: Show) -> None:
    report = make_report(3)
    driver = show(report)
    read = (
        "return Chart.getChart('depth-chart').data.datasets"
        ".map(d => d.data.map(p => p[arguments[0]]))"
    )

    def curves(kind: str) -> list[list[float]]:
        return [
            [pytest.approx(layer[kind]["value"], abs=1e-5) for layer in model["layers"]]
            for model in report["models"]
        ]

    assert driver.execute_script(read, "y") == curves("rpi")
    assert driver.execute_script("return Chart.getChart('depth-chart').nullBand[0]") == {
        "x": 0,
        "low": -0.03,
        "high": 0.03,
    }
    one(driver, "input[name=kind][value=clean]").click()
    assert driver.execute_script(read, "y") == curves("clean")
    one(driver, "input[name=kind][value=both]").click()
    assert len(driver.execute_script(read, "y")) == 6
    one(driver, "input[name=depth][value=relative]").click()
    assert driver.execute_script(read, "x")[0][::5] == [0, 1]


def test_alpha_offers_the_corruptions_that_were_measured_there(show: Show) -> None:
    report = make_report(2)
    for row in (row for model in report["models"] for row in model["alphas"]):
        row["fs"] = {"jpeg(quality=5)": row["fs"]["jpeg(quality=5)"]}
    driver = show(report)
    assert texts(driver, "#alpha-corruption option") == ["jpeg(quality=5)"]
    assert len(texts(driver, "#relation-corruption option")) == 3
    read = "return Chart.getChart('alpha-anchoring').data.datasets[0].data.map(p => [p.x, p.y])"
    points = [[row["alpha"], row["anchoring"]["value"]] for row in report["models"][0]["alphas"]]
    for found, wanted in zip(driver.execute_script(read), points[::-1], strict=True):
        assert found == pytest.approx(wanted, abs=1e-5)


def test_undefined_points_are_gaps_with_their_reason(show: Show) -> None:
    driver = show(make_report(6))
    one(driver, "#choose-shown").click()
    gap = "return Number.isNaN(Chart.getChart('depth-chart').data.datasets[3].data[4].y)"
    assert driver.execute_script(gap)
    assert texts(driver, "#depth-undefined li") == [
        "eva02_base_3, under RPI, layer 4: all tokens are equal"
    ]
    reason = "position comes from convolutions and is not scaled"
    assert texts(driver, "#alpha-undefined li") == [
        f"dinov2_small_reg4_5, {what}: {reason}" for what in ("delta SSDC", "anchoring", "FS")
    ]
    assert texts(driver, "#relation-undefined li") == [
        "eva02_base_3 has no point: layer 4 is undefined under RPI: all tokens are equal"
    ]


def test_pointing_at_a_curve_and_at_the_scatter(show: Show) -> None:
    report = make_report(1)
    driver = show(report)
    point_at(driver, "depth-chart", 0, 2)
    shown = one(driver, "#tip").text.splitlines()
    assert shown[:2] == ["deit_small", "layer 2 (14x14), under RPI"]
    assert shown[3] == "null band [-.030, .030]"
    point_at(driver, "relation-chart", 0, 0)
    shown = one(driver, "#tip").text.splitlines()
    assert shown[:2] == ["deit_small", "absolute"]
    assert shown[2].startswith("anchoring .")
    ActionChains(driver).click().perform()
    WebDriverWait(driver, 10).until(lambda found: chips(found) == [])
    press(driver, Keys.ESCAPE)
    assert not one(driver, "#tip").is_displayed()


def test_stepping_through_a_chart_by_keyboard(show: Show) -> None:
    driver = show(make_report(2))
    bring(driver, one(driver, "#depth-chart"))
    driver.execute_script("document.getElementById('depth-chart').focus()")
    press(driver, Keys.ARROW_RIGHT)
    assert one(driver, "#tip").text.splitlines()[:2] == ["deit_small", "layer 0 (14x14), under RPI"]
    press(driver, Keys.ARROW_RIGHT, Keys.ARROW_DOWN)
    assert one(driver, "#tip").text.splitlines()[:2] == ["vit_base_1", "layer 1 (14x14), under RPI"]


def test_the_scatter_follows_its_selects_and_says_its_statistic(show: Show) -> None:
    report = make_report(5)
    driver = show(report)
    fill(driver, "#relation-x", "delta_ssdc_rpi")
    fill(driver, "#relation-y", "agreement_fs")
    fill(driver, "#relation-corruption", "jpeg(quality=5)")
    read = (
        "return Chart.getChart('relation-chart').data.datasets"
        ".flatMap(d => d.data.map(p => [p.x, p.y]))"
    )
    pairs = [
        [model["delta_ssdc_rpi"]["value"], model["corruptions"][0]["agreement_fs"]["value"]]
        for model in report["models"]
        if model["delta_ssdc_rpi"]["value"] is not None
    ]
    for found, wanted in zip(sorted(driver.execute_script(read)), sorted(pairs), strict=True):
        assert found == pytest.approx(wanted, abs=1e-5)
    fill(driver, "#relation-y", "fs")
    sentence = one(driver, "#relation-rho").text
    assert sentence.startswith("Spearman rho ")
    assert "over 5 models, p <.001" in sentence


def test_maps_are_decoded_as_they_were_stored(show: Show) -> None:
    report = make_report(3)
    driver = show(report)
    read = (
        "return decode(arguments[0])"
        ".map(l => ['clean', 'rpi'].map(k => l.maps[k].map(m => [...m])))"
    )
    for index in (0, 2):
        for layer, found in zip(
            report["models"][index]["maps"], driver.execute_script(read, index), strict=True
        ):
            for kind, three in zip(("clean", "rpi"), found, strict=True):
                for stored, values in zip(layer[kind], three, strict=True):
                    wanted = [2 * byte / 255 - 1 for byte in base64.b64decode(stored)]
                    assert values == pytest.approx(wanted, abs=1e-6)
    bring(driver, one(driver, "#maps"))
    assert len(texts(driver, "#maps-table canvas")) == 6 * 6
    fill(driver, "#maps-range", "full")
    assert (one(driver, "#maps-low").text, one(driver, "#maps-high").text) == ("-1.000", "1.000")
    canvas = one(driver, "#maps-table canvas")
    bring(driver, canvas)
    ActionChains(driver).move_to_element_with_offset(canvas, 19, -19).perform()
    shown = one(driver, "#tip").text.splitlines()
    assert shown[0].startswith("cosine ")
    assert shown[1:] == ["layer 0, clean, similarity to the centre token", "row 3, column 10"]
    fill(driver, "#maps-model", "2")
    assert len(texts(driver, "#maps-table canvas")) == 12 * 6
