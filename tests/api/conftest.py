from collections.abc import AsyncIterator

import httpx
import pytest

from tests.api.fakes import running


@pytest.fixture
async def client() -> AsyncIterator[httpx.AsyncClient]:
    """A client of a server whose pipeline is a fake."""
    async with running() as started:
        yield started
