"""ANCE's refresher: encode the corpus with each new snapshot, search, mine, measure and publish.

    negatives/      the mined negatives, beside the files that every `CorpusRefresher` publishes:

    negatives.values.npy, negatives.bounds.npy, negatives.json
                    passage rows, hardest first, one list per question

    refresher/      vectors of the present refresh; a killed one resumes after its last finished shard

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
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from indexers.embeddings import encode_corpus
from indexers.gold import CorpusTexts
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
from rag.runtime.seeds import generator
from rag.training.refresh.generations import Generation
from rag.training.refresh.staleness import TOP_K, ProbeSet
from retrievers.encoders.bi_encoder import BiEncoder
from retrievers.examples.batches import RetrieverBatches
from retrievers.examples.data import answer_matcher
from retrievers.examples.tokens import TokenTable, TokenTableWriter
from retrievers.negatives.select import NegativeFilter
from retrievers.protocols import TextEncoder
from retrievers.training.config import AnceTrainConfig
from retrievers.training.corpus_refresher import CorpusRefresher, EncodedCorpus
from retrievers.training.static_config import StaticTrainConfig
from retrievers.training.validation import TOP_KS, CorpusSearch, right_rows

_QUESTIONS_AT_ONCE = 2048
_TURN_STREAM = 77_001
_NAME = "negatives"
_SHOWN = (
    *("held_out/mrr", "held_out/top1", "held_out/top20"),
    *("refresh/overlap", "refresh/cosine", "refresh/entropy", "refresh/distinct"),
)

log = get_logger(__name__)


def write_negatives(table: TokenTable, folder: Path) -> None:
    """Write a list of passage rows for every example into `folder`."""
    atomic_write_json(folder / f"{_NAME}.json", table.write(folder, _NAME))


def read_negatives(generation: Generation, *, examples: int, key: str) -> TokenTable:
    """Map the negatives of a `NegativesRefresher` into memory: a list for every example, maybe empty.

    Args:
        key: fingerprint of the examples and the corpus that the rows refer to.

    Raises:
        MismatchedArtifactError: they were mined for other examples or another corpus.
        ArtifactError: a file is missing or damaged.
    """
    shape = read_json(generation.path / f"{_NAME}.json")
    if generation.meta.get("key") != key or shape["rows"] != examples:
        raise MismatchedArtifactError(
            f"{generation.path} holds negatives for {shape['rows']} other questions, or of another corpus; "
            f"expected {examples} (key {key}, found {generation.meta.get('key')})",
            hint="start trainer and refresher with the same configuration, or choose another --out",
        )
    return TokenTable.read(generation.path, _NAME, shape)


def take_up_negatives(batches: RetrieverBatches, generation: Generation, *, key: str) -> dict[str, float]:
    """Draw from newly mined negatives from the next batch on; returns their figures for the log."""
    table = read_negatives(generation, examples=len(batches.data), key=key)
    batches.use_negatives(table, generation.version)
    figures = read_json(generation.path / "figures.json")
    return {name: figures[name] for name in _SHOWN if name in figures}


class NegativesRefresher(CorpusRefresher):
    """Mines negatives with the trainer's snapshots.

    Args:
        corpus: passages that are searched; their rows are what is published.
        train: questions to mine for, in the trainer's order; of their passages only the positives are kept.
        held_out: questions to measure on; never mined for.
        key: fingerprint of questions and corpus, the same in the trainer.
        load: snapshot's encoder folder → encoder.
        encode: encodes the corpus.

    Attributes:
        removed: number of rejected candidates so far, by reason.
    """

    def __init__(
        self,
        config: AnceTrainConfig | StaticTrainConfig,
        corpus: PassageStore,
        train: Iterable[Example],
        held_out: Sequence[Example],
        *,
        key: str,
        load: Callable[[Path], TextEncoder],
        encode: EncodesCorpus = encode_corpus,
    ) -> None:
        train = [replace(e, candidates=tuple(Candidate(p, "positive") for p in e.positives)) for e in train]
        probes = ProbeSet.draw(config, config.run.seed, questions=len(train), passages=len(corpus))
        super().__init__(
            config, _NAME, corpus, queries=[train[i].query for i in probes.questions.tolist()],
            watched=probes.passages, top_k=min(TOP_K, config.depth), key=key, load=load, encode=encode,
        )  # fmt: skip
        self.config, self.train = config, train
        self.removed: Counter[str] = Counter()
        texts = CorpusTexts(corpus)
        self._right = right_rows(texts, train)
        watched = list(held_out[: config.data.validation_questions])
        self._held_out = CorpusSearch(corpus, watched, texts=texts) if watched else None
        missing = sum(not rows for rows in self._right)
        if missing:
            log.warning(
                "%d of %d training questions have no positive in the corpus: only the answer filter keeps "
                "right passages out of their negatives",
                *(missing, len(train)),
            )

    def encoded(self, encoder: TextEncoder, folder: Path) -> EncodedCorpus:
        """See `CorpusRefresher`; the vectors stay outside of what is published."""
        work = self.config.out / "refresher"
        place = work / f"embeddings-{encoder.identity.fingerprint()}"
        for other in work.glob("embeddings-*"):
            if other != place:
                shutil.rmtree(other)
        if isinstance(encoder, BiEncoder) and encoder.identity.pooling == "tokens":
            if self.encode is not encode_corpus:
                log.warning("vectors per token are made in this process, not on the cluster")
            return _EncodedTokens(place, self.passages, encoder)
        return EncodedCorpus(encoder, self.encode(place, self.passages, encoder, "float16", check=self.check))

    def make(self, corpus: EncodedCorpus, before: Generation | None, folder: Path) -> Mapping[str, float]:
        """Mine for the questions whose turn it is; the others keep their negatives.

        Raises:
            DataError: not one negative was found.
        """
        config, questions = self.config, len(self.train)
        due = self._due(self.turn(before))
        mined = TokenTableWriter(None)
        with Progress(len(due), "questions", "mine") as progress:
            for start in range(0, len(due), _QUESTIONS_AT_ONCE):
                block = due[start : start + _QUESTIONS_AT_ONCE].tolist()
                _, rows = self.search(corpus, [self.train[i].query for i in block], config.depth)
                mined.append(list(map(self._select, block, rows)))
                progress.update(len(block))
        table = mined.finish().spread(due, questions)
        if not len(table.values):
            raise DataError(
                f"of the {config.depth} best passages of {questions} questions not one is a negative",
                hint="raise depth, or set answer_filter=false if every passage holds an answer",
            )
        figures = {
            **{f"held_out/{name}": value for name, value in self._measure(corpus).items()},
            "mined/questions": float((table.lengths > 0).sum()),
            "mined/negatives_per_question": float(table.lengths.mean()),
        }
        if before is not None:
            table = read_negatives(before, examples=questions, key=self.key).replaced(table)
        write_negatives(table, folder)
        return figures

    def _due(self, turn: int) -> Int64:
        """Examples whose turn it is: all, or a slice of a permutation that is worked off in turns."""
        size = self.config.refresh_questions or len(self.train)
        turns = -(-len(self.train) // size)
        order = generator(self.config.run.seed, _TURN_STREAM).permutation(len(self.train)).astype(np.int64)
        return np.sort(order[turn % turns :: turns])

    def _select(self, example: int, found: Int64) -> list[int]:
        """The rows, of those retrieved for an example, that become its negatives."""
        question = self.train[example]
        filters = self.config.answer_filter
        allowed = NegativeFilter(
            answer_matcher(question.answers, question.answer_mode) if filters else None,
            self._right[example],
            [passage.text for passage in question.positives],
            self.removed,
        )
        ranked = found[self.config.skip :].tolist()
        passing = (row for row in ranked if row >= 0 and allowed.accepts(row, self.passages[row]))
        return list(itertools.islice(passing, self.config.kept))

    def _measure(self, corpus: EncodedCorpus) -> dict[str, float]:
        """Retrieval of the held-out questions."""
        if self._held_out is None:
            return {}
        queries = [example.query for example in self._held_out.examples]
        return self._held_out.judge(self.search(corpus, queries, TOP_KS[-1])[1])


class _EncodedTokens(EncodedCorpus):
    """A corpus with one vector per token, compressed and searched in stages."""

    def __init__(self, place: Path, corpus: PassageStore, encoder: BiEncoder) -> None:
        build_tokens(corpus, place, encoder)
        self._tokens, self._corpus, self._makes = TokenIndex.open(place), corpus, encoder

    def search(self, queries: Sequence[Query], top_k: int) -> tuple[Float32, Int64]:
        """Scores (n, K) and rows (n, K), best first."""
        found = self._makes.question_tokens([query.question for query in queries])
        assert found.lengths is not None
        return self._tokens.search(found.values.numpy(), found.lengths.numpy(), top_k)

    def vectors(self, rows: Int64) -> Float32:
        """The vectors of all tokens of some passages."""
        passages = self._corpus.get_many(rows)
        found = self._makes.passage_tokens([p.title for p in passages], [p.text for p in passages])
        return np.asarray(found.values.numpy(), np.float32)
