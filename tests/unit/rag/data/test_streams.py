import random
from pathlib import Path

import pytest

from rag.core.errors import DataError
from rag.data.corpus import IdSet
from rag.data.files.rows import open_binary


def test_open_binary_explains(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="is a directory"), open_binary(tmp_path):
        pass
    with pytest.raises(DataError, match="no such file"), open_binary(tmp_path / "x"):
        pass


def test_id_set_equals_a_set() -> None:
    rng = random.Random(1)
    seen, expected = IdSet(recent=16), set()
    for _ in range(60_000):
        item = str(rng.randrange(40_000))
        assert seen.add(item) is (item not in expected)
        expected.add(item)
    assert len(seen) == len(expected)
    assert seen._sorted.nbytes >= 0.9 * 8 * len(seen)  # nearly all in the array of 8 bytes each
