"""Validation of a bi-encoder on held-out questions: rank of the positive, and retrieval over a corpus."""

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, Literal

import numpy as np
import torch

from indexers.exact import select_best
from indexers.gold import CorpusTexts
from indexers.index import Index
from indexers.passages import PassageStore
from rag.core.arrays import Float32, Int64
from rag.core.errors import DataError
from rag.core.log import get_logger
from rag.core.progress import Progress
from rag.core.types import Passage, Query
from rag.data.examples import Example
from rag.data.text import AnswerMatcher
from rag.metrics.ranking import average_rank, first_true, rank_figures
from rag.runtime.seeds import generator
from rag.training.distributed import World
from retrievers.encoders.vectors import Vectors, score
from retrievers.examples.batches import Epochs
from retrievers.examples.data import ExampleTable
from retrievers.examples.tokens import RetrieverTokenizer
from retrievers.protocols import TextEncoder
from retrievers.training.bi_encoder import BiEncoderModel, encoder_form
from retrievers.training.losses import Objective
from retrievers.training.step import contrastive_step

TOP_KS = (1, 5, 20, 100)
POOL_NEGATIVES, POOL_QUESTIONS = 30, 10_000  # as in the published average rank
_DEPTH = TOP_KS[-1]
_BLOCK = 4096  # passages encoded and searched at once


def pool_rank(encoder: TextEncoder, examples: Sequence[Example]) -> float:
    """`average_rank` in the pool of all positives and up to 30 hard negatives of each of `examples`.

    At most 10,000 questions count, as in the published rule. With fewer the pool is smaller and the rank
    better: then the figure is not comparable with published ones.
    """
    examples = examples[:POOL_QUESTIONS]
    rows: dict[tuple[str, str], int] = {}
    positives = []
    for example in examples:
        positives.append([rows.setdefault((p.title, p.text), len(rows)) for p in example.positives])
        for negative in example.negatives[:POOL_NEGATIVES]:
            rows.setdefault((negative.passage.title, negative.passage.text), len(rows))
    vectors = encoder.encode_passages([title for title, _ in rows], [text for _, text in rows])
    questions = encoder.encode_queries([example.query for example in examples])
    return average_rank(questions, vectors, positives)


def retrieval_scores(ranks: Sequence[int | None]) -> dict[str, float]:
    """Top-k accuracy and MRR (of the best 100) in percent, from 1-based ranks of the first right passage.

    Example:
        >>> retrieval_scores([1, 4, None, 2])["mrr"], retrieval_scores([1, 4, None, 2])["top1"]
        (43.75, 25.0)
    """
    figures = rank_figures(ranks, TOP_KS, depth=_DEPTH)
    return {name: 100.0 * float(figures[name].sum()) / max(1, len(ranks)) for name in ("mrr", *figures)}


class CorpusSearch:
    """Measures retrieval of held-out questions in a pool of passages.

    A passage is right if it is one of the question's positives (the same text, up to white space). Where the
    corpus is cut differently from the training file, so that fewer than half of the questions have a positive
    in it, a passage is right if it holds an answer.

    Args:
        corpus: passage store of an index.
        limit: size of the pool: the right passages and a random sample; 0 searches the whole corpus.
        texts: the corpus by text, if it was collected already.

    Attributes:
        kind: "positive" or "answer": how right passages are recognised.
        missing: number of questions whose positives are not in the corpus; they count as not retrieved.

    Raises:
        DataError: the corpus is empty, or has almost no positive while the questions have no answers.
    """

    def __init__(
        self,
        corpus: PassageStore,
        examples: Sequence[Example],
        *,
        limit: int = 0,
        seed: int = 0,
        texts: CorpusTexts | None = None,
    ) -> None:
        if not len(corpus) or not examples:
            raise DataError(f"{len(examples)} held-out questions and a corpus of {len(corpus)} passages")
        self.examples = list(examples)
        self._corpus = corpus
        self._right = right_rows(CorpusTexts(corpus) if texts is None else texts, examples)
        lost = [example for example, rows in zip(examples, self._right, strict=True) if not rows]
        self.missing = len(lost)
        self.kind: Literal["positive", "answer"] = "positive"
        if lost:
            title = next((passage.title for passage in lost[0].positives[:1]), "") or lost[0].id
            where = (
                f"{len(lost)} of {len(examples)} held-out questions have no positive in the corpus "
                f"(the first: {title!r})"
            )
            self.kind = "answer" if 2 * len(lost) > len(examples) else "positive"
            if self.kind == "answer" and not all(example.answers for example in examples):
                raise DataError(
                    f"{where}, and they have no answers to judge passages by",
                    hint="index the passages the training file was made from (--split none keeps them whole)",
                )
            judged = {"answer": "passages are judged by answers", "positive": "those count as not found"}
            get_logger(__name__).warning("%s: %s", where, judged[self.kind])
        self._rows = self._pool(limit, seed)

    def __len__(self) -> int:
        """Passages that are searched."""
        return len(self._rows)

    def measure(self, encoder: TextEncoder) -> dict[str, float]:
        """Encode pool and questions, search exactly; see `retrieval_scores`."""
        scorer = _scorer(encoder, [example.query for example in self.examples])
        scores = np.full((len(self.examples), _DEPTH), -np.inf, np.float32)
        rows = np.full((len(self.examples), _DEPTH), -1, np.int64)
        with Progress(len(self._rows), "passages", "validate") as progress:
            for start in range(0, len(self._rows), _BLOCK):
                block = self._rows[start : start + _BLOCK]
                new = scorer(self._corpus.get_many(block))  # (B, block)
                most = min(_DEPTH, len(block))
                best = np.argpartition(-new, most - 1, axis=1)[:, :most]
                scores, rows = select_best(
                    np.concatenate([scores, np.take_along_axis(new, best, axis=1)], axis=1),
                    np.concatenate([rows, block[best]], axis=1),
                    _DEPTH,
                )
                progress.update(len(block))
        return self.judge(rows)

    def judge(self, rows: Int64) -> dict[str, float]:
        """Scores of rows (n, K) retrieved for `examples`, best first, -1 in empty places."""
        return retrieval_scores([self._rank(number, retrieved) for number, retrieved in enumerate(rows)])

    def _rank(self, number: int, rows: Int64) -> int | None:
        if self.kind == "positive":
            right = self._right[number]
            return first_true([row in right for row in rows.tolist()])
        matcher = AnswerMatcher(self.examples[number].answers, self.examples[number].answer_mode)
        passages = self._corpus.get_many(rows[rows >= 0])
        return next((rank for rank, p in enumerate(passages, 1) if matcher.matches(p.text)), None)

    def _pool(self, limit: int, seed: int) -> Int64:
        total = len(self._corpus)
        if not limit or limit >= total:
            return np.arange(total)
        right = np.fromiter(sorted({row for rows in self._right for row in rows}), np.int64)
        sample = generator(seed, 11).choice(total, size=limit, replace=False)
        return np.union1d(right, sample[: max(0, limit - len(right))])


def _scorer(encoder: TextEncoder, queries: Sequence[Query]) -> Callable[[Sequence[Passage]], Float32]:
    """Scores (B, n) of the queries with n passages."""
    if isinstance(encoder, ModelEncoder) and encoder.has_tokens:
        tokens, model = encoder.question_vectors(queries), encoder
        return lambda passages: score(tokens, model.passage_vectors(passages)).cpu().numpy()
    vectors = encoder.encode_queries(queries)
    return lambda passages: vectors @ encoder.encode_passages(
        [passage.title for passage in passages], [passage.text for passage in passages]
    ).T  # fmt: skip


def right_rows(texts: CorpusTexts, examples: Sequence[Example]) -> list[frozenset[int]]:
    """Rows of each question's positives, by text up to white space: a corpus may hold a passage twice."""
    return [frozenset(row for passage in e.positives for row in texts.find(passage)) for e in examples]


class ModelEncoder:
    """A model in training as an encoder: texts in, vectors out, without gradients or dropout.

    Args:
        max_length: maximum text length in tokens, of queries with passages too; None: those of training.
    """

    def __init__(self, model: BiEncoderModel, max_length: int | None = None) -> None:
        self.model, self.dim = model, model.dim
        both = (model.settings.question, model.settings.passage)
        question, passage = (side.override(max_length=max_length) for side in both)
        longer = model.query_tokens if max_length is None else None
        self._tokenizer = RetrieverTokenizer(question, passage, query_tokens=longer)
        self.identity: Any = SimpleNamespace(dim=model.dim)
        self.has_tokens = model.settings.passage.pooling == "tokens"

    def encode_queries(self, queries: Sequence[Query]) -> Float32:
        """Vectors (n, D) of questions with passages."""
        return np.asarray(self.question_vectors(queries).values.cpu().numpy(), np.float32)

    def encode_passages(self, titles: Sequence[str], texts: Sequence[str]) -> Float32:
        """Vectors (n, D) of passages."""
        passages = [Passage("", title, text) for title, text in zip(titles, texts, strict=True)]
        return np.asarray(self.passage_vectors(passages).values.cpu().numpy(), np.float32)

    def question_vectors(self, queries: Sequence[Query]) -> Vectors:
        """The vector or vectors of each question."""
        return self._vectors(self.model.question, self._tokenizer.queries(queries), question=True)

    def passage_vectors(self, passages: Sequence[Passage]) -> Vectors:
        """The vector or vectors of each passage."""
        return self._vectors(self.model.passage, self._tokenizer.passages(passages))

    @torch.no_grad()
    def _vectors(self, tower: Any, ids: Sequence[Sequence[int]], *, question: bool = False) -> Vectors:
        training, _ = self.model.training, self.model.eval()
        vectors = self.model.vectors(tower, ids, question=question)
        self.model.train(training)
        return Vectors(vectors.values.float(), vectors.lengths)


class HeldOutScores:
    """Scores the model on held-out questions: loss, average rank, retrieval over a corpus."""

    def __init__(
        self,
        config: Any,
        held_out: Sequence[Example],
        make_batches: Callable[[Any, ExampleTable, Epochs], Any],
        objective: Objective,
        bank: Index | None = None,
    ) -> None:
        self.config, self.objective, self.bank = config, objective, bank
        self.judged = [example for example in held_out if example.positives]
        data = ExampleTable.of(held_out)
        once = Epochs(len(data), config.batch_size, seed=config.seed)
        self.batches = make_batches(config, data, once)
        self.search = None
        if config.index is not None:
            self.search = CorpusSearch(
                (bank or Index.open(config.index)).passages,
                held_out,
                limit=config.validation_passages,
                seed=config.seed,
            )

    def facts(self) -> dict[str, object]:
        """How passages are judged, for the model card."""
        if self.search is None:
            return {}
        return {
            "a searched passage is right if it": {"positive": "is a positive", "answer": "holds an answer"}[
                self.search.kind
            ],
            "held-out questions whose positives are not in the index": self.search.missing,
        }

    def __call__(self, model: BiEncoderModel) -> dict[str, float]:
        """{"nll", "average_rank"} and, with an index, {"mrr", "top1", …} in percent."""
        scores = {"nll": self._loss(model)}
        encoder = ModelEncoder(model, encoder_form(self.config, model).max_length)
        if self.judged and not encoder.has_tokens:
            scores["average_rank"] = pool_rank(encoder, self.judged)
        if self.search is not None and self.bank is not None and self.bank.dense is not None:
            vectors = encoder.encode_queries([example.query for example in self.search.examples])
            scores |= self.search.judge(self.bank.dense.search(vectors, TOP_KS[-1])[1])
        elif self.search is not None:
            scores |= self.search.measure(encoder)
        return scores

    @torch.no_grad()
    def _loss(self, model: BiEncoderModel) -> float:
        model.eval()
        world, chunk = World.single(model.device), self.config.chunk_size
        with torch.random.fork_rng(devices=[]):
            steps = [
                contrastive_step(model, self.batches[number], world, chunk, objective=self.objective)
                for number in range(len(self.batches))
            ]
        model.train()
        return sum(float(loss.value) for loss in steps) / len(steps)
