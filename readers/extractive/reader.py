"""The extractive reader: answers are spans of the passages, which are read only as far as needed.

Nine tenths of the time of an answer are spent on passages that do not change it. So a question's
best passages are read first, in waves; if their answer is likely enough, the others are not read.
In later waves the early head of the network, if it has one, drops unpromising passages after a few
layers.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rag.config import load_config
from rag.core.arrays import Bool, Float32, Int64
from rag.core.types import AnswerSet
from rag.runtime.fast.fast_bert import FastBert
from rag.runtime.hardware import resolve_device, resolve_precision
from readers.answer_kinds import asks_yes_no, present_spans
from readers.confidence import likelihoods
from readers.extractive.files import load_parts
from readers.extractive.layout import (
    Row,
    RowScores,
    best_spans,
    continuations,
    map_rows,
    pair_template,
    rows_of_pairs,
    tokenize_texts,
)
from readers.extractive.model import FastSpanModel, Logits, LogitsModel
from readers.extractive.settings import EFFORTS, SIX_LAYERS, ReaderSettings
from readers.manifest import Calibration
from readers.paths import PATH_WEIGHT, hop_scores
from readers.protocols import PassageLists, Reader, ReadRequest, ScoreLists, check_requests
from readers.ranking import PassageRows, QuestionRanker, Ranked


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
        stated = parts.manifest
        settings = load_config(ReaderSettings, overrides={**dict(stated.settings), **overrides})
        return cls(
            model, parts.tokenizer, settings, stated.calibration, name=stated.name, device=where
        )

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
            group = [requests[n] for n in numbers]
            for n, result in zip(numbers, self._read(group, settings, n_best), strict=True):
                results[n] = result
        return results

    def _read(
        self, requests: Sequence[ReadRequest], settings: ReaderSettings, n_best: int
    ) -> list[AnswerSet]:
        if not requests:
            return []
        scores = [self._passage_scores(request) for request in requests]
        # Passages behind the last wave are never read.
        most = sum(EFFORTS[settings.effort].waves) or None
        best = [
            np.argsort(-np.asarray(values, float), kind="stable")[:most].tolist()
            for values in scores
        ]
        questions = [request.question for request in requests]
        rows = self.rows(questions, [request.passages for request in requests], best)
        ranked = read_waves(self, rows, scores, settings)
        return [
            result.answer_set(request, likelihoods(result, self.calibration), n_best)
            for request, result in zip(requests, ranked, strict=True)
        ]

    def _passage_scores(self, request: ReadRequest) -> list[float]:
        if request.has_paths:
            return hop_scores(request.question, request.ranked, request.paths)
        return self.search_scores(request)

    def count_candidates(self, question: str, n_best: int) -> int:
        """All candidates where they become sentences, see `present`."""
        return max(n_best, self.settings.candidates) if asks_yes_no(question) else n_best

    def present(self, result: AnswerSet, n_best: int) -> AnswerSet:
        """Spans as the question asks for them: whole lists, and sentences for yes or no."""
        return present_spans(result, n_best)

    def score(
        self, questions: Sequence[str], passages: PassageLists
    ) -> tuple[PassageRows, RowScores]:
        """Run the network over all windows of all passages; `QuestionRanker` makes answers of the
        result.

        The early head, if there is one, computes its scores too, but drops nothing.
        """
        everything = self.rows(questions, passages)
        floors = (
            np.full(len(everything.rows), -np.inf, np.float32) if self.model.skim_layer else None
        )
        return everything, self.score_rows(everything.rows, floors)

    def rows(
        self,
        questions: Sequence[str],
        passages: PassageLists,
        places: Sequence[Collection[int]] | None = None,
    ) -> PassageRows:
        """All windows of all passages of each question, or of those at these places of its list."""
        pairs = [
            (question, place)
            for question, own in enumerate(passages)
            for place in range(len(own))
            if places is None or place in places[question]
        ]
        listed = [passages[question][place] for question, place in pairs]
        tokenized = tokenize_texts(self.tokenizer, questions)
        titles = tokenize_texts(self.tokenizer, [passage.title for passage in listed])
        texts = tokenize_texts(self.tokenizer, [passage.text for passage in listed])
        numbered = [(question, number) for number, (question, _) in enumerate(pairs)]
        rows = rows_of_pairs(self.template, self.settings, numbered, tokenized, titles, texts)
        return PassageRows(questions, pairs, listed, texts, rows)

    def score_rows(self, rows: Sequence[Row], floors: Float32 | None) -> RowScores:
        """The best spans of rows, which consist of whole words, and what else the network says of
        them.

        Args:
            floors: (R,) lowest score by the early head; rows below it are dropped and have no
                spans.
        """
        settings, count = self.settings, len(rows)
        most, cls = max(settings.spans_per_window, settings.table_spans), self.template.cls_position
        spans, words = (
            np.full((count, most), -np.inf, np.float32),
            np.full((count, 2), -np.inf, np.float32),
        )
        starts, ends = np.zeros((2, count, most), np.int64)
        nulls, relevances, skims = np.zeros((3, count), np.float32)
        glued = torch.from_numpy(self._continues)

        def use(part: list[int], ids: torch.Tensor, text: torch.Tensor, logits: Logits) -> None:
            start, end = logits.start.float().cpu(), logits.end.float().cpu()
            inside = glued[ids] & text
            last_of_word = ~torch.nn.functional.pad(inside[:, 1:], (0, 1))
            allowed = text & ~inside, text & last_of_word
            best = best_spans(start, end, *allowed, settings.max_answer_tokens, most)
            columns = np.s_[part, : best[0].shape[1]]
            spans[columns], starts[columns], ends[columns] = (tensor.numpy() for tensor in best)
            nulls[part] = (start[:, cls] + end[:, cls]).numpy()
            if logits.relevance is not None:
                relevances[part] = logits.relevance.float().cpu().numpy()
            if logits.words is not None:  # once as a start and once as an end logit
                words[part] = 2.0 * logits.words.float().cpu().numpy()
            if logits.skim is not None:
                skims[part] = logits.skim.numpy()

        map_rows(self.model, self.template, rows, use, floors=floors, device=self.device)
        return RowScores(spans, starts, ends, nulls, relevances, words, skims)


def read_waves(
    reader: ExtractiveReader, rows: PassageRows, retrieval: ScoreLists, settings: ReaderSettings
) -> list[Ranked]:
    """Read passages of all questions, wave by wave, as far as the effort of the settings requires.

    A question's answers are ranked after each wave that it takes part in; the last ranking is its
    result.

    Args:
        rows: rows of all passages that may be read.
        retrieval: for each question the retrieval scores of its passages.
    """
    effort, n_questions, depth = EFFORTS[settings.effort], len(rows.questions), reader.model.depth
    drop = effort.drop if settings.skim_layer else None
    most = None if effort.most is None else effort.most * depth // SIX_LAYERS
    owner = rows.owners
    ranks = retrieval_ranks(rows, retrieval)
    lengths = np.array([len(row.ids) for row in rows.rows], np.int64)
    waves = effort.waves or (int(ranks.max(initial=0)) + 1,)
    ends = np.cumsum(waves)
    layers = np.zeros(len(rows.rows), np.int64)  # layers that each row went through
    best_skim = np.full(
        n_questions, -np.inf, np.float32
    )  # of the early head, of a question's best row
    is_open, is_limited = np.ones(n_questions, bool), np.zeros(n_questions, bool)
    rankers = [QuestionRanker(rows, n, own, settings) for n, own in enumerate(retrieval)]
    ranked = [Ranked([], None)] * n_questions
    parts: list[tuple[Int64, RowScores]] = []
    for wave, end in enumerate(ends.tolist()):
        part = np.nonzero(is_open[owner] & (ranks < end) & (ranks >= end - waves[wave]))[0]
        if wave and most is not None:
            spent = np.bincount(owner, lengths * layers, minlength=n_questions).astype(np.int64)
            fits = _fits(part, owner, ranks, lengths * depth, most - spent)
            is_limited[owner[part[~fits]]] = True
            part, is_open = part[fits], is_open & ~is_limited
        if wave and not len(part):
            break
        floors = None if drop is None else best_skim[owner[part]] - np.float32(drop)
        scores = reader.score_rows([rows.rows[i] for i in part], floors)
        stays = np.ones(len(part), bool) if floors is None else scores.skims >= floors
        np.maximum.at(best_skim, owner[part], scores.skims)
        layers[part] = np.where(stays, depth, settings.skim_layer)
        parts.append((part[stays], scores.take(np.nonzero(stays)[0])))
        numbers = np.concatenate([part for part, _ in parts])
        everything = RowScores.joined([scores for _, scores in parts])
        for question in np.unique(owner[part]).tolist():
            mine = np.nonzero(owner[numbers] == question)[0]
            mine = mine[np.argsort(numbers[mine])]
            ranked[question] = rankers[question].rank(numbers[mine], everything.take(mine))
        if wave + 1 < len(ends) and effort.enough[wave] < 1:
            for question in np.nonzero(is_open)[0].tolist():
                p, _ = likelihoods(ranked[question], reader.calibration)
                is_open[question] = p[:1].sum() < effort.enough[wave]  # without any answer 0
    for question in range(n_questions):
        mine = (owner == question) & (ranks < ends[-1])
        read, whole = (len(np.unique(ranks[mine & (layers >= least)])) for least in (1, depth))
        cost = int(lengths[mine] @ layers[mine])
        reading = {"passages": read, "dropped": read - whole, "token_layers": cost}
        if is_limited[question]:
            reading["over_limit"] = len(np.unique(ranks[mine])) - read
        ranked[question] = replace(ranked[question], reading=reading)
    return ranked


def _fits(part: Int64, owner: Int64, ranks: Int64, cost: Int64, left: Int64) -> Bool:
    """Whether the passage of each row of `part`, and all better ones, fit into what is `left` (Q,)
    to its question; `cost` is that of each row of all.
    """
    fits = np.ones(len(part), bool)
    for question in np.unique(owner[part]):
        mine = np.nonzero(owner[part] == question)[0]
        _, passage = np.unique(ranks[part[mine]], return_inverse=True)
        fits[mine] = (np.cumsum(np.bincount(passage, cost[part[mine]])) <= left[question])[passage]
    return fits


def retrieval_ranks(rows: PassageRows, retrieval: ScoreLists) -> Int64:
    """For each row, how many passages of its question rank before its passage by retrieval
    score.
    """
    ranks = [np.argsort(np.argsort(-np.asarray(own, float), kind="stable")) for own in retrieval]
    pairs = (rows.pairs[row.group] for row in rows.rows)
    return np.array([ranks[question][place] for question, place in pairs], np.int64)
