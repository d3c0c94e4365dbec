"""Questions over an index that is held: what a step of joint training minimises, and what is measured."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from indexers.index import Index
from indexers.protocols import IntArray
from rag.core.errors import ConfigError, DataError
from rag.core.log import get_logger
from rag.core.types import Passage, Question
from rag.joint.held import HeldIndex
from rag.joint.losses import JointLoss
from rag.joint.together_config import JointTrainConfig
from rag.runtime.seeds import generator as random_numbers
from rag.training.distributed import World
from rag.training.fit import Loss
from rag.training.refresh import Staleness, distinct_share, score_entropy
from readers.generative.layout import encode_rows
from readers.generative.model import Seq2Seq
from readers.generative.reader import GenerativeReader
from readers.generative.settings import GeneratorSettings
from readers.generative.training.data import GeneratorExample
from readers.generative.training.finish import answer_scores
from retrievers.encoders.layout import Query
from retrievers.examples.data import answer_matcher
from retrievers.training.frozen import listed_scores, score_rows
from retrievers.training.model import BiEncoderModel
from retrievers.training.recipe import epochs_of
from retrievers.training.validation import retrieval_scores

__all__ = ["Found", "JointBatch", "JointBatches", "JointTask", "Objective"]

Objective = Callable[[Seq2Seq, list[list[list[int]]], list[list[int]], Tensor], JointLoss]
"""Generator, rows of tokens, answers, scores (B, K) → the loss; see `rag.joint.losses`."""

_DEPTH = 20  # passages of held-out questions that are judged
_TARGETS = 1000  # passages in which a regular expression's target is looked for
_WINDOW, _ENOUGH = 1000, 200  # questions watched for collapse; so many before anything is said
_NEVER_FOUND = 0.5  # a larger share of questions without an answer among their passages is worth a warning

log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Found:
    """Passages of B questions, best first by the index, and their scores (B, K), −inf behind the last."""

    rows: IntArray
    passages: list[list[Passage]]
    scores: Tensor


@dataclass(frozen=True, slots=True)
class JointBatch:
    """Questions by number, and the answer that each is to be taught."""

    numbers: IntArray
    answers: list[str]


class JointBatches:
    """The batches of a run by number."""

    def __init__(self, config: JointTrainConfig, questions: list[Question], targets: list[list[str]]) -> None:
        self.questions, self._targets, self._seed = questions, targets, config.run.seed
        self._epochs = epochs_of(config, len(questions))

    def __len__(self) -> int:
        return len(self._epochs)

    def __getitem__(self, number: int) -> JointBatch:
        chosen, draw = self._epochs[number], random_numbers(self._seed, 3, number)
        mine = [self._targets[i] for i in chosen.tolist()]
        return JointBatch(chosen, [told[int(draw.integers(len(told)))] for told in mine])


class JointTask:
    """Questions over the index that is held: what a step minimises, and what is measured."""

    def __init__(
        self,
        config: JointTrainConfig,
        retriever: BiEncoderModel,
        seq2seq: Seq2Seq,
        settings: GeneratorSettings,
        index: Index,
        held: HeldIndex,
        objective: Objective,
        world: World,
    ) -> None:
        self.config, self.retriever, self.seq2seq, self.settings = config, retriever, seq2seq, settings
        self.index, self.held, self.objective, self.world = index, held, objective, world
        self._watch = _Watch(len(held.passages))
        if config.top_k > len(held.passages):
            raise ConfigError(
                f"top_k is {config.top_k}, the index has {len(held.passages)} passages", hint="lower top_k"
            )

    def teachable(self, questions: Sequence[Question]) -> tuple[list[Question], list[list[str]]]:
        """The questions that have something to be taught, and what: answers, or what their pattern finds.

        Of a regular expression it is the string that it matches most often in the first 1,000 passages.

        Source: Lewis et al. 2020, appendix D (CuratedTREC's targets).
        """
        kept, targets = [], []
        for question in questions:
            told = [answer.strip() for answer in question.answers if answer.strip()]
            if question.answers_are_regex:
                told = self._matched(question)
            if told:
                kept.append(question)
                targets.append(told)
        if not kept:
            raise DataError(f"none of {len(questions)} questions has an answer that a passage words")
        if len(kept) < len(questions):
            log.warning(
                "%d of %d questions left out: nothing in their first %d passages matches an answer's pattern",
                *(len(questions) - len(kept), len(questions), _TARGETS),
            )
        return kept, targets

    @torch.no_grad()
    def _matched(self, question: Question) -> list[str]:
        [rows] = self.held.search(self.ask([question]), _TARGETS)
        matcher = answer_matcher(question.answers, question.answer_mode)
        texts = [passage.text for passage in self.held.passages.get_many(rows[rows >= 0])]
        found = Counter(text[slice(*place)] for text in texts for place in matcher.places(text))
        return [found.most_common(1)[0][0]] if found else []

    def ask(self, questions: Sequence[Question]) -> Tensor:
        """(B, D) vectors of questions."""
        return self.retriever.ask([Query(question.text) for question in questions])

    def find(self, vectors: Tensor) -> Found:
        """The passages of questions (B, D), and their scores with all the gradient that there is to be."""
        side, top_k = self.config.document_side, self.config.top_k
        rows = self.held.search(vectors, self.config.over_retrieve or top_k)
        if side == "rerank":
            with torch.no_grad():
                fresh = self._scores(vectors, rows)
            best = fresh.topk(min(top_k, rows.shape[1]), dim=1).indices.cpu().numpy()
            rows = np.take_along_axis(rows, best, axis=1)
        scores = (
            score_rows(self.retriever, self.index, vectors, rows)
            if side == "frozen"
            else self._scores(vectors, rows)
        )
        return Found(rows, [self.held.passages.get_many(own[own >= 0]) for own in rows], scores)

    def _scores(self, vectors: Tensor, rows: IntArray) -> Tensor:
        """(B, K) with passages encoded by the model as it is."""
        distinct, places = np.unique(np.maximum(rows, 0), return_inverse=True)
        encoded = self.retriever.read(self.held.passages.get_many(distinct))
        listed = np.where(rows < 0, -1, places.reshape(rows.shape))
        return listed_scores(vectors, encoded, torch.from_numpy(listed), self.retriever.scale)

    def _read(self, questions: Sequence[Question], found: Found, answers: Sequence[str]) -> JointLoss:
        texts = [question.text for question in questions]
        rows = encode_rows(self.seq2seq.tokenizer, self.settings, texts, found.passages)
        told = [self.seq2seq.answer_ids(answer)[: self.settings.answer_tokens] for answer in answers]
        return self.objective(self.seq2seq, rows, told, found.scores)

    def loss(self, batch: JointBatch, questions: Sequence[Question]) -> Loss:
        """This process's share of a batch's loss; retriever and generator learn what the objective says.

        Raises:
            ConfigError: there are fewer questions than processes.
        """
        world, total = self.world, len(batch.numbers)
        if total < world.size:
            raise ConfigError(f"batches of {total} questions cannot be shared by {world.size} processes")
        mine = slice(world.rank, None, world.size)
        asked = [questions[number] for number in batch.numbers[mine].tolist()]
        found = self.find(self.ask(asked))
        learned = self._read(asked, found, batch.answers[mine])
        parts = self._watch.see(asked, found, learned.weights)
        shares = {"reader": float(learned.reader.detach()), "retriever": float(learned.retriever.detach())}
        return Loss(
            (learned.reader + learned.retriever) / total,
            examples=len(asked),
            tokens=sum(len(p.text.split()) for passages in found.passages for p in passages),
            parts={
                **{name: value / total for name, value in shares.items()},
                **{name: value * len(asked) / total for name, value in parts.items()},
            },
        )

    @torch.no_grad()
    def measure(self, questions: Sequence[Question]) -> dict[str, float]:
        """Held-out questions: {"em", "f1"} and top-k in per cent, "nll" of their first answers."""
        training = self.retriever.training
        self.retriever.eval()
        self.seq2seq.model.eval()
        reader = GenerativeReader(self.seq2seq, self.settings)
        ranks: list[int | None] = []
        read, nll = [], 0.0
        for begin in range(0, len(questions), self.config.data.batch_size):
            part = questions[begin : begin + self.config.data.batch_size]
            vectors = self.ask(part)
            found = self.find(vectors)
            deep = self.held.search(vectors, _DEPTH)
            for question, rows in zip(part, deep, strict=True):
                matcher = answer_matcher(question.answers, question.answer_mode)
                texts = [p.text for p in self.held.passages.get_many(rows[rows >= 0])]
                ranks.append(next((n for n, text in enumerate(texts, 1) if matcher.matches(text)), None))
            nll += float(self._read(part, found, [question.answers[0] for question in part]).reader)
            scores = [
                (row[: len(own)] / self.retriever.scale).tolist()
                for row, own in zip(found.scores, found.passages, strict=True)
            ]
            read += reader.generate([question.text for question in part], found.passages, scores, 1)
        self.retriever.train(training)
        self.seq2seq.model.train(training)
        examples = [GeneratorExample(q.text, q.answers, (), ()) for q in questions]
        known = {n: v for n, v in retrieval_scores(ranks).items() if n != "top100"}
        return {**answer_scores(read, examples), "nll": nll / len(questions), **known}


class _Watch:
    """Watches retrieval while it learns: whether answers are found, and whether everything collapses.

    Args:
        documents: passages of the index.
    """

    def __init__(self, documents: int) -> None:
        self._documents = documents
        self._rows: deque[IntArray] = deque(maxlen=_WINDOW)
        self._seen = self._without = 0
        self._said: set[str] = set()

    def see(self, questions: Sequence[Question], found: Found, weights: Tensor) -> dict[str, float]:
        """Figures of a step, as means over questions: "found" (an answer among the passages), "p_gold" (the
        prior on passages that hold one), "posterior_gold" (what the reader makes of it), "entropy" of the
        prior and "distinct", the share of different passages over the last 1,000 questions.
        """
        scores = found.scores.detach().float().cpu()
        holds = torch.zeros(scores.shape)
        for b, (question, passages) in enumerate(zip(questions, found.passages, strict=True)):
            matcher = answer_matcher(question.answers, question.answer_mode)
            holds[b, : len(passages)] = torch.tensor([matcher.matches(p.text) for p in passages]).float()
        self._rows.extend(found.rows)
        self._seen += len(questions)
        self._without += int((holds.sum(1) == 0).sum())
        figures = {
            "found": float((holds.sum(1) > 0).float().mean()),
            "p_gold": float((scores.softmax(1) * holds).sum(1).mean()),
            "posterior_gold": float((weights.float().cpu() * holds).sum(1).mean()),
            "entropy": score_entropy(scores.numpy()),
            "distinct": distinct_share(np.array(self._rows), self._documents),
        }
        if self._seen >= _ENOUGH:
            self._warn(figures)
        return figures

    def _warn(self, figures: Mapping[str, float]) -> None:
        state = Staleness(entropy=figures["entropy"], distinct=figures["distinct"])
        sentences = state.alarms()
        if self._without > _NEVER_FOUND * self._seen:
            sentences.append(
                f"answers: of {self._seen:,} questions {self._without:,} have no answer in their passages; "
                "they teach the generator to guess: raise top_k, or start from a better retriever"
            )
        for sentence in sentences:
            if (kind := sentence.partition(":")[0]) not in self._said:
                self._said.add(kind)
                log.warning("%s", sentence)
