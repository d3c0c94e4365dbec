"""From a corpus to a finished index, against encoding the same passages and nothing else."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, cast

import numpy as np

from rag.bench.common import time_interleaved, working_folder
from rag.bench.report import Goal, Report, Table, format_interval, format_seconds
from rag.config import load_config
from rag.core.errors import ConfigError, DataError
from rag.core.types import Passage

__all__ = ["TimedEncoder", "corpus_passages", "run_overhead_benchmark"]

OVERHEAD_GOAL = 1.10


class TimedEncoder:
    """An encoder that adds up the time spent inside it.

    Attributes:
        seconds: wall time of all calls so far.
    """

    def __init__(self, encoder: Any) -> None:
        self._encoder = encoder
        self.seconds = 0.0

    @property
    def dim(self) -> int:
        """Vector size D."""
        return self._encoder.dim

    @property
    def identity(self) -> Any:
        """Who makes the vectors."""
        return self._encoder.identity

    def encode_passages(self, titles: Sequence[str], texts: Sequence[str]) -> Any:
        """See `PassageEncoder.encode_passages`."""
        started = time.perf_counter()
        try:
            return self._encoder.encode_passages(titles, texts)
        finally:
            self.seconds += time.perf_counter() - started


def corpus_passages(
    corpus: Sequence[str | Path], *, split: str, n: int, format: str = "auto"
) -> Iterator[Passage]:
    """The first `n` passages of a corpus, read and split as `rag index` does it."""
    from rag.data.corpus import read_documents
    from rag.data.split import SplitOptions, split_documents

    return islice(split_documents(read_documents(corpus, format=format), SplitOptions(mode=split)), n)


def _encode(encoder: Any, passages: Sequence[Passage]) -> None:
    encoder.encode_passages([passage.title for passage in passages], [passage.text for passage in passages])


def run_overhead_benchmark(
    corpus: Sequence[str | Path],
    *,
    n: int = 10_000,
    split: str = "words100",
    retriever: str = "dense",
    index_type: str = "flat",
    encoder: str | None = None,
    precision: str = "auto",
    rounds: int = 3,
    format: str = "auto",
    work_dir: str | Path | None = None,
) -> Report:
    """Time building an index against encoding alone, in alternating rounds with one loaded encoder.

    Building reads the corpus, splits it, writes passages, encodes, writes embeddings, builds and measures the
    index, and writes the manifest with its checksums. Loading the encoder is in neither.

    Args:
        corpus: inputs of `rag index`.
        n: passages to use.
        split: how documents become passages.
        retriever: "dense" or "hybrid".
        index_type: FAISS index type.
        encoder: folder or hub name; the embedded one by default.
        precision: "auto", "fp32" or "bf16".
        rounds: interleaved rounds.
        format: of the corpus.
        work_dir: where indexes are built; the system's temporary folder by default. Removed afterwards.

    Raises:
        ConfigError: `retriever` needs no encoder.
        DataError: the corpus is empty.
    """
    from indexers.build import BuildSettings, build_index
    from retrievers.encoders.bi_encoder import BiEncoder

    if retriever not in ("dense", "hybrid"):
        raise ConfigError(f"--retriever {retriever!r} has nothing to encode", hint="use dense or hybrid")
    passages = list(corpus_passages(corpus, split=split, n=n, format=format))
    if not passages:
        raise DataError(f"{', '.join(map(str, corpus))}: no passages found")
    loaded = BiEncoder.load(encoder, precision=precision)
    timed = TimedEncoder(loaded)
    given = {"retriever": retriever, "index_type": index_type}
    settings: BuildSettings = load_config(cast(Any, BuildSettings), overrides=given)
    shard_rows = settings.shard_rows
    report = Report(
        "overhead",
        {
            "corpus": " ".join(map(str, corpus)),
            "passages": len(passages),
            "split": split,
            "retriever": retriever,
            "index_type": index_type,
            "encoder": loaded.identity.name,
            "precision": precision,
        },
    )
    inside: list[float] = []
    with working_folder("overhead", work_dir) as holder:
        built = 0

        def build() -> None:
            nonlocal built
            before = timed.seconds
            source = corpus_passages(corpus, split=split, n=n, format=format)
            build_index(source, holder / str(built), encoder=timed, settings=settings)
            built += 1
            inside.append(timed.seconds - before)

        def encode() -> None:
            for start in range(0, len(passages), shard_rows):
                shard = passages[start : start + shard_rows]
                loaded.encode_passages(
                    [passage.title for passage in shard], [passage.text for passage in shard]
                )

        _encode(loaded, passages[:256])  # warm up
        timings = time_interleaved({"build": build, "encode": encode}, rounds=rounds, warm_up=0)
    ratio = timings.ratio("build", "encode")
    outside_s = float(
        np.median([whole - part for whole, part in zip(timings.seconds["build"], inside, strict=True)])
    )
    rows = [
        ("corpus → finished index", format_seconds(timings.median("build")), format_interval(ratio)),
        ("encoding alone", format_seconds(timings.median("encode")), "1"),
        (
            "outside the encoder, while building",
            format_seconds(outside_s),
            f"{outside_s / timings.median('encode'):.3f}",
        ),
    ]
    title = f"{len(passages):,} passages, median of {rounds} interleaved rounds"
    report.tables.append(Table(title, ("", "time", "/ encoding alone"), rows))
    report.figures.update(
        timings.to_json(),
        ratio=ratio,
        outside_encoder_s=outside_s,
        passages_per_s=len(passages) / timings.median("encode"),
    )
    report.goals.append(Goal("corpus → index / encoding alone", ratio.value, "at most", OVERHEAD_GOAL))
    return report
