"""Every batch of a run, by step: length-bucketed, cropped around the answers, with negatives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence

from rag.core.arrays import Int64
from rag.core.errors import ConfigError
from rag.runtime.seeds import Stream, generator
from readers.extractive.layout import Row, row_tensors
from readers.extractive.training.config import ReaderStage, ReaderTrainConfig
from readers.extractive.training.data import NO, SPAN, UNLABELLED, ReaderExamples, TokenSpans

_POOL_BATCHES = 64

Spans = list[tuple[int, int]]


class ReaderBatch(NamedTuple):
    """B questions × P passages as rows of L tokens; row b·P + p is passage p of question b.

    A passage has S positions: its L tokens and, if the network has these outputs, "yes" and "no".

    Attributes:
        input_ids, attention_mask, token_type_ids: (B·P, L) int64.
        allowed: (B, P, S) bool, positions in the softmax: the text, the row's [CLS], "yes" and
            "no".
        starts, ends: (B, A) int64, positions of the acceptable spans in P·S.
        acceptable: (B, A) bool, False where a question has fewer than A.
        has_answer: (B,) bool; where False the acceptable "spans" are the [CLS] of every row.
        positive: (B, P) bool.
        labelled: (B,) bool, False for questions that are learnt from the teacher alone.
        tokens: number of tokens in the batch, without padding.
    """

    input_ids: torch.Tensor
    attention_mask: torch.Tensor
    token_type_ids: torch.Tensor
    allowed: torch.Tensor
    starts: torch.Tensor
    ends: torch.Tensor
    acceptable: torch.Tensor
    has_answer: torch.Tensor
    positive: torch.Tensor
    labelled: torch.Tensor
    tokens: int

    def to(self, device: str) -> ReaderBatch:
        """The batch on a device."""
        moved = [tensor.to(device) for tensor in self[:-1]]
        return ReaderBatch._make([*moved, self.tokens])


class _Plan(NamedTuple):
    stage: int
    questions: Int64
    limit: int


class _Row(NamedTuple):
    """One row and the answers' positions in it; None if its passage is a negative."""

    row: Row
    spans: Spans | None


class ReaderBatches:
    """The batches of all stages. `self[step]` depends on the configuration and the step alone.

    Batches hold questions of similar length: the shuffled questions are cut into pools, each pool
    is sorted by row length and cut into batches of at most `tokens_per_batch` padded tokens, and
    the batches of a pool are shuffled.

    Raises:
        ConfigError: a stage leaves no room for text, or no step is left.
    """

    def __init__(self, examples: ReaderExamples, config: ReaderTrainConfig) -> None:
        self.examples = examples
        self.config = config
        self._sets = np.array([question.set for question in examples.questions])
        # The passages of all questions.
        self._passages = np.concatenate([question.passages for question in examples.questions])
        lengths = np.array([len(question.tokens) for question in examples.questions])
        nothing = np.zeros(0, np.int32)
        special = examples.template.size(nothing, nothing)
        # What stands around a text: beside which question, and under which title.
        self._question_lengths = np.minimum(lengths, config.question_tokens) + special
        self._title_lengths = np.minimum(examples.titles.lengths, config.title_tokens)
        around = int(self._question_lengths.max()) + config.title_tokens
        shortest = min(stage.max_tokens for stage in config.stages)
        if shortest <= around:
            raise ConfigError(
                f"max_tokens ({shortest}) leaves no room for text beside a question and a title",
                hint="raise max_tokens or lower question_tokens and title_tokens",
            )
        plans: list[_Plan] = []
        for number, stage in enumerate(config.stages):
            plans += self._plan(number, stage)
        self._plans = plans[: config.max_batches]
        if not self._plans:
            raise ConfigError(
                f"{len(examples)} questions with these weights and epochs make no step",
                hint="raise epochs or weight",
            )

    def __len__(self) -> int:
        return len(self._plans)

    def _plan(self, number: int, stage: ReaderStage) -> list[_Plan]:
        draw = generator(self.config.seed, Stream.ORDER, number)
        order = self._mixture(stage, draw)
        first = [self.examples.questions[question].passages[0] for question in order.tolist()]
        around = self._question_lengths[order] + self._title_lengths[first]
        rows = around + self.examples.texts.lengths[first]
        full = draw.random(len(order)) < stage.full_fraction
        lengths = np.minimum(rows, np.where(full, stage.full_tokens, stage.max_tokens))
        group = 1 + stage.negatives
        pool = max(1, _POOL_BATCHES * stage.tokens_per_batch // (stage.max_tokens * group))
        plans: list[_Plan] = []
        for begin in range(0, len(order), pool):
            inside = np.arange(begin, min(begin + pool, len(order)))
            inside = inside[np.argsort(lengths[inside], kind="stable")]
            batches: list[_Plan] = []
            stop = len(inside)
            while stop > 0:  # from the longest down: the longest row of a batch decides its size
                limit = int(lengths[inside[stop - 1]])
                size = min(stop, max(1, stage.tokens_per_batch // (limit * group)))
                batches.append(_Plan(number, order[inside[stop - size : stop]], limit))
                stop -= size
            plans.extend(batches[i] for i in draw.permutation(len(batches)))
        return plans

    def _mixture(self, stage: ReaderStage, draw: np.random.Generator) -> Int64:
        """Questions of the stage, in order: each set's own passes over its questions, shuffled
        together.
        """
        parts = []
        for number, training_set in enumerate(self.config.train):
            questions = np.flatnonzero(self._sets == number)
            drawn = round(stage.epochs * self.config.epochs * training_set.weight * len(questions))
            if drawn:
                passes = -(-drawn // len(questions))
                orders = [draw.permutation(questions) for _ in range(passes)]
                parts.append(np.concatenate(orders)[:drawn])
        return draw.permutation(np.concatenate(parts)) if parts else np.zeros(0, np.int64)

    def __getitem__(self, step: int) -> ReaderBatch:
        plan = self._plans[step]
        stage = self.config.stages[plan.stage]
        draw = generator(self.config.seed, Stream.BATCH, step)
        rows = []
        for question in plan.questions.tolist():
            for passage, spans in self._choose(question, stage, draw):
                rows.append(self._row(question, passage, spans, plan.limit, draw))
        return self._assemble(rows, plan.questions)

    def _choose(
        self, number: int, stage: ReaderStage, draw: np.random.Generator
    ) -> list[tuple[int, TokenSpans | None]]:
        """The passages of a group, the positive first if it has any, with the answers in it."""
        question = self.examples.questions[number]
        positive = range(len(question.spans))
        size = 1 + stage.negatives
        chosen: list[int] = []
        if positive and (stage.negatives == 0 or draw.random() >= stage.no_answer_fraction):
            first = self.config.spans == "first" and question.type == SPAN
            chosen = [0] if first else draw.permutation(positive)[:1].tolist()
        group: list[tuple[int, TokenSpans | None]] = []
        for chosen_number in chosen:
            group.append((question.passages[chosen_number], question.spans[chosen_number]))
        negative = draw.permutation(question.passages[len(positive) :])[: size - len(group)]
        group += [(int(passage), None) for passage in negative]
        while len(group) < size:  # too few: add passages of other questions
            other = int(self._passages[draw.integers(len(self._passages))])
            if other not in question.passages or len(question.passages) == len(self.examples.texts):
                group.append((other, None))
        return group

    def _row(
        self,
        number: int,
        passage: int,
        answers: TokenSpans | None,
        limit: int,
        draw: np.random.Generator,
    ) -> _Row:
        data = self.examples
        question = data.questions[number].tokens[: self.config.question_tokens]
        title = data.titles.tokens(passage)[: self.config.title_tokens]
        text = data.texts.tokens(passage)
        room = limit - data.template.size(question, title)
        spans = list(answers or ())[: 1 if self.config.spans == "first" else None]
        begin = 0
        if len(text) > room:
            lowest = 0
            highest = len(text) - room
            if spans:  # the window keeps one answer, cut if it is longer than the window
                first, last = spans[int(draw.integers(len(spans)))]
                last = min(last, first + room - 1)
                spans.append((first, last))
                lowest = max(0, last - room + 1)
                highest = min(first, highest)
            begin = int(draw.integers(lowest, highest + 1))
        row = data.template.row(question, title, text[begin : begin + room], first_token=begin)
        if answers is None:
            return _Row(row, None)
        shift = row.text_from - begin
        inside = []
        for first, last in dict.fromkeys(spans):
            if begin <= first and last + shift < row.text_to:
                inside.append((first + shift, last + shift))
        return _Row(row, inside)

    def _assemble(self, rows: Sequence[_Row], questions: Int64) -> ReaderBatch:
        types = np.array([self.examples.questions[question].type for question in questions])
        groups = len(questions)
        per_group = len(rows) // groups
        positive = torch.tensor([row.spans is not None for row in rows]).view(groups, per_group)
        has_answer = positive.any(1)
        ids, mask, segments, text = row_tensors(self.examples.template, [row.row for row in rows])
        longest = ids.shape[1]
        # "yes" and "no" stand behind the tokens.
        size = longest + (2 if self.config.answer_types else 0)
        allowed = torch.ones(len(rows), size, dtype=torch.bool)
        allowed[:, 1:longest] = text[:, 1:]
        targets: list[Spans] = [[] for _ in questions]
        for number, row in enumerate(rows):
            group, row_in_group = divmod(number, per_group)
            spans = row.spans or []
            if not has_answer[group]:
                spans = [(0, 0)]
            elif types[group] != SPAN and row.spans is not None:
                word = longest + int(types[group] == NO)
                spans = [(word, word)]
            for first, last in spans:
                targets[group].append((row_in_group * size + first, row_in_group * size + last))
        counts = torch.tensor(list(map(len, targets)))
        padded = pad_sequence(
            [torch.tensor(spans).long().view(-1, 2) for spans in targets], batch_first=True
        )  # (B, A, 2)
        return ReaderBatch(
            input_ids=ids,
            attention_mask=mask,
            token_type_ids=segments,
            allowed=allowed.reshape(groups, per_group, size),
            starts=padded[..., 0],
            ends=padded[..., 1],
            acceptable=torch.arange(padded.shape[1]) < counts[:, None],
            has_answer=has_answer,
            positive=positive,
            labelled=torch.from_numpy(types != UNLABELLED),
            tokens=int(mask.sum()),
        )
