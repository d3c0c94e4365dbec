"""Split documents into passages: sections of files, or DPR's 100-word blocks."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from rag.core.errors import ConfigError
from rag.core.types import Location, Passage
from rag.data.choices import SPLIT_MODES
from rag.data.documents.sections import CountTokens, estimated_tokens, sections
from rag.data.records import Document

_LONGEST_WORD, _PART = 200, 20  # characters; a longer word is cut into parts
_GOES_ON = "\x00"  # after a part that is not the last of its word; no document has this character


@dataclass(frozen=True, slots=True)
class SplitOptions:
    """How documents become passages.

    Attributes:
        mode: "sections" cuts files (PDF, HTML, Markdown, …) by headings, with the path to each as title;
            "words100" cuts into disjoint blocks of `words` words, "none" keeps each document as one passage;
            "auto" is "sections" for files, else "words100".
        max_tokens: maximum length of title and text of a passage of mode "sections".
        wrap: whether the last block is filled up with the words the document begins with, as in `psgs_w100`.

    Raises:
        ConfigError: an unknown name or a number out of range.
    """

    mode: str = "auto"
    max_tokens: int = 256
    words: int = 100
    wrap: bool = True

    def __post_init__(self) -> None:
        if self.mode not in SPLIT_MODES:
            raise ConfigError(
                f"unknown split mode {self.mode!r}", hint=f"use one of: {', '.join(SPLIT_MODES)}"
            )
        for name in ("max_tokens", "words"):
            if getattr(self, name) < 1:
                raise ConfigError(f"split option {name} is {getattr(self, name)}, expected at least 1")


def split_documents(
    documents: Iterable[Document],
    options: SplitOptions | None = None,
    count_tokens: CountTokens = estimated_tokens,
) -> Iterator[Passage]:
    """Cut each document; passages come in document order.

    Passages of sections have the path of headings as title, others the document's title. Passages of files
    have a location. Ids are `{document id}-{n}`, n from 0, or the document's id where it is not cut.

    Args:
        count_tokens: returns the number of tokens of a text for the encoder.

    Source: Karpukhin et al. 2020, "Dense Passage Retrieval", section 4.1, for "words100".

    Example:
        >>> document = Document("d", "Digits", "one two three four five")
        >>> [(p.id, p.text) for p in split_documents([document], SplitOptions(words=3))]
        [('d-0', 'one two three'), ('d-1', 'four five one')]
    """
    options = options or SplitOptions()
    for document in documents:
        for index, (title, text, location) in enumerate(_cut(document, options, count_tokens)):
            passage_id = document.id if options.mode == "none" else f"{document.id}-{index}"
            yield Passage(passage_id, title, text, location, document.metadata)


def document_of(passage_id: str) -> str:
    """The document that a passage named `{document id}-{n}` was cut from.

    Example:
        >>> document_of("290-12"), document_of("290")
        ('290', '290')
    """
    return re.sub(r"-\d+$", "", passage_id)


def _cut(
    document: Document, options: SplitOptions, count_tokens: CountTokens
) -> Iterator[tuple[str, str, Location | None]]:
    """Title, text and location of each passage."""
    if document.blocks and options.mode in ("auto", "sections"):
        for title, start, end, place in sections(document, options.max_tokens, count_tokens):
            yield title, document.text[start:end], place
        return
    if options.mode == "none":
        whole = document.location(0, len(document.text)) if document.path else None
        yield document.title, document.text, whole
        return
    location = Location(document.path) if document.path else None
    for text in word_blocks(document.text, options.words, wrap=options.wrap):
        yield document.title, text, location


def word_blocks(text: str, size: int = 100, *, wrap: bool = True) -> list[str]:
    """Disjoint blocks of exactly `size` whitespace words, joined by one space.

    With `wrap` the last block is filled up from the beginning of the text; a text shorter than one block
    stays short. Text without spaces has no words: of more than 200 characters every 20 count as one.

    Example:
        >>> word_blocks("a b c d e", 2), word_blocks("a b c d e", 2, wrap=False), word_blocks("a", 2)
        (['a b', 'c d', 'e a'], ['a b', 'c d', 'e'], ['a'])
    """
    words = _words(text)
    if wrap and len(words) > size and (missing := -len(words) % size):
        words += words[:missing]
    return [_joined(words[start : start + size]) for start in range(0, len(words), size)]


def _words(text: str) -> list[str]:
    """The words of a text, endless ones in parts: Chinese prose, a picture in base64."""
    words = text.split()
    if max(map(len, words), default=0) <= _LONGEST_WORD:
        return words
    return [part for word in words for part in _parts(word)]


def _parts(word: str) -> list[str]:
    if len(word) <= _LONGEST_WORD:
        return [word]
    parts = [word[start : start + _PART] for start in range(0, len(word), _PART)]
    return [*(part + _GOES_ON for part in parts[:-1]), parts[-1]]


def _joined(words: Sequence[str]) -> str:
    text = " ".join(words)
    return text.replace(f"{_GOES_ON} ", "").replace(_GOES_ON, "") if _GOES_ON in text else text
