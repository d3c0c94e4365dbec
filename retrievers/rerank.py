"""Re-ranking: the first hits of any retriever, in the order of a slower and better judge."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from pydantic import Field

from indexers.protocols import FloatArray, IntArray
from indexers.token_index import TokenIndex
from rag.config import Config, load_config, parse_overrides
from rag.core.errors import ConfigError
from rag.core.files import read_json
from rag.core.progress import StageTimer
from rag.core.types import FirstStage, Hit, Passage
from rag.runtime.model_files import model_folder, weight_files, weights_sha256
from retrievers.dense import stage
from retrievers.protocols import Passages, PathRetriever, Retriever

__all__ = ["JUDGES", "Judge", "LateInteraction", "RerankingRetriever", "parse_rerank", "reranked"]

_QUESTIONS_AT_ONCE = 32  # their passages' token vectors are in memory together


class Judge(Protocol):
    """Says how well passages fit questions; a cross-encoder is one, a late-interaction model another."""

    @property
    def name(self) -> str:
        """Folder or hub name."""

    def score(self, questions: Sequence[str], passages: Sequence[Passage]) -> FloatArray:
        """Scores (n,) of n pairs, larger is better, comparable within a question."""


class LateInteraction:
    """Scores pairs by MaxSim of their token vectors.

    Args:
        name_or_path: folder or hub name of an encoder with one vector a token.
        precision: "auto", "fp32" or "bf16".
        device: "auto", "cpu" or "cuda".

        stored: the passages' token vectors; used where this encoder made them: only questions are encoded.

    Raises:
        ConfigError: the encoder makes one vector a text.
    """

    def __init__(
        self, name_or_path: str | Path, *, precision: str = "auto", device: str = "auto",
        stored: TokenIndex | None = None,
    ) -> None:  # fmt: skip
        from retrievers.encoders.bi_encoder import BiEncoder

        self.name = str(name_or_path)
        self.encoder = BiEncoder.load(name_or_path, precision=precision, device=device)
        if (pooling := self.encoder.identity.pooling) != "tokens":
            raise ConfigError(
                f"{name_or_path} makes one vector a text (pooling {pooling}), re-ranking by late interaction "
                "needs one a token",
                hint="give a ColBERT model, or search with this encoder instead",
            )
        fits = stored is not None and not stored.encoder.differences(self.encoder.identity)
        self.stored = stored if fits else None

    def score(self, questions: Sequence[str], passages: Sequence[Passage]) -> FloatArray:
        """Scores (n,) float32 of n pairs; each question and each passage is encoded once."""
        from retrievers.encoders.scoring import max_sim

        if not questions:
            return np.zeros(0, np.float32)
        asked, texts = list(dict.fromkeys(questions)), {passage.id: passage for passage in passages}
        places = {key: row for row, key in enumerate(texts)}
        queries = self.encoder.question_tokens(asked)
        found = self.encoder.passage_tokens(
            [passage.title for passage in texts.values()], [passage.text for passage in texts.values()]
        )
        numbers = {question: number for number, question in enumerate(asked)}
        owners = np.array([numbers[question] for question in questions])
        rows = np.array([places[passage.id] for passage in passages])
        scores = np.empty(len(rows), np.float32)
        for number in range(len(asked)):
            own = np.flatnonzero(owners == number)
            scores[own] = max_sim(queries.take([number]), found.take(rows[own].tolist()))[0].numpy()
        return scores

    def score_stored(self, questions: Sequence[str], lists: Sequence[IntArray]) -> list[FloatArray]:
        """Scores of each question's rows, from the vectors that are stored."""
        assert self.stored is not None
        queries, scores = self.encoder.question_tokens(questions), []
        for number, rows in enumerate(lists):
            order = np.argsort(rows)
            own = np.empty(len(rows), np.float32)
            own[order] = self.stored.exact(queries.take([number]).values.numpy(), rows[order])
            scores.append(own)
        return scores


def _late_interaction(name_or_path: str, precision: str, device: str, stored: TokenIndex | None) -> Judge:
    return LateInteraction(name_or_path, precision=precision, device=device, stored=stored)


def _cross_encoder(name_or_path: str, precision: str, device: str, stored: TokenIndex | None) -> Judge:
    from retrievers.encoders.cross_encoder import CrossEncoder

    return CrossEncoder.load(name_or_path, precision=precision, device=device)


JUDGES: dict[str, Callable[[str, str, str, TokenIndex | None], Judge]] = {
    "colbert": _late_interaction,
    "cross-encoder": _cross_encoder,
}


class RerankOptions(Config):
    """What may follow a judge's folder.

    Attributes:
        depth: hits of the first stage that are judged; never fewer than are asked for.
    """

    depth: int = Field(default=100, ge=1)


def parse_rerank(text: str) -> tuple[str, str, RerankOptions]:
    """A judge, written `FOLDER`, `colbert:FOLDER` or `cross-encoder:FOLDER`, with options after a comma.

    Returns:
        Its kind ("" if the folder is to say), its folder or hub name, its options.

    Raises:
        ConfigError: there is no folder, or no such option.

    Example:
        >>> parse_rerank("colbert:models/colbert,depth=50")
        ('colbert', 'models/colbert', RerankOptions(depth=50))
        >>> parse_rerank("cross-encoder/ms-marco-MiniLM-L6-v2")[:2]
        ('', 'cross-encoder/ms-marco-MiniLM-L6-v2')
    """
    named, _, given = text.partition(",")
    kind, colon, name = named.partition(":")
    if not colon or kind not in JUDGES:
        kind, name = "", named
    if not name.strip():
        raise ConfigError(f"rerank is {text!r}", hint=f"give a folder, perhaps after {':, '.join(JUDGES)}:")
    try:
        options = load_config(RerankOptions, overrides=parse_overrides([p for p in given.split(",") if p]))
    except ConfigError as error:
        raise ConfigError(f"rerank {text!r}: {error}") from error
    return kind, name, options


def reranked(
    first: Retriever, passages: Passages, spec: str, *, precision: str = "auto", device: str = "auto",
    stored: TokenIndex | None = None,
) -> RerankingRetriever:  # fmt: skip
    """A retriever whose first hits a judge puts in order.

    Args:
        first: any retriever over `passages` but a multi-hop one.
        spec: the judge, see `parse_rerank`.
        stored: token vectors of `passages`, for a judge that made them.

    Raises:
        ConfigError: `spec` cannot be understood, or the first stage finds paths.
        ArtifactError: there is no such model, or it is of another kind.
    """
    kind, name, options = parse_rerank(spec)
    if isinstance(first, PathRetriever):
        raise ConfigError(
            "multi-hop retrieval has an order of its own: later hops do not fit the question alone",
            hint="leave out the re-ranking, or use dense, bm25 or hybrid retrieval",
        )
    folder = model_folder(name)
    if not kind:
        config = read_json(folder / "config.json") if (folder / "config.json").is_file() else {}
        is_cross = "SequenceClassification" in (config.get("architectures") or [""])[0]
        kind = "cross-encoder" if is_cross else "colbert"
    judge = JUDGES[kind](name, precision, device, stored)
    identity = {"kind": kind, "name": name, "weights_sha256": weights_sha256(weight_files(folder))}
    return RerankingRetriever(first, passages, judge, depth=options.depth, identity=identity)


class RerankingRetriever:
    """What another retriever found, in the order of a judge; ties by passage id.

    Args:
        first: finds the passages.
        passages: their texts.
        judge: scores them; its scores take the place of the retriever's, whose rank and score are kept in
            `Hit.first_stage`.
        depth: hits that are judged; never fewer than are asked for.
        identity: names the judge in reports.
    """

    def __init__(
        self, first: Retriever, passages: Passages, judge: Judge, *, depth: int = 100,
        identity: dict[str, Any] | None = None,
    ) -> None:  # fmt: skip
        self.first, self.passages, self.judge, self.depth = first, passages, judge, depth
        self.identity = {**(identity or {"name": judge.name}), "depth": depth}

    def search(
        self, questions: Sequence[str], top_k: int, *, timer: StageTimer | None = None
    ) -> list[list[Hit]]:
        """Best passages of each question; see `Retriever.search`."""
        lists = self.first.search(questions, max(self.depth, top_k), timer=timer)
        ordered: list[list[Hit]] = []
        with stage(timer, "rerank"):
            for start in range(0, len(lists), _QUESTIONS_AT_ONCE):
                block = lists[start : start + _QUESTIONS_AT_ONCE]
                ordered += self._judged(questions[start : start + len(block)], block)
        return [hits[:top_k] for hits in ordered]

    def _judged(self, questions: Sequence[str], lists: Sequence[Sequence[Hit]]) -> list[list[Hit]]:
        if isinstance(self.judge, LateInteraction) and self.judge.stored is not None:
            rows = [np.array([hit.row for hit in hits], np.int64) for hits in lists]
            scored = np.concatenate(self.judge.score_stored(questions, rows))
        else:
            texts = self.passages.get_many([hit.row for hits in lists for hit in hits])
            asked = [question for question, hits in zip(questions, lists, strict=True) for _ in hits]
            scored = self.judge.score(asked, texts)
        scores = iter(scored.tolist())
        return [
            sorted(
                (
                    replace(hit, score=next(scores), first_stage=FirstStage(rank, hit.score))
                    for rank, hit in enumerate(hits, 1)
                ),
                key=Hit.sort_key,
            )
            for hits in lists
        ]
