import numpy as np
import pytest

from rag.runtime.fast.packing import pack, plan_batches, plan_even_batches


def test_pack_lays_sequences_end_to_end():
    packed = pack([[1, 2, 3], [4, 5, 6], [7]])
    assert packed.token_ids.tolist() == [1, 2, 3, 4, 5, 6, 7]
    assert packed.positions.tolist() == [0, 1, 2, 0, 1, 2, 0]
    assert packed.groups == ((2, 3), (1, 1))
    assert packed.starts().tolist() == [0, 3, 6]
    assert packed.lengths == [3, 3, 1]
    assert len(packed.token_ids) == 7


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


def test_plan_of_nothing_is_empty():
    assert plan_batches([], max_rows=2, max_tokens=8) == []


@pytest.mark.parametrize("workers", [1, 2, 3, 16])
def test_even_plan_gives_every_worker_the_same(workers):
    lengths = np.random.default_rng(1).integers(90, 200, 40).tolist()
    batches = plan_even_batches(lengths, max_rows=64, max_tokens=1024, workers=workers)
    assert sorted(row for batch in batches for row in batch) == list(range(40))
    assert len(batches) % workers == 0
    sizes = [sum(lengths[row] for row in batch) for batch in batches]
    assert max(sizes) - min(sizes) <= 2 * max(lengths)
    flat = [lengths[row] for batch in batches for row in batch]
    assert flat == sorted(flat, reverse=True)


def test_even_plan_keeps_to_the_number_of_rows_and_takes_few_rows_too():
    assert all(
        len(batch) <= 4 for batch in plan_even_batches([2] * 50, max_rows=4, max_tokens=1000, workers=2)
    )
    assert plan_even_batches([7], max_rows=4, max_tokens=8, workers=16) == [[0]]
    assert plan_even_batches([], max_rows=4, max_tokens=8, workers=2) == []
