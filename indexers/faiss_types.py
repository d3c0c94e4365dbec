"""The types of FAISS index, and their parameters for a corpus of a given size.

| type | what is searched                                    | bytes per vector | for                        |
|------|-----------------------------------------------------|------------------|----------------------------|
| flat | the float32 embeddings themselves                   | 4·D              | exact, up to some millions |
| hnsw | graph (32 links per node) over 8-bit codes          | D + 272          | lowest latency, slow build |
| ivf  | inverted lists of 4-bit product codes, 32 at a time | D/4 + 8          | millions of passages       |

Any other type is read by FAISS' own `index_factory`, such as "SQ8" or "OPQ64,IVF4096,PQ64x4fs".

Source: André et al. 2017, "Accelerated Nearest Neighbor Search with Quick ADC", for the codes of
    `ivf`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import faiss

from indexers.settings import INDEX_TYPES
from rag.core.errors import ConfigError

HNSW_LINKS = 32
GRAPH_OF_LISTS_FROM = 4096  # lists, from which a graph finds those nearest to a vector
CODE_POINTS = 65_536  # training vectors for codes
_LIST_POINTS = 64  # training vectors for each inverted list
_EF_CONSTRUCTION = 160  # of a graph over passages
_LISTS_EF_CONSTRUCTION = 80  # of a graph over lists: FAISS's 40 misses 7 % of them


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
    factory: str = ""
    nlist: int = 0
    training_rows: int = 0
    over_fetch: int = 1


def preset_for(index_type: str, rows: int, dim: int) -> Preset:
    """The parameters of an index type for `rows` vectors of size `dim`.

    Example:
        >>> preset_for("ivf", 21_015_324, 768).factory
        'IVF16384(HNSW32_SQfp16),PQ384x4fsr'
        >>> preset_for("SQ8", 1000, 384).factory
        'SQ8'
    """
    if index_type == "flat":
        return Preset(index_type)
    if index_type == "hnsw":
        factory = f"HNSW{HNSW_LINKS}_SQ8"
        return Preset(index_type, factory, training_rows=min(rows, CODE_POINTS))
    if index_type != "ivf":
        training_rows = min(rows, 4 * CODE_POINTS)
        return Preset(index_type, index_type, training_rows=training_rows, over_fetch=4)
    # 4·√N as a power of two, but at least 39 vectors per list
    nlist = max(1, min(1 << round(math.log2(4 * math.sqrt(max(rows, 1)))), rows // 39))
    graph = ""
    if nlist >= GRAPH_OF_LISTS_FROM:
        # Centroids in half precision: as exact, and faster, because more of them fit the cache.
        graph = f"(HNSW{HNSW_LINKS}_SQfp16)"
    codes = dim // 2 if dim % 2 == 0 else dim  # of four bits
    training_rows = min(rows, max(CODE_POINTS, _LIST_POINTS * nlist))
    factory = f"IVF{nlist}{graph},PQ{codes}x4fsr"
    return Preset(index_type, factory, nlist, training_rows, over_fetch=4)


def create_faiss(preset: Preset, dim: int, seed: int = 0) -> faiss.Index:
    """An empty FAISS index.

    Raises:
        ConfigError: FAISS knows no such index for vectors of this size.
    """
    try:
        index = faiss.index_factory(dim, preset.factory, faiss.METRIC_INNER_PRODUCT)
    except RuntimeError as error:
        raise ConfigError(
            f"there is no index type {preset.index_type!r} for vectors of {dim} numbers",
            hint=f"choose one of {', '.join(INDEX_TYPES)}, or a string of FAISS' index_factory, "
            "such as SQ8",
        ) from error
    if preset.index_type == "hnsw":
        index.hnsw.efConstruction = _EF_CONSTRUCTION
    ivf = faiss.try_extract_index_ivf(index)
    if ivf is None:
        return index
    lists = faiss.downcast_index(ivf)
    lists.cp.seed = seed
    lists.cp.min_points_per_centroid = 1
    if preset.nlist >= GRAPH_OF_LISTS_FROM:
        faiss.downcast_index(lists.quantizer).hnsw.efConstruction = _LISTS_EF_CONSTRUCTION
    if hasattr(lists, "pq"):
        # Sixteen thousand vectors and ten rounds settle 16 or 256 centroids of a few numbers each.
        lists.pq.cp.seed = seed
        lists.pq.cp.niter = 10
        lists.pq.cp.min_points_per_centroid = 1
        lists.pq.cp.max_points_per_centroid = 64
    return index


@contextmanager
def faiss_threads(threads: int | None) -> Iterator[None]:
    """Let FAISS use so many threads inside the block; None: as many as before."""
    before = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(threads or before)
    try:
        yield
    finally:
        faiss.omp_set_num_threads(before)
