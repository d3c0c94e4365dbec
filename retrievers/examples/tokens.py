"""Questions and passages as token ids, in the layout that the finished encoder will use."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Protocol

from rag.core.arrays import Int32
from rag.core.files import sha256_file
from rag.core.types import Query
from retrievers.encoders.layout import PassageLayout
from retrievers.encoders.settings import EncoderSettings
from retrievers.encoders.tokenization import TextTokenizer


class TextsToIds(Protocol):
    """Turns questions and passages into token ids.

    Attributes:
        fingerprint: identifies everything that decides which ids a text gets.
    """

    fingerprint: str

    def queries(self, queries: Sequence[Query]) -> Sequence[Sequence[int] | Int32]:
        """Token ids of questions, alone or with passages, in order."""

    def passages(self, titles: Sequence[str], texts: Sequence[str]) -> Sequence[Sequence[int] | Int32]:
        """Token ids of passages, in order."""


class RetrieverTokenizer:
    """Turns questions and passages into token ids, in the layout that the finished encoder will use.

    Args:
        question_settings, passage_settings: prefixes, layout and lengths in use.
        query_tokens: maximum length of a query with passages, special tokens included; None: as for
            questions.

    Attributes:
        question_settings, passage_settings: see there.
        fingerprint: hex sha256 of everything that decides which ids a text gets.

    Example:
        >>> settings = read_settings(model_folder(None)).override(max_length=16)       # doctest: +SKIP
        >>> RetrieverTokenizer(settings, settings).passages(["Danube"], ["A river."])  # doctest: +SKIP
        [[101, 15709, 1037, 2314, 1012, 102]]
    """

    def __init__(
        self,
        question_settings: EncoderSettings,
        passage_settings: EncoderSettings,
        *,
        query_tokens: int | None = None,
    ) -> None:
        self.question_settings, self.passage_settings = question_settings, passage_settings
        self._layout = PassageLayout(passage_settings.layout)
        longer = question_settings.override(max_length=query_tokens)
        self._questions = TextTokenizer(question_settings)
        self._queries = TextTokenizer(longer)
        self._passages = TextTokenizer(passage_settings)
        self.fingerprint = _fingerprint(question_settings, passage_settings, longer.max_length)

    def queries(self, queries: Sequence[Query]) -> list[list[int]]:
        """Token ids of questions, alone or with passages, in order."""
        prefix = self.question_settings.query_prefix
        ids = self._questions.queries(queries, prefix)
        longer = [number for number, query in enumerate(queries) if query.passages]
        found = self._queries.queries([queries[number] for number in longer], prefix)
        for number, sequence in zip(longer, found, strict=True):
            ids[number] = sequence
        return ids

    def passages(self, titles: Sequence[str], texts: Sequence[str]) -> list[list[int]]:
        """Token ids of passages, in order."""
        first, second = self._layout.render(titles, texts, prefix=self.passage_settings.passage_prefix)
        return self._passages(first, second)


def _fingerprint(questions: EncoderSettings, passages: EncoderSettings, query_tokens: int) -> str:
    digest = hashlib.sha256(str(query_tokens).encode())
    for settings, prefix in ((questions, questions.query_prefix), (passages, passages.passage_prefix)):
        stated = [prefix, settings.layout, str(settings.max_length)]
        if settings.interaction is not None:
            stated.append(settings.interaction.describe())
        for part in stated:
            digest.update(len(part).to_bytes(4, "little") + part.encode())
        for file in sorted(settings.weights_dir.iterdir()):
            if file.name.startswith(("tokenizer", "vocab", "merges", "spiece", "sentencepiece", "special_")):
                digest.update(f"{file.name} {sha256_file(file)}\n".encode())
    return digest.hexdigest()
