"""Training and held-out questions with answers, for recipes that need no gold passages."""

from collections.abc import Iterable, Sequence
from operator import attrgetter
from pathlib import Path

from rag.core.errors import DataError
from rag.core.types import Passage, Question
from rag.data.questions import draw_sample, read_questions
from rag.data.selection import hold_out
from rag.metrics.ranking import first_true, rank_figures
from retrievers.examples.data import answer_matcher
from retrievers.training.config import QuestionsConfig

_TOP_KS = (1, 5, 20)
JUDGED = _TOP_KS[-1]  # passages of a held-out question that are judged


def questions_of(config: QuestionsConfig) -> tuple[list[Question], list[Question]]:
    """The training questions and the held-out questions of a recipe.

    Args:
        config: names the files and the number of questions.

    Raises:
        DataError: none is left to learn from.
    """
    questions = [question for path in config.train_files for question in answered(path)]
    validation = None if config.validation_file is None else answered(config.validation_file)
    share, seed = config.validation_fraction, config.seed
    train, held_out = hold_out(questions, share, seed, attrgetter("text"), validation)
    if count := config.train_questions:
        train = draw_sample(train, count, seed)
    if not train:
        raise DataError(f"{config.train_files[0]}: no question with answers is left for training")
    return train, held_out[: config.validation_questions]


def answered(path: str | Path) -> list[Question]:
    """The questions of a file that have an answer that is not blank.

    Raises:
        DataError: none has.
    """
    questions = list(read_questions(path))
    with_answers = [
        question for question in questions if any(answer.strip() for answer in question.answers)
    ]
    if not with_answers:
        raise DataError(
            f"{path}: none of its {len(questions):,} questions has answers",
            hint='expected {"question": …, "answers": ["…"]}, one per line, or any known question set',
        )
    return with_answers


def answer_rank(question: Question, passages: Iterable[Passage]) -> int | None:
    """Place, from 1, of the first passage that holds an answer."""
    matcher = answer_matcher(question)
    return first_true([matcher.matches(passage.text) for passage in passages])


def retrieval_figures(ranks: Sequence[int | None]) -> dict[str, float]:
    """MRR and top-k accuracy in percent, from the ranks of the first passages that hold an answer.

    Example:
        >>> retrieval_figures([1, 4, None, 2])
        {'mrr': 43.75, 'top1': 25.0, 'top5': 75.0, 'top20': 75.0}
    """
    figures = rank_figures(ranks, _TOP_KS)
    return {
        name: 100.0 * float(figures[name].sum()) / max(1, len(ranks)) for name in ("mrr", *figures)
    }
