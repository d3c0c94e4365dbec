"""Killed updates leave the old version or the new one, and end in the index that is built at
once.
"""

from pathlib import Path

import pytest

from tests.recovery.update_killer import kill_and_go_on


@pytest.mark.parametrize(("retriever", "kills"), [("dense", 3), ("hybrid", 0), ("bm25", 1)])
def test_killed_updates_lose_and_mix_nothing(tmp_path: Path, retriever: str, kills: int) -> None:
    updates = 4 * max(kills, 1)
    assert len(kill_and_go_on(tmp_path, updates=updates, kills=kills, retriever=retriever)) == kills
