"""Every batch of a run, by step: length-bucketed, cropped around the answer, with negatives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from rag.core.errors import ConfigError
from rag.runtime.seeds import generator
from readers.training.config import ReaderStage, ReaderTrainConfig
from readers.training.data import ReaderExamples

__all__ = ["ReaderBatch", "ReaderBatches"]

_POOL_BATCHES = 64


@dataclass(frozen=True, slots=True)
class ReaderBatch:
    """B questions × P passages as rows of L tokens; row b·P + p is passage p of question b.

    Attributes:
        input_ids, attention_mask, token_type_ids: (B·P, L) int64.
        allowed: (B, P·L) bool, tokens in the shared softmax: the text and the row's [CLS].
        starts, ends: (B, A) int64, flat positions of the acceptable spans.
        acceptable: (B, A) bool, False where a question has fewer than A.
        has_answer: (B,) bool; where False the acceptable "spans" are the [CLS] of every row.
        tokens: real tokens in the batch.
    """

    input_ids: torch.Tensor
    attention_mask: torch.Tensor
    token_type_ids: torch.Tensor
    allowed: torch.Tensor
    starts: torch.Tensor
    ends: torch.Tensor
    acceptable: torch.Tensor
    has_answer: torch.Tensor
    tokens: int


@dataclass(frozen=True, slots=True)
class _Plan:
    stage: int
    questions: npt.NDArray[np.int64]
    limit: int


class ReaderBatches:
    """The batches of all stages. `self[step]` depends on the configuration and the step alone.

    Batches hold questions of similar length: the shuffled questions are cut into pools, each pool is sorted
        by row
    length and cut into batches of at most `tokens_per_batch` padded tokens, and the batches of a pool are
    shuffled.
    """

    def __init__(self, examples: ReaderExamples, config: ReaderTrainConfig) -> None:
        self.examples = examples
        self.config = config
        self._question_lengths = np.minimum(examples.questions.lengths, config.question_tokens)
        self._title_lengths = np.minimum(examples.titles.lengths, config.title_tokens)
        for stage in config.stages:
            room = stage.max_tokens - int(self._question_lengths.max()) - config.title_tokens - 4
            if room < 1:
                raise ConfigError(
                    f"max_tokens ({stage.max_tokens}) leaves no room for text beside a question and a title",
                    hint="raise max_tokens or lower question_tokens and title_tokens",
                )
        self._plans = [
            plan for number, stage in enumerate(config.stages) for plan in self._plan(number, stage)
        ]

    def __len__(self) -> int:
        return len(self._plans)

    def _plan(self, number: int, stage: ReaderStage) -> list[_Plan]:
        draw = generator(self.config.seed, 2, number)
        wanted = round(stage.epochs * len(self.examples))
        passes = -(-wanted // len(self.examples))
        order = np.concatenate([draw.permutation(len(self.examples)) for _ in range(passes)])[:wanted]
        gold = self.examples.gold[order]
        rows = (
            self._question_lengths[order] + self._title_lengths[gold] + 4 + self.examples.texts.lengths[gold]
        )
        full = draw.random(wanted) < stage.full_fraction
        lengths = np.minimum(rows, np.where(full, stage.full_tokens, stage.max_tokens))
        group = 1 + stage.negatives
        pool = max(1, _POOL_BATCHES * stage.tokens_per_batch // (stage.max_tokens * group))
        plans: list[_Plan] = []
        for begin in range(0, wanted, pool):
            inside = np.arange(begin, min(begin + pool, wanted))
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

    def __getitem__(self, step: int) -> ReaderBatch:
        plan = self._plans[step]
        stage = self.config.stages[plan.stage]
        draw = generator(self.config.seed, 3, step)
        per_group = 1 + stage.negatives
        rows: list[npt.NDArray[np.int32]] = []
        heads: list[int] = []
        spans: list[tuple[int, list[tuple[int, int]]]] = []
        for question in plan.questions:
            passages, has_answer = self._passages(int(question), stage, draw)
            found: list[tuple[int, int]] = []
            for place, passage in enumerate(passages):
                is_gold = has_answer and place == 0
                row, head, inside = self._row(int(question), passage, plan.limit, is_gold, draw)
                rows.append(row)
                heads.append(head)
                found.extend(inside)
            spans.append((int(has_answer), found))
        return self._assemble(rows, heads, spans, per_group)

    def _passages(
        self, question: int, stage: ReaderStage, draw: np.random.Generator
    ) -> tuple[list[int], bool]:
        """Passages of one group, the gold one first unless it is left out."""
        gold = int(self.examples.gold[question])
        if stage.negatives == 0:
            return [gold], True
        has_answer = not draw.random() < stage.no_answer_fraction
        wanted = stage.negatives + (not has_answer)
        known = self.examples.negatives[question]
        known = known[known >= 0]
        chosen = [int(i) for i in draw.permutation(known)[:wanted]]
        while len(chosen) < wanted:  # too few retrieved: any other paragraph
            other = int(self.examples.gold[draw.integers(len(self.examples))])
            if other != gold:
                chosen.append(other)
        return ([gold, *chosen] if has_answer else chosen), has_answer

    def _row(
        self, question: int, passage: int, limit: int, is_gold: bool, draw: np.random.Generator
    ) -> tuple[npt.NDArray[np.int32], int, list[tuple[int, int]]]:
        """One row, where its text begins, and the acceptable spans as positions in the row."""
        data = self.examples
        cls, sep, _ = data.special
        asked = data.questions.tokens(question)[: self.config.question_tokens]
        title = data.titles.tokens(passage)[: self.config.title_tokens]
        text = data.texts.tokens(passage)
        head = len(asked) + len(title) + 3
        room = limit - head - 1
        first, last = (int(v) for v in data.spans[question]) if is_gold else (0, 0)
        begin = 0
        if len(text) > room:
            last = min(last, first + room - 1)
            lowest, highest = max(0, last - room + 1), min(first, len(text) - room)
            if not is_gold:
                lowest, highest = 0, len(text) - room
            begin = int(draw.integers(lowest, highest + 1))
        window = text[begin : begin + room]
        row = np.concatenate([[cls], asked, [sep], title, [sep], window, [sep]]).astype(np.int32)
        if not is_gold:
            return row, head, []
        spans = [(first - begin + head, last - begin + head)]
        if self.config.answers != "first":
            answer = text[first : last + 1]
            windows = np.lib.stride_tricks.sliding_window_view(window, len(answer))
            equal = np.flatnonzero((windows == answer).all(axis=1))
            spans = [(int(i) + head, int(i) + head + len(answer) - 1) for i in equal]
        return row, head, spans

    def _assemble(
        self,
        rows: Sequence[npt.NDArray[np.int32]],
        heads: Sequence[int],
        spans: Sequence[tuple[int, list[tuple[int, int]]]],
        per_group: int,
    ) -> ReaderBatch:
        lengths = np.array([len(row) for row in rows])
        longest = int(lengths.max())
        column = np.arange(longest)[None, :]
        ids = np.full((len(rows), longest), self.examples.special[2], np.int64)
        for index, row in enumerate(rows):
            ids[index, : len(row)] = row
        mask = column < lengths[:, None]
        # the first [SEP] ends segment 0
        first_sep = (ids == self.examples.special[1]).argmax(axis=1)
        types = (column > first_sep[:, None]) & mask
        in_text = (column >= np.array(heads)[:, None]) & (column < (lengths - 1)[:, None])
        allowed = in_text | (column == 0)
        nulls = [(p * longest, p * longest) for p in range(per_group)]
        targets = [found if has_answer else nulls for has_answer, found in spans]
        widest = max(len(found) for found in targets)
        flat = np.zeros((len(spans), widest, 2), np.int64)
        acceptable = np.zeros((len(spans), widest), bool)
        for index, found in enumerate(targets):
            flat[index, : len(found)] = found  # gold is passage 0 of its group: row position = flat position
            acceptable[index, : len(found)] = True
        return ReaderBatch(
            torch.from_numpy(ids),
            torch.from_numpy(mask.astype(np.int64)),
            torch.from_numpy(types.astype(np.int64)),
            torch.from_numpy(allowed.reshape(len(spans), per_group * longest)),
            torch.from_numpy(flat[..., 0]),
            torch.from_numpy(flat[..., 1]),
            torch.from_numpy(acceptable),
            torch.tensor([bool(has_answer) for has_answer, _ in spans]),
            int(lengths.sum()),
        )
