"""What a reader says of passages: a number for each, from which a retriever learns.

| signal | of | g_i, larger is better | reader passes per question |
|---|---|---|---|
| attention | generative, fid | mean cross-attention score of the first decoded token | 1 |
| likelihood | generative, llm | mean log p of the answer's tokens, passage alone | 1 per passage |
| span-likelihood | extractive | log(p of the answer's places in the passage + 0.0001) | 1, or none |
| relevance | cross-encoder | logit of "this passage answers it"; knows no answer | 1 |

Source:
    Izacard and Grave 2021, "Distilling Knowledge from Reader to Retriever" (attention); Izacard et
    al. 2022, "Atlas", section 2.2 (likelihood); Shi et al. 2024, "REPLUG", section 4.1 (of a
    language model).
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from rag.core.arrays import Float64
from rag.core.errors import ConfigError
from rag.core.types import Passage
from rag.data.examples import Example
from rag.runtime.model_files import model_folder, weight_files, weights_sha256
from readers.extractive.files import SHIPPED_READER
from readers.extractive.likelihood import span_log_likelihood
from readers.extractive.reader import ExtractiveReader
from readers.generative.attention import passage_attention
from readers.generative.marginal import passage_log_likelihood
from readers.generative.model import Memory, Seq2Seq
from readers.generative.reader import GenerativeReader
from readers.generative.settings import encode_rows
from readers.open import open_reader, reader_kind
from retrievers.encoders.cross_encoder import CrossEncoder
from retrievers.examples.data import answer_matcher

# The probability of an answer that does not stand in a passage: a target must be finite.
_SMALLEST = 1e-4
# The log-odds of 1 − 1e-7, beyond which a cross-encoder's verdict counts no more.
_SURE = 16.118


class Judge(NamedTuple):
    """A reader that gives a signal; `identity` has its name, kind and the hash of its weights."""

    model: Any
    signal: str
    identity: Mapping[str, str]

    def judge(self, examples: Sequence[Example]) -> list[Float64]:
        """For each question one number per passage, larger is better; −inf where a passage cannot
        be read.
        """
        return _SIGNALS[self.signal][0](self.model, examples)


def _attention(reader: GenerativeReader, examples: Sequence[Example]) -> list[Float64]:
    def signal(network: Seq2Seq, read: Memory, answers: list[list[int]]) -> Tensor:
        return passage_attention(network, read)

    return _of_memory(reader, examples, signal)


def _likelihood(reader: GenerativeReader, examples: Sequence[Example]) -> list[Float64]:
    return _of_memory(reader, examples, passage_log_likelihood)


def _of_memory(
    reader: GenerativeReader,
    examples: Sequence[Example],
    signal: Callable[[Seq2Seq, Memory, list[list[int]]], Tensor],
) -> list[Float64]:
    """A signal of a generative reader: questions one by one, their passages encoded once."""
    seq2seq = reader.seq2seq
    settings = reader.settings
    values = []
    for example in examples:
        rows = encode_rows(seq2seq.tokenizer, settings, [example.question], [example.passages])
        with torch.inference_mode():
            memory = seq2seq.encode(rows, settings.batch_tokens)
            [signals] = signal(seq2seq, memory, [seq2seq.answer_ids(example.target_answer)])
        values.append(np.asarray(signals.double().cpu()))
    return values


def _span_likelihood(reader: ExtractiveReader, examples: Sequence[Example]) -> list[Float64]:
    questions = [example.question for example in examples]
    passages = [example.passages for example in examples]
    matchers = list(map(answer_matcher, examples))
    likelihoods = span_log_likelihood(reader, questions, passages, matchers)
    return [np.logaddexp(values, np.log(_SMALLEST)) for values in likelihoods]


def _relevance(scorer: CrossEncoder, examples: Sequence[Example]) -> list[Float64]:
    questions = []
    passages = list[Passage]()
    for example in examples:
        questions += [example.question] * len(example.passages)
        passages += example.passages
    logits = scorer.score(questions, passages).astype(np.float64)
    ends = np.cumsum([len(example.passages) for example in examples])[:-1]
    return np.split(np.clip(logits, -_SURE, _SURE), ends)


# What computes a signal, and the kinds of reader that give it.
_SIGNALS: dict[str, tuple[Callable[[Any, Sequence[Example]], list[Float64]], tuple[str, ...]]] = {
    "attention": (_attention, ("generative",)),
    "likelihood": (_likelihood, ("generative", "llm")),
    "span-likelihood": (_span_likelihood, ("extractive",)),
    "relevance": (_relevance, ("cross-encoder",)),
}


def open_judge(source: str | None, signal: str, *, precision: str = "auto") -> Judge:
    """Open a reader, as `open_reader` takes it (None: the shipped one), or a cross-encoder, for a
    signal.

    Raises:
        ArtifactError: there is no such reader.
        ConfigError: it cannot give this signal.
    """
    is_pair = signal == "relevance" and source is not None
    kind = "cross-encoder" if is_pair else reader_kind(source)
    name = source or "the shipped reader"
    kinds = _SIGNALS[signal][1]
    if kind not in kinds:
        raise ConfigError(
            f"{name} ({kind}) cannot give {signal}",
            hint=f"{signal} comes from a {' or '.join(kinds)} model",
        )
    load: dict[str, Any] = {"cross-encoder": CrossEncoder.load, "llm": GenerativeReader.load}
    model = load.get(kind, open_reader)(source, precision=precision)
    if signal == "attention" and model.settings.mode != "fid":
        raise ConfigError(
            f"{name} (mode {model.settings.mode}) reads passages one by one",
            hint="attention comes from a reader in mode fid",
        )
    folder = SHIPPED_READER if source is None else model_folder(source)
    weights = weights_sha256(sorted(folder.glob("*.safetensors")) or weight_files(folder))
    return Judge(model, signal, {"name": model.name, "kind": kind, "weights_sha256": weights})
