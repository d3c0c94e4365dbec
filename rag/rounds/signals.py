"""Signals of a reader about each passage of a question, from which a retriever can learn.

| signal | of | g_i, larger is better | reader passes per question |
|---|---|---|---|
| attention | generative, fid | mean cross-attention score of the first decoded token | 1 |
| likelihood | all generators | mean log p of the answer's tokens, one passage | 1, one decoding per passage |
| span-likelihood | extractive | log(p of the answer's places in the passage + 0.0001) | 1, or none |
| relevance | cross-encoder | logit of "this passage answers it" | 1 |

All generators: generative readers, and language models in a folder (llm).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from rag.core.arrays import Float64
from rag.core.errors import ArtifactError, ConfigError, DataError, RagError
from rag.data.examples import Example
from rag.data.text import AnswerMatcher, most_matched
from rag.runtime.model_files import model_folder, read_config, weights_sha256
from readers.extractive.files import SHIPPED_READER
from readers.extractive.likelihood import span_log_likelihood
from readers.generative.attention import passage_attention
from readers.generative.marginal import passage_log_likelihood
from readers.generative.model import Memory, Seq2Seq
from readers.generative.reader import GenerativeReader
from readers.generative.settings import encode_rows
from readers.open import open_reader, reader_kind
from retrievers.encoders.cross_encoder import CrossEncoder
from retrievers.examples.data import answer_matcher

CROSS_ENCODER = "cross-encoder"
_SURE = 16.118  # log-odds of 1 − 1e-7, beyond which a cross-encoder's verdict counts no more
_NEED_ANSWERS = frozenset({"likelihood", "span-likelihood"})
_SMALLEST = 1e-4  # probability of an answer that does not stand in a passage: a target must be finite

Measure = Callable[[Any, Sequence[Example]], list[Float64]]


def matcher_of(example: Example) -> AnswerMatcher:
    """Finds an example's answers in texts."""
    return answer_matcher(example.answers, example.answer_mode)


def to_judge(example: Example, depth: int | None = None) -> Example:
    """The example with its first `depth` candidates and, as `target_answer`, the answer to be generated.

    That is the first answer. Of regular expressions it is what they match most often in these passages; ""
    if nothing is known.
    """
    candidates = example.candidates[:depth]
    answer = next(iter(example.answers), "")
    if example.answers_are_regex:
        answer = most_matched(matcher_of(example), (candidate.passage.text for candidate in candidates))
    return replace(example, candidates=candidates, target_answer=answer)


def _of_memory(signal: Callable[[Seq2Seq, Memory, Sequence[Sequence[int]]], Tensor]) -> Measure:
    """A signal of a generative reader: questions one by one, their passages encoded once."""

    def measure(reader: Any, examples: Sequence[Example]) -> list[Float64]:
        seq2seq, settings, values = reader.seq2seq, reader.settings, []
        for example in examples:
            rows = encode_rows(seq2seq.tokenizer, settings, [example.question], [example.passages])
            with torch.inference_mode():
                memory = seq2seq.encode(rows, settings.batch_tokens)
                [signals] = signal(seq2seq, memory, [seq2seq.answer_ids(example.target_answer)])
            values.append(np.asarray(signals.double().cpu()))
        return values

    return measure


def _span_likelihood(reader: Any, examples: Sequence[Example]) -> list[Float64]:
    questions, passages = [e.question for e in examples], [e.passages for e in examples]
    likelihoods = span_log_likelihood(reader, questions, passages, list(map(matcher_of, examples)))
    return [np.logaddexp(values, np.log(_SMALLEST)) for values in likelihoods]


def _relevance(judge: CrossEncoder, examples: Sequence[Example]) -> list[Float64]:
    pairs = [(e.question, passage) for e in examples for passage in e.passages]
    logits = judge.score([q for q, _ in pairs], [p for _, p in pairs]).astype(np.float64)
    ends = np.cumsum([len(e.candidates) for e in examples])[:-1]
    return np.split(np.clip(logits, -_SURE, _SURE), ends)


_SIGNALS: Mapping[str, tuple[tuple[str, ...], Measure]] = {  # → kinds of reader that give it
    "attention": (("generative",), _of_memory(lambda network, read, _: passage_attention(network, read))),
    "likelihood": (("generative", "llm"), _of_memory(passage_log_likelihood)),
    "span-likelihood": (("extractive",), _span_likelihood),
    "relevance": ((CROSS_ENCODER,), _relevance),
}


def check_signal(kind: str, signal: str, name: str, mode: str = "fid") -> None:
    """Check that a reader of this kind can give the signal, before anything long begins.

    Args:
        kind: kind of the reader, as `judge_kind` returns it.
        mode: mode of a generative reader.

    Raises:
        ConfigError: there is no such signal, or such a reader cannot give it.
    """
    if signal not in _SIGNALS:
        raise ConfigError(f"unknown signal {signal!r}", hint=f"use one of: {', '.join(_SIGNALS)}")
    kinds, fuses = _SIGNALS[signal][0], signal == "attention"
    if kind not in kinds or (fuses and mode != "fid"):
        raise ConfigError(
            f"{name} ({kind}{f', mode {mode!r}' if kind == 'generative' else ''}) cannot give {signal}",
            hint=f"{signal} comes from a {' or '.join(kinds)} model{' in mode fid' if fuses else ''}",
        )


class Judge:
    """A reader or cross-encoder that gives a signal.

    Args:
        kind: a kind of reader that `readers.open` knows, or "cross-encoder".
        model: the reader.
        signal: one of `rag.rounds.config.SignalName`.
        identity: name and hash of its weights, for provenance.

    Raises:
        ConfigError: it cannot give this signal; the message says which it can.

    Source:
        Izacard and Grave 2021, "Distilling Knowledge from Reader to Retriever" (attention); Izacard et al.
        2022, "Atlas", section 2.2 (likelihood); Shi et al. 2024, "REPLUG", section 4.1
        (likelihood by a language model, LSR).
    """

    def __init__(self, kind: str, model: Any, signal: str, identity: Mapping[str, str]) -> None:
        check_signal(kind, signal, identity["name"], model.settings.mode if kind == "generative" else "fid")
        self.model, self.signal, self.identity = model, signal, identity
        self._measure = _SIGNALS[signal][1]

    @classmethod
    def open(
        cls, source: str | Path | None, signal: str, *, precision: str = "auto", device: str = "auto"
    ) -> Judge:
        """Open a reader or cross-encoder as a judge.

        Args:
            source: a reader as `open_reader` takes it (None: the shipped one), or a cross-encoder.
            signal: one of `rag.rounds.config.SignalName`.
            precision, device: as for `open_reader`; "int8" for extractive readers.

        Raises:
            ArtifactError: there is no such reader.
            ConfigError: it cannot give this signal.
        """
        kind = judge_kind(source)
        check_signal(kind, signal, str(source or "the shipped reader"))
        where: Any = {"precision": precision, "device": device}
        model: Any
        if kind == CROSS_ENCODER:
            model = CrossEncoder.load(str(source), **where)
        else:
            opened = GenerativeReader.load if kind == "llm" else open_reader
            model = opened(cast("str", source), **where)
        folder = SHIPPED_READER if source is None else model_folder(source)
        files = sorted(folder.glob("*.safetensors")) or sorted(folder.glob("pytorch_model*.bin"))
        name = str(getattr(model, "name", source))
        return cls(kind, model, signal, {"name": name, "kind": kind, "weights_sha256": weights_sha256(files)})

    @property
    def needs_answers(self) -> bool:
        """Whether the signal is about a known answer."""
        return self.signal in _NEED_ANSWERS

    def judge(self, examples: Sequence[Example]) -> list[Float64]:
        """For each question one number per passage, larger is better; −inf where a passage cannot be read.

        Raises:
            DataError: the reader gave a score that is NaN or infinite.
        """
        signals = self._measure(self.model, examples) if examples else []
        for example, values in zip(examples, signals, strict=True):
            if np.isnan(values).any() or (values == np.inf).any():
                raise DataError(
                    f"{self.identity['name']} gives {self.signal} {values[~np.isfinite(values)][0]} for a "
                    f"passage of {example.question!r:.80}",
                    hint="its weights are damaged, or it overflows: try precision fp32",
                )
        return signals

    def close(self) -> None:
        """Release the reader."""
        getattr(self.model, "close", lambda: None)()


def judge_kind(source: str | Path | None) -> str:
    """Which kind of reader a source is, or "cross-encoder"; None is the shipped reader.

    Raises:
        ArtifactError: it is neither.
    """
    try:
        return reader_kind(source)
    except ArtifactError as error:
        try:
            names = read_config(model_folder(source)).get("architectures") or [""]
        except RagError:
            raise error from None
        if not names[0].endswith("ForSequenceClassification"):
            raise
        return CROSS_ENCODER
