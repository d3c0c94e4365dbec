"""The generative reader: answers in the model's words, with the passage that supports them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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
from readers.confidence import confidences
from readers.generative.files import load_generator
from readers.generative.marginal import Hypothesis, answer_log_likelihood, decode, read_apart
from readers.generative.model import Memory, Seq2Seq
from readers.generative.settings import GeneratorSettings, Marginal, encode_rows
from readers.manifest import Calibration
from readers.protocols import Reader, ReadRequest, check_requests
from readers.ranking import Ranked, Span

_DECODED_TOKENS = 65_536  # tokens of passages in one batch of the decoder


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
        return cls(network, loaded.settings, name=loaded.name)

    def read(self, requests: Sequence[ReadRequest], n_best: int = 5) -> list[AnswerSet]:
        """Answer each question from its passages; see `Reader.read`.

        There are at most `settings.beams` answers.
        """
        check_requests(requests, n_best)
        marginal = self.settings.marginal
        results = [AnswerSet(request.question, (), 1.0) for request in requests]
        for part, places, memory, priors in self._read(requests):
            answered = (
                self._fused(memory) if marginal is None else self._mixed(marginal, memory, priors)
            )
            for b, chosen, (hypotheses, null) in zip(part, places, answered, strict=True):
                passages = requests[b].passages
                spans: dict[str, Span] = {}  # one of each normalised text
                for guess in sorted(hypotheses, key=lambda h: -h.score):
                    order = chosen
                    if guess.weights:
                        order = [
                            chosen[i] for i in np.argsort(-np.array(guess.weights), kind="stable")
                        ]
                    span = _supported(self.seq2seq.words(guess.ids), guess.score, passages, order)
                    spans.setdefault(normalize_answer(span.text) or span.text, span)
                ranked = Ranked(list(spans.values()), null)
                results[b] = ranked.answer_set(requests[b], _likelihoods(ranked), n_best)
        return results

    def log_likelihood(
        self, requests: Sequence[ReadRequest], answers: Sequence[str]
    ) -> list[float]:
        """log p(answer | question, passages) in nats of one answer per question; NaN without a
        passage.
        """
        check_requests(requests, n_best=1)
        marginal = self.settings.marginal
        results = [float("nan")] * len(requests)
        for part, _, memory, priors in self._read(requests):
            ids = [
                self.seq2seq.answer_ids(answers[b]) for b in part
            ]  # whole, also beyond `answer_tokens`
            with torch.inference_mode():
                if marginal is None:
                    logp = self.seq2seq.token_log_probs(memory, self.seq2seq.targets(ids)).sum(1)
                else:
                    apart, _, _ = read_apart(self.seq2seq, memory.apart(), memory.counts, ids)
                    prior = pad_sequence(priors, batch_first=True, padding_value=float("-inf")).to(
                        apart
                    )
                    logp = answer_log_likelihood(marginal, prior, apart)
            for b, value in zip(part, logp.tolist(), strict=True):
                results[b] = value
        return results

    def _read(
        self, requests: Sequence[ReadRequest]
    ) -> Iterator[tuple[list[int], list[list[int]], Memory, list[torch.Tensor]]]:
        """Parts of the questions that have passages: their numbers, which passages are read, best
        first, the encoded passages, and the scores whose softmax is p(z|x) in the modes of RAG."""
        settings = self.settings
        questions = [request.question for request in requests]
        passages = [request.passages for request in requests]
        scores = [self.search_scores(request) for request in requests]
        chosen = [
            [
                i
                for i in np.argsort(-np.asarray(own), kind="stable").tolist()
                if texts[i].text.strip()
            ]
            for texts, own in zip(passages, scores, strict=True)
        ]
        chosen = [places[: settings.max_passages] for places in chosen]
        shown = [[texts[i] for i in places] for texts, places in zip(passages, chosen, strict=True)]
        rows = encode_rows(self.seq2seq.tokenizer, settings, questions, shown)
        sizes = [sum(map(len, own)) for own in rows]
        numbers = [b for b, size in enumerate(sizes) if size]
        plan = plan_batches(
            [sizes[b] for b in numbers], max_rows=len(numbers), max_tokens=_DECODED_TOKENS
        )
        for part in ([numbers[place] for place in places] for places in plan):
            with torch.inference_mode():
                memory = self.seq2seq.encode([rows[b] for b in part], settings.batch_tokens)
            priors = [
                torch.tensor([scores[b][i] for i in chosen[b]]) * settings.prior_scale for b in part
            ]
            yield part, [chosen[b] for b in part], memory, priors

    def _mixed(
        self, marginal: Marginal, memory: Memory, priors: Sequence[torch.Tensor]
    ) -> Iterator[tuple[list[Hypothesis], float | None]]:
        answer_tokens, beams = self.settings.answer_tokens, self.settings.beams
        for hypotheses in decode(
            self.seq2seq,
            memory.apart(),
            priors,
            marginal=marginal,
            answer_tokens=answer_tokens,
            beams=beams,
        ):
            yield [h for h in hypotheses if self.seq2seq.words(h.ids)], None

    def _fused(self, memory: Memory) -> Iterator[tuple[list[Hypothesis], float | None]]:
        """Each row's different answers, and the score of its "no answer", which is left out of
        them.
        """
        settings = self.settings
        generated = self.seq2seq.generate(
            memory, answer_tokens=settings.answer_tokens, beams=settings.beams
        )
        answers = [self._different(beams) for beams in generated]
        null = [] if self._no_answer is None else [self._no_answer]
        scores = self._log_probs(memory, [[*own, *null] for own in answers])
        for own in answers:
            hypotheses = [Hypothesis(tuple(ids), next(scores), ()) for ids in own]
            yield hypotheses, next(scores) if null else None

    def _different(self, beams: Sequence[list[int]]) -> list[list[int]]:
        """The answers of a row's beams, one of each text, without "no answer"."""
        silent = self.settings.no_answer and normalize_answer(self.settings.no_answer)
        texts: dict[str, list[int]] = {}
        for ids in beams:
            text = self.seq2seq.words(ids)
            if text and normalize_answer(text) != silent:
                texts.setdefault(text, ids)
        return list(texts.values())

    def _log_probs(self, memory: Memory, answers: Sequence[Sequence[list[int]]]) -> Iterator[float]:
        """log p(answer | question, passages) of the answers of each row, row by row."""
        pairs = [(row, ids) for row, own in enumerate(answers) for ids in own]
        for begin in range(0, len(pairs), len(memory)):
            part = pairs[begin : begin + len(memory)]
            labels = self.seq2seq.targets([ids for _, ids in part])
            with torch.inference_mode():
                logp = self.seq2seq.token_log_probs(memory.rows([row for row, _ in part]), labels)
            yield from logp.sum(1).tolist()


def _likelihoods(ranked: Ranked) -> tuple[Float64, float]:
    """Probabilities of the answers and of "no answer": by themselves, or beside the null score."""
    if ranked.answers and ranked.null is None:
        return np.exp(np.minimum(ranked.scores, 0.0)), 0.0
    return confidences(ranked.scores, ranked.null, Calibration())


def _supported(text: str, score: float, passages: Sequence[Passage], order: Sequence[int]) -> Span:
    """The answer in the first passage by `order` that contains it, in its spelling; else of the
    first.
    """
    for number in order:
        if (place := find_span(text, passages[number].text)) is not None:
            return Span(passages[number].text[slice(*place)], score, number, place)
    return Span(text, score, order[0])
