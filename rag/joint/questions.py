"""Questions with answers, for recipes that need no gold passages, and figures of held-out ones."""

from collections.abc import Iterable, Sequence
from itertools import chain
from operator import attrgetter
from pathlib import Path

import torch
from torch import Tensor

from rag.core.errors import DataError
from rag.core.types import Passage, Question
from rag.data.questions import draw_sample, read_questions
from rag.data.selection import hold_out
from rag.metrics.ranking import rank_figures
from retrievers.examples.data import answer_matcher
from retrievers.training.config import QuestionsConfig

_TOP_KS = (1, 5, 20)
JUDGED = _TOP_KS[-1]
"""Passages of a held-out question that are judged."""


def questions_of(config: QuestionsConfig) -> tuple[list[Question], list[Question]]:
    """The training questions and the held-out questions of a recipe.

    Args:
        config: names the files and the number of questions.

    Raises:
        DataError: no question is left to learn from.
    """
    questions = list(chain.from_iterable(map(answered, config.train_files)))
    separate = None
    if config.validation_file is not None:
        separate = answered(config.validation_file)
    train, held_out = hold_out(
        questions, config.validation_fraction, config.seed, attrgetter("text"), separate
    )
    if config.train_questions:
        train = draw_sample(train, config.train_questions, config.seed)
    if not train:
        raise DataError(f"{config.train_files[0]}: no question with answers is left for training")
    return train, held_out[: config.validation_questions]


def answered(path: str | Path) -> list[Question]:
    """The questions of a file that have an answer that is not blank.

    Raises:
        DataError: none has.
    """
    questions = list(read_questions(path))
    with_answers = [question for question in questions if "".join(question.answers).strip()]
    if not with_answers:
        raise DataError(
            f"{path}: none of its {len(questions):,} questions has answers",
            hint='expected {"question": …, "answers": ["…"]}, one per line, or any known question set',
        )
    return with_answers


def retrieval_figures(ranks: Sequence[int | None]) -> dict[str, float]:
    """MRR and top-k accuracy in percent, from the ranks of the first passages that hold an answer.

    Example:
        >>> retrieval_figures([1, 4, None, 2])
        {'top1': 25.0, 'top5': 75.0, 'top20': 75.0, 'mrr': 43.75}
    """
    figures = rank_figures(ranks, _TOP_KS)
    count = max(1, len(ranks))
    return {name: 100.0 * float(values.sum()) / count for name, values in figures.items()}


def holding_answers(
    questions: Sequence[Question], passages: Iterable[Sequence[Passage]], shape: Sequence[int]
) -> Tensor:
    """(B, K) bool of this shape: which passages hold an answer of their question; False in places
    behind the last passage.
    """
    holds = torch.zeros(*shape, dtype=torch.bool)
    for row, question, found in zip(holds, questions, passages, strict=True):
        matcher = answer_matcher(question)
        row[: len(found)] = torch.tensor([matcher.matches(passage.text) for passage in found])
    return holds


def gold_sums(prior: Tensor, posterior: Tensor, holds: Tensor) -> dict[str, Tensor]:
    """Sums over B questions for the log: "found" (a passage holds the answer), "p_gold" (the prior
    of passages that hold it), "posterior_gold" (what the reader makes of it).

    Args:
        prior, posterior: (B, K) probabilities of the passages.
        holds: (B, K) bool, which passages hold the answer.
    """
    return {
        "found": holds.any(1).sum(),
        "p_gold": (prior * holds).sum(),
        "posterior_gold": (posterior * holds).sum(),
    }
