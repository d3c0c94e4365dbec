"""Re-ranking: order a retriever's first hits by a slower model's scores, fused with the
retriever's.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from pydantic import Field, field_validator

from rag.config import Config, load_config, parse_overrides
from rag.core.arrays import Float32
from rag.core.errors import ConfigError
from rag.core.files import read_json
from rag.core.log import Timer, stage
from rag.core.types import FirstStage, Hit, Passage
from rag.runtime.model_files import model_folder, tower_folders, weight_files, weights_sha256
from retrievers.encoders.folders import read_settings
from retrievers.hybrid import Fusion
from retrievers.protocols import HitLists, PairScorer, Retriever, Selected

if TYPE_CHECKING:
    from indexers.index import Index
    from indexers.passages import PassageStore

# The re-ranker's scores in standard deviations; chosen on 500 training questions of SQuAD that were
# held out.
DEFAULT_FUSION = Fusion("std", (1.0, 0.5))
_READER = "reader"
_PAIRS_AT_ONCE = 3200


class LateInteraction:
    """Scores pairs by MaxSim of their token vectors."""

    is_log_odds = False

    def __init__(self, name: str, *, precision: str = "auto") -> None:
        from retrievers.encoders.bi_encoder import BiEncoder

        self.name = name
        self.encoder = BiEncoder.load(name, precision=precision)

    def score(self, questions: Sequence[str], passages: Sequence[Passage]) -> Float32:
        """Scores (n,) of n pairs; each text is encoded once."""
        from retrievers.encoders.vectors import max_sim
        from retrievers.examples.batches import distinct

        pairs_of: dict[str, list[int]] = {}
        for pair, question in enumerate(questions):
            pairs_of.setdefault(question, []).append(pair)
        queries = self.encoder.question_tokens(list(pairs_of))
        texts, rows = distinct(passages)
        titles = [passage.title for passage in texts]
        tokens = self.encoder.passage_tokens(titles, [passage.text for passage in texts])
        scores = np.empty(len(passages), np.float32)
        for number, pairs in enumerate(pairs_of.values()):
            of_question = tokens.take(rows[pairs].tolist())
            scores[pairs] = max_sim(queries.take([number]), of_question)[0].numpy()
        return scores


class Rerank(Config):
    """Re-ranking, on the command line `--rerank FOLDER,depth=50,fusion=std:1,0.5`.

    Attributes:
        model: folder or hub name, or "reader", the extractive reader that answers.
        depth: hits of the first stage that are re-ranked; further ones follow in their order.
        fusion: weights of the re-ranker's scores and of the first stage's, as `Fusion.parse` reads
            them; "raw:1,0" is the re-ranker alone.
    """

    model: str
    depth: int = Field(default=100, ge=1)
    fusion: str = str(DEFAULT_FUSION)

    @field_validator("fusion")
    @classmethod
    def _check_fusion(cls, value: str) -> str:
        weights = len(Fusion.parse(value).weights)
        if weights != 2:
            raise ValueError(
                f"{weights} weights, expected two: the re-ranker's and the first stage's"
            )
        return value

    @classmethod
    def parse(cls, text: str) -> Rerank:
        """Parse a model, and behind it options.

        Example:
            >>> Rerank.parse("models/colbert,depth=50,fusion=std:1,0.5")
            Rerank(model='models/colbert', depth=50, fusion='std:1,0.5')
        """
        model, _, options_text = text.partition(",")
        if not model.strip():
            raise ConfigError(f"rerank is {text!r}", hint="give a folder; its files say what it is")
        # The value of fusion contains commas.
        settings = filter(None, re.split(r",(?=[^,]*=)", options_text))
        try:
            options = parse_overrides(list(settings))
            return load_config(cls, overrides={"model": model, **options})
        except ConfigError as error:
            raise ConfigError(f"rerank {text!r}: {error}") from error

    def __str__(self) -> str:
        """The form that `parse` reads."""
        return f"{self.model},depth={self.depth},fusion={self.fusion}"


def reranked(
    first: Retriever,
    passages: PassageStore,
    rerank: Rerank,
    *,
    precision: str = "auto",
    reader: Callable[[], PairScorer] | None = None,
) -> RerankingRetriever:
    """Add re-ranking to a retriever."""
    name = rerank.model
    if first.finds_paths:
        raise ConfigError(
            "multi-hop paths cannot be re-ranked: passages of later hops do not match the question alone",
            hint="leave out the re-ranking, or use dense, bm25 or hybrid retrieval",
        )
    if name != _READER or Path(name).exists():
        scorer, identity = open_scorer(name, precision)
    elif reader is not None:
        scorer = reader()
        identity = {"kind": _READER, "name": scorer.name}
    else:
        raise ConfigError(
            "there is no reader to re-rank with", hint="search with `rag.pipeline.Pipeline`"
        )
    fusion = Fusion.parse(rerank.fusion)
    return RerankingRetriever(
        first, passages, scorer, depth=rerank.depth, fusion=fusion, scorer_identity=identity
    )


def open_scorer(name: str, precision: str) -> tuple[PairScorer, dict[str, str]]:
    """The model of a folder, and its description; the folder's files decide what it is."""
    folder = model_folder(name)
    config = read_json(folder / "config.json") if (folder / "config.json").is_file() else {}
    architecture = (config.get("architectures") or [""])[0]
    scorer: PairScorer
    if architecture.endswith(("ForCausalLM", "ForConditionalGeneration")):
        from retrievers.encoders.yes_no import YesNoScorer

        kind = "yes-no"
        scorer = YesNoScorer(name, precision=precision)
        weights = weights_sha256(weight_files(folder))
    elif "SequenceClassification" in architecture:
        from retrievers.encoders.cross_encoder import CrossEncoder

        kind = "cross-encoder"
        scorer = CrossEncoder.load(name, precision=precision)
        weights = weights_sha256(weight_files(folder))
    else:
        _check_late(name, folder, architecture)
        kind = "colbert"
        scorer = LateInteraction(name, precision=precision)
        weights = scorer.encoder.identity.weights_sha256  # the backbone's and the head's
    return scorer, {"kind": kind, "name": name, "weights_sha256": weights}


def _check_late(name: str, folder: Path, architecture: str) -> None:
    """Refuse what is no model of late interaction, by what it is."""
    tower, _ = tower_folders(folder)
    if architecture == "HF_ColBERT" or (tower / "modules.json").is_file():
        if read_settings(tower).pooling == "tokens":
            return
        found = "an encoder that makes one vector per text"
        hint = f"search with it: rag index … --encoder {name}"
    else:
        found = f"a {architecture or 'model without architecture'}"
        hint = "for example cross-encoder/ms-marco-MiniLM-L6-v2"
    raise ConfigError(
        f"{name} is {found}, expected a re-ranker: a cross-encoder (…ForSequenceClassification), "
        "or a ColBERT model",
        hint=hint,
    )


@dataclass(eq=False)
class RerankingRetriever(Retriever):
    """Re-orders a retriever's hits by a model's scores fused with the retriever's; ties by passage
    id.

    Attributes:
        first: the retriever; its ranks and scores are kept in `Hit.first_stage`.
        scorer: scores the hits of `first`.
        depth: hits that are scored; where more are wanted, the others follow in the order of
            `first`.
        fusion: the method, with the re-ranker's weight first.
        scorer_identity: description of the re-ranker, for reports.

    Source:
        The sum of both scores: Lin, Nogueira and Yates 2021, "Pretrained Transformers for Text
        Ranking: BERT and Beyond", section 3.2.2.
    """

    first: Retriever
    passages: PassageStore
    scorer: PairScorer
    _: KW_ONLY
    depth: int = 100
    fusion: Fusion = DEFAULT_FUSION
    scorer_identity: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.encoder = self.first.encoder

    @property
    def identity(self) -> dict[str, object]:
        """The first retriever's identity, with the re-ranker's."""
        rerank = {**self.scorer_identity, "depth": self.depth, "fusion": str(self.fusion)}
        return {**self.first.identity, "rerank": rerank}

    def with_index(self, index: Index) -> RerankingRetriever:
        """See `Retriever.with_index`."""
        return replace(self, first=self.first.with_index(index), passages=index.passages)

    def search(
        self,
        questions: Sequence[str],
        top_k: int,
        *,
        timer: Timer = None,
        selected: Selected = None,
    ) -> HitLists:
        """Best passages of each question; see `Retriever.search`."""
        deepest = max(1, min(max(self.depth, top_k), len(self.passages)))
        ranked = self.first.search(questions, deepest, timer=timer, selected=selected)
        judged = [hits[: self.depth] for hits in ranked]
        with stage(timer, "rerank"):
            fused = self.fusion.fuse([self._rescored(questions, judged), judged], top_k)
            return [self._joined(*lists)[:top_k] for lists in zip(fused, ranked, strict=True)]

    def _rescored(self, questions: Sequence[str], lists: Sequence[Sequence[Hit]]) -> HitLists:
        """The hits of each question by the scorer's scores, best first."""
        at_once = max(1, _PAIRS_AT_ONCE // self.depth)
        rescored: HitLists = []
        for start in range(0, len(lists), at_once):
            repeated: list[str] = []
            rows: list[int] = []
            block = lists[start : start + at_once]
            for question, hits in zip(questions[start:], block, strict=False):
                repeated += [question] * len(hits)
                rows += [hit.row for hit in hits]
            scores = iter(())
            if rows:
                judged = self.scorer.score(repeated, self.passages.get_many(rows))
                scores = iter(judged.tolist())
            for hits in block:
                judged_hits = [replace(hit, score=next(scores)) for hit in hits]
                rescored.append(sorted(judged_hits, key=Hit.sort_key))
        return rescored

    def _joined(self, best: Sequence[Hit], ranked: Sequence[Hit]) -> list[Hit]:
        """The fused hits, and behind them those that were not scored: their scores fall as the
        first stage's do; all with their places in that stage."""
        hits = list(best)
        for hit in ranked[self.depth :]:
            last = ranked[self.depth - 1].score
            hits.append(replace(hit, score=best[-1].score + hit.score - last))
        stages = {hit.row: FirstStage(rank, hit.score) for rank, hit in enumerate(ranked, 1)}
        return [replace(hit, first_stage=stages[hit.row]) for hit in hits]
