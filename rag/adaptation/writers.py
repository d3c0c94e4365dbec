"""Language models that write a question for an answer and the passage in which it stands."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

import torch

from rag.core.errors import ConfigError
from rag.core.types import Passage
from readers.generative.layout import encode_rows
from readers.generative.reader import WRITERS, GenerativeReader
from readers.llm.local import LocalModel
from readers.llm.prompt import Completion, visible_text
from readers.llm.reader import Completer, LanguageModelReader
from readers.open import open_reader, reader_kind

_ROW_TOKENS = 320  # marked() leaves 110 words, which are more tokens in a table than in prose
_REPLY_TOKENS, _LOCAL_CHATS = 60, 8

Chat = Sequence[dict[str, str]]

_WRITE = (
    "You write questions that people ask about documents. Write one question that the passage answers, and "
    "whose answer is exactly the words in [[ ]]. The question must make sense to somebody who does not see "
    "the passage, and it must not repeat the answer. Reply with the question alone."
)


class QuestionWriter(Protocol):
    """Writes questions; see `open_writer`."""

    def write(self, passages: Sequence[Passage], answers: Sequence[str]) -> list[str]:
        """One question for each passage and answer, "" where there is none.

        Raises:
            ReaderError: the model does not reply.
        """


def open_writer(source: str, *, precision: str = "auto", device: str = "auto") -> QuestionWriter:
    """Open a writer of questions.

    Args:
        source: a folder of `rag train generator` with `writes: questions`; or a language model that follows
            instructions, as for `open_reader`: a causal model's folder, or `openai:BASE_URL#MODEL`.

    Raises:
        ArtifactError: there is no such model.
        ConfigError: a reader that answers questions, and writes none.
    """
    kind = reader_kind(source)
    if kind == "extractive":
        raise ConfigError(f"{source} answers by spans, expected a model that writes questions", hint=WRITERS)
    if kind in ("endpoint", "llm"):
        model = open_reader(source, precision=precision, device=device)
        assert isinstance(model, LanguageModelReader)
        return PromptedWriter(model.completer)
    reader = GenerativeReader.load(
        source, writes="questions", precision=precision, device=device, passage_tokens=_ROW_TOKENS
    )
    return TrainedWriter(reader)


class TrainedWriter:
    """A generator that was trained to write questions (`writes: questions`), greedily."""

    def __init__(self, reader: GenerativeReader) -> None:
        self._network, self._settings = reader.seq2seq, reader.settings

    def write(self, passages: Sequence[Passage], answers: Sequence[str]) -> list[str]:
        """One question for each passage and answer; see `QuestionWriter.write`."""
        network, settings = self._network, self._settings
        rows = encode_rows(network.tokenizer, settings, answers, [[passage] for passage in passages])
        with torch.inference_mode():
            memory = network.encode(rows, settings.batch_tokens)
            found = network.generate(memory, answer_tokens=settings.answer_tokens)
        return [network.words(beams[0]) if beams else "" for beams in found]


class PromptedWriter:
    """A language model that is asked for questions in words."""

    def __init__(self, completer: Completer) -> None:
        self._completer = completer

    def write(self, passages: Sequence[Passage], answers: Sequence[str]) -> list[str]:
        """One question for each passage and answer; see `QuestionWriter.write`."""
        asked = [
            f"Title: {passage.title}\nPassage: {passage.text}\n\nAnswer: {answer}"
            for passage, answer in zip(passages, answers, strict=True)
        ]
        chats = [[{"role": "system", "content": _WRITE}, {"role": "user", "content": one}] for one in asked]
        return [_question(reply.text) for reply in self._replies(chats)]

    def _replies(self, chats: Sequence[Chat]) -> Iterator[Completion]:
        model = self._completer
        if isinstance(model, LocalModel):
            for begin in range(0, len(chats), _LOCAL_CHATS):
                found = model.complete_all(chats[begin : begin + _LOCAL_CHATS], _REPLY_TOKENS)
                yield from (one[0] if one else Completion("") for one in found)
            return
        with ThreadPoolExecutor(model.parallel) as pool:
            yield from pool.map(lambda chat: model.complete(chat, _REPLY_TOKENS), chats)


def _question(reply: str) -> str:
    """A reply's first line without what models put around a question."""
    text = visible_text(reply).removeprefix("Question:").strip()
    return text.partition("\n")[0].strip('"“” ')
