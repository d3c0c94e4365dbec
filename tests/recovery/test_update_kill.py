"""Killed updates leave the old version or the new one, and end in the index that is built at
once.
"""

from pathlib import Path

from tests.recovery.update_killer import kill_and_go_on


def test_killed_updates_lose_and_mix_nothing(tmp_path: Path) -> None:
    assert len(kill_and_go_on(tmp_path, updates=12, kills=3)) == 3
