"""A real headless browser in front of a real server that answers from a small fixed corpus."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from serve.app import create_app
from tests.api.fakes import FakeService, listening, settings

FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--disable-extensions",
    "--mute-audio",
    "--force-color-profile=srgb",
    "--hide-scrollbars",
    "--window-size=1100,900",
)
EXAMPLES = ("Where does the Danube rise?", "Who invented the telephone?", "Which word follows the letters?")


def _find(*names: str) -> str | None:
    return next((found for name in names if (found := shutil.which(name))), None)


@pytest.fixture(scope="session")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    browser = os.environ.get("RAG_BROWSER") or _find("chromium", "chromium-browser", "google-chrome")
    chromedriver = os.environ.get("RAG_BROWSER_DRIVER") or _find("chromedriver")
    try:
        from selenium import webdriver
    except ImportError:
        webdriver = None
    missing = [
        name
        for name, found in (
            ("the package selenium", webdriver),
            ("the program chromium", browser),
            ("the program chromedriver", chromedriver),
        )
        if not found
    ]
    if missing or webdriver is None:
        reason = (
            f"browser tests need {' and '.join(missing)} (Debian: apt-get install chromium chromium-driver)"
        )
        if os.environ.get("RAG_REQUIRE_BROWSER") == "1":
            pytest.fail(reason)
        pytest.skip(reason)
    options = webdriver.ChromeOptions()
    options.binary_location = str(browser)
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    service = webdriver.ChromeService(executable_path=str(chromedriver))
    started = webdriver.Chrome(options=options, service=service)
    started.set_page_load_timeout(60)
    yield started
    started.quit()


@pytest.fixture(scope="session")
def service() -> FakeService:
    return FakeService("3f9c2a71")


@pytest.fixture(scope="session")
def url(service: FakeService) -> Iterator[str]:
    with listening(create_app(settings(example_questions=EXAMPLES), service)) as address:
        yield address


@pytest.fixture(scope="session")
def shots() -> Path | None:
    """Where screenshots go: the folder named by RAG_SCREENSHOTS, if any."""
    folder = os.environ.get("RAG_SCREENSHOTS")
    if folder:
        Path(folder).mkdir(parents=True, exist_ok=True)
    return Path(folder) if folder else None
