"""From a corpus to a finished index, against encoding the same passages and nothing else."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np

from rag.bench.common import corpus_passages, time_interleaved, working_folder
from rag.bench.report import Goal, Report, Table, format_interval
from rag.config import load_config
from rag.core.errors import ConfigError
from rag.core.progress import format_seconds

OVERHEAD_GOAL = 1.10


class TimedEncoder:
    """An encoder that adds up the time spent inside it.

    Attributes:
        seconds: wall time of all calls so far.
    """

    def __init__(self, encoder: Any) -> None:
        self._encoder, self.seconds = encoder, 0.0
        self.dim, self.identity = encoder.dim, encoder.identity

    def encode_passages(self, titles: Sequence[str], texts: Sequence[str]) -> Any:
        """See `PassageEncoder.encode_passages`."""
        started = time.perf_counter()
        try:
            return self._encoder.encode_passages(titles, texts)
        finally:
            self.seconds += time.perf_counter() - started


def run_overhead_benchmark(
    corpus: list[str],
    n: int = 10_000,
    split: str = "words100",
    retriever: str = "dense",
    index_type: str = "flat",
    encoder: str | None = None,
    precision: str = "auto",
    rounds: int = 3,
    format: str = "auto",
    work_dir: Path | None = None,
) -> Report:
    """Corpus to finished index, against encoding the same passages alone, with one loaded encoder.

    Building reads the corpus, splits it, writes passages, encodes, writes embeddings, builds and measures the
    index, and writes the manifest with its checksums. Loading the encoder is in neither.

    Args:
        n: Passages to use.
        retriever: dense or hybrid.
        index_type: FAISS index type.
        encoder: Folder or hub name; default: the embedded one.
        rounds: Interleaved rounds.
        format: Format of the corpus; auto looks at the file.

    Raises:
        ConfigError: `retriever` needs no encoder.
        DataError: the corpus is empty.
    """
    from indexers.build import build_index
    from indexers.settings import BuildSettings
    from retrievers.encoders.bi_encoder import BiEncoder

    if retriever not in ("dense", "hybrid"):
        raise ConfigError(f"--retriever {retriever!r} has nothing to encode", hint="use dense or hybrid")
    passages = list(corpus_passages(corpus, split=split, n=n, format=format))
    loaded = BiEncoder.load(encoder, precision=precision)
    timed = TimedEncoder(loaded)
    given = {"retriever": retriever, "index_type": index_type}
    settings: BuildSettings = load_config(cast(Any, BuildSettings), overrides=given)
    shown = {"corpus": " ".join(map(str, corpus)), "passages": len(passages), "split": split, **given}
    report = Report("overhead", {**shown, "encoder": loaded.identity.name, "precision": precision})
    inside: list[float] = []
    with working_folder("overhead", work_dir) as holder:

        def build() -> None:
            before = timed.seconds
            source = corpus_passages(corpus, split=split, n=n, format=format)
            build_index(source, holder / str(len(inside)), encoder=timed, settings=settings)
            inside.append(timed.seconds - before)

        def encode(most: int = len(passages)) -> None:
            for start in range(0, most, settings.shard_rows):
                shard = passages[start : min(most, start + settings.shard_rows)]
                loaded.encode_passages([p.title for p in shard], [p.text for p in shard])

        encode(256)  # warm up
        timings = time_interleaved({"build": build, "encode": encode}, rounds=rounds, warm_up=0)
    ratio, alone_s = timings.ratio("build", "encode"), timings.median("encode")
    outside_s = float(np.median(np.subtract(timings.seconds["build"], inside)))
    rows = [
        ("corpus → finished index", format_seconds(timings.median("build")), format_interval(ratio)),
        ("encoding alone", format_seconds(alone_s), "1"),
        ("outside the encoder, while building", format_seconds(outside_s), f"{outside_s / alone_s:.3f}"),
    ]
    title = f"{len(passages):,} passages, median of {rounds} interleaved rounds"
    report.tables.append(Table(title, ("", "time", "/ encoding alone"), rows))
    report.figures |= {**timings.to_json(), "ratio": ratio, "outside_encoder_s": outside_s}
    report.figures["passages_per_s"] = len(passages) / alone_s
    report.goals.append(Goal("corpus → index / encoding alone", ratio.value, "at most", OVERHEAD_GOAL))
    return report
