import threading

import pytest
import torch

from rag.runtime.fast.core_pool import CorePool


@pytest.fixture
def pool():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    made = CorePool()
    yield made
    made.close()
    torch.set_num_threads(before)


def test_results_keep_their_order_and_workers_compute_with_one_thread(pool):
    assert list(pool.map(lambda n: (n, torch.get_num_threads()), range(20))) == [(n, 1) for n in range(20)]
    assert torch.get_num_threads() == 2


def test_threads_started_later_are_not_slowed_down(pool):
    seen = []
    pool.map(id, [])
    thread = threading.Thread(target=lambda: seen.append(torch.get_num_threads()))
    thread.start()
    thread.join()
    assert seen == [2]
