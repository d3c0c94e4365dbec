"""Encoding speed beside sentence-transformers."""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice
from typing import Any

import numpy as np

from rag.bench.common import Timings, ratio, time_interleaved
from rag.bench.report import Report
from rag.core.optional import require
from rag.core.types import Passage

_CONTESTANTS = ("ours bf16", "ours fp32", "peer bf16", "peer fp32")


def run_encode_benchmark(
    corpus: list[str],
    n: int = 2000,
    split: str = "words100",
    encoder: str | None = None,
    batch_size: int = 32,
    rounds: int = 3,
    device: str = "auto",
    format: str = "auto",
) -> Report:
    """Passages encoded per second beside sentence-transformers.

    All get the same texts (title, space, text) and the same limits of texts per batch and tokens
    per text. Tokenisation is timed, loading is not. The peer in bf16 is `model.bfloat16()`.

    Args:
        n: Passages to encode.
        encoder: sentence-transformers folder or hub name; default: the embedded one.
        batch_size: Maximum texts per batch, for all contestants.
        rounds: Interleaved rounds; ratios are of medians.
        device: auto, cpu or cuda, for all.
        format: Format of the corpus; auto looks at the file.

    Raises:
        DataError: the corpus is empty.
        MissingDependencyError: sentence-transformers is not installed.
    """
    from rag.data.corpus import read_documents
    from rag.data.records import CorpusOptions
    from rag.data.split import split_documents
    from rag.runtime.hardware import precisions, resolve_device

    device = resolve_device(device)
    has_bf16 = "bf16" in precisions(device)
    chosen = [name for name in _CONTESTANTS if has_bf16 or not name.endswith("bf16")]
    documents, options = (
        read_documents(corpus, format=format),
        CorpusOptions.model_validate({"split": split}),
    )
    passages = list(islice(split_documents(documents, options), n))
    settings = {
        "corpus": corpus,
        "passages": len(passages),
        "split": split,
        "encoder": encoder or "all-MiniLM-L6-v2",
        "batch_size": batch_size,
        "rounds": rounds,
        "device": device,
    }
    report = Report("encode", settings)
    runs, max_length = _runs(passages, encoder, batch_size, chosen, device)
    report.notes.append(
        f"at most {batch_size} texts per batch and {max_length} tokens per text for all"
    )
    timings = time_interleaved(runs, rounds=rounds, warm_up=0)
    _add_speeds(report, timings, len(passages))
    report.figures["passages_per_s"] = {
        name: len(passages) / float(np.median(timings[name])) for name in runs
    }
    for peer in ("peer fp32", "peer bf16"):
        if "ours bf16" in runs and peer in runs:
            report.figures[f"ours bf16 / {peer}"] = ratio(
                timings[peer], timings["ours bf16"]
            ).to_json()
    if not has_bf16:
        report.notes.append(f"{device} has no bf16 arithmetic: fp32 alone was measured")
    return report


def _runs(
    passages: Sequence[Passage],
    encoder: str | None,
    batch_size: int,
    contestants: Sequence[str],
    device: str,
) -> tuple[dict[str, Callable[[], Any]], int]:
    """The timed function of each contestant, warmed up on a few passages; and the token limit of
    all.
    """
    from rag.runtime.model_files import model_folder
    from retrievers.encoders.bi_encoder import BiEncoder

    titles, texts = [p.title for p in passages], [p.text for p in passages]
    joined = [f"{p.title} {p.text}" if p.title else p.text for p in passages]
    runs: dict[str, Callable[[], Any]] = {}
    max_length = 0
    for name in contestants:
        side, _, precision = name.partition(" ")
        if side == "ours":
            ours = BiEncoder.load(
                encoder,
                device=device,
                precision=precision,
                layout="{title} {text}",
                batch_size=batch_size,
            )
            max_length = ours.identity.max_length
            ours.encode_passages(titles[:batch_size], texts[:batch_size])
            runs[name] = partial(ours.encode_passages, titles, texts)
        else:
            library = require("sentence_transformers", extra="bench")
            peer = library.SentenceTransformer(str(model_folder(encoder)), device=device)
            max_length = max_length or peer.max_seq_length
            peer.max_seq_length = max_length
            if precision == "bf16":
                peer = peer.bfloat16()
            peer.encode(joined[:batch_size], batch_size=batch_size, show_progress_bar=False)
            runs[name] = partial(
                peer.encode, joined, batch_size=batch_size, show_progress_bar=False
            )
    return runs, max_length


def _add_speeds(report: Report, timings: Timings, n: int) -> None:
    reference = "peer fp32" if "peer fp32" in timings else next(iter(timings))
    peers = list(dict.fromkeys(name for name in (reference, "peer bf16") if name in timings))
    rows = [
        (
            name,
            f"{n / np.median(timings[name]):,.1f}",
            *(f"{ratio(timings[peer], timings[name]):.2f}" for peer in peers),
        )
        for name in timings
    ]
    title = "encoding, median of rounds [95 % bootstrap interval over rounds]; peer is sentence-transformers"
    report.add_table(title, ("encoder", "passages/s", *(f"× {peer}" for peer in peers)), rows)
