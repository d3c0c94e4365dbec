"""What a person sees and does on the page, in words of the page."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from selenium.webdriver import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys


class Page:
    """One open page."""

    def __init__(self, driver: Any, url: str) -> None:
        self.driver = driver
        self.url = url

    def open(self, path: str = "/") -> Page:
        self.driver.get(self.url + path)
        self.until(lambda: self.script("return document.readyState") == "complete")
        return self

    def script(self, code: str, *arguments: Any) -> Any:
        return self.driver.execute_script(code, *arguments)

    def until(self, condition: Callable[[], Any], timeout_s: float = 30.0) -> Any:
        value = self.within(timeout_s, condition)
        assert value, f"it did not happen; the page says: {self.text('body')!r}"
        return value

    def within(self, timeout_s: float, condition: Callable[[], Any]) -> Any:
        """What the condition gives as soon as that is true, or after that time."""
        deadline = time.monotonic() + timeout_s
        while not (value := condition()) and time.monotonic() < deadline:
            time.sleep(0.02)
        return value

    def all(self, selector: str) -> list[Any]:
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def texts(self, selector: str) -> list[str]:
        """textContent of each match: exactly the characters in the document."""
        return self.script(
            "return [...document.querySelectorAll(arguments[0])].map((element) => element.textContent)",
            selector,
        )

    def text(self, selector: str) -> str:
        return " | ".join(self.texts(selector))

    def is_visible(self, selector: str) -> bool:
        return any(element.is_displayed() for element in self.all(selector))

    @property
    def focused(self) -> str:
        return self.script("return document.activeElement.id || document.activeElement.tagName")

    def press(self, *keys: str) -> None:
        ActionChains(self.driver).send_keys(*keys).perform()

    def ask(self, question: str) -> None:
        """Type, press Enter, wait for the result."""
        box = self.all("#question")[0]
        self.script(
            "arguments[0].value = arguments[1]", box, question
        )  # the driver cannot type beyond the BMP
        box.send_keys(Keys.ENTER)
        self.settled()

    def settled(self) -> None:
        self.until(
            lambda: self.script(
                "const box = document.getElementById('results');"
                "return box.childElementCount > 0 && box.getAttribute('aria-busy') === 'false'"
            )
        )

    def media(self, *, width: int = 1100, height: int = 900) -> None:
        self.driver.execute_cdp_cmd(
            "Emulation.setDeviceMetricsOverride",
            {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False},
        )

    def speak(self, language: str) -> None:
        """Make the browser ask for pages in a language, such as "de-DE"."""
        agent = self.script("return navigator.userAgent")
        preferred = {"userAgent": agent, "acceptLanguage": language}
        self.driver.execute_cdp_cmd("Emulation.setUserAgentOverride", preferred)

    def complaints(self) -> list[str]:
        """What the browser's console holds: script errors, blocked resources."""
        return [entry["message"] for entry in self.driver.get_log("browser")]
