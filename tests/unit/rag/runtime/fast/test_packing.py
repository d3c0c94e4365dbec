import numpy as np
import pytest

from rag.runtime.fast.packing import plan_batches


@pytest.mark.parametrize(("rows", "tokens"), [(1, 10), (4, 30), (32, 2048)])
def test_plan_keeps_limits_and_every_row_once(rows, tokens):
    lengths = np.random.default_rng(0).integers(1, 25, 200).tolist()
    batches = plan_batches(lengths, max_rows=rows, max_tokens=tokens)
    assert sorted(row for batch in batches for row in batch) == list(range(200))
    for batch in batches:
        assert len(batch) <= rows
        assert sum(lengths[row] for row in batch) <= tokens or len(batch) == 1
    flat = [lengths[row] for batch in batches for row in batch]
    assert flat == sorted(flat, reverse=True)
    assert plan_batches([], max_rows=2, max_tokens=8) == []
