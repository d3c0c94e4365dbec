"""The extractive reader: answers are spans of the passages, which are read only as far as needed.

Nine tenths of the time of an answer are spent on passages that do not change it. So a question's
best passages are read first, in waves; if their answer is likely enough, the others are not read.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch

from rag.config import load_config
from rag.core.arrays import Int64
from rag.core.types import AnswerSet
from rag.data.languages import ENGLISH
from rag.runtime.fast.fast_bert import FastBert
from rag.runtime.hardware import resolve_device, resolve_precision
from readers.answer_kinds import asks_yes_no, present_spans
from readers.confidence import Ranked, likelihoods
from readers.extractive.files import load_parts
from readers.extractive.layout import (
    RowScores,
    continuations,
    map_rows,
    pair_template,
    tokenize_texts,
)
from readers.extractive.model import FastSpanModel, LogitsModel
from readers.extractive.ranking import PassageRows, QuestionRanker
from readers.extractive.settings import EFFORTS, ReaderSettings
from readers.manifest import Calibration
from readers.paths import PATH_WEIGHT, hop_scores
from readers.protocols import (
    PassageLists,
    Reader,
    ReadRequest,
    ScoreLists,
    best_first,
    check_requests,
)


class ExtractiveReader(Reader):
    """Reads answers out of passages with a span model.

    Span scores are start + end logits. A reader trained with shared normalisation makes them
    comparable across the passages of a question; a DPR reader ranks by its passage selection logit
    first.

    Args:
        model: network, already on its device and in its dtype.
        tokenizer: fast tokenizer (it gives character offsets).
        calibration: turns scores into probabilities.
    """

    def __init__(
        self,
        model: LogitsModel,
        tokenizer: Any,
        settings: ReaderSettings,
        calibration: Calibration | None = None,
        *,
        name: str = "reader",
        device: str = "cpu",
    ) -> None:
        self.model = model.eval()
        self.tokenizer = tokenizer
        self.settings = settings
        self.counts_scores = settings.score_weight > 0
        self.effort = settings.effort
        self.calibration = calibration or Calibration()
        self.name = name
        self.device = device
        self._spans_per_row = max(settings.spans_per_window, settings.table_spans)
        template = pair_template(tokenizer)
        self.template = template if settings.final_separator else replace(template, after=())
        self._continues = continuations(tokenizer)

    @classmethod
    def load(
        cls,
        name_or_path: str | Path | None = None,
        *,
        precision: str = "auto",
        device: str = "auto",
        **overrides: Any,
    ) -> ExtractiveReader:
        """Load a reader; see `open_reader`.

        Args:
            name_or_path: None for the weights that ship with the package; a folder of `rag train
                reader`; or a Hugging Face name or folder of any `AutoModelForQuestionAnswering` or
                `DPRReader` checkpoint.
            precision: "fp32"; "bf16"; "int8" (linear layers in int8, for readers that come with
                ranges of their activations, on CPUs); or "auto", the fastest of these that the
                reader and the hardware allow.
            overrides: fields of `ReaderSettings` to replace.
        """
        parts = load_parts(name_or_path)
        where = resolve_device(device)
        if where == "cpu" and FastBert.supports(parts.weights.config):
            model: LogitsModel = FastSpanModel(parts.weights, precision, parts.ranges)
        else:
            model = parts.model.to(where).to_compute(resolve_precision(precision, where))
        manifest = parts.manifest
        settings = load_config(ReaderSettings, overrides={**dict(manifest.settings), **overrides})
        reader = cls(
            model, parts.tokenizer, settings, manifest.calibration, name=manifest.name, device=where
        )
        reader.version = manifest.model_copy(update={"settings": settings}).version
        return reader

    def read(self, requests: Sequence[ReadRequest], n_best: int = 5) -> list[AnswerSet]:
        """Answer each question from its passages; see `Reader.read`.

        Questions share the forward passes. Passages of paths are all read, since an answer often
        stands in the last of them, and are scored by their place on the paths.
        """
        check_requests(requests, n_best)
        of_paths = self.settings.model_copy(
            update={"retrieval_weight": PATH_WEIGHT, "effort": "full"}
        )
        results = [AnswerSet(request.question, (), 1.0) for request in requests]
        for has_paths, settings in ((False, self.settings), (True, of_paths)):
            numbers = [n for n, request in enumerate(requests) if request.has_paths == has_paths]
            if not numbers:
                continue
            ranked = self._ranked([requests[number] for number in numbers], settings)
            for number, candidates in zip(numbers, ranked, strict=True):
                chances = likelihoods(candidates, self.calibration)
                results[number] = candidates.answer_set(requests[number], chances, n_best)
        return results

    def _ranked(self, requests: Sequence[ReadRequest], settings: ReaderSettings) -> list[Ranked]:
        """The answers to each question, from as much of its passages as the effort requires."""
        effort = EFFORTS[settings.effort]
        retrieval = []
        for request in requests:
            scores = self.search_scores(request)
            if request.has_paths:
                scores = hop_scores(request.question, request.ranked, request.paths)
            retrieval.append(scores)
        # Passages behind the last wave are never read.
        most = sum(effort.waves) or None
        rows = self.rows(
            [request.question for request in requests],
            [request.passages for request in requests],
            [best_first(scores)[:most] for scores in retrieval],
        )
        owner = rows.owners[:, 0]
        ranks = retrieval_ranks(rows, retrieval)
        rankers = [
            QuestionRanker(rows, question, scores, settings)
            for question, scores in enumerate(retrieval)
        ]
        ranked = [Ranked([], None)] * len(retrieval)
        is_read = np.zeros(len(rows.rows), bool)
        is_open = np.ones(len(retrieval), bool)
        # Without waves one reads everything.
        ends = np.cumsum(effort.waves or (int(ranks.max(initial=0)) + 1,)).tolist()
        for end, enough in zip(ends, (*effort.enough, 0.0), strict=True):
            new = np.nonzero(is_open[owner] & ~is_read & (ranks < end))[0]
            self._score(rows, new)
            is_read[new] = True
            # All that was read of a question is ranked anew, since its passages compete.
            for question in np.unique(owner[new]).tolist():
                numbers = np.nonzero(is_read & (owner == question))[0]
                ranked[question] = rankers[question].rank(numbers)
                chances, _ = likelihoods(ranked[question], self.calibration)
                # The sum is 0 without any answer: the question stays open.
                is_open[question] = chances[:1].sum() < enough
        costs = self.model.depth * np.array([len(row.ids) for row in rows.rows], np.int64)
        for question, candidates in enumerate(ranked):
            numbers = np.nonzero(is_read & (owner == question))[0]
            n_passages = len(np.unique(ranks[numbers]))
            reading = {"passages": n_passages, "token_layers": int(costs[numbers].sum())}
            ranked[question] = replace(candidates, reading=reading)
        return ranked

    def for_language(self, language: str) -> Self:
        """See `Reader.for_language`."""
        reader = super().for_language(language)
        if language != ENGLISH:
            reader.settings = self.settings.replaced(english_rules=False)
        return reader

    def count_candidates(self, question: str, n_best: int) -> int:
        """All candidates where they become sentences, see `present`."""
        if self.settings.english_rules and asks_yes_no(question):
            return max(n_best, self.settings.candidates)
        return n_best

    def present(self, result: AnswerSet, n_best: int) -> AnswerSet:
        """Spans as the question asks for them: whole lists, and sentences for yes or no."""
        if not self.settings.english_rules:
            return super().present(result, n_best)
        return present_spans(result, n_best)

    def score(self, questions: Sequence[str], passages: PassageLists) -> PassageRows:
        """Run the network over all windows of all passages; `QuestionRanker` makes answers of the
        result.
        """
        rows = self.rows(questions, passages)
        self._score(rows, np.arange(len(rows.rows)))
        return rows

    def rows(
        self,
        questions: Sequence[str],
        passages: PassageLists,
        chosen: Sequence[Collection[int]] | None = None,
    ) -> PassageRows:
        """All windows of all passages of each question, or of those with the `chosen` numbers.

        Every token of a text is in at least one window; an empty text has none.
        """
        settings = self.settings
        pairs = []
        read = []
        for question, of_question in enumerate(passages):
            for number, passage in enumerate(of_question):
                if chosen is None or number in chosen[question]:
                    pairs.append((question, number))
                    read.append(passage)
        heads = tokenize_texts(self.tokenizer, questions)
        titles = tokenize_texts(self.tokenizer, [passage.title for passage in read])
        texts = tokenize_texts(self.tokenizer, [passage.text for passage in read])
        rows = []
        for group, (question, _) in enumerate(pairs):
            text = texts.tokens(group)
            if not len(text):
                continue
            head = heads.tokens(question)[: settings.question_tokens]
            title = titles.tokens(group)[: settings.title_tokens] if settings.titled else None
            room = settings.max_tokens - self.template.size(head, title)
            step = max(1, room - settings.stride_tokens)
            count = 1 + max(0, -(-(len(text) - room) // step))
            for first in range(0, count * step, step):
                window = text[first : first + room]
                rows.append(self.template.row(head, title, window, group=group, first_token=first))
        owners = np.array([pairs[row.group] for row in rows], np.int64).reshape(-1, 2)
        unread = RowScores(len(rows), self._spans_per_row)
        return PassageRows(questions, pairs, read, texts, rows, owners, unread)

    def _score(self, rows: PassageRows, numbers: Int64) -> None:
        """Run the network over the rows with these numbers, and enter what it says of them."""
        enter = partial(
            rows.scores.enter,
            continues=torch.from_numpy(self._continues),
            max_tokens=self.settings.max_answer_tokens,
        )
        map_rows(self.model, self.template, rows.rows, numbers, enter, device=self.device)


def retrieval_ranks(rows: PassageRows, retrieval: ScoreLists) -> Int64:
    """For each row, how many passages of its question rank before its passage by retrieval
    score.
    """
    ranks = [np.argsort(best_first(scores)) for scores in retrieval]
    of_rows = [ranks[question][number] for question, number in rows.owners.tolist()]
    return np.array(of_rows, np.int64)
