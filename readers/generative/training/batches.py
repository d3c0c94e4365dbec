"""The batches of a run, by number: questions with passages and a target."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rag.data.examples import Example
from rag.runtime.seeds import generator
from readers.generative.model import Seq2Seq
from readers.generative.settings import GeneratorSettings, encode_rows
from readers.generative.training.config import GeneratorStage, GeneratorTrainConfig


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
        most = self._config.max_steps
        total = int(self._ends[-1])
        return total if most is None else min(total, most * self._config.accumulate)

    def __getitem__(self, number: int) -> GeneratorBatch:
        config, total = self._config, len(self._examples)
        place = int(np.searchsorted(self._ends, number, side="right"))
        stage = config.stages[place]
        draw = generator(config.seed, 3, number)
        begin = (number - (self._ends[place - 1] if place else 0)) * stage.batch_size
        epochs = range(begin // total, (begin + stage.batch_size - 1) // total + 1)
        order = np.concatenate(
            [generator(config.seed, 2, place, epoch).permutation(total) for epoch in epochs]
        )
        first = begin - epochs[0] * total
        questions, passages, targets = [], [], []
        for index in order[first : first + stage.batch_size].tolist():
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
