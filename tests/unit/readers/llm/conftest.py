from collections.abc import Iterator

import pytest

from tests.chat_server import Server


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.close()
