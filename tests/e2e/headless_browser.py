"""A headless Chromium that talks to loopback alone, and what a test may want to know of a page."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import WebDriverWait

_OPTIONS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-dev-shm-usage"),
    *("--no-first-run", "--disable-background-networking", "--disable-component-update"),
    *("--disable-sync", "--disable-default-apps"),
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
)


class Page:
    """The browser's one tab."""

    def __init__(self, driver: webdriver.Chrome) -> None:
        self.driver = driver

    def open(self, url: str) -> None:
        self.driver.get("about:blank")  # so that a change behind "#" alone loads the page anew
        self.driver.get(url)

    def until(self, condition: Callable[[], Any], what: str) -> Any:
        return WebDriverWait(self.driver, 60, poll_frequency=0.02).until(lambda _: condition(), what)

    def all(self, selector: str) -> list[WebElement]:
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def one(self, selector: str) -> WebElement:
        (found,) = self.all(selector)
        return found

    def texts(self, selector: str) -> list[str]:
        script = "return [...document.querySelectorAll(arguments[0])].map((e) => e.textContent)"
        return self.driver.execute_script(script, selector)

    def text(self, selector: str) -> str:
        (found,) = self.texts(selector)
        return found

    def wait_text(self, selector: str, text: str) -> None:
        self.until(lambda: text in "".join(self.texts(selector)), f"{text!r} in {selector}")

    def press(self, *keys: str) -> None:
        """Type into whatever has the focus."""
        for key in keys:
            self.driver.switch_to.active_element.send_keys(key)

    def tab_to(self, selector: str) -> None:
        """Reach an element by the Tab key alone."""
        for _ in range(60):
            if self.driver.execute_script("return document.activeElement.matches(arguments[0])", selector):
                return
            self.press(Keys.TAB)
        raise AssertionError(f"{selector} cannot be reached by Tab")

    def focused(self, attribute: str) -> str | None:
        return self.driver.switch_to.active_element.get_attribute(attribute)

    def log(self) -> list[dict[str, Any]]:
        """What the page, or the browser about it, has said since the last time."""
        return self.driver.get_log("browser")

    def fetched(self) -> list[str]:
        """URLs of everything that the page has fetched."""
        script = "return performance.getEntriesByType('resource').map((entry) => entry.name)"
        return self.driver.execute_script(script)


@contextlib.contextmanager
def headless_page(profile: Path, *options: str) -> Iterator[Page]:
    """Run a browser with an empty profile in a folder, and with further options of Chromium."""
    chromium, driver_path = shutil.which("chromium"), shutil.which("chromedriver")
    if chromium is None or driver_path is None:
        pytest.skip("chromium and chromedriver are not installed")
    wanted = webdriver.ChromeOptions()
    wanted.binary_location = chromium
    for option in (*_OPTIONS, f"--user-data-dir={profile}", *options):
        wanted.add_argument(option)
    wanted.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=wanted, service=webdriver.ChromeService(driver_path))
    try:
        yield Page(driver)
    finally:
        driver.quit()
