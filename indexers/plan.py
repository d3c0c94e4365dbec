"""Estimate the disk, memory and time that an index will need, before it is built.

Sizes are arithmetic over the file formats; times come from rates measured on this machine. Sizes are in
bytes, 1 GB = 10^9 bytes.
"""

import json
import math
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import faiss
import numpy as np

from indexers.coarse import TWO_LEVELS_FROM, products_per_vector
from indexers.documents import DOCUMENTS_NAME, DocumentList, cut_and_listed
from indexers.passage_writer import PassageStoreWriter
from indexers.presets import HNSW_EF_CONSTRUCTION, HNSW_LINKS, Preset, preset_for
from indexers.settings import BuildSettings
from indexers.token_codec import TRAINING_TOKENS, centroid_count, code_dtype
from indexers.token_index import default_ndocs
from rag.core.errors import ConfigError
from rag.core.progress import format_duration
from rag.data.corpus import read_documents
from rag.data.split import SplitOptions, split_documents

# A process that has imported torch, transformers, FAISS and the web framework, without models (measured).
PROCESS_BYTES = 430e6
# Further memory once a process has answered: compiled kernels, activations, library pages, and what loading
# models left in the allocator (measured with the models of the package, after 60 questions).
WORKING_BYTES = 365e6
JAVA_BYTES = 230e6  # a Java machine with a heap of 512 MiB after 2,000 questions (measured)
JAVA_START_S = 8.0  # and its first classes, in processor time (measured)
LUCENE_SHARE = 0.19  # Lucene's files against the bytes of titles and texts (measured on 100-word passages)
LOOKUP_BYTES = 16  # id hash and row
ID_BYTES = 10
ARROW_BYTES = 3 * 8  # offsets of three strings
DOCUMENT_BYTES = 68  # of a document in the list of documents (measured)
TOKEN_BYTES = 5.5  # of title and text for each token vector (measured with punctuation, on English)
LISTED_SHARE = 0.5  # of tokens that are the first of their passage in a cell (measured)
FAULT_AROUND_BYTES = 65_536  # the kernel maps this much around a page that is touched
_GRAPH_ROWS, _GRAPH_DIM = 4096, 384  # of a graph whose making is timed
_SAMPLE = 4096  # passages whose reading and storing is timed
CODING_S = 4e-6  # of reading a vector and storing its code in a list (measured)
KMEANS_ROUNDS, PQ_ROUNDS, PQ_POINTS = 10, 10, 16_384


@dataclass(frozen=True, slots=True)
class Rates:
    """Speed of this machine at the steps of a build.

    Attributes:
        gflops: float32 matrix products, in 10^9 operations per second.
        stored_per_s: passages read and written to the store per second.
        graph_per_s: vectors of 384 numbers inserted into an HNSW graph of 4,096 per second, on one core.
        lucene_per_s: passages indexed for BM25 per second and core (measured on AVX-512).
    """

    gflops: float = 50.0
    stored_per_s: float = 20_000.0
    graph_per_s: float = 3_000.0
    lucene_per_s: float = 10_000.0


def measure_rates(dim: int = 384) -> Rates:
    """Measure this machine for a second or two; Lucene's rate stays at its default, as Java starts slowly."""
    draw = np.random.default_rng(0)
    vectors = draw.standard_normal((8192, dim), dtype=np.float32)
    queries = vectors[:512]
    flops = 2.0 * len(queries) * len(vectors) * dim
    product_s = _best_of(3, lambda: faiss.knn(queries, vectors, 10, metric=faiss.METRIC_INNER_PRODUCT))
    nodes = draw.standard_normal((_GRAPH_ROWS, _GRAPH_DIM), dtype=np.float32)

    def build_graph() -> None:
        graph: Any = faiss.index_factory(_GRAPH_DIM, f"HNSW{HNSW_LINKS}_SQ8", faiss.METRIC_INNER_PRODUCT)
        graph.hnsw.efConstruction = HNSW_EF_CONSTRUCTION
        graph.train(nodes)
        graph.add(nodes)

    with tempfile.TemporaryDirectory(prefix="rag-plan-") as folder:
        stored_s = _best_of(2, partial(_store_sample, Path(folder)))
    return Rates(
        gflops=flops / product_s / 1e9,
        stored_per_s=_SAMPLE / stored_s,
        graph_per_s=_GRAPH_ROWS / _best_of(1, build_graph, time.process_time),  # of all cores together
    )


def _store_sample(folder: Path) -> None:
    """Read records of 100 words and store them, as `rag index` does it."""
    corpus, listed = folder / "corpus.jsonl", DocumentList()
    if not corpus.exists():
        record = {"title": "A title", "text": "words " * 100}
        lines = (json.dumps({"id": f"passage-{n}", **record}) for n in range(_SAMPLE))
        corpus.write_text("\n".join(lines), encoding="utf-8")
    split = SplitOptions(mode="none")
    with PassageStoreWriter(folder / "store") as writer, listed.writing(folder / DOCUMENTS_NAME):
        read = read_documents(corpus, format="jsonl")
        writer.add_many(cut_and_listed(read, lambda one: list(split_documents([one], split)), listed, {}))


def _best_of(times: int, job: Callable[[], object], clock: Callable[[], float] = time.perf_counter) -> float:
    best_s = math.inf
    for _ in range(times):
        started = clock()
        job()
        best_s = min(best_s, clock() - started)
    return best_s


@dataclass(frozen=True, slots=True)
class Plan:
    """The figures of one index; every dict adds up to its total.

    Attributes:
        dim: vector size D; 0 without vectors.
        disk_bytes: size of the finished index, by part.
        working_disk_bytes: further disk needed during the build.
        serving_bytes: resident memory of one serving process after `questions` questions, by part. Parts that
            end in "mapped" are file pages, which the system can drop and read again.
        build_bytes: peak resident memory of each build stage.
        build_s: seconds of each build stage; encoding is left out if its rate is not known.
    """

    n_passages: int
    dim: int
    index_type: str
    factory: str
    dtype: str
    disk_bytes: dict[str, float]
    working_disk_bytes: float
    serving_bytes: dict[str, float]
    build_bytes: dict[str, float]
    build_s: dict[str, float]
    questions: int

    @property
    def disk_total_bytes(self) -> float:
        """Size of the finished index."""
        return sum(self.disk_bytes.values())

    @property
    def serving_total_bytes(self) -> float:
        """Resident memory while serving."""
        return sum(self.serving_bytes.values())

    @property
    def build_peak_bytes(self) -> float:
        """Largest of the build stages."""
        return max(self.build_bytes.values())

    @property
    def build_total_s(self) -> float:
        """Seconds of all stages whose rate is known."""
        return sum(self.build_s.values())

    def to_json(self) -> dict[str, Any]:
        """A dict ready for `json.dumps`, totals included."""
        totals = ("disk_total_bytes", "serving_total_bytes", "build_peak_bytes", "build_total_s")
        return {**asdict(self), **{name: getattr(self, name) for name in totals}}

    def describe(self) -> str:
        """The figures as a table for the terminal."""
        kind = f"{self.index_type} × {self.dim} ({self.dtype} embeddings)" if self.dim else "BM25"
        lines = [f"{self.n_passages:,} passages, {kind}", "disk"]
        lines += [f"  {name:<22}{_gb(size)}" for name, size in self.disk_bytes.items()]
        lines.append(f"  {'total':<22}{_gb(self.disk_total_bytes)}")
        lines.append(f"  {'working space':<22}{_gb(self.working_disk_bytes)}  more while building")
        lines.append(f"memory, serving (after {self.questions:,} questions)")
        lines += [f"  {name:<22}{_gb(size)}" for name, size in self.serving_bytes.items()]
        lines.append(f"  {'total':<22}{_gb(self.serving_total_bytes)}")
        lines.append("memory, building (peak of a stage)")
        lines += [f"  {name:<22}{_gb(size)}" for name, size in self.build_bytes.items()]
        lines.append("time, building")
        lines += [f"  {name:<22}{format_duration(seconds):>12}" for name, seconds in self.build_s.items()]
        lines.append(f"  {'total':<22}{format_duration(self.build_total_s):>12}")
        return "\n".join(lines)


def _gb(size_bytes: float) -> str:
    return f"{size_bytes / 1e9:>9,.2f} GB" if size_bytes >= 1e8 else f"{size_bytes / 1e6:>9,.1f} MB"


def plan(
    n_passages: int,
    dim: int,
    *,
    settings: BuildSettings | None = None,
    encode_per_s: float | None = None,
    rates: Rates | None = None,
    passage_bytes: float = 650.0,
    documents: int = 0,
    model_bytes: float = 0.0,
    questions: int = 10_000,
    top_k: int = 20,
) -> Plan:
    """Estimate disk, memory and time of an index.

    Args:
        encode_per_s: passages that the encoder encodes per second; without it encoding has no estimate.
        passage_bytes: mean UTF-8 bytes of title and text (100 English words: about 650).
        documents: documents that `rag index` lists beside the passages; none if these are given in Python.
        model_bytes: weights that the serving process holds (encoder and reader).

    Raises:
        ConfigError: sizes below 1, or rates that are not above 0.

    Example:
        >>> wikipedia = plan(21_015_324, 768, settings=BuildSettings(index_type="sq8"))
        >>> round(wikipedia.disk_bytes["faiss"] / 1e9, 1), round(wikipedia.disk_bytes["embeddings"] / 1e9, 1)
        (16.1, 32.3)
    """
    settings, rates = settings or BuildSettings(), rates or Rates()
    if n_passages < 1 or (settings.has_encoder and dim < 1):
        raise ConfigError(
            f"cannot plan for {n_passages} passages of size {dim}", hint="both must be at least 1"
        )
    for name, value in (("encode_per_s", encode_per_s), ("passage_bytes", passage_bytes)):
        if value is not None and not value > 0:
            raise ConfigError(f"cannot plan with {name} {value}", hint="it must be above 0")
    parts = _Parts(
        n_passages, dim, settings, rates, encode_per_s, passage_bytes, model_bytes, served=questions * top_k
    )
    parts.add_passages(documents)
    if settings.has_dense:
        parts.add_embeddings()
        parts.add_faiss(questions)
    if settings.has_tokens:
        parts.add_tokens(questions * default_ndocs(top_k, n_passages))
    if settings.has_bm25:
        parts.add_bm25()
    return Plan(
        n_passages=n_passages,
        dim=dim if settings.has_encoder else 0,
        index_type=settings.index_type if settings.has_encoder else "",
        factory=parts.factory,
        dtype=parts.dtype,
        disk_bytes=parts.disk,
        working_disk_bytes=parts.working,
        serving_bytes=parts.serving,
        build_bytes=parts.building,
        build_s=parts.seconds,
        questions=questions,
    )


@dataclass(slots=True)
class _Parts:
    """Arguments of `plan` and rows of the `Plan`; each method adds the rows of one part of the index.

    Attributes:
        served: passages returned for all questions.
    """

    n_passages: int
    dim: int
    settings: BuildSettings
    rates: Rates
    encode_per_s: float | None
    passage_bytes: float
    model_bytes: float
    served: int
    factory: str = ""
    dtype: str = ""
    disk: dict[str, float] = field(default_factory=dict)
    working: float = 0.0
    serving: dict[str, float] = field(default_factory=dict)
    building: dict[str, float] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def text_bytes(self) -> float:
        return self.n_passages * self.passage_bytes

    def add_passages(self, documents: int) -> None:
        store_bytes = self.text_bytes + self.n_passages * (ID_BYTES + ARROW_BYTES)
        lookup_bytes = self.n_passages * (LOOKUP_BYTES + ID_BYTES + ARROW_BYTES / 3)  # the ids once more
        self.disk["passages"] = store_bytes + lookup_bytes + documents * DOCUMENT_BYTES
        self.serving |= {"process": PROCESS_BYTES, "models": self.model_bytes, "working": WORKING_BYTES}
        self.serving["passages, mapped"] = touched_bytes(store_bytes, self.served)
        self.building["passages"] = 150e6 + 32.0 * self.n_passages
        self.seconds["passages"] = self.n_passages / self.rates.stored_per_s

    def add_embeddings(self) -> None:
        self.dtype = self.settings.stored_dtype
        item_bytes = 4 if self.dtype == "float32" else 2
        rows = min(self.settings.shard_rows, self.n_passages)
        shard_bytes = rows * (self.dim * (4 + item_bytes) + 2 * self.passage_bytes)
        self.disk["embeddings"] = float(self.n_passages * self.dim * item_bytes)
        self.building["embeddings"] = PROCESS_BYTES + self.model_bytes + shard_bytes
        self._add_encoding("embeddings")

    def add_faiss(self, questions: int) -> None:
        preset = preset_for(self.settings.index_type, self.n_passages, self.dim)
        self.factory, embedding_bytes = preset.factory, self.disk["embeddings"]
        if preset.name == "flat":
            self.serving["embeddings, mapped"] = embedding_bytes
            self.building["dense"] = 150e6 + embedding_bytes
        else:
            index_bytes = self.n_passages * preset.code_bytes(self.dim) + preset.fixed_bytes(self.dim)
            self.disk["faiss"] = self.serving["faiss, mapped"] = index_bytes
            fetched = self.served * preset.over_fetches[0] + 16 * questions
            self.serving["embeddings, mapped"] = touched_bytes(embedding_bytes, fetched)
            # FAISS's arrays double as they grow: old and new copy exist at once.
            self.building["dense"] = 150e6 + 2 * index_bytes + 3 * preset.training_rows * self.dim * 4.0
            self.working = max(self.working, index_bytes)
        self.seconds["dense"] = _dense_seconds(preset, self.n_passages, self.dim, self.settings, self.rates)

    def add_tokens(self, scored: int) -> None:
        tokens = self.text_bytes / TOKEN_BYTES
        centroids, bits = centroid_count(tokens), self.settings.token_bits
        self.factory, self.dtype = f"{centroids} centroids, {bits} bits", "token"
        listed_bytes = tokens * (code_dtype(centroids).itemsize + 4 * LISTED_SHARE)
        residual_bytes = tokens * self.dim * bits / 8
        fixed_bytes = centroids * (2.0 * self.dim + 8) + 2.0 * self.n_passages
        self.disk["tokens"] = listed_bytes + residual_bytes + fixed_bytes
        self.serving["centroids"] = 4.0 * centroids * self.dim + 8.0 * self.n_passages
        self.serving["tokens, mapped"] = listed_bytes + touched_bytes(residual_bytes, scored / 4)
        sample = TRAINING_TOKENS * centroids
        # Three copies of the sample: as encoded, shuffled, and without its held-out part.
        self.building["tokens"] = PROCESS_BYTES + self.model_bytes + 10.0 * self.dim * sample
        self.working = max(self.working, min(tokens, 1.1 * sample) * self.dim * 2.0)
        self._add_encoding("tokens")

    def add_bm25(self) -> None:
        lucene_bytes = LUCENE_SHARE * self.text_bytes
        self.disk["lucene"] = self.serving["lucene, mapped"] = lucene_bytes
        self.serving["java"] = JAVA_BYTES
        self.building["bm25"] = 150e6 + self.settings.java_heap_mib * 2.0**20
        self.seconds["bm25"] = JAVA_START_S + self.n_passages / self.rates.lucene_per_s
        self.working = max(self.working, 1.1 * self.text_bytes + lucene_bytes)

    def _add_encoding(self, part: str) -> None:
        if self.encode_per_s is not None:
            self.seconds[part] = self.n_passages / self.encode_per_s


def touched_bytes(file_bytes: float, accesses: float) -> float:
    """Mean bytes of a mapped file that are resident after random accesses, each mapping 64 KiB around it.

    Example:
        >>> round(touched_bytes(1e9, 1000) / 1e6), round(touched_bytes(1e6, 1000) / 1e6)
        (63, 1)
    """
    blocks = max(file_bytes / FAULT_AROUND_BYTES, 1.0)
    return file_bytes * (1.0 - math.exp(-accesses / blocks))


def _dense_seconds(preset: Preset, rows: int, dim: int, settings: BuildSettings, rates: Rates) -> float:
    """Training, adding, and the exact search on the probes."""
    operations = 2.0 * settings.probes * rows * dim
    if preset.nlist:
        trained, added = float(KMEANS_ROUNDS * preset.nlist), float(preset.nlist)
        if preset.nlist >= TWO_LEVELS_FROM:
            trained, added = products_per_vector(preset.nlist)
        operations += 2.0 * dim * (preset.training_rows * trained + rows * added)
    operations += 2.0 * preset.codewords * dim * (PQ_ROUNDS * PQ_POINTS + rows)
    if preset.name == "rabitq":
        operations += 2.0 * rows * dim * dim
    seconds = operations / (rates.gflops * 1e9)
    if preset.nlist:
        seconds += CODING_S * rows
    if preset.name == "hnsw":
        # A search before every insertion: every doubling of the graph adds two fifths of the time of the
        # first 4,096 (measured up to 120,000); the work grows with D.
        cores = 1 if settings.reproducible else (settings.threads or faiss.omp_get_max_threads())
        depth = max(1.0 + 0.4 * math.log2(rows / _GRAPH_ROWS), 0.5)
        seconds += rows / rates.graph_per_s * depth * (dim / _GRAPH_DIM) / cores
    return seconds
