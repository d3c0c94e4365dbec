"""ANCE's refresher: encode the corpus with each new snapshot, search, mine and measure.

    negatives.arrow passage rows, hardest first, one list per question
    figures.json    what was mined, and how well the snapshot retrieves for held-out questions
    embeddings/     vectors of the corpus until the negatives are mined; a killed refresh resumes after its
                    last finished shard

Source:
    Xiong et al. 2021, "Approximate Nearest Neighbor Negative Contrastive Learning for Dense Text Retrieval",
    section 4, figure 2; there it is the "inferencer".

Note:
    The published refresher measures itself on the test questions; this one only on held-out training
    questions.
"""

import itertools
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from indexers.embeddings import encode_corpus
from indexers.gold import CorpusTexts
from indexers.index import Index
from indexers.passages import PassageStore
from indexers.protocols import EncodesCorpus
from indexers.token_build import build_tokens
from indexers.token_index import TokenIndex
from rag.core.arrays import Float32, Int64
from rag.core.errors import DataError, MismatchedArtifactError
from rag.core.files import atomic_write_json, read_json
from rag.core.log import get_logger
from rag.core.progress import Progress
from rag.core.types import Query
from rag.data.examples import Candidate, Example
from rag.training.refresh import Refreshed
from retrievers.encoders.bi_encoder import BiEncoder
from retrievers.encoders.static import StaticEncoder
from retrievers.examples.batches import RetrieverBatches
from retrievers.examples.data import answer_matcher, read_lists, row_lists, write_lists
from retrievers.negatives.select import NegativeFilter
from retrievers.protocols import TextEncoder
from retrievers.training.corpus_refresher import EncodedCorpus
from retrievers.training.split import split_examples
from retrievers.training.static_config import StaticTrainConfig
from retrievers.training.validation import TOP_KS, CorpusSearch, right_rows

_QUESTIONS_AT_ONCE = 2048
_NAME = "negatives"

log = get_logger(__name__)


def read_negatives(result: Refreshed, *, examples: int, key: str) -> pa.ListArray:
    """Map the negatives of a `NegativesRefresher` into memory: a list for every example, maybe empty.

    Args:
        key: fingerprint of the examples and the corpus that the rows refer to.

    Raises:
        MismatchedArtifactError: they were mined for other examples or another corpus.
        ArtifactError: a file is missing or damaged.
    """
    lists = read_lists(result.path / f"{_NAME}.arrow")
    if result.key != key or len(lists) != examples:
        raise MismatchedArtifactError(
            f"{result.path} holds negatives for {len(lists)} other questions, or of another corpus; "
            f"expected {examples} (key {key}, found {result.key})",
            hint="train again in another folder: choose another --out",
        )
    return lists


def take_up_negatives(batches: RetrieverBatches, result: Refreshed, *, key: str) -> dict[str, float]:
    """Draw from newly mined negatives from the next batch on; returns their figures for the log."""
    batches.use_negatives(read_negatives(result, examples=len(batches.data), key=key), result.version)
    figures: dict[str, float] = read_json(result.path / "figures.json")
    return figures


def negatives_refresher(
    config: Any, device: str, encode: EncodesCorpus = encode_corpus
) -> "NegativesRefresher":
    """The refresher of a run that has divided its examples."""
    split, index = split_examples(config, config.out / "data"), Index.open(config.index)
    is_static = isinstance(config, StaticTrainConfig)
    load: Any = StaticEncoder.load if is_static else partial(BiEncoder.load, device=device)
    return NegativesRefresher(
        config, index.passages, split.training(), split.held_out, load=load, encode=encode
    )


class NegativesRefresher:
    """Mines negatives with the trainer's snapshots.

    Args:
        corpus: passages that are searched; their rows are what is published.
        train: questions to mine for, in the trainer's order; of their passages only the positives are kept.
        held_out: questions to measure on; never mined for.
        load: snapshot's encoder folder → encoder.
        encode: encodes the corpus.

    Attributes:
        removed: number of rejected candidates so far, by reason.
    """

    def __init__(
        self,
        config: Any,
        corpus: PassageStore,
        train: Iterable[Example],
        held_out: Sequence[Example],
        *,
        load: Callable[[Path], TextEncoder],
        encode: EncodesCorpus = encode_corpus,
    ) -> None:
        self.config, self.corpus, self._load, self._encode = config, corpus, load, encode
        self.train = [
            replace(e, candidates=tuple(Candidate(p, "positive") for p in e.positives)) for e in train
        ]
        self.removed: Counter[str] = Counter()
        texts = CorpusTexts(corpus)
        self._right = right_rows(texts, self.train)
        watched = list(held_out[: config.validation_questions])
        self._held_out = CorpusSearch(corpus, watched, texts=texts) if watched else None
        if missing := sum(not rows for rows in self._right):
            log.warning(
                "%d of %d training questions have no positive in the corpus: only the answer filter keeps "
                "right passages out of their negatives",
                *(missing, len(self.train)),
            )

    def build(self, snapshot: Path, before: Refreshed | None, folder: Path) -> None:
        """Mine for all questions; one without new negatives has those of its file.

        Raises:
            DataError: not one negative was found.
        """
        config, questions = self.config, len(self.train)
        corpus = self._encoded(self._load(snapshot / "encoder"), folder / "embeddings")
        mined: list[list[int]] = []
        with Progress(questions, "questions", "mine") as progress:
            for start in range(0, questions, _QUESTIONS_AT_ONCE):
                block = self.train[start : start + _QUESTIONS_AT_ONCE]
                rows = corpus.search([example.query for example in block], config.depth)
                mined += [self._select(start + place, ranked) for place, ranked in enumerate(rows)]
                progress.update(len(block))
        lengths = np.fromiter(map(len, mined), np.int64, questions)
        if not lengths.any():
            raise DataError(
                f"of the {config.depth} best passages of {questions} questions not one is a negative",
                hint="raise depth, or check the answers: every passage seems to hold one",
            )
        figures = {f"held_out/{name}": value for name, value in self._measure(corpus).items()}
        figures["mined/questions"] = float((lengths > 0).sum())
        figures["mined/negatives_per_question"] = float(lengths.mean())
        log.info("%s", "  ".join(f"{name} {value:.4g}" for name, value in figures.items()))
        write_lists(row_lists(mined), folder / f"{_NAME}.arrow")
        atomic_write_json(folder / "figures.json", figures)
        shutil.rmtree(folder / "embeddings")

    def _encoded(self, encoder: TextEncoder, place: Path) -> EncodedCorpus:
        if isinstance(encoder, BiEncoder) and encoder.identity.pooling == "tokens":
            if self._encode is not encode_corpus:
                log.warning("vectors per token are made in this process, not on the cluster")
            return _EncodedTokens(place, self.corpus, encoder)
        return EncodedCorpus(encoder, self._encode(place, self.corpus, encoder, "float16"))

    def _select(self, example: int, retrieved: Int64) -> list[int]:
        """The rows, of those retrieved for an example, that become its negatives."""
        question = self.train[example]
        allowed = NegativeFilter(
            answer_matcher(question.answers, question.answer_mode),
            self._right[example],
            [passage.text for passage in question.positives],
            self.removed,
        )
        passing = (row for row in retrieved.tolist() if row >= 0 and allowed.accepts(row, self.corpus[row]))
        return list(itertools.islice(passing, self.config.kept))

    def _measure(self, corpus: EncodedCorpus) -> dict[str, float]:
        """Retrieval of the held-out questions."""
        if self._held_out is None:
            return {}
        queries = [example.query for example in self._held_out.examples]
        return self._held_out.judge(corpus.search(queries, TOP_KS[-1]))


class _EncodedTokens(EncodedCorpus):
    """A corpus with one vector per token, compressed and searched in stages."""

    def __init__(self, place: Path, corpus: PassageStore, encoder: BiEncoder) -> None:
        build_tokens(corpus, place, encoder)
        self._tokens, self._token_encoder = TokenIndex.open(place), encoder

    def _search_block(self, queries: Sequence[Query], top_k: int) -> tuple[Float32, Int64]:
        vectors = self._token_encoder.question_tokens([query.question for query in queries])
        assert vectors.lengths is not None
        return self._tokens.search(vectors.values.numpy(), vectors.lengths.numpy(), top_k)
