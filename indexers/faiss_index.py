"""FAISS over memory-mapped embeddings: built block by block, tuned to a recall, searched with re-ranking.

Files in the directory: `dense.json` (type, parameters, search settings, measured recall) and `faiss.index`
(absent for `flat`, which searches the embeddings themselves), for `fastscan` also `faiss.lists`.
"""

import errno
import logging
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import faiss
import numpy as np

from indexers.coarse import train_index
from indexers.embedding_shards import EmbeddingShards
from indexers.exact import (
    CANDIDATE_MARGIN,
    FlatIndex,
    check_queries,
    check_selected,
    exact_scores,
    exact_search,
    sample_rows,
    select_best,
)
from indexers.ledger import read_info
from indexers.mapped_lists import LISTS_NAME, move_lists, open_lists
from indexers.presets import HNSW_EF_CONSTRUCTION, Preset, preset_for
from indexers.probes import perturbed_probes
from indexers.protocols import VectorIndex
from indexers.selected import Selection
from rag.core.arrays import Float32, Int64
from rag.core.errors import ArtifactError, DataError, IncompleteArtifactError, MismatchedArtifactError
from rag.core.files import atomic_path, atomic_write_json, clean_directory
from rag.core.progress import Progress

DENSE_NAME, FAISS_NAME = "dense.json", "faiss.index"
RECALL_KS = (1, 10, 100)
_COMPARE_ALL = 50_000  # selected rows of which every one is compared
_LEAST_SHARE = 16  # the same where one row in this many is selected, or fewer
_MOST_ROWS = 0.75  # share of selected rows from which a search is not repeated with more width
_CLOSE = 0.01  # recall that is given up for speed where the target cannot be reached
_STANDS_STILL = 0.002  # least gain in recall by twice the effort
# Seconds for a number of a code that is compared, and for a row that is scored exactly from memory or from a
# disk (measured with AVX2): what a search costs is compared by these, so that equal indexes are tuned alike.
_NUMBER_S, _FAST_NUMBER_S = 1.7e-10, 4e-11
_ROW_S, _ROW_ON_DISK_S = 1e-6, 3e-5
_log = logging.getLogger(__name__)


@contextmanager
def _faiss_threads(threads: int | None) -> Iterator[None]:
    before = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(threads or before)
    try:
        yield
    finally:
        faiss.omp_set_num_threads(before)


def _create(preset: Preset, dim: int, seed: int) -> Any:
    # Codes in blocks for the registers cannot be added to lists that are known: they are made last.
    index = faiss.index_factory(dim, preset.factory.removesuffix("fs"), faiss.METRIC_INNER_PRODUCT)
    if preset.name == "hnsw":
        index.hnsw.efConstruction = HNSW_EF_CONSTRUCTION
    if preset.nlist:
        lists = faiss.downcast_index(faiss.extract_index_ivf(index))
        lists.cp.seed = seed
        lists.cp.min_points_per_centroid = 1
        if preset.codewords:
            # Sixteen thousand vectors and ten rounds settle 16 or 256 centroids of a few numbers each.
            codes = lists.pq
            # It reorders the codes for filters that are not used, for minutes.
            lists.do_polysemous_training = False
            codes.cp.seed, codes.cp.niter = seed, 10
            codes.cp.min_points_per_centroid, codes.cp.max_points_per_centroid = 1, 64
    return index


def build_faiss(
    embeddings: EmbeddingShards,
    directory: str | Path,
    *,
    index_type: str = "flat",
    probes: Float32 | None = None,
    recall_target: float = 0.98,
    seed: int = 0,
    threads: int | None = None,
    reproducible: bool = True,
) -> dict[str, Any]:
    """Build, tune and measure a dense index.

    The search settings are the cheapest whose recall@1, @10 and @100 reach `recall_target` on the probes with
    one standard error to spare; if none does, the cheapest that come close to the best, with a warning.

    Args:
        embeddings: vectors to index; never all in memory as float32.
        probes: held-out query vectors (n, D); noisy stored vectors if None.
        recall_target: recall against exact search to tune for.
        reproducible: same bytes every time; the graph of `hnsw` is then built on one core.

    Returns:
        The content of `dense.json`: parameters, search settings, recall@k for k in 1, 10, 100.

    Raises:
        ConfigError: unknown index type, or `flat` over float16 embeddings.
        ResourceError: the disk is full.
    """
    place = Path(directory)
    preset = preset_for(index_type, len(embeddings), embeddings.dim)
    if len(embeddings) == 0:
        raise DataError("there are no embeddings to index")
    clean_directory(place)
    (place / LISTS_NAME).unlink(missing_ok=True)
    if probes is None:
        probes = perturbed_probes(embeddings, min(256, len(embeddings)), seed)
    info: dict[str, Any] = {
        "index_type": preset.name,
        "factory": preset.factory,
        "metric": "inner_product",
        "rows": len(embeddings),
        "dim": embeddings.dim,
        "nlist": preset.nlist,
        "pq_bytes": preset.pq_bytes,
        "training_rows": preset.training_rows,
        "seed": seed,
        "effort": 0,
        "over_fetch": 1,
        "exact_reranking": preset.name != "flat",
        "probes": len(probes),
        "recall_target": recall_target,
    }
    if preset.name == "flat":
        FlatIndex(embeddings)
        (place / FAISS_NAME).unlink(missing_ok=True)
        info["recall"] = {str(k): 1.0 for k in RECALL_KS}
        atomic_write_json(place / DENSE_NAME, info)
        return info
    with _faiss_threads(1 if preset.name == "hnsw" and reproducible else threads):
        index = _create(preset, embeddings.dim, seed)
        add = train_index(index, preset, sample_rows(embeddings, preset.training_rows, seed), seed)
        with Progress(len(embeddings), "vectors", f"faiss {preset.name}") as progress:
            for _, block in embeddings.blocks():
                add(block)
                progress.update(len(block))
    if preset.name == "fastscan":
        index = faiss.IndexIVFPQFastScan(index)
        move_lists(index, place)
    with atomic_path(place / FAISS_NAME) as temporary, _disk_errors_of_faiss(place):
        faiss.write_index(index, str(temporary))
    del index
    with _faiss_threads(threads):
        truth, _ = exact_search(embeddings, probes, min(max(RECALL_KS), len(embeddings)))
        info.update(_tune(open_faiss(place, info), preset, embeddings, probes, truth, recall_target))
        dense = FaissIndex(open_faiss(place, info), embeddings, info)
        info["recall"] = {str(k): round(recall_at(dense, probes, truth, k), 4) for k in RECALL_KS}
    if info["recall"]["100"] < recall_target:
        _log.warning(
            "index type %s reaches recall@100 %.3f, the target is %.3f; sq8 and fp16 are more exact",
            preset.name, info["recall"]["100"], recall_target,
        )  # fmt: skip
    atomic_write_json(place / DENSE_NAME, info)
    return info


@contextmanager
def _disk_errors_of_faiss(place: Path) -> Iterator[None]:
    """Turn FAISS's RuntimeError of a failed write into an OSError with its errno."""
    try:
        yield
    except RuntimeError as error:
        if "write error" in str(error) or shutil.disk_usage(place).free < 1 << 20:
            raise OSError(errno.ENOSPC, str(error)) from error
        raise


def _tune(
    index: Any,
    preset: Preset,
    embeddings: EmbeddingShards,
    probes: Float32,
    truth: Float32,
    target: float,
) -> dict[str, int]:
    """Cheapest effort and over-fetch with enough recall at every depth of `RECALL_KS`.

    More lists cost comparisons of codes, a larger over-fetch costs rows that are read and scored exactly.
    After that re-ranking, recall is the share of true results among the candidates, so one search with the
    largest over-fetch answers for all smaller ones.
    """
    depths = sorted({min(k, truth.shape[1]) for k in RECALL_KS})
    tried, before = list[tuple[float, int, int]](), 0.0
    best, best_s = dict[str, int](), np.inf
    number_s = _FAST_NUMBER_S if preset.name == "fastscan" else _NUMBER_S
    compared_s = number_s * len(embeddings) * embeddings.dim  # to search all lists
    row_s = _ROW_ON_DISK_S if embeddings.is_large else _ROW_S
    for effort in preset.efforts:
        effort_s = compared_s * effort / preset.nlist if preset.nlist else 0.0
        if best and effort_s >= best_s:
            break
        wanted = min(depths[-1] * preset.over_fetches[-1] + CANDIDATE_MARGIN, len(embeddings))
        _, candidates = index.search(probes, wanted, params=search_parameters(index, effort, wanted))
        scores = exact_scores(embeddings, probes, candidates)
        for over_fetch in preset.over_fetches:
            worst = 1.0
            for k in depths:
                threshold = truth[:, k - 1 : k] - 1e-6 * np.abs(truth[:, k - 1 : k])
                hits = (scores[:, : k * over_fetch + CANDIDATE_MARGIN] >= threshold).sum(axis=1)
                recalls = np.minimum(hits / k, 1.0)
                worst = min(worst, float(recalls.mean() - recalls.std() / np.sqrt(len(recalls))))
            if worst >= target:
                cost_s = effort_s + row_s * (depths[-1] * over_fetch + CANDIDATE_MARGIN)
                if cost_s < best_s:
                    best, best_s = {"effort": effort, "over_fetch": over_fetch}, cost_s
                break
            tried.append((worst, effort, over_fetch))
        if best and not preset.nlist:
            break
        if worst < before + _STANDS_STILL:  # more lists bring nothing: the codes are the limit
            break
        before = worst
    if best:
        return best
    enough = max(tried)[0] - _CLOSE
    return next({"effort": e, "over_fetch": o} for recall, e, o in tried if recall >= enough)


def recall_at(index: VectorIndex, probes: Float32, truth: Float32, k: int) -> float:
    """Share of the true best `k` that `index` returns; equal scores count as equal.

    Args:
        probes: queries (n, D).
        truth: exact scores (n, K), best first; K may be less than `k` in a small corpus.
    """
    depth = min(k, truth.shape[1])
    scores, _ = index.search(probes, depth)
    threshold = truth[:, depth - 1 : depth]
    return float((scores >= threshold - 1e-6 * np.abs(threshold)).mean())


def search_parameters(index: Any, effort: int, wanted: int, selected: Selection | None = None) -> Any:
    """Search settings for one call; settings on the index itself would be shared by threads."""
    if isinstance(index, faiss.IndexPreTransform):
        inner = search_parameters(faiss.downcast_index(index.index), effort, wanted, selected)
        return faiss.SearchParametersPreTransform(index_params=inner)
    rows = {} if selected is None else {"sel": faiss.IDSelectorBitmap(selected.bits)}
    if isinstance(index, faiss.IndexHNSW):
        return faiss.SearchParametersHNSW(efSearch=max(effort, wanted), **rows)
    if isinstance(index, faiss.IndexIVFPQ):
        return faiss.IVFPQSearchParameters(nprobe=effort, **rows)
    if isinstance(index, faiss.IndexIVFRaBitQ):
        return faiss.IVFRaBitQSearchParameters(nprobe=effort, qb=8, **rows)
    if isinstance(index, faiss.IndexIVF):
        return faiss.SearchParametersIVF(nprobe=effort, **rows)
    return faiss.SearchParameters(**rows) if rows else None


def open_faiss(directory: Path, info: Mapping[str, Any]) -> Any:
    """FAISS's index in a directory, mapped into memory.

    Raises:
        ArtifactError: the file is missing, damaged, or does not fit `info`, the content of `dense.json`.
    """
    path = directory / FAISS_NAME
    if not path.is_file():
        raise IncompleteArtifactError(f"{path} is missing", hint="run the stage that builds it")
    try:
        is_blocked = info.get("index_type") == "fastscan"
        index = open_lists(path) if is_blocked else faiss.read_index(str(path), faiss.IO_FLAG_MMAP_IFC)
    except (RuntimeError, MemoryError) as error:
        raise ArtifactError(f"{path} is damaged", hint="restore it or rebuild the index") from error
    if (index.ntotal, index.d) != (info["rows"], info["dim"]):
        raise MismatchedArtifactError(
            f"{path} holds {index.ntotal} vectors of size {index.d}, "
            f"expected {info['rows']} of size {info['dim']}",
            hint="restore it or rebuild the index",
        )
    return index


class FaissIndex:
    """A lossy FAISS index whose candidates are re-ranked with exact scores from the embeddings."""

    def __init__(self, index: Any, embeddings: EmbeddingShards, info: dict[str, Any]) -> None:
        self._index, self._embeddings, self.dim = index, embeddings, embeddings.dim
        self._effort, self._over_fetch = int(info["effort"]), int(info["over_fetch"])
        self._lists = int(info["nlist"])  # 0 where there are none

    def __len__(self) -> int:
        return len(self._embeddings)

    def search(
        self, queries: Float32, top_k: int, selected: Selection | None = None
    ) -> tuple[Float32, Int64]:
        """See `VectorIndex.search`; scores are exact inner products with the stored embeddings.

        Of few selected rows every one is compared. With more, the search widens by the share of rows that are
        not selected and, where these are many, until one twice as wide gives the same result.
        """
        queries = check_queries(queries, self.dim, top_k)
        if selected is None:
            return self._search(queries, top_k, 1, None)
        chosen = len(check_selected(selected, len(self)))
        if chosen <= max(_COMPARE_ALL, len(self) // _LEAST_SHARE):
            return exact_search(self._embeddings, queries, top_k, selected)
        width = -(-len(self) // chosen)
        best = self._search(queries, top_k, width, selected)
        while chosen < _MOST_ROWS * len(self) and width * top_k < chosen:
            width, before = 2 * width, best[1]
            best = self._search(queries, top_k, width, selected)
            if np.array_equal(before, best[1]):
                break
        return best

    def _search(
        self, queries: Float32, top_k: int, width: int, selected: Selection | None
    ) -> tuple[Float32, Int64]:
        """One search with `width` times the tuned effort and candidates."""
        there = len(self) if selected is None else len(selected)
        if self._wanted(top_k, width) >= there:  # FAISS has nothing to choose: every row is scored exactly
            return exact_search(self._embeddings, queries, top_k, selected)
        _, rows = self.widen(
            lambda wanted, effort: self.candidates(queries, wanted, effort, selected), top_k, width
        )
        scores, best = select_best(exact_scores(self._embeddings, queries, rows), rows, top_k)
        lacking = np.flatnonzero(best[:, -1] < 0)
        if len(lacking):  # as in a graph whose links lead from copies of a passage to other copies alone
            scores[lacking], best[lacking] = exact_search(self._embeddings, queries[lacking], top_k, selected)
        return scores, best

    def _wanted(self, top_k: int, width: int) -> int:
        """Number of candidates that are fetched for `top_k` results; more than there are rows, perhaps."""
        return width * top_k * self._over_fetch + CANDIDATE_MARGIN

    def widen(
        self, find: Callable[[int, int], tuple[Float32, Int64]], top_k: int, width: int = 1
    ) -> tuple[Float32, Int64]:
        """The result of `find(number of candidates, effort)` at the first effort that gives enough."""
        wanted = min(self._wanted(top_k, width), len(self))
        # Tuned for the first hundred results: from two hundred on, further lists are searched in proportion.
        tuned = max(RECALL_KS) * self._over_fetch + CANDIDATE_MARGIN
        effort = self._effort * width
        if self._lists:
            effort = min(effort * max(1, wanted // (width * tuned)), self._lists)
        while True:
            scores, rows = find(wanted, effort)
            if effort >= self._lists or (rows[:, : min(top_k, wanted)] >= 0).all():
                return scores, rows
            effort = min(2 * effort, self._lists)

    def candidates(
        self, queries: Float32, wanted: int, effort: int, selected: Selection | None
    ) -> tuple[Float32, Int64]:
        """Approximate scores (n, wanted) and rows (n, wanted) of the best candidates; row -1: no more."""
        return self._index.search(
            queries, wanted, params=search_parameters(self._index, effort, wanted, selected)
        )


def open_dense(directory: str | Path, embeddings: EmbeddingShards) -> VectorIndex:
    """Open what `build_faiss` wrote.

    Raises:
        ArtifactError: a file is missing or damaged; the message names it.
        MismatchedArtifactError: it was built from other embeddings.
    """
    place = Path(directory)
    info = read_info(
        place / DENSE_NAME,
        lambda it: (
            preset_for(it["index_type"], it["rows"], it["dim"]),
            int(it["effort"]),
            int(it["over_fetch"]),
        ),
    )
    if (info["rows"], info["dim"]) != (len(embeddings), embeddings.dim):
        raise MismatchedArtifactError(
            f"{place} indexes {info['rows']} vectors of size {info['dim']}, "
            f"the embeddings are {len(embeddings)} of {embeddings.dim}",
            hint="rebuild the index",
        )
    if info["index_type"] == "flat":
        return FlatIndex(embeddings)
    return FaissIndex(open_faiss(place, info), embeddings, info)
