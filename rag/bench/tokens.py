"""Compressed token vectors beside exhaustive late interaction over the same vectors: size, recall, time."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rag.bench.common import time_interleaved, working_folder
from rag.bench.report import Goal, Report, Table, format_bytes
from rag.core.errors import MissingDependencyError
from rag.core.progress import Progress, format_seconds
from rag.core.types import Question
from rag.data.text import AnswerMatcher
from rag.metrics.significance import bootstrap

if TYPE_CHECKING:
    from indexers.passages import PassageStore
    from indexers.protocols import EncoderIdentity
    from indexers.token_index import TokenIndex
    from rag.core.arrays import Float32, Int64

    _Search = Callable[[Float32], Int64]  # a question's vectors (q, D) → rows, best first

SIZE_GOAL, RECALL_GOAL, TIME_GOAL_S = 24.0, 0.99, 0.030
_PASSAGES_AT_ONCE = 64


@dataclass(frozen=True, slots=True)
class StoredTokens:
    """Token vectors that were encoded once and stored, in place of an encoder.

    Attributes:
        rows: (title, text) → passage.
        values: (T, D) float16, mapped.
        lengths: (N,), tokens of each passage.
    """

    identity: EncoderIdentity
    rows: dict[tuple[str, str], int]
    values: Any
    lengths: Int64

    @classmethod
    def encode(cls, passages: PassageStore, encoder: Any, path: Path) -> StoredTokens:
        """Encode all passages into a file."""
        lengths: list[Int64] = []
        rows: dict[tuple[str, str], int] = {}
        with open(path, "wb") as file, Progress(len(passages), "passages", "encode") as progress:
            for texts in passages.batches(1024):
                titles = [passage.title for passage in texts]
                found = encoder.passage_tokens(titles, [passage.text for passage in texts])
                np.asarray(found.values).astype(np.float16).tofile(file)
                lengths.append(np.asarray(found.lengths))
                for row, passage in enumerate(texts, progress.count):
                    rows.setdefault((passage.title, passage.text), row)
                progress.update(len(texts))
        each = np.concatenate(lengths)
        mapped = np.memmap(path, np.float16, "r", shape=(int(each.sum()), encoder.dim))
        return cls(encoder.identity, rows, mapped, each)

    @property
    def starts(self) -> Int64:
        """(N,), where each passage's vectors begin."""
        return np.cumsum(self.lengths) - self.lengths

    def passage_tokens(self, titles: Sequence[str], texts: Sequence[str]) -> Any:
        """The token vectors of some passages."""
        starts = self.starts
        rows = np.array([self.rows[key] for key in zip(titles, texts, strict=True)])
        parts = [self.values[starts[row] : starts[row] + self.lengths[row]] for row in rows]
        return _Vectors(np.concatenate(parts).astype(np.float32), self.lengths[rows])


@dataclass(frozen=True, slots=True)
class _Vectors:
    values: Float32
    lengths: Int64


def exhaustive(stored: StoredTokens, queries: Float32, lengths: Int64) -> Float32:
    """MaxSim (B, N) of every question with every passage, from vectors as they were encoded."""
    begins, starts = np.cumsum(lengths) - lengths, stored.starts
    scores = np.empty((len(lengths), len(starts)), np.float32)
    for first in range(0, len(starts), _PASSAGES_AT_ONCE):
        own = starts[first : first + _PASSAGES_AT_ONCE]
        stop = own[-1] + stored.lengths[first + len(own) - 1]
        similar = stored.values[own[0] : stop].astype(np.float32) @ queries.T
        best = np.maximum.reduceat(similar, own - own[0], axis=0)  # (passages, T)
        scores[:, first : first + len(own)] = np.add.reduceat(best, begins, axis=1).T
    return scores


def run_tokens_benchmark(
    index: Path,
    questions: Path,
    encoder: str,
    bits: Sequence[int] = (1, 2, 4),
    nprobes: Sequence[int] = (1, 2, 4, 8),
    top_k: int = 20,
    sample: int = 200,
    rounds: int = 3,
    pylate: bool = False,
    precision: str = "auto",
    format: str = "auto",
    work_dir: Path | None = None,
) -> Report:
    """Compressed token vectors against exhaustive late interaction: bytes, recall, build and search time.

    Build times exclude the encoding of passages, which is done once. Search times are for one question at a
    time and exclude its encoding.

    Args:
        index: An index of any kind, for its passages.
        questions: File of questions with answers.
        encoder: Folder of a ColBERT model.
        bits: Bits per number.
        nprobes: Cells opened for each vector of a question.
        top_k: Passages searched for.
        sample: Maximum number of questions on which recall is measured.
        rounds: Interleaved rounds; all settings take part in each.
        pylate: Also measure PyLate's index of the same vectors; PyLate must be installed.
        work_dir: Folder for temporary vectors and indexes.

    Raises:
        ConfigError: bits or encoder are not what an index of tokens takes.
        MissingDependencyError: PyLate is wanted and not installed.
    """
    from indexers.passages import PassageStore
    from indexers.token_build import check_tokens
    from rag.data.questions import draw_sample, read_questions
    from retrievers.encoders.bi_encoder import BiEncoder

    passages = PassageStore.open(index / "passages")
    asked = draw_sample(read_questions(questions, format=format), sample, 0)
    loaded = BiEncoder.load(encoder, precision=precision)
    for each in bits:
        check_tokens(loaded.identity, each)
    peer = _load_pylate() if pylate else None
    found = loaded.question_tokens([question.text for question in asked])
    queries, lengths = np.asarray(found.values, np.float32), np.asarray(found.lengths)
    with working_folder("tokens", work_dir) as holder:
        started = time.perf_counter()
        stored = StoredTokens.encode(passages, loaded, holder / "vectors.f16")
        report = Report("tokens", {"index": index, "questions": questions, "encoder": encoder})
        counts = {"passages": len(passages), "tokens": len(stored.values), "queries": len(asked)}
        report.settings = {**report.settings, **counts}
        report.figures["encode_s"] = time.perf_counter() - started
        return compare_tokens(
            report, passages, stored, asked, queries, lengths, bits, nprobes, top_k, peer, rounds, holder
        )


def compare_tokens(
    report: Report, passages: PassageStore, stored: StoredTokens, asked: Sequence[Question],
    queries: Float32, lengths: Int64, bits: Sequence[int], nprobes: Sequence[int], top_k: int,
    peer: Any, rounds: int, holder: Path,
) -> Report:  # fmt: skip
    """Measure every setting and return the report; `peer` is PyLate's index, or None."""
    from indexers.token_build import build_tokens
    from indexers.token_index import TokenIndex

    top_k = min(top_k, len(passages))
    matchers = [AnswerMatcher(q.answers, q.answer_mode) for q in asked]

    def answered(rows: Int64) -> Float32:
        """(B,) whether one of the passages holds an answer."""
        texts = [[passage.text for passage in passages.get_many(own[own >= 0])] for own in rows]
        return np.array(
            [any(map(m.matches, own)) for m, own in zip(matchers, texts, strict=True)], np.float32
        )

    started = time.perf_counter()
    scores = exhaustive(stored, queries, lengths)
    report.figures["exhaustive_s_a_question"] = (time.perf_counter() - started) / len(asked)
    truth = np.argsort(-scores, axis=1, kind="stable")[:, :top_k]
    right = answered(truth)
    report.figures[f"exhaustive answer@{top_k}"] = bootstrap(right[:, None])[0]
    splits = np.split(queries, np.cumsum(lengths)[:-1])
    rows, searches = [], {}

    def compare(name: str, search: _Search, figures: dict[str, Any]) -> None:
        """A row of the table: `search` of all questions, one at a time."""
        got = np.full((len(splits), top_k), -1, np.int64)
        for number, own in enumerate(splits):
            found = search(own)[:top_k]
            got[number, : len(found)] = found
        same = np.array([len(set(a) & set(b)) for a, b in zip(got.tolist(), truth.tolist(), strict=True)])
        hits = answered(got)
        share = float(hits.sum() / max(1.0, right.sum()))
        overlap, accuracy = bootstrap(np.stack([same / top_k, hits], axis=1))
        figures[name] = {"overlap": overlap, f"answer@{top_k}": accuracy, "of_exhaustive": share}
        rows.append((name, f"{figures['bytes_a_token']:.1f}", format_bytes(figures["size_bytes"]),
                     format_seconds(figures["build_s"]), f"{overlap:.3f}",
                     f"{accuracy:.3f}", f"{100 * share:.1f} %"))  # fmt: skip
        searches[name] = lambda: [search(own) for own in splits]

    def sized(place: Path, started: float) -> dict[str, Any]:
        size = sum(file.stat().st_size for file in place.rglob("*") if file.is_file())
        taken = time.perf_counter() - started
        return {"build_s": taken, "size_bytes": size, "bytes_a_token": size / len(stored.values)}

    for each in bits:
        place = holder / f"bits-{each}"
        started = time.perf_counter()
        info = build_tokens(passages, place, stored, bits=each)
        figures = {**sized(place, started), "centroids": info["centroids"]}
        opened = TokenIndex.open(place)
        for nprobe in nprobes:
            name = f"{each} bits, nprobe {nprobe}"
            compare(name, _searching(opened, nprobe, top_k), figures)
            share = figures[name]["of_exhaustive"]
            report.goals.append(Goal(f"{name}: answer@{top_k} / exhaustive", share, "at least", RECALL_GOAL))
        report.goals.append(
            Goal(f"{each} bits: bytes per token", figures["bytes_a_token"], "at most", SIZE_GOAL)
        )
        report.figures[f"{each} bits"] = figures
        if peer is not None:
            name, place, started = f"{each} bits, PyLate", holder / f"pylate-{each}", time.perf_counter()
            search = _pylate(peer, stored, place, each, top_k)
            figures = report.figures[name] = sized(place, started)
            compare(name, search, figures)
    timings = time_interleaved(searches, rounds=rounds)
    per_question = {name: timings.median(name) / len(splits) for name in searches}
    report.figures["search_s"] = per_question
    report.goals += [
        Goal(f"{name}: s a question", per_question[name], "at most", TIME_GOAL_S)
        for name in searches
        if "nprobe" in name
    ]
    columns = ("codes", "bytes/token", "on disk", "built in", f"of the best {top_k}", f"answer@{top_k}",
               "of exhaustive", "a question")  # fmt: skip
    shown = [(*row, format_seconds(per_question[row[0]])) for row in rows]
    report.tables.append(Table("token vectors against exhaustive scoring [95 % bootstrap]", columns, shown))
    return report


def _searching(index: TokenIndex, nprobe: int, top_k: int) -> _Search:
    return lambda own: index.search(own, np.array([len(own)]), top_k, nprobe=nprobe)[1][0]


def _load_pylate() -> Any:
    try:
        return import_module("pylate.indexes").PLAID
    except ImportError as error:
        raise MissingDependencyError(
            f"PyLate cannot be imported ({error})",
            hint="it needs older packages than this system: `pip install --no-deps --target DIR pylate "
            "sentence-transformers==5.3.0 ujson`, and run this with PYTHONPATH=DIR",
        ) from error


def _pylate(peer: Any, stored: StoredTokens, place: Path, bits: int, top_k: int) -> _Search:
    """PyLate's index of the same vectors, by its defaults: fast-plaid, or Stanford's where that is not."""
    fast = find_spec("fast_plaid") is not None
    more = {"show_progress": False} if fast else {"embedding_size": stored.values.shape[1]}
    vectors = np.split(np.asarray(stored.values, np.float32), stored.starts[1:])
    place.mkdir(parents=True)
    with redirect_stdout(sys.stderr):
        index = peer(index_folder=str(place), index_name="i", use_fast=fast, nbits=bits, device="cpu", **more)
        index.add_documents(list(map(str, range(len(vectors)))), vectors)

    def search(own: Float32) -> Int64:
        with redirect_stdout(sys.stderr):
            return np.array([int(found["id"]) for found in index([own], k=top_k)[0]], np.int64)

    return search
