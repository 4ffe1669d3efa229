"""A headless Chromium that opens reports; every page it opens must stay silent and offline."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.chrome.webdriver import WebDriver

from probe.report.web import page
from tests.web.driving import Show, console, requests


@pytest.fixture(scope="session")
def chromium() -> Iterator[WebDriver]:
    """The system's browser, once for all tests; without one they skip, unless it is required."""
    browser, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if browser is None or driver is None:
        lack = "chromium and chromedriver were not found; run `make browser`"
        if os.environ.get("PROBE_REQUIRE_BROWSER") == "1":
            pytest.fail(lack)
        pytest.skip(lack)
    options = webdriver.ChromeOptions()
    options.binary_location = browser
    for flag in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    started = webdriver.Chrome(options=options, service=Service(executable_path=driver))
    started.set_script_timeout(30)
    yield started
    started.quit()


@pytest.fixture
def show(chromium: WebDriver, tmp_path: Path) -> Iterator[Show]:
    """Open a report; afterwards, no page may have written to the console or sent a request."""
    opened: list[str] = []

    def show(
        report: dict[str, Any],
        hardware: dict[str, Any] | None = None,
        *,
        size: tuple[int, int] = (1320, 900),
        dark: bool = False,
    ) -> WebDriver:
        file = tmp_path / f"index{len(opened)}.html"
        file.write_text(page(report, hardware), encoding="utf-8")
        width, height = size
        chromium.execute_cdp_cmd(
            "Emulation.setDeviceMetricsOverride",
            {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600},
        )
        media = {
            "prefers-color-scheme": "dark" if dark else "light",
            "prefers-reduced-motion": "reduce",  # no smooth scrolling under a moving pointer
        }
        features = [{"name": name, "value": value} for name, value in media.items()]
        chromium.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
        opened.append(file.as_uri())
        chromium.get(opened[-1])
        return chromium

    chromium.get("about:blank")
    console(chromium), requests(chromium)
    yield show
    assert console(chromium) == []
    asked = [url for url in requests(chromium) if not url.startswith("data:")]
    assert sorted(set(asked)) == sorted(opened)
    chromium.get(opened[-1])
    chromium.execute_script("localStorage.clear()")
