"""Training questions with answers and passages, and the batches of a run by number."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from rag.core.errors import DataError
from rag.core.log import get_logger
from rag.data.examples import Candidate, Example, read_examples
from rag.data.text import REGEX_PROFILE, AnswerMatcher, most_matched
from rag.runtime.seeds import Stream, generator
from readers.generative.model import Seq2Seq
from readers.generative.settings import GeneratorSettings, encode_rows
from readers.generative.training.config import GeneratorStage, GeneratorTrainConfig

_SHAPE = (
    "expected {question, answers, ctxs: [{title, text}]} of `rag retrieve` or FiD, or {question, answers, "
    "positive_ctxs, hard_negative_ctxs} of `rag mine` or DPR"
)


def usable_examples(paths: Sequence[Path]) -> list[Example]:
    """The questions of all files that have an answer and passages; the others are left out and
    counted.

    Positives come first, then the other passages by rank. Each states whether it contains an
    answer, and retrieved ones have a rank. Answers are those that a generator should give: for a
    regular expression the string that it matches most often.

    Raises:
        DataError: no such file, another shape, an answer that is not text (with its place), or no
            question with answers and passages.
    """
    examples = [example for path in paths for example in read_examples(path, needs="passages")]
    usable = [example for example in map(_with_target, examples) if example is not None]
    if not usable:
        names = ", ".join(map(str, paths))
        raise DataError(f"{names}: no question with answers and passages", hint=_SHAPE)
    if left_out := len(examples) - len(usable):
        get_logger(__name__).warning(
            "%d of %d questions left out: no answer, or no passage with a text",
            left_out,
            len(examples),
        )
    return usable


def best_ranked(example: Example, count: int) -> list[Candidate]:
    """The best `count` passages by rank; if they have no ranks, positives come first."""
    ranked = [candidate for candidate in example.candidates if candidate.rank is not None]
    return sorted(ranked, key=lambda c: c.rank or 0)[:count] or list(example.candidates[:count])


def _with_target(example: Example) -> Example | None:
    """The example with what a generator should answer, and its passages in order; None if it lacks
    either.
    """
    targets = [example.target_answer] if example.target_answer else example.answers
    stripped = dict.fromkeys(answer.strip() for answer in targets)
    stripped.pop("", None)
    answers = tuple(stripped)
    if not answers or not example.candidates:
        return None
    matcher = AnswerMatcher(answers, example.answer_profile)
    if example.answer_profile == REGEX_PROFILE:  # the target is a string that the pattern matches
        string = most_matched(matcher, (passage.text for passage in example.passages))
        if not string:
            return None
        answers = (string,)
    retrieved = _by_text(example.of_role("retrieved"))
    ranks = dict(zip(retrieved, range(1, len(retrieved) + 1), strict=True))
    positives = _by_text(example.of_role("positive"))
    negatives = _by_text(example.of_role("hard_negative", "negative"))
    candidates = []
    # Positives come first, and are listed once.
    for key, candidate in {**positives, **retrieved, **negatives, **positives}.items():
        holds = True if key in positives else candidate.has_answer
        if holds is None:
            holds = matcher.matches(candidate.passage.text)
        candidates.append(replace(candidate, has_answer=holds, rank=ranks.get(key)))
    return replace(example, answers=answers, candidates=tuple(candidates), answer_profile="squad")


def _by_text(candidates: Sequence[Candidate]) -> dict[tuple[str, str], Candidate]:
    return {(c.passage.title, c.passage.text): c for c in candidates}


Row = tuple[list[list[int]], list[int]]
"""Token ids of a question's passages, and of what is to be generated, without start and end."""


class GeneratorBatches:
    """The batches of all stages; `self[number]` depends on configuration, data and number alone.

    Args:
        settings: layout of rows; each stage has its own `passage_tokens`.
    """

    def __init__(
        self,
        config: GeneratorTrainConfig,
        settings: GeneratorSettings,
        seq2seq: Seq2Seq,
        examples: Sequence[Example],
    ) -> None:
        self._config = config
        self._settings = settings
        self._seq2seq = seq2seq
        self._examples = examples
        # The number of the first batch of each stage, and of the one behind the last.
        steps = [max(1, round(stage.steps * config.epochs)) for stage in config.stages]
        self._begins = (np.cumsum([0, *steps]) * config.accumulate).tolist()

    def __len__(self) -> int:
        total: int = self._begins[-1]
        return min(total, self._config.max_batches or total)

    def __getitem__(self, number: int) -> list[Row]:
        config = self._config
        stage_number = bisect_right(self._begins, number) - 1
        stage = config.stages[stage_number]
        draw = generator(config.seed, Stream.BATCH, number)
        questions = []
        passages = []
        targets = []
        for example in self._examples_of(number, stage_number):
            chosen = choose_passages(example, stage, draw)
            answer = example.answers[int(draw.integers(len(example.answers)))]
            if config.no_answer is not None and _holding(example).isdisjoint(chosen):
                answer = config.no_answer
            questions.append(example.question)
            passages.append([example.candidates[number].passage for number in chosen])
            targets.append(self._seq2seq.answer_ids(answer)[: self._settings.answer_tokens])
        settings = self._settings.model_copy(update={"passage_tokens": stage.passage_tokens})
        rows = encode_rows(self._seq2seq.tokenizer, settings, questions, passages)
        return list(zip(rows, targets, strict=True))

    def _examples_of(self, number: int, stage_number: int) -> list[Example]:
        """The examples of a batch of a stage, whose passes over the examples are permutations, end
        to end.
        """
        size = self._config.stages[stage_number].batch_size
        total = len(self._examples)
        begin = (number - self._begins[stage_number]) * size
        first_epoch = begin // total
        orders = []
        for epoch in range(first_epoch, (begin + size - 1) // total + 1):
            draw = generator(self._config.seed, Stream.ORDER, stage_number, epoch)
            orders.append(draw.permutation(total))
        first = begin - first_epoch * total
        drawn = np.concatenate(orders)[first : first + size].tolist()
        return [self._examples[example] for example in drawn]


def choose_passages(
    example: Example, stage: GeneratorStage, draw: np.random.Generator
) -> list[int]:
    """Choose by the rules of a stage which passages to read with a question; returns their numbers.

    Example:
        >>> from rag.data.examples import Candidate, Passage
        >>> three = [(Passage(letter, "", letter), letter == "a") for letter in "xya"]
        >>> three = tuple(Candidate(passage, "retrieved", has_answer=holds) for passage, holds in three)
        >>> example = Example("1", "?", ("a",), three)
        >>> choose_passages(example, GeneratorStage(steps=1, passages=2), np.random.default_rng(0))
        [0, 1]
        >>> sure = GeneratorStage(steps=1, passages=2, ensure_answer=True)
        >>> choose_passages(example, sure, np.random.default_rng(0))
        [0, 2]
    """
    numbers = list(range(len(example.candidates)))
    holding = _holding(example)
    without_answer = [number for number in numbers if number not in holding]
    is_silent = stage.no_answer_fraction > 0 and draw.random() < stage.no_answer_fraction
    if is_silent and without_answer:
        return without_answer[: stage.passages]
    chosen = numbers[: stage.passages]
    if stage.ensure_answer and holding.isdisjoint(chosen):
        chosen[-1] = min(holding, default=chosen[-1])
    return chosen


def _holding(example: Example) -> set[int]:
    """Numbers of the passages that hold an answer."""
    return {number for number, candidate in enumerate(example.candidates) if candidate.has_answer}
