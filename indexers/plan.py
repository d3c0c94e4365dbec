"""The size of an index before it is built: arithmetic over the file formats; 1 GB = 10^9 bytes."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from indexers.faiss_index import create_faiss
from indexers.presets import HNSW_LINKS, preset_for
from indexers.settings import BuildSettings
from indexers.token_codec import centroid_count, code_dtype
from rag.core.errors import ConfigError

_LUCENE_SHARE = 0.19  # Lucene's files against the bytes of titles and texts, on 100-word passages
_PASSAGE_BYTES = 90  # id twice, its hash and row, offsets, and the passage's document
_TOKEN_BYTES = 5.5  # of title and text for each token vector, with punctuation, in English
_LISTED_SHARE = 0.5  # of tokens that are the first of their passage in a cell


@dataclass(frozen=True, slots=True)
class Plan:
    """The size of one index.

    Attributes:
        dim: vector size D; 0 without vectors.
        disk_bytes: size of the finished index, by part.
        working_disk_bytes: further disk needed during the build.
        searched_bytes: what a search goes through, mapped into memory and best held there.
    """

    n_passages: int
    dim: int
    index_type: str
    disk_bytes: dict[str, float]
    working_disk_bytes: float
    searched_bytes: float

    @property
    def disk_total_bytes(self) -> float:
        """Size of the finished index."""
        return sum(self.disk_bytes.values())

    def to_json(self) -> dict[str, Any]:
        """A dict ready for `json.dumps`, total included."""
        return {**asdict(self), "disk_total_bytes": self.disk_total_bytes}

    def describe(self) -> str:
        """The sizes as a table for the terminal."""
        rows = {**self.disk_bytes, "total": self.disk_total_bytes}
        rows |= {"more while building": self.working_disk_bytes, "searched, mapped": self.searched_bytes}
        kind = f"{self.index_type} × {self.dim}" if self.dim else "BM25"
        return "\n".join(
            [
                f"{self.n_passages:,} passages, {kind}",
                *(f"  {k:<20}{v / 1e9:>10,.2f} GB" for k, v in rows.items()),
            ]
        )


def plan(
    n_passages: int, dim: int, *, settings: BuildSettings | None = None, passage_bytes: float = 650.0
) -> Plan:
    """The size of an index.

    Args:
        dim: vector size D; not needed for BM25 alone.
        passage_bytes: mean UTF-8 bytes of title and text (100 English words: about 650).

    Raises:
        ConfigError: sizes below 1, or FAISS knows no such index type.

    Example:
        >>> wikipedia = plan(21_015_324, 768, settings=BuildSettings(index_type="hnsw"))
        >>> round(wikipedia.disk_bytes["dense"] / 1e9, 1), round(wikipedia.disk_bytes["embeddings"] / 1e9, 1)
        (21.9, 32.3)
    """
    settings = settings or BuildSettings()
    if n_passages < 1 or passage_bytes <= 0 or (settings.has_encoder and dim < 1):
        raise ConfigError(
            f"cannot plan for {n_passages} passages of {passage_bytes} bytes and vectors of {dim} numbers",
            hint="all must be at least 1",
        )
    text_bytes = n_passages * passage_bytes
    disk, working = {"passages": text_bytes + n_passages * _PASSAGE_BYTES}, 0.0
    searched = 0.0
    if settings.has_dense:
        disk["embeddings"] = n_passages * dim * (4.0 if settings.stored_dtype == "float32" else 2.0)
        searched = disk["embeddings"]
        if settings.index_type != "flat":
            searched = disk["dense"] = n_passages * _code_bytes(settings.index_type, n_passages, dim)
            working = disk["dense"]
    if settings.has_tokens:
        tokens = text_bytes / _TOKEN_BYTES
        centroids = centroid_count(tokens)
        listed = tokens * (code_dtype(centroids).itemsize + 4 * _LISTED_SHARE)
        searched = listed + 2.0 * centroids * dim
        disk["tokens"] = searched + tokens * dim * settings.token_bits / 8
    if settings.has_bm25:
        disk["bm25"] = _LUCENE_SHARE * text_bytes
        searched += disk["bm25"]
        working = max(working, 1.1 * text_bytes + disk["bm25"])
    return Plan(n_passages, dim if settings.has_encoder else 0, settings.index_type, disk, working, searched)


def _code_bytes(index_type: str, rows: int, dim: int) -> float:
    """Bytes of a vector in FAISS's file, its share of lists and centroids included."""
    preset = preset_for(index_type, rows, dim)
    if index_type == "hnsw":  # 2·M links of 4 bytes at level 0; levels above and offsets take 16 on average
        return dim + 4.0 * 2 * HNSW_LINKS + 16.0
    if preset.nlist:  # half a block of 32 codes is empty in every list on average
        return (dim / 4 + 8.0) * (1 + 16 * preset.nlist / rows) + 4.0 * dim * preset.nlist / rows
    return float(create_faiss(preset, dim).sa_code_size()) + 8.0
