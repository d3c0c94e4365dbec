"""Encoding speed beside sentence-transformers, and whether the vectors are the same."""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from rag.bench.common import Timings, question_texts, time_interleaved
from rag.bench.report import Goal, Report, Table
from rag.core.arrays import Float32
from rag.core.errors import ConfigError
from rag.core.optional import require
from rag.core.types import Passage

FP32_GOAL, BF16_GOAL = 4.0, 1.2
COSINE_GOAL, TOP_GOAL = 0.999, 0.99
TOP_K = 10
QUESTIONS = 1000
NEAR_TIE = 1e-3  # scores of unit vectors that differ by less than this count as equal
_CONTESTANTS = ("ours bf16", "ours fp32", "peer bf16", "peer fp32")


def run_encode_benchmark(
    corpus: list[str],
    n: int = 2000,
    split: str = "words100",
    encoder: str | None = None,
    questions: Path | None = None,
    batch_size: int = 32,
    rounds: int = 3,
    contestants: Sequence[str] = (),
    device: str = "auto",
    format: str = "auto",
) -> Report:
    """Passages encoded per second beside sentence-transformers, and whether bf16 retrieves the same passages.

    All get the same texts (title, space, text) and the same limits of texts per batch and tokens per text.
    Tokenisation is timed, loading is not. The peer in bf16 is `model.bfloat16()`. Agreement is measured as
    `precision="auto"` encodes: passages in bf16, questions in fp32.

    Args:
        n: Passages to encode.
        encoder: sentence-transformers folder or hub name; default: the embedded one.
        questions: Questions whose ten best passages are compared; default: the passages' first words.
        batch_size: Maximum texts per batch, for all contestants.
        rounds: Interleaved rounds; ratios are of medians.
        contestants: Some of: ours bf16, ours fp32, peer bf16, peer fp32; default: all that run here.
        device: auto, cpu or cuda, for all.
        format: Format of the corpus; auto looks at the file.

    Raises:
        ConfigError: unknown contestant, or bf16 where the processor has none.
        DataError: the corpus is empty.
        MissingDependencyError: sentence-transformers is not installed.
    """
    from rag.data.corpus import read_documents
    from rag.data.split import SplitOptions, split_documents
    from rag.runtime.hardware import has_bf16, resolve_device, resolve_precision

    device = resolve_device(device)
    chosen = contestants or [name for name in _CONTESTANTS if has_bf16(device) or not name.endswith("bf16")]
    if set(chosen) - set(_CONTESTANTS):
        raise ConfigError(f"contestants are {', '.join(chosen)}, expected some of {', '.join(_CONTESTANTS)}")
    for name in chosen:
        resolve_precision(name.partition(" ")[2], device)
    documents = read_documents(corpus, format=format)
    passages = list(islice(split_documents(documents, SplitOptions(mode=split)), n))
    settings = {
        "corpus": corpus, "passages": len(passages), "split": split,
        "encoder": encoder or "all-MiniLM-L6-v2", "batch_size": batch_size, "rounds": rounds,
        "device": device,
    }  # fmt: skip
    report = Report("encode", settings)
    runs, max_length = _runs(passages, encoder, batch_size, chosen, device)
    report.notes.append(f"at most {batch_size} texts per batch and {max_length} tokens per text for all")
    timings = time_interleaved(runs, rounds=rounds, warm_up=0)
    report.tables.append(_speed_table(timings, len(passages)))
    report.figures["passages_per_s"] = {name: len(passages) / timings.median(name) for name in runs}
    report.figures["timings"] = timings.to_json()
    for peer, bound in (("peer fp32", FP32_GOAL), ("peer bf16", BF16_GOAL)):
        if "ours bf16" in runs and peer in runs:
            figure = timings.ratio(peer, "ours bf16")
            report.figures[f"ours bf16 / {peer}"] = figure.to_json()
            report.goals.append(Goal(f"passages/s, ours bf16 / {peer}", figure.value, "at least", bound))
    if has_bf16(device):
        _add_agreement(report, passages, encoder, batch_size, questions, device)
    else:
        report.notes.append(f"{device} has no bf16 arithmetic: fp32 alone was measured")
    return report


def _runs(
    passages: Sequence[Passage],
    encoder: str | None,
    batch_size: int,
    contestants: Sequence[str],
    device: str,
) -> tuple[dict[str, Callable[[], Any]], int]:
    """The timed function of each contestant, warmed up on a few passages; and the token limit of all."""
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
                encoder, device=device, precision=precision, layout="{title} {text}", batch_size=batch_size
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
            runs[name] = partial(peer.encode, joined, batch_size=batch_size, show_progress_bar=False)
    return runs, max_length


def _speed_table(timings: Timings, n: int) -> Table:
    reference = "peer fp32" if "peer fp32" in timings.seconds else next(iter(timings.seconds))
    peers = list(dict.fromkeys(name for name in (reference, "peer bf16") if name in timings.seconds))
    rows = [
        (
            name,
            f"{n / timings.median(name):,.1f}",
            *(f"{timings.ratio(peer, name):.2f}" for peer in peers),
        )
        for name in timings.seconds
    ]
    title = "encoding, median of rounds [95 % bootstrap interval over rounds]; peer is sentence-transformers"
    return Table(title, ("encoder", "passages/s", *(f"× {peer}" for peer in peers)), rows)


def _add_agreement(
    report: Report,
    passages: Sequence[Passage],
    encoder: str | None,
    batch_size: int,
    questions_path: Path | None,
    device: str,
) -> None:
    from retrievers.encoders.bi_encoder import BiEncoder

    titles, texts = [p.title for p in passages], [p.text for p in passages]
    if questions_path is not None:
        questions = question_texts(questions_path, limit=QUESTIONS)
    else:
        step = max(1, len(texts) // QUESTIONS)
        questions = [" ".join(text.split()[:12]) for text in texts[::step]][:QUESTIONS]
    exact = BiEncoder.load(encoder, device=device, precision="fp32", batch_size=batch_size)
    rounded = BiEncoder.load(encoder, device=device, precision="bf16", batch_size=batch_size)
    queries = exact.encode_questions(questions)
    found = compare_vectors(
        exact.encode_passages(titles, texts), rounded.encode_passages(titles, texts), queries, queries
    )
    report.figures["agreement"] = found
    same, near = found["same_top"], found["same_top_but_near_ties"]
    rows = (
        ("cosine of passages, mean", f"{found['cosine_mean']:.6f}"),
        ("cosine of passages, least", f"{found['cosine_min']:.6f}"),
        (f"same {TOP_K} best passages", f"{100 * same:.2f} % of questions"),
        (f"same, but for near ties (< {NEAR_TIE:g})", f"{100 * near:.2f} % of questions"),
        (f"shared among the {TOP_K} best", f"{100 * found['overlap']:.2f} %"),
        ("score error, standard deviation", f"{found['score_error_std']:.6f}"),
    )
    report.tables.append(Table(f"bf16 against fp32, {len(questions)} questions", ("what", "value"), rows))
    report.goals.append(Goal("least cosine, bf16 against fp32", found["cosine_min"], "at least", COSINE_GOAL))
    report.goals.append(Goal(f"same {TOP_K} best passages, share of questions", same, "at least", TOP_GOAL))
    report.goals.append(Goal(f"same {TOP_K} best but for near ties", near, "at least", TOP_GOAL))


def compare_vectors(
    passages: Float32, other_passages: Float32, queries: Float32, other_queries: Float32
) -> dict[str, float]:
    """How much two encodings of the same texts agree.

    A question's best ten are the same "but for near ties" if the other encoding's best ten all score, in the
    first encoding, less than 0.001 below its tenth best.

    Args:
        passages, other_passages: (P, D), the first being the reference.
        queries, other_queries: (B, D), likewise.

    Example:
        >>> v = np.eye(12, dtype=np.float32)
        >>> found = compare_vectors(v, v, v, v)
        >>> found["cosine_min"], found["same_top"], found["overlap"]
        (1.0, 1.0, 1.0)
    """
    norms = np.linalg.norm(passages, axis=1) * np.linalg.norm(other_passages, axis=1)
    cosines = np.einsum("pd,pd->p", passages, other_passages) / norms
    k = min(TOP_K, len(passages))
    same: list[bool] = []
    near: list[bool] = []
    shared: list[float] = []
    errors: list[float] = []
    for start in range(0, len(queries), 256):
        scores = queries[start : start + 256] @ passages.T  # (b, P)
        others = other_queries[start : start + 256] @ other_passages.T
        errors.append(float(np.mean((others - scores) ** 2)))
        best, other_best = (np.argsort(-s, axis=1, kind="stable")[:, :k] for s in (scores, others))
        tenth = np.take_along_axis(scores, best[:, -1:], axis=1)[:, 0]
        worst = np.take_along_axis(scores, other_best, axis=1).min(axis=1)
        near.extend((tenth - worst < NEAR_TIE).tolist())
        overlap = [len(set(a) & set(b)) / k for a, b in zip(best.tolist(), other_best.tolist(), strict=True)]
        shared.extend(overlap)
        same.extend(one == 1.0 for one in overlap)
    return {
        "cosine_mean": float(cosines.mean()),
        "cosine_min": float(cosines.min()),
        "same_top": float(np.mean(same)),
        "same_top_but_near_ties": float(np.mean(near)),
        "overlap": float(np.mean(shared)),
        "score_error_std": float(np.sqrt(np.mean(errors))),
    }
