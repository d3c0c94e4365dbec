"""Lists of blocked codes that are mapped, against FAISS's own in memory."""

import os
import resource
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import pytest

from indexers.faiss_index import DenseInfo, open_faiss
from indexers.mapped_lists import LISTS_NAME, move_lists, open_lists
from rag.core.errors import ArtifactError, IncompleteArtifactError, ResourceError
from tests.support.limits import limited
from tests.support.messages import refusal

DIM, ROWS, LISTS = 32, 4000, 40


@pytest.fixture
def in_memory() -> Any:
    """An index one of whose lists is empty, and whose others do not end with a whole block."""
    vectors = np.random.default_rng(0).standard_normal((ROWS, DIM)).astype(np.float32)
    centres = np.concatenate([vectors[: LISTS - 1], np.full((1, DIM), -100.0, np.float32)])
    flat = faiss.IndexFlatIP(DIM)
    flat.add(centres)
    index = faiss.IndexIVFPQ(flat, DIM, LISTS, DIM // 2, 4, faiss.METRIC_INNER_PRODUCT)
    index.cp.niter = 1
    index.train(vectors)
    index.add(vectors)
    return faiss.IndexIVFPQFastScan(index)


def written(index: Any, folder: Path) -> Path:
    move_lists(index, folder)
    faiss.write_index(index, str(folder / "faiss.index"))
    return folder / "faiss.index"


@pytest.mark.parametrize("nprobe", [1, 7, LISTS])
def test_mapped_lists_give_the_results_of_those_in_memory(
    in_memory: Any, tmp_path: Path, nprobe: int, capfd: pytest.CaptureFixture[str]
) -> None:
    queries = np.random.default_rng(1).standard_normal((60, DIM)).astype(np.float32)
    rows = faiss.IDSelectorBatch(np.arange(0, ROWS, 3))
    settings = [{"nprobe": nprobe}, {"nprobe": nprobe, "sel": rows}]
    expected = [
        in_memory.search(queries, 50, params=faiss.IVFPQSearchParameters(**each))
        for each in settings
    ]
    mapped = open_lists(written(in_memory, tmp_path))
    assert mapped.ntotal == ROWS
    for each, target in zip(settings, expected, strict=True):
        actual = mapped.search(queries, 50, params=faiss.IVFPQSearchParameters(**each))
        for part in (0, 1):
            np.testing.assert_array_equal(actual[part], target[part])
    assert capfd.readouterr().out == ""


INFO = {
    "index_type": "ivf",
    "factory": "",
    "nlist": LISTS,
    "training_rows": ROWS,
    "over_fetch": 4,
    "rows": ROWS,
    "dim": DIM,
    "seed": 0,
    "exact_reranking": True,
    "probes": 0,
    "recall": {},
    "recall_target": 0.9,
}


@pytest.mark.parametrize("mapped_lists", [True, False])
def test_where_open_files_or_memory_are_lacking_no_index_is_called_damaged(
    in_memory: Any, tmp_path: Path, mapped_lists: bool
) -> None:
    info = DenseInfo(**INFO, mapped_lists=mapped_lists)
    path = tmp_path / "faiss.index"
    if mapped_lists:
        written(in_memory, tmp_path)
    else:
        faiss.write_index(in_memory, str(path))
    with limited(resource.RLIMIT_NOFILE, 0), pytest.raises(ResourceError):
        open_faiss(tmp_path, info)
    assert open_faiss(tmp_path, info).ntotal == ROWS
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    room = (pages << 12) + (64 << 20)
    size = path.stat().st_size
    os.truncate(path, 1 << 30)
    if not mapped_lists:
        with limited(resource.RLIMIT_AS, room), pytest.raises(ResourceError):
            open_faiss(tmp_path, info)
    os.truncate(path, size // 2)
    with pytest.raises(ArtifactError, match="damaged"):
        open_faiss(tmp_path, info)


def test_lists_that_are_missing_or_cut_are_refused_before_they_are_read(
    in_memory: Any, tmp_path: Path
) -> None:
    index = written(in_memory, tmp_path)
    lists = tmp_path / LISTS_NAME
    content = lists.read_bytes()
    lists.write_bytes(content[:-100])
    with refusal(ArtifactError):
        open_lists(index)
    lists.unlink()
    with refusal(IncompleteArtifactError):
        open_lists(index)
