"""ANCE's refresher: encode the corpus with each new snapshot, search, mine and measure.

    negatives.npy   (Q, K) passage rows, hardest first, then -1
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

import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from indexers.embeddings import encode_corpus
from indexers.exact import exact_search
from indexers.gold import CorpusTexts
from indexers.index import Index
from indexers.passages import PassageStore
from indexers.protocols import EncodesCorpus
from rag.core.arrays import Int64
from rag.core.errors import DataError, MismatchedArtifactError
from rag.core.files import atomic_write_json, read_json
from rag.core.log import get_logger
from rag.core.npy import load_npy, save_npy
from rag.core.progress import Progress
from rag.data.examples import Candidate, Example
from rag.training.refresh import Refreshed
from retrievers.encoders.bi_encoder import BiEncoder
from retrievers.examples.batches import RetrieverBatches
from retrievers.examples.data import answer_matcher, split_examples
from retrievers.negatives.select import NegativeFilter
from retrievers.protocols import TextEncoder
from retrievers.training.validation import TOP_KS, CorpusSearch, right_rows

_QUESTIONS_AT_ONCE = 2048
_NAME = "negatives.npy"

log = get_logger(__name__)


def take_up_negatives(
    batches: RetrieverBatches, corpus: PassageStore, result: Refreshed, *, key: str
) -> dict[str, float]:
    """Draw from newly mined negatives from the next batch on; returns their figures for the log.

    Args:
        key: fingerprint of the examples and the corpus that the rows refer to.

    Raises:
        MismatchedArtifactError: they were mined for other examples or another corpus.
        ArtifactError: a file is missing or damaged.
    """
    rows, expected = load_npy(result.path / _NAME, dtype=np.int32), len(batches.data)
    if result.key != key or len(rows) != expected:
        raise MismatchedArtifactError(
            f"{result.path} holds negatives for {len(rows)} other questions, or of another corpus; "
            f"expected {expected} (key {key}, found {result.key})",
            hint="train again in another folder: choose another --out",
        )
    batches.use_negatives(rows, corpus)
    figures: dict[str, float] = read_json(result.path / "figures.json")
    return figures


def negatives_refresher(
    config: Any, device: str, encode: EncodesCorpus = encode_corpus
) -> "NegativesRefresher":
    """The refresher of a run that has divided its examples."""
    split, index = split_examples(config, config.out / "data"), Index.open(config.index)
    load = partial(BiEncoder.load, device=device)
    return NegativesRefresher(
        config, index.passages, split.training, split.held_out, load=load, encode=encode
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

    def build(self, snapshot: Path, folder: Path) -> None:
        """Mine for all questions; one without new negatives has those of its file.

        Raises:
            DataError: not one negative was found.
        """
        config, questions = self.config, len(self.train)
        encoder = self._load(snapshot / "encoder")
        embeddings = self._encode(folder / "embeddings", self.corpus, encoder, "float16")

        def search(examples: Sequence[Example], top_k: int) -> Int64:
            return exact_search(embeddings, encoder.encode_queries([e.query for e in examples]), top_k)[1]

        mined = np.full((questions, config.kept), -1, np.int32)
        with Progress(questions, "questions", "mine") as progress:
            for start in range(0, questions, _QUESTIONS_AT_ONCE):
                block = self.train[start : start + _QUESTIONS_AT_ONCE]
                for example, ranked in enumerate(search(block, config.depth), start):
                    rows = self._select(example, ranked)
                    mined[example, : len(rows)] = rows
                progress.update(len(block))
        lengths = (mined >= 0).sum(axis=1)
        if not lengths.any():
            raise DataError(
                f"of the {config.depth} best passages of {questions} questions not one is a negative",
                hint="raise depth, or check the answers: every passage seems to hold one",
            )
        figures = {}
        if self._held_out is not None:
            measured = self._held_out.judge(search(self._held_out.examples, TOP_KS[-1]))
            figures = {f"held_out/{name}": value for name, value in measured.items()}
        figures["mined/questions"] = float((lengths > 0).sum())
        figures["mined/negatives_per_question"] = float(lengths.mean())
        log.info("%s", "  ".join(f"{name} {value:.4g}" for name, value in figures.items()))
        save_npy(folder / _NAME, mined)
        atomic_write_json(folder / "figures.json", figures)
        shutil.rmtree(folder / "embeddings")

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
        return list(islice(passing, self.config.kept))
