"""The task of joint training: questions with retrieved passages, their loss and figures."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from rag.core.arrays import Int64
from rag.core.types import Question
from rag.joint.config import JointTrainConfig
from rag.joint.finding import Finder, Retrieved
from rag.joint.losses import JointLoss
from rag.joint.questions import JUDGED, answer_rank, retrieval_figures
from rag.runtime.seeds import generator as random_numbers
from rag.training.distributed import World
from rag.training.fit import Loss
from readers.answers import answer_scores, first_answers
from readers.generative.model import Seq2Seq
from readers.generative.reader import GenerativeReader
from readers.generative.settings import GeneratorSettings, encode_rows
from readers.protocols import ReadRequest
from retrievers.examples.batches import Epochs
from retrievers.examples.data import answer_matcher

Objective = Callable[[Seq2Seq, list[list[list[int]]], list[list[int]], Tensor], JointLoss]
"""Generator, rows of tokens, answers, scores (B, K) → the loss; see `rag.joint.losses`."""


class JointBatch(NamedTuple):
    """The numbers of the questions in a batch, and the target answer of each."""

    numbers: Int64
    answers: list[str]


class JointBatches:
    """The batches of a run by number."""

    def __init__(self, config: JointTrainConfig, questions: list[Question]) -> None:
        self.questions, self._seed = questions, config.seed
        self._targets = [[a for answer in q.answers if (a := answer.strip())] for q in questions]
        self._epochs = Epochs.of(config, len(questions))

    def __len__(self) -> int:
        return len(self._epochs)

    def __getitem__(self, number: int) -> JointBatch:
        chosen, draw = self._epochs[number], random_numbers(self._seed, 3, number)
        targets = [self._targets[i] for i in chosen.tolist()]
        return JointBatch(
            chosen, [answers[int(draw.integers(len(answers)))] for answers in targets]
        )


@dataclass(frozen=True, slots=True)
class JointTask:
    """Questions with retrieved passages: their loss and figures.

    Attributes:
        module: all that is trained, including the generator inside `seq2seq`.
        finder: gives passages and their scores.
    """

    config: JointTrainConfig
    module: nn.Module
    seq2seq: Seq2Seq
    settings: GeneratorSettings
    finder: Finder
    objective: Objective
    world: World

    def _joint_loss(
        self, questions: Sequence[Question], retrieved: Retrieved, answers: Sequence[str]
    ) -> JointLoss:
        texts = [question.text for question in questions]
        rows = encode_rows(self.seq2seq.tokenizer, self.settings, texts, retrieved.passages)
        targets = [
            self.seq2seq.answer_ids(answer)[: self.settings.answer_tokens] for answer in answers
        ]
        return self.objective(self.seq2seq, rows, targets, retrieved.scores)

    def loss(self, batch: JointBatch, questions: Sequence[Question]) -> Loss:
        """This process's share of a batch's loss, by the objective, for retriever and generator.

        Raises:
            ConfigError: there are fewer questions than processes.
        """
        total = len(batch.numbers)
        share = self.world.share(total)
        chosen = [questions[number] for number in batch.numbers[share].tolist()]
        retrieved = self.finder.find(chosen)
        learned = self._joint_loss(chosen, retrieved, batch.answers[share])
        shares = {
            "reader": float(learned.reader.detach()),
            "retriever": float(learned.retriever.detach()),
        }
        for name, mean in _means(chosen, retrieved, learned.weights).items():
            shares[name] = mean * len(chosen)
        return Loss(
            (learned.reader + learned.retriever) / total,
            examples=len(chosen),
            tokens=sum(len(p.text.split()) for passages in retrieved.passages for p in passages),
            parts={name: share / total for name, share in shares.items()},
        )

    @torch.no_grad()
    def measure(self, questions: Sequence[Question]) -> dict[str, float]:
        """Held-out questions: {"em", "f1"} and top-k in per cent, unsmoothed "nll" of first
        answers.
        """
        training = self.module.training
        self.module.eval()
        reader = GenerativeReader(self.seq2seq, self.settings)
        ranks: list[int | None] = []
        texts: list[str | None] = []
        nats: list[float] = []
        for begin in range(0, len(questions), self.config.batch_size):
            part = questions[begin : begin + self.config.batch_size]
            retrieved = self.finder.find(part)
            ranks += map(answer_rank, part, self.finder.best(part, JUDGED))
            requests = []
            rows = zip(part, retrieved.passages, retrieved.scores, strict=True)
            for question, passages, row in rows:
                scores = (row[: len(passages)] / self.finder.scale).tolist()
                requests.append(ReadRequest.of(question.text, passages, scores))
            targets = [question.answers[0] for question in part]
            likely = reader.log_likelihood(requests, targets)
            nats += [-value for value in likely]
            texts += first_answers(reader, requests)
        self.module.train(training)
        rules = [question.answer_profile for question in questions]
        figures = answer_scores(texts, [question.answers for question in questions], rules)
        return {**figures, "nll": sum(nats) / len(nats), **retrieval_figures(ranks)}


def _means(
    questions: Sequence[Question], retrieved: Retrieved, weights: Tensor
) -> dict[str, float]:
    """Means over questions: "found" (an answer among the passages), "p_gold" (the prior on passages
    that hold one), "posterior_gold" (what the reader makes of it)."""
    scores = retrieved.scores.detach().float().cpu()
    holds = torch.zeros(scores.shape)
    for b, (question, passages) in enumerate(zip(questions, retrieved.passages, strict=True)):
        matcher = answer_matcher(question)
        holds[b, : len(passages)] = torch.tensor(
            [matcher.matches(p.text) for p in passages]
        ).float()
    return {
        "found": float((holds.sum(1) > 0).float().mean()),
        "p_gold": float((scores.softmax(1) * holds).sum(1).mean()),
        "posterior_gold": float((weights.float().cpu() * holds).sum(1).mean()),
    }
