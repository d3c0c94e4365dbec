"""Split documents into passages: sections of files, or DPR's 100-word blocks."""

import re
from collections.abc import Iterable, Iterator, Sequence

from rag.core.types import Location, Passage
from rag.data.documents.sections import CountTokens, estimated_tokens, sections
from rag.data.options import CorpusOptions
from rag.data.records import Document

_LONGEST_WORD, _PART = 200, 20  # characters; a longer word is cut into parts
_GOES_ON = "\x00"  # after a part that is not the last of its word; no document has this character


def split_documents(
    documents: Iterable[Document],
    options: CorpusOptions | None = None,
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
        >>> [(p.id, p.text) for p in split_documents([document], CorpusOptions(words=3))]
        [('d-0', 'one two three'), ('d-1', 'four five one')]
    """
    options = options or CorpusOptions()
    for document in documents:
        for index, (title, text, location) in enumerate(_cut(document, options, count_tokens)):
            passage_id = document.id if options.split == "none" else f"{document.id}-{index}"
            yield Passage(passage_id, title, text, location, document.metadata)


def document_of(passage_id: str) -> str:
    """The document that a passage named `{document id}-{n}` was cut from.

    Example:
        >>> document_of("290-12"), document_of("290")
        ('290', '290')
    """
    return re.sub(r"-\d+$", "", passage_id)


def _cut(
    document: Document, options: CorpusOptions, count_tokens: CountTokens
) -> Iterator[tuple[str, str, Location | None]]:
    """Title, text and location of each passage."""
    if document.blocks and options.split in ("auto", "sections"):
        for title, start, end, place in sections(document, options.max_tokens, count_tokens):
            yield title, document.text[start:end], place
        return
    if options.split == "none":
        whole = document.location(0, len(document.text)) if document.path else None
        yield document.title, document.text, whole
        return
    location = Location(document.path) if document.path else None
    for text in word_blocks(document.text, options.words):
        yield document.title, text, location


def word_blocks(text: str, size: int = 100) -> list[str]:
    """Disjoint blocks of exactly `size` whitespace words, joined by one space.

    As in `psgs_w100` the last block is filled up from the beginning of the text; a text shorter than one
    block stays short. Text without spaces has no words: of more than 200 characters every 20 count as one.

    Example:
        >>> word_blocks("a b c d e", 2), word_blocks("a", 2)
        (['a b', 'c d', 'e a'], ['a'])
    """
    words = _words(text)
    if len(words) > size and (missing := -len(words) % size):
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
