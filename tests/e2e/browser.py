"""Starts a headless Chromium, for the tests of the page and for pictures of it."""

import os
import shutil
from pathlib import Path
from typing import Any

FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--window-size=1100,900",
)


class BrowserMissing(Exception):
    """Names the package or program that is not installed."""


def start_browser(profile: Path) -> Any:
    """A selenium driver; `RAG_BROWSER` and `RAG_BROWSER_DRIVER` name programs that are not on the
    path.
    """
    browser = os.environ.get("RAG_BROWSER") or _find(
        "chromium", "chromium-browser", "google-chrome"
    )
    chromedriver = os.environ.get("RAG_BROWSER_DRIVER") or _find("chromedriver")
    try:
        from selenium import webdriver
    except ImportError:
        webdriver = None
    missing = [
        name
        for name, result in (
            ("the package selenium", webdriver),
            ("the program chromium", browser),
            ("the program chromedriver", chromedriver),
        )
        if not result
    ]
    if missing or webdriver is None:
        raise BrowserMissing(
            f"a browser needs {' and '.join(missing)} (Debian: apt-get install chromium chromium-driver)"
        )
    options = webdriver.ChromeOptions()
    options.binary_location = str(browser)
    for flag in (*FLAGS, f"--user-data-dir={profile}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(
        options=options, service=webdriver.ChromeService(executable_path=chromedriver)
    )
    driver.set_page_load_timeout(60)
    return driver


def _find(*names: str) -> str | None:
    return next((result for name in names if (result := shutil.which(name))), None)
