"""Encoding speed beside sentence-transformers."""

from collections.abc import Callable
from functools import partial
from itertools import islice

import numpy as np

from rag.bench.common import ratio, time_interleaved
from rag.bench.report import Report
from rag.core.optional import require


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
    from rag.runtime.model_files import model_folder
    from retrievers.encoders.bi_encoder import BiEncoder

    device = resolve_device(device)
    options = CorpusOptions.model_validate({"split": split})
    documents = read_documents(corpus, format=format)
    passages = list(islice(split_documents(documents, options), n))
    report = Report("encoding, median of rounds [over rounds]; peer is sentence-transformers")
    names = ["bf16", "fp32"]
    if "bf16" not in precisions(device):
        names.remove("bf16")
        report.notes.append(f"{device} has no bf16 arithmetic: fp32 alone was measured")
    titles = [passage.title for passage in passages]
    texts = [passage.text for passage in passages]
    runs: dict[str, Callable[[], object]] = {}
    max_length = 0
    for name in names:
        ours = BiEncoder.load(
            encoder,
            device=device,
            precision=name,
            layout="{title} {text}",
            batch_size=batch_size,
        )
        max_length = ours.identity.max_length
        ours.encode_passages(titles[:batch_size], texts[:batch_size])
        runs[f"ours {name}"] = partial(ours.encode_passages, titles, texts)
    joined = [f"{passage.title} {passage.text}".lstrip() for passage in passages]
    library = require("sentence_transformers", extra="bench")
    for name in names:
        peer = library.SentenceTransformer(str(model_folder(encoder)), device=device)
        peer.max_seq_length = max_length
        if name == "bf16":
            peer = peer.bfloat16()
        encode = partial(peer.encode, batch_size=batch_size, show_progress_bar=False)
        encode(joined[:batch_size])
        runs[f"peer {name}"] = partial(encode, joined)
    report.notes.append(
        f"at most {batch_size} texts per batch and {max_length} tokens per text for all"
    )
    timings = time_interleaved(runs, rounds=rounds, warm_up=0)
    for name, times in timings.items():
        report.rows[name] = {"passages/s": len(passages) / float(np.median(times.elapsed_s))}
        for peer in ("peer fp32", "peer bf16"):
            if peer in timings:
                gain = ratio(timings[peer].elapsed_s, times.elapsed_s)
                report.rows[name][f"× {peer}"] = gain
    return report
