"""A real headless browser in front of a real server that answers from a small fixed corpus."""

import os
from collections.abc import Iterator
from typing import Any

import pytest

from tests.api.fakes import FakePipeline, serving
from tests.e2e.browser import BrowserMissing, start_browser

EXAMPLES = (
    "Where does the Danube rise?",
    "Who invented the telephone?",
    "Which word follows the letters?",
)


@pytest.fixture(scope="session")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    try:
        started = start_browser(tmp_path_factory.mktemp("profile"))
    except BrowserMissing as error:
        if os.environ.get("RAG_REQUIRE_BROWSER") == "1":
            pytest.fail(str(error))
        pytest.skip(str(error))
    yield started
    started.quit()


@pytest.fixture(scope="session")
def service() -> FakePipeline:
    return FakePipeline("3f9c2a71")


@pytest.fixture(scope="session")
def url(service: FakePipeline) -> Iterator[str]:
    with serving(service, example_questions=EXAMPLES) as address:
        yield address


@pytest.fixture
def page_at(driver):
    """Opens the page of a server at an address in the browser."""
    from tests.e2e.page import Page  # needs selenium

    return lambda address: Page(driver, address)


@pytest.fixture
def page(page_at, url):
    page = page_at(url)
    page.media()
    page.complaints()
    return page.open()
