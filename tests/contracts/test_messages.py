"""Every message of messages.json belongs to a test."""

import pytest

from tests.support import messages


def test_every_recorded_message_has_its_test(pytestconfig: pytest.Config) -> None:
    gone = messages.without_test()
    if pytestconfig.getoption(messages.OPTION):
        messages.record({test: [] for test in gone})
        return
    assert gone == [], f"run pytest {messages.OPTION} tests/contracts and the files of these tests"
