"""Build a FAISS index over memory-mapped embeddings, block by block, and measure it.

Files in the directory: `faiss.index` (absent for `flat`, which searches the embeddings themselves),
for blocked lists (`ivf`) also `faiss.lists`. Type, parameters, search settings and recall stand in
the manifest.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

import faiss
import numpy as np
from faiss.contrib.clustering import two_level_clustering

from indexers.embeddings import EmbeddingShards
from indexers.exact import exact_search, recalls_at, sample_rows
from indexers.faiss_index import FAISS_NAME, RECALL_KS, DenseInfo, FaissIndex, open_faiss
from indexers.faiss_types import (
    GRAPH_OF_LISTS_FROM,
    Preset,
    create_faiss,
    faiss_threads,
    preset_for,
)
from indexers.mapped_lists import LISTS_NAME, move_lists
from rag.core.arrays import Float32
from rag.core.errors import ConfigError
from rag.core.files import atomic_path, clean_directory
from rag.core.log import Progress

_TWO_LEVELS_FROM = 1024  # lists, from which they are clustered in two levels
_LISTS_EF_SEARCH = 128  # of a graph over lists: FAISS's 16 misses 7 % of them
_GRAPH_EFFORTS = (128, 256, 512, 1024, 2048, 4096)  # efSearch
_LEAST_GAIN = 0.002  # in recall, by twice the effort
_CODEWORDS = 16  # of codes of four bits; training needs as many vectors
_log = logging.getLogger(__name__)


def build_faiss(
    embeddings: EmbeddingShards,
    directory: str | Path,
    *,
    probes: Float32,
    index_type: str = "flat",
    recall_target: float = 0.98,
    seed: int = 0,
    threads: int | None = None,
) -> DenseInfo:
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

    Raises:
        ConfigError: unknown index type.
        ResourceError: the disk is full.
    """
    folder = Path(directory)
    preset = preset_for(index_type, len(embeddings), embeddings.dim)
    clean_directory(folder)
    for name in (FAISS_NAME, LISTS_NAME):
        (folder / name).unlink(missing_ok=True)
    info = DenseInfo(
        **asdict(preset),
        rows=len(embeddings),
        dim=embeddings.dim,
        seed=seed,
        exact_reranking=index_type != "flat",
        probes=len(probes),
        recall_target=recall_target,
        recall={str(k): 1.0 for k in RECALL_KS},
    )
    if index_type == "flat":
        return info
    info = _save(_fill(preset, embeddings, seed, threads), folder, info)
    with faiss_threads(threads):
        info = _tune(open_faiss(folder, info), embeddings, info, probes)
    reached = info.recall["100"]
    if reached < recall_target:
        _log.warning(
            "index type %s reaches recall@100 %.3f, the target is %.3f; SQ8 and flat are more exact",
            index_type,
            reached,
            recall_target,
        )
    return info


def _fill(
    preset: Preset, embeddings: EmbeddingShards, seed: int, threads: int | None
) -> faiss.Index:
    """A trained index with all vectors."""
    index = create_faiss(preset, embeddings.dim, seed)
    has_graph_of_lists = preset.nlist >= GRAPH_OF_LISTS_FROM
    with faiss_threads(1 if has_graph_of_lists else threads):
        _train(index, preset, sample_rows(embeddings, preset.training_rows, seed), seed)
    with (
        faiss_threads(1 if isinstance(index, faiss.IndexHNSW) else threads),
        Progress(len(embeddings), "vectors", f"faiss {preset.index_type}") as progress,
    ):
        for _, block in embeddings.blocks():
            index.add(block)
            progress.update(len(block))
    if has_graph_of_lists:  # for searches; vectors are filed by FAISS's default
        quantizer = faiss.extract_index_ivf(index).quantizer
        faiss.downcast_index(quantizer).hnsw.efSearch = _LISTS_EF_SEARCH
    return index


def _save(index: faiss.Index, folder: Path, info: DenseInfo) -> DenseInfo:
    """Write a filled index; returns what is known of it now."""
    changes: dict[str, object] = {}
    ivf = faiss.try_extract_index_ivf(index)
    if ivf is not None:
        changes["nlist"] = ivf.nlist
    if isinstance(index, faiss.IndexIVFPQFastScan):
        changes["mapped_lists"] = True
        move_lists(index, folder)
    with atomic_path(folder / FAISS_NAME) as temporary:
        faiss.write_index(index, str(temporary))
    return info.model_copy(update=changes)


def _train(index: faiss.Index, preset: Preset, sample: Float32, seed: int) -> None:
    if preset.nlist >= _TWO_LEVELS_FROM:
        # A group of copies of one vector cannot be divided: then FAISS trains alone.
        with suppress(RuntimeError):
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
            hint="use ivf or a type of fewer lists and codes (finished embeddings are kept), "
            "or build anew with flat",
        ) from error


def _tune(
    index: faiss.Index, embeddings: EmbeddingShards, info: DenseInfo, probes: Float32
) -> DenseInfo:
    """The first effort and over-fetch whose recall reaches the target, else the last."""
    truth, _ = exact_search(embeddings, probes, min(max(RECALL_KS), info.rows))
    for over_fetch in (info.over_fetch, 4 * info.over_fetch):
        before = 0.0
        for effort in _efforts(index, info.nlist):
            info = info.model_copy(update={"effort": effort, "over_fetch": over_fetch})
            dense = FaissIndex(index, embeddings, info)
            recall = {}
            for k in RECALL_KS:
                recall[str(k)] = round(float(recalls_at(dense, probes, truth, k).mean()), 4)
            info = info.model_copy(update={"recall": recall})
            worst = min(recall.values())
            if worst >= info.recall_target:
                return info
            # With more than some lists, more effort may bring nothing: the codes are the limit.
            if worst < before + _LEAST_GAIN and effort >= max(16, info.nlist // 8):
                break
            before = worst
    return info


def _efforts(index: faiss.Index, nlist: int) -> Sequence[int]:
    """Efforts to try in order: nprobe of lists, efSearch of a graph, 0 for a full scan."""
    if nlist:
        first = max(1, nlist // 128)
        doubled = [first << n for n in range(nlist.bit_length()) if first << n < nlist]
        return [*doubled, nlist]
    return _GRAPH_EFFORTS if isinstance(index, faiss.IndexHNSW) else (0,)
