"""Re-ranking: order a retriever's first hits by a slower model's scores, fused with the retriever's."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field, field_validator

from indexers.index import Index
from indexers.selected import Selection
from indexers.token_index import TokenIndex
from rag.config import Config, load_config, parse_overrides
from rag.core.arrays import Float32, Int64
from rag.core.errors import ConfigError, MismatchedArtifactError
from rag.core.files import read_json
from rag.core.log import get_logger
from rag.core.progress import StageTimer
from rag.core.types import FirstStage, Hit
from rag.runtime.model_files import model_folder, weight_files, weights_sha256
from retrievers.dense import stage
from retrievers.fusion import Fusion
from retrievers.protocols import PairScorer, Passages, PathRetriever, Retriever

# The re-ranker's scores in standard deviations; chosen on 500 training questions of SQuAD that were held out.
DEFAULT_FUSION = Fusion("std", (1.0, 0.5))
_log = get_logger(__name__)
_READER = "reader"
_PASSAGES_AT_ONCE = 3200  # passages whose token vectors are in memory together


class LateInteraction:
    """Scores pairs by MaxSim of their token vectors.

    Args:
        name_or_path: folder or hub name of an encoder with one vector per token.
        precision, device: see `BiEncoder.load`.
        stored: token vectors of the passages; if this model made them, they and their settings are used, and
            only questions are encoded.

    Attributes:
        differences: why the stored vectors are not used, one line per reason.

    Raises:
        ConfigError: the encoder makes one vector per text.
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
                f"{name_or_path} makes one vector per text (pooling {pooling}), re-ranking by late "
                "interaction needs one per token",
                hint="give a ColBERT model, or search with this encoder instead",
            )
        self.stored, self.differences = stored, tuple[str, ...]()
        if stored is None:
            return
        if stored.encoder.weights_sha256 == self.encoder.identity.weights_sha256:
            how = stored.encoder.options()
            self.encoder = BiEncoder.load(name_or_path, precision=precision, device=device, **how)
        self.differences = stored.encoder.differences(self.encoder.identity)
        if self.differences:
            self.stored = None
            _log.info(
                "%s did not make the stored token vectors, every passage is encoded anew (%s)",
                self.name, "; ".join(self.differences),
            )  # fmt: skip

    def score_hits(
        self, questions: Sequence[str], lists: Sequence[Sequence[Hit]], passages: Passages
    ) -> list[Float32]:
        """Scores of each question's hits, from the stored vectors if there are any."""
        from retrievers.encoders.vectors import max_sim

        queries = self.encoder.question_tokens(questions)
        rows = [np.array([hit.row for hit in hits], np.int64) for hits in lists]
        if self.stored is not None:
            return [self._stored_scores(queries.take([n]), own) for n, own in enumerate(rows)]
        distinct, places = np.unique(np.concatenate(rows), return_inverse=True)
        texts = passages.get_many(distinct)
        tokens = self.encoder.passage_tokens([p.title for p in texts], [p.text for p in texts])
        own_places = np.split(places, np.cumsum([len(own) for own in rows])[:-1])
        return [
            max_sim(queries.take([n]), tokens.take(own.tolist()))[0].numpy()
            for n, own in enumerate(own_places)
        ]

    def _stored_scores(self, query: Any, rows: Int64) -> Float32:
        assert self.stored is not None
        order = np.argsort(rows)
        scores = np.empty(len(rows), np.float32)
        scores[order] = self.stored.exact(query.values.numpy(), rows[order])
        return scores


class RerankOptions(Config):
    """Options of re-ranking, written after the model's folder.

    Attributes:
        depth: hits of the first stage that are re-ranked; further ones follow in their order.
        fusion: weights of the re-ranker's scores and of the first stage's, as `Fusion.parse` reads them;
            "raw:1,0" is the re-ranker alone.
        tokens: a `plaid` index of these passages by this model, whose stored vectors are scored, so that only
            questions are encoded. None: the token vectors of the searched index, if it has any.
    """

    depth: int = Field(default=100, ge=1)
    fusion: str = str(DEFAULT_FUSION)
    tokens: Path | None = None

    @field_validator("fusion")
    @classmethod
    def _check_fusion(cls, value: str) -> str:
        try:
            weights = len(Fusion.parse(value).weights)
        except ConfigError as error:
            raise ValueError(str(error)) from error
        if weights != 2:
            raise ValueError(f"{weights} weights, expected two: the re-ranker's and the first stage's")
        return value


def parse_rerank(text: str) -> tuple[str, RerankOptions]:
    """Parse a re-ranker: `FOLDER`, or `reader`, the extractive reader that answers, then options.

    Returns:
        Its folder or hub name ("reader" for the reader), and its options.

    Raises:
        ConfigError: there is no folder, or no such option.

    Example:
        >>> folder, options = parse_rerank("models/colbert,depth=50,fusion=std:1,0.5")
        >>> folder, options.depth, options.fusion
        ('models/colbert', 50, 'std:1,0.5')
        >>> parse_rerank("reader,depth=20")[0]
        'reader'
    """
    name, _, stated = text.partition(",")
    if not name.strip() or re.match("(colbert|cross-encoder|reader):", name):
        raise ConfigError(f"rerank is {text!r}", hint="give a folder alone: its files say what it is")
    parts = [part for part in re.split(r",(?=[^,]*=)", stated) if part]  # the value of fusion contains commas
    try:
        options = load_config(RerankOptions, overrides=parse_overrides(parts))
    except ConfigError as error:
        raise ConfigError(f"rerank {text!r}: {error}") from error
    return name, options


def reranked(
    first: Retriever,
    index: Index,
    spec: str,
    *,
    precision: str = "auto",
    device: str = "auto",
    reader: Callable[[], PairScorer] | None = None,
) -> RerankingRetriever:
    """Add re-ranking to a retriever.

    Args:
        first: any retriever over `index` but a multi-hop one.
        spec: the re-ranker, see `parse_rerank`.
        reader: opens the reader that answers as a scorer.

    Raises:
        ConfigError: `spec` cannot be understood, or the first stage finds paths.
        ArtifactError: there is no such model.
        MismatchedArtifactError: the index given as `tokens` was made by another model or from other passages.
    """
    name, options = parse_rerank(spec)
    if isinstance(first, PathRetriever):
        raise ConfigError(
            "multi-hop paths cannot be re-ranked: passages of later hops do not match the question alone",
            hint="leave out the re-ranking, or use dense, bm25 or hybrid retrieval",
        )
    stored = index.tokens if options.tokens is None else _token_vectors(options.tokens, index)
    scorer: PairScorer | LateInteraction
    identity: dict[str, Any] = {}
    if name == _READER and not Path(name).exists():
        if reader is None:
            raise ConfigError(
                "there is no reader to re-rank with", hint="search with `rag.pipeline.Pipeline`"
            )
        scorer = reader()
        identity = {"kind": _READER, "name": scorer.name}
    else:
        scorer, identity = _open_scorer(name, stored, precision, device)
    if options.tokens is not None and "token_bits" not in identity:
        why = (
            scorer.differences
            if isinstance(scorer, LateInteraction)
            else [f"a re-ranker of the kind {identity['kind']} reads texts"]
        )
        raise MismatchedArtifactError(
            f"{scorer.name} cannot score the token vectors of {options.tokens}: {'; '.join(why)}",
            hint="re-rank with the model that the index was built with, or leave tokens out",
        )
    return RerankingRetriever(
        first, index.passages, scorer, depth=options.depth, fusion=Fusion.parse(options.fusion),
        identity=identity,
    )  # fmt: skip


def _open_scorer(
    name: str, stored: TokenIndex | None, precision: str, device: str
) -> tuple[PairScorer | LateInteraction, dict[str, Any]]:
    """The model of a folder, and its description; the folder's files decide what it is."""
    folder = model_folder(name)
    config = read_json(folder / "config.json") if (folder / "config.json").is_file() else {}
    if "SequenceClassification" in (config.get("architectures") or [""])[0]:
        from retrievers.encoders.cross_encoder import CrossEncoder

        identity = {
            "kind": "cross-encoder",
            "name": name,
            "weights_sha256": weights_sha256(weight_files(folder)),
        }
        return CrossEncoder.load(name, precision=precision, device=device), identity
    late = LateInteraction(name, precision=precision, device=device, stored=stored)
    weights = late.encoder.identity.weights_sha256  # the backbone's and the head's
    bits = {} if late.stored is None else {"token_bits": late.stored.info["bits"]}
    return late, {"kind": "colbert", "name": name, "weights_sha256": weights, **bits}


def _token_vectors(place: Path, searched: Index) -> TokenIndex:
    """Token vectors of another index over the passages of the searched one."""
    index = Index.open(place)
    if index.tokens is None:
        raise ConfigError(f"{place} has no token vectors", hint="build it with `--index-type plaid`")
    if index.manifest["passages"] != searched.manifest["passages"]:
        raise MismatchedArtifactError(
            f"{place} holds other passages than {searched.directory}", hint="build both from the same files"
        )
    return index.tokens


class RerankingRetriever:
    """Re-orders a retriever's hits by a model's scores fused with the retriever's; ties by passage id.

    Args:
        first: the retriever; its ranks and scores are kept in `Hit.first_stage`.
        scorer: scores the hits of `first`: a model of pairs, or of token vectors.
        depth: hits that are scored; where more are wanted, the others follow in the order of `first`.
        fusion: the method, with the re-ranker's weight first; `DEFAULT_FUSION` if None.
        identity: description of the re-ranker, for reports.

    Source:
        The sum of both scores: Lin, Nogueira and Yates 2021, "Pretrained Transformers for Text Ranking: BERT
        and Beyond", section 3.2.2.
    """

    def __init__(
        self, first: Retriever, passages: Passages, scorer: PairScorer | LateInteraction, *, depth: int = 100,
        fusion: Fusion | None = None, identity: dict[str, Any] | None = None,
    ) -> None:  # fmt: skip
        self.first, self.passages, self.scorer, self.depth = first, passages, scorer, depth
        self.fusion = fusion or DEFAULT_FUSION
        named = identity or {"name": scorer.name}
        self.identity = {**named, "depth": depth, "fusion": str(self.fusion)}

    def search(
        self,
        questions: Sequence[str],
        top_k: int,
        *,
        timer: StageTimer | None = None,
        selected: Selection | None = None,
    ) -> list[list[Hit]]:
        """Best passages of each question; see `Retriever.search`."""
        deepest = max(1, min(max(self.depth, top_k), len(self.passages)))
        found = self.first.search(questions, deepest, timer=timer, selected=selected)
        judged = [hits[: self.depth] for hits in found]
        with stage(timer, "rerank"):
            fused = self.fusion.fuse([self._rescored(questions, judged), judged], top_k)
            return [
                _with_first_stage([*best, *_behind(best, hits, self.depth)][:top_k], hits)
                for best, hits in zip(fused, found, strict=True)
            ]

    def _rescored(self, questions: Sequence[str], lists: Sequence[Sequence[Hit]]) -> list[list[Hit]]:
        """The hits of each question by the scorer's scores, best first."""
        at_once, scores = max(1, _PASSAGES_AT_ONCE // self.depth), list[Float32]()
        for start in range(0, len(lists), at_once):
            block, asked = lists[start : start + at_once], questions[start : start + at_once]
            if not any(block):
                scores += [np.zeros(0, np.float32)] * len(block)
            elif isinstance(self.scorer, LateInteraction):
                scores += self.scorer.score_hits(asked, block, self.passages)
            else:
                texts = self.passages.get_many([hit.row for hits in block for hit in hits])
                repeated = [question for question, hits in zip(asked, block, strict=True) for _ in hits]
                bounds = np.cumsum([len(hits) for hits in block])
                scores += np.split(self.scorer.score(repeated, texts), bounds[:-1])
        return [
            sorted((replace(h, score=float(s)) for h, s in zip(hits, own, strict=True)), key=Hit.sort_key)
            for hits, own in zip(lists, scores, strict=True)
        ]


def _behind(best: Sequence[Hit], found: Sequence[Hit], depth: int) -> list[Hit]:
    """The hits that were not scored, behind the others; their scores fall as those of the first stage do."""
    return [replace(hit, score=best[-1].score + hit.score - found[depth - 1].score) for hit in found[depth:]]


def _with_first_stage(hits: Sequence[Hit], found: Sequence[Hit]) -> list[Hit]:
    places = {hit.row: FirstStage(rank, hit.score) for rank, hit in enumerate(found, 1)}
    return [replace(hit, first_stage=places[hit.row]) for hit in hits]
