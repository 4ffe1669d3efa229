"""What a reader does with a page, in words for tests."""

from __future__ import annotations

import json
from collections.abc import Callable

from selenium.webdriver import ActionChains
from selenium.webdriver.chrome.webdriver import WebDriver
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement

Show = Callable[..., WebDriver]
NAMES = "#table tbody tr:not([hidden]) .choose"
HEAD = "//table[@id='table']/thead/tr[2]/th[normalize-space(button/span)='{}']"


def console(driver: WebDriver) -> list[str]:
    """What the console said since the last call."""
    return [entry["message"] for entry in driver.get_log("browser")]


def requests(driver: WebDriver) -> list[str]:
    """Every address that was asked for since the last call, the page's own file included."""
    messages = [json.loads(entry["message"])["message"] for entry in driver.get_log("performance")]
    return [
        message["params"]["request"]["url"]
        for message in messages
        if message["method"] == "Network.requestWillBeSent"
    ]


def texts(driver: WebDriver, css: str) -> list[str]:
    """What the elements show, in one call: a call per element takes its time."""
    read = "return [...document.querySelectorAll(arguments[0])].map(e => e.innerText.trim())"
    return driver.execute_script(read, css)


def one(driver: WebDriver, css: str) -> WebElement:
    return driver.find_element(By.CSS_SELECTOR, css)


def chips(driver: WebDriver) -> list[str]:
    """The names in the legend of the depth chart."""
    return texts(driver, "#depth .chip span:not(.cross)")


def press(driver: WebDriver, *keys: str) -> None:
    ActionChains(driver).send_keys(*keys).perform()


def sort_by(driver: WebDriver, label: str) -> WebElement:
    head = driver.find_element(By.XPATH, HEAD.format(label))
    head.find_element(By.TAG_NAME, "button").click()
    return head


def fill(driver: WebDriver, css: str, value: str) -> None:
    """Set a field as a user would, whatever its kind."""
    driver.execute_script(
        "arguments[0].value = arguments[1]; arguments[0].dispatchEvent(new Event('input'))",
        one(driver, css),
        value,
    )


def bring(driver: WebDriver, element: WebElement) -> None:
    """Scroll to an element, and wait until the browser has said so: scrolling hides the tooltip."""
    driver.execute_async_script(
        "arguments[0].scrollIntoView({behavior: 'instant', block: 'center'});"
        "requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(arguments[1], 20)))",
        element,
    )


def point_at(driver: WebDriver, chart: str, dataset: int, index: int) -> None:
    """Move to a point of a chart, as it was drawn."""
    canvas = one(driver, f"#{chart}")
    bring(driver, canvas)
    x, y, width, height = driver.execute_script(
        "const c = Chart.getChart(arguments[0]), p = c.getDatasetMeta(arguments[1])"
        ".data[arguments[2]]; return [p.x, p.y, c.width, c.height]",
        chart,
        dataset,
        index,
    )
    chain = ActionChains(driver)
    chain.move_to_element_with_offset(canvas, round(x - width / 2), round(y - height / 2))
    chain.perform()


def busy_ms(driver: WebDriver) -> float:
    """Processor time of the page's main thread so far: what else the machine does is not in it."""
    driver.execute_cdp_cmd("Performance.enable", {"timeDomain": "threadTicks"})
    metrics = driver.execute_cdp_cmd("Performance.getMetrics", {})["metrics"]
    return 1000 * next(m["value"] for m in metrics if m["name"] == "TaskDuration")
