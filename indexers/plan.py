"""The size of an index before it is built: arithmetic over the file formats; 1 GB = 10^9 bytes."""

import numpy as np

from indexers.faiss_types import HNSW_LINKS, create_faiss, preset_for
from indexers.settings import BuildSettings
from indexers.token_codec import BITS, centroid_count, code_dtype
from rag.core.errors import ConfigError

_LUCENE_SHARE = 0.19  # Lucene's files against the bytes of titles and texts, on 100-word passages
_TEXT_BYTES = 650.0  # of title and text in UTF-8: 100 English words
_PASSAGE_BYTES = 90  # id twice, its hash and row, offsets, and the passage's document
_TOKEN_BYTES = 5.5  # of title and text for each token vector, with punctuation, in English
_LISTED_SHARE = 0.5  # of tokens that are the first of their passage in a cell


def plan(n_passages: int, dim: int, settings: BuildSettings) -> dict[str, float]:
    """The size of an index of passages of 100 words in bytes: of each part, in "total", in "more
    while building", and "searched".

    Args:
        dim: vector size D; not needed for BM25 alone.

    Returns:
        What is "searched" is mapped into memory, and best held there.

    Raises:
        ConfigError: sizes below 1, or FAISS knows no such index type.

    Example:
        >>> wikipedia = plan(21_015_324, 768, BuildSettings(index_type="hnsw"))
        >>> round(wikipedia["dense"] / 1e9, 1), round(wikipedia["embeddings"] / 1e9, 1)
        (21.9, 32.3)
    """
    if n_passages < 1 or (settings.has_encoder and dim < 1):
        raise ConfigError(
            f"cannot plan for {n_passages} passages and vectors of {dim} numbers",
            hint="both must be at least 1",
        )
    text_bytes = n_passages * _TEXT_BYTES
    building = 0.0
    searched = 0.0
    parts = {"passages": text_bytes + n_passages * _PASSAGE_BYTES}
    if settings.has_dense:
        number_bytes = np.dtype(settings.stored_dtype).itemsize
        parts["embeddings"] = float(n_passages * dim * number_bytes)
        searched = parts["embeddings"]
        if settings.index_type != "flat":
            codes = n_passages * _code_bytes(settings.index_type, n_passages, dim)
            building = searched = parts["dense"] = codes
    if settings.has_tokens:
        tokens = text_bytes / _TOKEN_BYTES
        centroids = centroid_count(tokens)
        searched = (
            tokens * (code_dtype(centroids).itemsize + 4 * _LISTED_SHARE) + 2.0 * centroids * dim
        )
        parts["tokens"] = searched + tokens * dim * BITS / 8
    if "bm25" in settings.stages:
        parts["bm25"] = _LUCENE_SHARE * text_bytes
        searched += parts["bm25"]
        building = max(building, 1.1 * text_bytes + parts["bm25"])
    return {
        **parts,
        "total": sum(parts.values()),
        "more while building": building,
        "searched": searched,
    }


def _code_bytes(index_type: str, rows: int, dim: int) -> float:
    """Bytes of a vector in FAISS's file, its share of lists and centroids included."""
    preset = preset_for(index_type, rows, dim)
    if index_type == "hnsw":
        # 2·M links of 4 bytes at level 0; levels above and offsets take 16 on average.
        return dim + 4.0 * 2 * HNSW_LINKS + 16.0
    if preset.nlist:
        # Half a block of 32 codes is empty in every list on average.
        return (dim / 4 + 8.0) * (1 + 16 * preset.nlist / rows) + 4.0 * dim * preset.nlist / rows
    return float(create_faiss(preset, dim).sa_code_size()) + 8.0
