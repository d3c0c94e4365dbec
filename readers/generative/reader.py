"""The generative reader: answers in the model's words, with the passage that supports them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence

from rag.core.arrays import Float64
from rag.core.types import AnswerSet, Passage
from rag.data.text import normalize_answer
from rag.runtime.backbone import plan_batches
from rag.runtime.hardware import resolve_device, resolve_precision
from readers.borders import find_span
from readers.confidence import Ranked, Span, confidences
from readers.generative.files import load_generator
from readers.generative.marginal import Hypothesis, answer_log_likelihood, decode, read_apart
from readers.generative.model import Memory, Seq2Seq
from readers.generative.settings import GeneratorSettings, encode_rows
from readers.manifest import Calibration
from readers.protocols import Reader, ReadRequest, best_first, check_requests

_DECODED_TOKENS = 65_536  # tokens of passages in one batch of the decoder
_Generated = tuple[list[Hypothesis], float | None]  # answers, and the score of "no answer"


@dataclass(frozen=True, slots=True)
class _Batch:
    """B questions that are read together.

    Attributes:
        questions: their numbers in the requests.
        passages: of each, the numbers of its passages that are read, best first.
        memory: the encoded passages.
        scores: of each, the (K,) scores whose softmax is p(z|x) in the modes of RAG.
    """

    questions: list[int]
    passages: list[list[int]]
    memory: Memory
    scores: list[torch.Tensor]


class GenerativeReader(Reader):
    """Reads with a sequence-to-sequence model: Fusion-in-Decoder, or RAG's two marginals.

    A candidate's score is log p(answer | question, passages). The score of "no answer" is that of
    the words that the model was trained to generate in this case.

    Args:
        name: for reports.

    Source:
        Izacard & Grave 2021, "Leveraging Passage Retrieval with Generative Models for Open Domain
        Question Answering", section 3.
    """

    def __init__(
        self, seq2seq: Seq2Seq, settings: GeneratorSettings, *, name: str = "generator"
    ) -> None:
        self.seq2seq = seq2seq
        self.settings = settings
        self.name = name
        self.counts_scores = settings.marginal is not None
        self._no_answer = (
            None if settings.no_answer is None else seq2seq.answer_ids(settings.no_answer)
        )

    @classmethod
    def load(
        cls,
        name_or_path: str | Path,
        *,
        precision: str = "auto",
        device: str = "auto",
        **changes: Any,
    ) -> GenerativeReader:
        """Load a folder of `rag train generator`, or a model of transformers; see `open_reader`.

        Args:
            precision: "fp32", "bf16", or "auto" for the faster of the two on this machine.
            changes: fields of `GeneratorSettings` to replace.
        """
        where = resolve_device(device)
        dtype = resolve_precision(precision, where)
        network, loaded = load_generator(name_or_path, device=where, dtype=dtype, **changes)
        reader = cls(network, loaded.settings, name=loaded.name)
        reader.version = loaded.version
        return reader

    def read(self, requests: Sequence[ReadRequest], n_best: int = 5) -> list[AnswerSet]:
        """Answer each question from its passages; see `Reader.read`.

        There are at most `settings.beams` answers, with RAG-Sequence as many of each passage.
        """
        check_requests(requests, n_best)
        results = [AnswerSet(request.question, (), 1.0) for request in requests]
        for batch in self._batches(requests):
            generated = self._fused(batch) if self.settings.marginal is None else self._mixed(batch)
            for number, numbers, (hypotheses, null) in zip(
                batch.questions, batch.passages, generated, strict=True
            ):
                request = requests[number]
                spans = self._spans(hypotheses, request.passages, numbers)
                ranked = Ranked(spans, null)
                results[number] = ranked.answer_set(request, _likelihoods(ranked), n_best)
        return results

    def log_likelihood(
        self, requests: Sequence[ReadRequest], answers: Sequence[str]
    ) -> list[float]:
        """log p(answer | question, passages) in nats of one answer per question; NaN without a
        passage.
        """
        check_requests(requests, n_best=1)
        results = [float("nan")] * len(requests)
        for batch in self._batches(requests):
            # Whole answers, also those longer than `answer_tokens`.
            ids = [self.seq2seq.answer_ids(answers[number]) for number in batch.questions]
            for number, score in zip(batch.questions, self._scores(batch, ids), strict=True):
                results[number] = score
        return results

    @torch.inference_mode()
    def _scores(self, batch: _Batch, answers: Sequence[Sequence[int]]) -> list[float]:
        """log p(answer | question, passages) of an answer to each question."""
        memory = batch.memory
        if self.settings.marginal is None:
            labels = self.seq2seq.targets(answers)
            return self.seq2seq.token_log_probs(memory, labels).sum(1).tolist()
        logp, _, _ = read_apart(self.seq2seq, memory.apart(), memory.counts, answers)
        scores = pad_sequence(batch.scores, batch_first=True, padding_value=float("-inf"))
        return answer_log_likelihood(self.settings.marginal, scores.to(logp), logp).tolist()

    def _batches(self, requests: Sequence[ReadRequest]) -> Iterator[_Batch]:
        """The questions that have passages, in batches, with their passages encoded."""
        settings = self.settings
        chosen = []
        texts = []
        scores = []
        for request in requests:
            values = self.search_scores(request)
            passages = request.passages
            readable = [n for n in best_first(values) if passages[n].text.strip()]
            numbers = readable[: settings.max_passages]
            chosen.append(numbers)
            texts.append([passages[number] for number in numbers])
            of_best = torch.tensor([values[number] for number in numbers])
            scores.append(of_best * settings.prior_scale)
        questions = [request.question for request in requests]
        rows = encode_rows(self.seq2seq.tokenizer, settings, questions, texts)
        sizes = [sum(map(len, passages)) for passages in rows]
        for batch in plan_batches(sizes, max_rows=len(sizes), max_tokens=_DECODED_TOKENS):
            batch = [number for number in batch if sizes[number]]
            if not batch:
                continue
            with torch.inference_mode():
                memory = self.seq2seq.encode([rows[b] for b in batch], settings.batch_tokens)
            yield _Batch(batch, [chosen[b] for b in batch], memory, [scores[b] for b in batch])

    def _mixed(self, batch: _Batch) -> Iterator[_Generated]:
        """Each question's answers by RAG's marginal."""
        settings = self.settings
        assert settings.marginal is not None
        for hypotheses in decode(
            self.seq2seq,
            batch.memory.apart(),
            batch.scores,
            marginal=settings.marginal,
            answer_tokens=settings.answer_tokens,
            beams=settings.beams,
        ):
            yield [h for h in hypotheses if self.seq2seq.words(h.ids)], None

    def _fused(self, batch: _Batch) -> Iterator[_Generated]:
        """Each question's different answers by Fusion-in-Decoder, and the score of its "no answer",
        which is left out of them.
        """
        settings = self.settings
        generated = self.seq2seq.generate(
            batch.memory, answer_tokens=settings.answer_tokens, beams=settings.beams
        )
        nulls: Sequence[float | None] = [None] * len(generated)
        if self._no_answer is not None:
            nulls = self._scores(batch, [self._no_answer] * len(generated))
        rows = []
        answers = []
        for row, beams in enumerate(generated):
            for ids in self._different(beams):
                rows.append(row)
                answers.append(ids)
        found: list[list[Hypothesis]] = [[] for _ in generated]
        for row, ids, score in zip(
            rows, answers, self._log_probs(batch.memory, rows, answers), strict=True
        ):
            found[row].append(Hypothesis(tuple(ids), score, ()))
        yield from zip(found, nulls, strict=True)

    def _different(self, beams: Sequence[list[int]]) -> Iterable[list[int]]:
        """The answers of a row's beams, one of each text, without "no answer"."""
        silent = self.settings.no_answer and normalize_answer(self.settings.no_answer)
        texts: dict[str, list[int]] = {}
        for ids in beams:
            text = self.seq2seq.words(ids)
            if text and normalize_answer(text) != silent:
                texts.setdefault(text, ids)
        return texts.values()

    def _log_probs(
        self, memory: Memory, rows: Sequence[int], answers: Sequence[Sequence[int]]
    ) -> Iterator[float]:
        """log p(answer | question, passages) of answers to the questions of these rows."""
        for begin in range(0, len(rows), len(memory)):
            part = slice(begin, begin + len(memory))
            labels = self.seq2seq.targets(answers[part])
            with torch.inference_mode():
                logp = self.seq2seq.token_log_probs(memory.rows(rows[part]), labels)
            yield from logp.sum(1).tolist()

    def _spans(
        self, hypotheses: Sequence[Hypothesis], passages: Sequence[Passage], numbers: Sequence[int]
    ) -> list[Span]:
        """One answer of each normalised text, best first, with the passage that supports it.

        Args:
            numbers: of the passages that were read, best first.
        """
        spans: dict[str, Span] = {}
        for hypothesis in sorted(hypotheses, key=lambda h: -h.score):
            order = numbers
            if hypothesis.weights:
                by_share = np.argsort(-np.array(hypothesis.weights), kind="stable")
                order = [numbers[position] for position in by_share]
            text = self.seq2seq.words(hypothesis.ids)
            # In the first passage that contains it, in its spelling; else of the first.
            for number in order:
                bounds = find_span(text, passages[number].text)
                if bounds is not None:
                    text = passages[number].text[slice(*bounds)]
                    break
            else:
                number = order[0]
            span = Span(text, hypothesis.score, number, bounds)
            spans.setdefault(normalize_answer(text) or text, span)
        return list(spans.values())


def _likelihoods(ranked: Ranked) -> tuple[Float64, float]:
    """Probabilities of the answers and of "no answer": by themselves, or beside the null score."""
    if ranked.answers and ranked.null is None:
        return np.exp(np.minimum(ranked.scores, 0.0)), 0.0
    return confidences(ranked.scores, ranked.null, Calibration())
