"""Training questions with answers and passages, merged from all files, and the batches of a run by number."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from rag.core.errors import DataError
from rag.core.log import get_logger
from rag.data.examples import Candidate, Example, read_examples
from rag.data.text import AnswerMatcher, most_matched
from rag.runtime.seeds import generator
from readers.generative.model import Seq2Seq
from readers.generative.settings import GeneratorSettings, encode_rows
from readers.generative.training.config import GeneratorStage, GeneratorTrainConfig

_SHAPE = (
    "expected {question, answers, ctxs: [{title, text}]} of `rag retrieve` or FiD, or {question, answers, "
    "positive_ctxs, hard_negative_ctxs} of `rag mine` or DPR"
)


def merged_examples(paths: Sequence[Path]) -> list[Example]:
    """Questions of all files; those that several files hold get the passages of all.

    Positives come first, then the other passages by rank. Each states whether it contains an answer, and
    retrieved ones have a rank. Answers are those that a generator should give: for a regular expression the
    string that it matches most often. Questions without an answer or a passage are left out and counted.

    Raises:
        DataError: no such file, another shape, an answer that is not text (with its place), or no question
            with answers and passages.
    """
    parts: dict[str, list[Example]] = {}
    for path in paths:
        for example in read_examples(path, needs="passages"):
            parts.setdefault(example.question, []).append(example)
    merged = [example for example in map(_merged, parts.values()) if example is not None]
    if not merged:
        names = ", ".join(map(str, paths))
        raise DataError(f"{names}: no question with answers and passages", hint=_SHAPE)
    if left_out := len(parts) - len(merged):
        get_logger(__name__).warning(
            "%d of %d questions left out: no answer, or no passage with a text", left_out, len(parts)
        )
    return merged


def best_ranked(example: Example, count: int) -> list[Candidate]:
    """The best `count` passages by rank; if they have no ranks, positives come first."""
    ranked = [candidate for candidate in example.candidates if candidate.rank is not None]
    return sorted(ranked, key=lambda c: c.rank or 0)[:count] or list(example.candidates[:count])


def _merged(same: Sequence[Example]) -> Example | None:
    """Examples of one question as one."""
    targets = [example.target_answer for example in same if example.target_answer]
    answers = dict.fromkeys(a.strip() for e in same for a in targets or e.answers if a.strip())
    candidates = [candidate for example in same for candidate in example.candidates]
    if not answers or not candidates:
        return None
    is_regex = any(example.answers_are_regex for example in same)
    matcher = AnswerMatcher(answers, "regex" if is_regex else "tokens")
    if is_regex:  # the target is a string that the pattern matches
        string = most_matched(matcher, (candidate.passage.text for candidate in candidates))
        if not string:
            return None
        answers = {string: None}
    positives = _by_text(c for c in candidates if c.role == "positive")
    ranks = {
        key: n for n, key in enumerate(_by_text(c for c in candidates if c.role == "retrieved"), start=1)
    }
    others = _by_text(
        c for e in same for c in (*e.of_role("retrieved"), *e.of_role("hard_negative", "negative"))
    )
    listed = []
    for key, candidate in {**positives, **{k: c for k, c in others.items() if k not in positives}}.items():
        holds = True if key in positives else candidate.has_answer
        holds = matcher.matches(candidate.passage.text) if holds is None else holds
        listed.append(replace(candidate, has_answer=holds, rank=ranks.get(key)))
    return replace(same[0], answers=tuple(answers), candidates=tuple(listed), answers_are_regex=False)


def _by_text(candidates: Iterable[Candidate]) -> Mapping[tuple[str, str], Candidate]:
    return {(c.passage.title, c.passage.text): c for c in candidates}


@dataclass(frozen=True, slots=True)
class GeneratorBatch:
    """Token ids of B rows' passages, and of what each should generate, without start and end tokens."""

    passages: list[list[list[int]]]
    targets: list[list[int]]


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
        self._config, self._settings, self._seq2seq, self._examples = config, settings, seq2seq, examples
        steps = [max(1, round(stage.steps * config.epochs)) for stage in config.stages]
        self._ends = [end * config.accumulate for end in np.cumsum(steps).tolist()]

    def __len__(self) -> int:
        return min(int(self._ends[-1]), self._config.max_batches or int(self._ends[-1]))

    def __getitem__(self, number: int) -> GeneratorBatch:
        config, total = self._config, len(self._examples)
        place = int(np.searchsorted(self._ends, number, side="right"))
        stage = config.stages[place]
        draw = generator(config.seed, 3, number)
        begin = (number - (self._ends[place - 1] if place else 0)) * stage.batch_size
        epochs = range(begin // total, (begin + stage.batch_size - 1) // total + 1)
        orders = [generator(config.seed, 2, place, epoch).permutation(total) for epoch in epochs]
        first = begin - epochs[0] * total
        questions, passages, targets = [], [], []
        for index in np.concatenate(orders)[first : first + stage.batch_size].tolist():
            example = self._examples[index]
            places, holding = choose_passages(example, stage, draw), _holding(example)
            answer = example.answers[int(draw.integers(len(example.answers)))]
            if config.no_answer is not None and holding.isdisjoint(places):
                answer = config.no_answer
            questions.append(example.question)
            passages.append([example.candidates[i].passage for i in places])
            targets.append(self._seq2seq.answer_ids(answer)[: self._settings.answer_tokens])
        settings = self._settings.model_copy(update={"passage_tokens": stage.passage_tokens})
        return GeneratorBatch(encode_rows(self._seq2seq.tokenizer, settings, questions, passages), targets)


def choose_passages(example: Example, stage: GeneratorStage, draw: np.random.Generator) -> list[int]:
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
    numbers, holding = list(range(len(example.candidates))), _holding(example)
    silent = [i for i in numbers if i not in holding]
    if stage.no_answer_fraction and draw.random() < stage.no_answer_fraction and silent:
        return silent[: stage.passages]
    chosen = numbers[: stage.passages]
    if stage.ensure_answer and holding.isdisjoint(chosen):
        chosen[-1] = min(holding, default=chosen[-1])
    return chosen


def _holding(example: Example) -> set[int]:
    """Numbers of the passages that hold an answer."""
    return {number for number, candidate in enumerate(example.candidates) if candidate.has_answer}
