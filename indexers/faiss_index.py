"""FAISS over memory-mapped embeddings: built block by block, measured, searched with exact
re-ranking.

| type | what is searched                                    | bytes per vector | for                        |
|------|-----------------------------------------------------|------------------|----------------------------|
| flat | the float32 embeddings themselves                   | 4·D              | exact, up to some millions |
| hnsw | graph (32 links per node) over 8-bit codes          | D + 272          | lowest latency, slow build |
| ivf  | inverted lists of 4-bit product codes, 32 at a time | D/4 + 8          | millions of passages       |

Any other type is read by FAISS' own `index_factory`, such as "SQ8" or "OPQ64,IVF4096,PQ64x4fs".
Files are mapped into memory, which several processes share.

Files in the directory: `faiss.index` (absent for `flat`, which searches the embeddings themselves),
for blocked lists (`ivf`) also `faiss.lists`. Type, parameters, search settings and recall stand in
the manifest.

Source: André et al. 2017, "Accelerated Nearest Neighbor Search with Quick ADC", for the codes of
    `ivf`.
"""

import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import faiss
import numpy as np
from faiss.contrib.clustering import two_level_clustering

from indexers.embeddings import EmbeddingShards
from indexers.exact import (
    CANDIDATE_MARGIN,
    FlatIndex,
    check_queries,
    check_selected,
    exact_scores,
    exact_search,
    recalls_at,
    sample_rows,
    select_best,
)
from indexers.mapped_lists import LISTS_NAME, move_lists, open_lists
from indexers.protocols import Selection, VectorIndex
from indexers.settings import INDEX_TYPES
from rag.core.arrays import Float32, Int64
from rag.core.errors import (
    ArtifactError,
    ConfigError,
    IncompleteArtifactError,
    MismatchedArtifactError,
)
from rag.core.files import atomic_path, clean_directory
from rag.core.log import Progress

FAISS_NAME = "faiss.index"
HNSW_LINKS = 32
_EF_CONSTRUCTION = 160  # of a graph
_TWO_LEVELS_FROM = 1024  # lists, from which they are clustered in two levels
_GRAPH_OF_LISTS_FROM = 4096  # lists, from which a graph finds those nearest to a vector
_LISTS_LINKING, _LISTS_EFFORT = (
    80,
    128,
)  # its efConstruction, efSearch: FAISS's 40, 16 miss 7 % of the lists
_LIST_POINTS = 64  # training vectors for each inverted list
_CODE_POINTS = 65_536  # training vectors for codes
RECALL_KS = (1, 10, 100)
_COMPARE_ALL = 50_000  # selected rows of which every one is compared
_LEAST_SHARE = 16  # the same where one row in this many is selected, or fewer
_MOST_ROWS = 0.75  # share of selected rows from which a search is not repeated with more width
_GRAPH_EFFORTS = (
    128,
    256,
    512,
    1024,
    2048,
    4096,
)  # efSearch, the first that reaches the target is taken
_STANDS_STILL = 0.002  # least gain in recall by twice the effort
_CODEWORDS = 16  # of codes of four bits; training needs as many vectors
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Preset:
    """Parameters of one index type for a corpus of a given size.

    Attributes:
        factory: FAISS factory string; empty for `flat`, which has no FAISS file.
        nlist: inverted lists; 0 where there are none, or FAISS decides.
        training_rows: vectors that codes and lists are trained on.
        over_fetch: candidates that are re-ranked for each result.
    """

    index_type: str
    factory: str
    nlist: int
    training_rows: int
    over_fetch: int


def preset_for(index_type: str, rows: int, dim: int) -> Preset:
    """The parameters of an index type for `rows` vectors of size `dim`.

    Example:
        >>> preset_for("ivf", 21_015_324, 768).factory
        'IVF16384(HNSW32_SQfp16),PQ384x4fsr'
        >>> preset_for("SQ8", 1000, 384).factory
        'SQ8'
    """
    if index_type == "flat":
        return Preset(index_type, "", 0, 0, 1)
    if index_type == "hnsw":
        return Preset(index_type, f"HNSW{HNSW_LINKS}_SQ8", 0, min(rows, _CODE_POINTS), 1)
    if index_type != "ivf":
        return Preset(index_type, index_type, 0, min(rows, 4 * _CODE_POINTS), 4)
    # 4·√N as a power of two, but at least 39 vectors per list
    nlist = max(1, min(1 << round(math.log2(4 * math.sqrt(max(rows, 1)))), rows // 39))
    # centroids in half precision: as exact, and faster, because more of them fit the cache
    graph = f"(HNSW{HNSW_LINKS}_SQfp16)" if nlist >= _GRAPH_OF_LISTS_FROM else ""
    codes = dim // 2 if dim % 2 == 0 else dim  # of four bits
    training_rows = min(rows, max(_CODE_POINTS, _LIST_POINTS * nlist))
    return Preset(index_type, f"IVF{nlist}{graph},PQ{codes}x4fsr", nlist, training_rows, 4)


@contextmanager
def _faiss_threads(threads: int | None) -> Iterator[None]:
    before = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(threads or before)
    try:
        yield
    finally:
        faiss.omp_set_num_threads(before)


def create_faiss(preset: Preset, dim: int, seed: int = 0) -> Any:
    """An empty FAISS index.

    Raises:
        ConfigError: FAISS knows no such index for vectors of this size.
    """
    try:
        index = faiss.index_factory(dim, preset.factory, faiss.METRIC_INNER_PRODUCT)
    except RuntimeError as error:
        raise ConfigError(
            f"there is no index type {preset.index_type!r} for vectors of {dim} numbers",
            hint=f"choose one of {', '.join(INDEX_TYPES)}, or a string of FAISS' index_factory, such as SQ8",
        ) from error
    if preset.index_type == "hnsw":
        index.hnsw.efConstruction = _EF_CONSTRUCTION
    if (lists := faiss.try_extract_index_ivf(index)) is not None:
        lists = faiss.downcast_index(lists)
        lists.cp.seed, lists.cp.min_points_per_centroid = seed, 1
        if preset.nlist >= _GRAPH_OF_LISTS_FROM:
            faiss.downcast_index(lists.quantizer).hnsw.efConstruction = _LISTS_LINKING
        if (codes := getattr(lists, "pq", None)) is not None:
            # Sixteen thousand vectors and ten rounds settle 16 or 256 centroids of a few numbers
            # each.
            codes.cp.seed, codes.cp.niter = seed, 10
            codes.cp.min_points_per_centroid, codes.cp.max_points_per_centroid = 1, 64
    return index


def _train(index: Any, preset: Preset, sample: Float32, seed: int) -> None:
    if preset.nlist >= _TWO_LEVELS_FROM:
        with suppress(
            RuntimeError
        ):  # a group of copies of one vector cannot be divided: FAISS trains alone
            centroids, _ = two_level_clustering(
                sample,
                round(math.sqrt(preset.nlist)),
                preset.nlist,
                clustering_niter=10,
                seed=seed,
                spherical=True,
                min_points_per_centroid=1,
            )
            faiss.extract_index_ivf(index).quantizer.add(centroids)
    if preset.nlist and len(sample) < _CODEWORDS:
        sample = np.resize(sample, (_CODEWORDS, sample.shape[1]))
    try:
        index.train(sample)
    except RuntimeError as error:
        raise ConfigError(
            f"{preset.factory} cannot be trained on {len(sample):,} vectors",
            hint="give ivf or a type of fewer lists and codes: what is encoded stays; or flat, --overwrite",
        ) from error


def build_faiss(
    embeddings: EmbeddingShards,
    directory: str | Path,
    *,
    probes: Float32,
    index_type: str = "flat",
    recall_target: float = 0.98,
    seed: int = 0,
    threads: int | None = None,
) -> dict[str, Any]:
    """Build and measure a dense index, with the same bytes every time: graphs are built on one
    core.

    Its effort (lists or graph nodes that a search looks at) is the first, doubled each time, whose
    recall@1, @10 and @100 reach `recall_target` on the probes; if none does, the last, with a
    warning.

    Args:
        embeddings: vectors to index; never all in memory as float32.
        probes: held-out query vectors (n, D).
        index_type: one of `INDEX_TYPES`, or a string of FAISS' `index_factory`.
        recall_target: recall against exact search.

    Returns:
        What the manifest says of it: parameters, search settings, recall@k for k in 1, 10, 100.

    Raises:
        ConfigError: unknown index type.
        ResourceError: the disk is full.
    """
    place = Path(directory)
    rows, dim = len(embeddings), embeddings.dim
    preset = preset_for(index_type, rows, dim)
    clean_directory(place)
    (place / LISTS_NAME).unlink(missing_ok=True)
    info: dict[str, Any] = {
        **asdict(preset),
        "metric": "inner_product",
        "rows": rows,
        "dim": dim,
        "seed": seed,
        "effort": 0,
        "exact_reranking": index_type != "flat",
        "probes": len(probes),
        "recall_target": recall_target,
    }
    if index_type == "flat":
        (place / FAISS_NAME).unlink(missing_ok=True)
        return {**info, "recall": {str(k): 1.0 for k in RECALL_KS}}
    index = create_faiss(preset, dim, seed)
    with _faiss_threads(1 if preset.nlist >= _GRAPH_OF_LISTS_FROM else threads):
        _train(index, preset, sample_rows(embeddings, preset.training_rows, seed), seed)
    with (
        _faiss_threads(1 if isinstance(index, faiss.IndexHNSW) else threads),
        Progress(rows, "vectors", f"faiss {index_type}") as progress,
    ):
        for _, block in embeddings.blocks():
            index.add(block)
            progress.update(len(block))
    if (lists := faiss.try_extract_index_ivf(index)) is not None:
        info["nlist"] = lists.nlist
        if preset.nlist >= _GRAPH_OF_LISTS_FROM:  # for searches; vectors are filed by the default
            faiss.downcast_index(lists.quantizer).hnsw.efSearch = _LISTS_EFFORT
    if isinstance(index, faiss.IndexIVFPQFastScan):
        info["mapped_lists"] = True
        move_lists(index, place)
    with atomic_path(place / FAISS_NAME) as temporary:
        faiss.write_index(index, str(temporary))
    del index
    with _faiss_threads(threads):
        truth, _ = exact_search(embeddings, probes, min(max(RECALL_KS), rows))
        info |= _choose_effort(open_faiss(place, info), embeddings, info, probes, truth)
    if (reached := info["recall"]["100"]) < recall_target:
        message = (
            "index type %s reaches recall@100 %.3f, the target is %.3f; SQ8 and flat are more exact"
        )
        _log.warning(message, index_type, reached, recall_target)
    return info


def _choose_effort(
    index: Any,
    embeddings: EmbeddingShards,
    info: Mapping[str, Any],
    probes: Float32,
    truth: Float32,
) -> dict[str, Any]:
    """The first effort, over-fetch and their recall that reach the target; the last ones if none
    does.
    """
    settings: dict[str, Any] = {}
    for over_fetch in (info["over_fetch"], 4 * info["over_fetch"]):
        before = 0.0
        for effort in _efforts(index, info["nlist"]):
            settings = {"effort": effort, "over_fetch": over_fetch}
            dense = FaissIndex(index, embeddings, {**info, **settings})
            recall = {
                str(k): round(float(recalls_at(dense, probes, truth, k).mean()), 4)
                for k in RECALL_KS
            }
            settings["recall"] = recall
            if (worst := min(recall.values())) >= info["recall_target"]:
                return settings
            # with more than some lists, more effort may bring nothing: the codes are the limit
            if worst < before + _STANDS_STILL and effort >= max(16, info["nlist"] // 8):
                break
            before = worst
    return settings


def _efforts(index: Any, nlist: int) -> Sequence[int]:
    """Efforts to try in order: nprobe of lists, efSearch of a graph, 0 for a full scan."""
    if nlist:
        first = max(1, nlist // 128)
        doubled = [first << n for n in range(nlist.bit_length()) if first << n < nlist]
        return [*doubled, nlist]
    return _GRAPH_EFFORTS if isinstance(index, faiss.IndexHNSW) else (0,)


def search_parameters(
    index: Any, effort: int, count: int, selected: Selection | None = None
) -> Any:
    """Search settings for one call; settings on the index itself would be shared by threads."""
    if isinstance(index, faiss.IndexPreTransform):
        inner = search_parameters(faiss.downcast_index(index.index), effort, count, selected)
        return faiss.SearchParametersPreTransform(index_params=inner)
    rows = {} if selected is None else {"sel": faiss.IDSelectorBitmap(selected.bits)}
    if isinstance(index, faiss.IndexHNSW):
        return faiss.SearchParametersHNSW(efSearch=max(effort, count), **rows)
    if isinstance(index, faiss.IndexIVFPQ):
        return faiss.IVFPQSearchParameters(nprobe=effort, **rows)
    if isinstance(index, faiss.IndexIVF):
        return faiss.SearchParametersIVF(nprobe=effort, **rows)
    return faiss.SearchParameters(**rows) if rows else None


def open_faiss(directory: Path, info: Mapping[str, Any]) -> Any:
    """FAISS's index in a directory, mapped into memory; an ArtifactError if it is damaged or does
    not fit.
    """
    path = directory / FAISS_NAME
    if not path.is_file():
        raise IncompleteArtifactError(f"{path} is missing", hint="run the stage that builds it")
    try:
        is_blocked = info.get("mapped_lists")
        index = (
            open_lists(path) if is_blocked else faiss.read_index(str(path), faiss.IO_FLAG_MMAP_IFC)
        )
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

    def __init__(self, index: Any, embeddings: EmbeddingShards, info: Mapping[str, Any]) -> None:
        self._index, self._embeddings, self.dim = index, embeddings, embeddings.dim
        self._effort, self._over_fetch = int(info["effort"]), int(info["over_fetch"])
        self._lists = int(info["nlist"])  # 0 where there are none

    def __len__(self) -> int:
        return len(self._embeddings)

    def search(
        self, queries: Float32, top_k: int, selected: Selection | None = None
    ) -> tuple[Float32, Int64]:
        """See `VectorIndex.search`; scores are exact inner products with the stored embeddings.

        Of few selected rows every one is compared. With more, the search widens by the share of
        rows that are not selected and, where these are many, until one twice as wide gives the same
        result.
        """
        queries = check_queries(queries, self.dim, top_k)
        if selected is None:
            return self._search(queries, top_k, 1, None)
        allowed = len(check_selected(selected, len(self)))
        if allowed <= max(_COMPARE_ALL, len(self) // _LEAST_SHARE):
            return exact_search(self._embeddings, queries, top_k, selected)
        width = -(-len(self) // allowed)
        best = self._search(queries, top_k, width, selected)
        while allowed < _MOST_ROWS * len(self) and width * top_k < allowed:
            width, before = 2 * width, best[1]
            best = self._search(queries, top_k, width, selected)
            if np.array_equal(before, best[1]):
                break
        return best

    def _search(
        self, queries: Float32, top_k: int, width: int, selected: Selection | None
    ) -> tuple[Float32, Int64]:
        """One search with `width` times the tuned effort and candidates."""
        if self._count(top_k, width) >= (len(self) if selected is None else len(selected)):
            return exact_search(
                self._embeddings, queries, top_k, selected
            )  # FAISS has nothing to choose

        rows = self._candidates(queries, top_k, width, selected)
        scores, best = select_best(exact_scores(self._embeddings, queries, rows), rows, top_k)
        lacking = np.flatnonzero(best[:, -1] < 0)
        if len(
            lacking
        ):  # as in a graph whose links lead from copies of a passage to other copies alone
            scores[lacking], best[lacking] = exact_search(
                self._embeddings, queries[lacking], top_k, selected
            )
        return scores, best

    def _count(self, top_k: int, width: int) -> int:
        """Number of candidates that are fetched for `top_k` results; more than there are rows,
        perhaps.
        """
        return width * top_k * self._over_fetch + CANDIDATE_MARGIN

    def _candidates(
        self, queries: Float32, top_k: int, width: int, selected: Selection | None
    ) -> Int64:
        """Rows (n, count) of the candidates at the first effort that gives enough; row -1: no
        more.
        """
        count, effort = min(self._count(top_k, width), len(self)), self._effort * width
        if self._lists:
            # Tuned for the first hundred results: for two hundred and more, lists are searched in
            # proportion.
            tuned = width * self._count(max(RECALL_KS), 1)
            effort = min(effort * max(1, count // tuned), self._lists)
        while True:
            parameters = search_parameters(self._index, effort, count, selected)
            rows: Int64 = self._index.search(queries, count, params=parameters)[1]
            if effort >= self._lists or (rows[:, : min(top_k, count)] >= 0).all():
                return rows
            effort = min(2 * effort, self._lists)


def open_dense(
    directory: Path, embeddings: EmbeddingShards, info: Mapping[str, Any]
) -> VectorIndex:
    """Open what `build_faiss` wrote into a directory and returned as `info`.

    Raises:
        ArtifactError: the file is missing, damaged, or belongs to other embeddings.
    """
    if (info["rows"], info["dim"]) != (len(embeddings), embeddings.dim):
        raise MismatchedArtifactError(
            f"{directory} indexes {info['rows']} vectors of size {info['dim']}, not these {len(embeddings)}",
            hint="rebuild the index",
        )
    if info["index_type"] == "flat":
        return FlatIndex(embeddings)
    return FaissIndex(open_faiss(directory, info), embeddings, info)
