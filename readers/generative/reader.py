"""The generative reader: answers in the model's words, with the passage that supports them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence

from rag.core.arrays import Float64
from rag.core.types import AnswerSet, Passage
from rag.data.text import normalize_answer
from rag.runtime.hardware import resolve_device, resolve_precision
from readers.confidence import confidences
from readers.generative.files import load_generator
from readers.generative.marginal import answer_log_likelihood, read_apart
from readers.generative.marginal_decoding import decode
from readers.generative.model import Memory, Seq2Seq
from readers.generative.settings import GeneratorSettings, encode_rows
from readers.manifest import Calibration
from readers.protocols import PassageLists, ScoreLists, check_request
from readers.ranking import Ranked, Span
from readers.spans import find_span

_DECODED_TOKENS = 65_536  # tokens of passages in one batch of the decoder


class GenerativeReader:
    """Reads with a sequence-to-sequence model: Fusion-in-Decoder, or RAG's two marginals.

    A candidate's score is log p(answer | question, passages). The score of "no answer" is that of the words
    that the model was trained to generate in this case.

    Args:
        calibration: turns scores into probabilities.

    Source:
        Izacard & Grave 2021, "Leveraging Passage Retrieval with Generative Models for Open Domain Question
        Answering", section 3.
    """

    def __init__(
        self,
        seq2seq: Seq2Seq,
        settings: GeneratorSettings,
        calibration: Calibration | None = None,
        *,
        name: str = "generator",
    ) -> None:
        self.seq2seq = seq2seq
        self.settings = settings
        self.calibration = calibration or Calibration()
        self.name = name
        self._no_answer = None if settings.no_answer is None else seq2seq.answer_ids(settings.no_answer)

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
        return cls(network, loaded.settings, loaded.calibration, name=loaded.name)

    def read(
        self, questions: Sequence[str], passages: PassageLists, scores: ScoreLists, n_best: int = 5
    ) -> list[AnswerSet]:
        """Answer each question from its passages; see `Reader.read`.

        There are at most `settings.beams` answers.
        """
        ranked = self.generate(questions, passages, scores, n_best)
        return [
            each.result(question, own, given, self._likelihoods(each), n_best)
            for each, question, own, given in zip(ranked, questions, passages, scores, strict=True)
        ]

    def generate(
        self, questions: Sequence[str], passages: PassageLists, scores: ScoreLists, n_best: int = 5
    ) -> list[Ranked]:
        """Answers with uncalibrated scores; no null score if the model was not trained for "no answer"."""
        check_request(questions, passages, scores, n_best)
        chosen, kept, rows = self._rows(questions, passages, scores)
        results = [Ranked([], None)] * len(questions)
        for part in _parts(rows):
            with torch.inference_mode():
                memory = self.seq2seq.encode([rows[b] for b in part], self.settings.batch_tokens)
                shown = [kept[b] for b in part]
                if self.settings.marginal is None:
                    answered = self._fused(memory, shown)
                else:
                    priors = self._priors([scores[b] for b in part], [chosen[b] for b in part])
                    answered = self._marginal(memory, shown, priors)
            for b, (candidates, null) in zip(part, answered, strict=True):
                given = [
                    replace(
                        c,
                        passage_index=chosen[b][c.passage_index],
                        weights=_spread(c.weights, chosen[b], len(passages[b])),
                    )
                    for c in candidates
                ]
                results[b] = Ranked(given, null)
        return results

    def log_likelihood(
        self, questions: Sequence[str], passages: PassageLists, scores: ScoreLists, answers: Sequence[str]
    ) -> list[float]:
        """log p(answer | question, passages) in nats of one answer per question; NaN without a passage."""
        marginal, found = self.settings.marginal, [float("nan")] * len(questions)
        check_request(questions, passages, scores, 1)
        chosen, _, rows = self._rows(questions, passages, scores)
        answer_ids = list(map(self.seq2seq.answer_ids, answers))  # whole, also beyond `answer_tokens`
        for part in _parts(rows):
            wanted = [answer_ids[b] for b in part]
            with torch.inference_mode():
                memory = self.seq2seq.encode([rows[b] for b in part], self.settings.batch_tokens)
                if marginal is None:
                    logp = self.seq2seq.token_log_probs(memory, self.seq2seq.targets(wanted)).sum(1)
                else:
                    apart, _, _ = read_apart(self.seq2seq, memory.apart(), memory.counts, wanted)
                    prior = pad_sequence(
                        self._priors([scores[b] for b in part], [chosen[b] for b in part]),
                        batch_first=True, padding_value=float("-inf"),
                    )  # fmt: skip
                    logp = answer_log_likelihood(marginal, prior.to(apart), apart)
            for b, value in zip(part, logp.tolist(), strict=True):
                found[b] = value
        return found

    def _rows(
        self, questions: Sequence[str], passages: PassageLists, scores: ScoreLists
    ) -> tuple[list[list[int]], list[list[Passage]], list[list[list[int]]]]:
        """For each question, indices of the passages to read, best first, the passages, and their tokens."""
        chosen = [_best(found, given, self.settings) for found, given in zip(passages, scores, strict=True)]
        kept = [[found[i] for i in places] for found, places in zip(passages, chosen, strict=True)]
        rows = encode_rows(self.seq2seq.tokenizer, self.settings, questions, kept)
        return chosen, kept, rows

    def _priors(self, scores: ScoreLists, chosen: Sequence[Sequence[int]]) -> list[torch.Tensor]:
        """For each question the scores of its chosen passages, whose softmax is p(z|x)."""
        scale = self.settings.prior_scale
        return [
            torch.tensor([given[i] for i in places]) * scale
            for given, places in zip(scores, chosen, strict=True)
        ]

    def _fused(self, memory: Memory, passages: PassageLists) -> Iterator[tuple[list[Span], float | None]]:
        answers = self._answers(memory)
        scores = iter(self._scored(memory, answers))
        for mine, texts in zip(passages, answers, strict=True):
            candidates = [_supported(text, next(scores), mine, range(len(mine))) for text, _ in texts]
            yield _distinct(candidates), None if self._no_answer is None else next(scores)

    def _marginal(
        self, memory: Memory, passages: PassageLists, priors: Sequence[torch.Tensor]
    ) -> Iterator[tuple[list[Span], float | None]]:
        settings = self.settings
        marginal = settings.marginal
        assert marginal is not None
        found = decode(
            self.seq2seq, memory.apart(), priors, marginal=marginal,
            answer_tokens=settings.answer_tokens, beams=settings.beams,
        )  # fmt: skip
        for mine, hypotheses in zip(passages, found, strict=True):
            candidates = []
            for one in hypotheses:
                if text := self.seq2seq.words(one.ids):
                    order = np.argsort(-np.array(one.weights), kind="stable").tolist()
                    candidate = _supported(text, one.score, mine, order)
                    candidates.append(replace(candidate, weights=one.weights))
            yield _distinct(candidates), None

    def _answers(self, memory: Memory) -> list[list[tuple[str, list[int]]]]:
        """Words and tokens of each row's different answers; "no answer" and empty ones are left out."""
        settings = self.settings
        generated = self.seq2seq.generate(memory, answer_tokens=settings.answer_tokens, beams=settings.beams)
        silent = None if settings.no_answer is None else normalize_answer(settings.no_answer)
        rows = []
        for beams in generated:
            texts: dict[str, list[int]] = {}
            for ids in beams:
                text = self.seq2seq.words(ids)
                if text and normalize_answer(text) != silent:
                    texts.setdefault(text, ids)
            rows.append(list(texts.items()))
        return rows

    def _scored(self, memory: Memory, answers: Sequence[Sequence[tuple[str, list[int]]]]) -> list[float]:
        """Log-probability of all answers, row by row, each row followed by its "no answer"."""
        null = [] if self._no_answer is None else [self._no_answer]
        pairs = [(row, ids) for row, mine in enumerate(answers) for ids in [*(i for _, i in mine), *null]]
        found: list[float] = []
        at_once = max(1, len(memory))
        for begin in range(0, len(pairs), at_once):
            part = pairs[begin : begin + at_once]
            labels = self.seq2seq.targets([ids for _, ids in part])
            shown = memory.rows([row for row, _ in part])
            found += self.seq2seq.token_log_probs(shown, labels).sum(1).tolist()
        return found

    def _likelihoods(self, ranked: Ranked) -> tuple[Float64, float]:
        if ranked.answers and ranked.null is None and not self.calibration.questions:
            return np.exp(np.minimum(ranked.scores, 0.0)), 0.0
        return confidences(ranked.scores, ranked.null, self.calibration)


def _best(passages: Sequence[Passage], scores: Sequence[float], settings: GeneratorSettings) -> list[int]:
    """Places of the passages to read, best first: those with a text, at most `max_passages`."""
    order = sorted(range(len(passages)), key=lambda i: -scores[i])
    return [i for i in order if passages[i].text.strip()][: settings.max_passages]


def _parts(rows: Sequence[Sequence[Sequence[int]]]) -> Iterator[list[int]]:
    """Numbers of the questions that have passages, in parts that fit in front of the decoder."""
    part: list[int] = []
    tokens = 0
    for number, passages in enumerate(rows):
        size = sum(len(ids) for ids in passages)
        if part and tokens + size > _DECODED_TOKENS:
            yield part
            part, tokens = [], 0
        if size:
            part.append(number)
            tokens += size
    if part:
        yield part


def find_support(
    answer: str, passages: Sequence[Passage], order: Sequence[int]
) -> tuple[int, int | None, int | None]:
    """The first passage that contains the answer literally, else the first.

    Args:
        answer: answer as generated.
        passages: passages that were read, at least one.
        order: their numbers, the most important first.

    Returns:
        Its number, and the characters of its text that are the answer; None where it is not there literally.

    Example:
        >>> oslo, bergen = Passage("1", "", "It rains in Bergen."), Passage("2", "", "Oslo is the capital.")
        >>> find_support("oslo", [oslo, bergen], [0, 1])
        (1, 0, 4)
        >>> find_support("yes", [oslo, bergen], [0, 1])
        (0, None, None)
    """
    for number in order:
        if (span := find_span(answer, passages[number].text)) is not None:
            return number, *span
    return order[0], None, None


def _supported(text: str, score: float, passages: Sequence[Passage], order: Sequence[int]) -> Span:
    """A candidate with its passage, whose spelling counts where the answer stands there."""
    number, start, end = find_support(text, passages, order)
    if start is not None:
        text = passages[number].text[start:end]
    return Span(text, score, number, start, end)


def _distinct(candidates: Sequence[Span]) -> list[Span]:
    """Best first, one of each normalised text."""
    kept: dict[str, Span] = {}
    for candidate in sorted(candidates, key=lambda c: -c.score):
        kept.setdefault(normalize_answer(candidate.text) or candidate.text, candidate)
    return list(kept.values())


def _spread(weights: tuple[float, ...], chosen: Sequence[int], given: int) -> tuple[float, ...]:
    """Weights of the chosen passages among all that were given."""
    return tuple(np.bincount(chosen, weights, given).tolist()) if weights else ()
