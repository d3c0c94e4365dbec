"""Split documents into passages: DPR's 100-word blocks, or sections of files.

Sections never cross a heading, and stay within a number of tokens.
"""

import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from rag.core.types import Location, Passage
from rag.data.languages import WITHOUT_SPACES
from rag.data.records import Block, CorpusOptions, Document
from rag.data.sentences import sentence_spans
from rag.data.table_text import cell_spans, row_label

PATH_SEPARATOR = " › "
"""Stands between the headings in the title of a section."""

MAX_SECTION_TOKENS = 512
"""The length of sections unless the options state another, for encoders that read longer texts.

A passage is what a reader reads and what people are shown; the vector of a longer passage tells
less of it.
"""

# Text without spaces: a longer word is cut into parts.
_MAX_WORD_CHARS = 200
_WORD_PART_CHARS = 20
# Of the tokens of a passage, that the path of headings may take.
_TITLE_SHARE = 0.35
_MAX_HEADING_CHARS = 120
# Kinds of blocks that are one list or one table together.
_JOINED = ("item", "row")

CountTokens = Callable[[str], int]


def estimated_tokens(text: str) -> int:
    """Estimated number of WordPiece tokens, for use without a tokenizer."""
    return sum(1 + (len(word) - 1) // 8 for word in re.findall(r"\w+|[^\w\s]", text))


def split_documents(
    documents: Iterable[Document],
    options: CorpusOptions | None = None,
    count_tokens: CountTokens = estimated_tokens,
) -> Iterator[Passage]:
    """Cut each document; passages come in document order.

    Passages of sections have the path of headings as title, others the document's title. Passages
    of files have a location. Ids are `{document id}-{n}`, n from 0, or the document's id where it
    is not cut.

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


def _cut(
    document: Document, options: CorpusOptions, count_tokens: CountTokens
) -> Iterator[tuple[str, str, Location | None]]:
    """Title, text and location of each passage."""
    text = document.text
    if document.blocks and options.split in ("auto", "sections"):
        for title, start, end, location in sections(document, options.max_tokens, count_tokens):
            yield title, text[start:end], location
    elif options.split == "none":
        whole = document.location(0, len(text)) if document.path else None
        yield document.title, text, whole
    else:
        file = Location(document.path) if document.path else None
        has_spaces = options.language not in WITHOUT_SPACES
        for block in word_blocks(text, options.words, has_spaces=has_spaces):
            yield document.title, block, file


def word_blocks(text: str, size: int = 100, *, has_spaces: bool = True) -> list[str]:
    """Disjoint blocks of exactly `size` whitespace words, joined by one space.

    As in `psgs_w100` the last block is filled up from the beginning of the text; a text shorter
    than one block stays short. Text without spaces has no words: of more than 200 characters every
    20 count as one.

    Args:
        has_spaces: False for languages that put none between words: each character counts as one.

    Example:
        >>> word_blocks("多瑙河发源于 黑森林。", 4, has_spaces=False)
        ['多瑙河发', '源于 黑森', '林。 多瑙']
    """
    words: list[str] = []
    for word in text.split():
        step = _WORD_PART_CHARS if len(word) > _MAX_WORD_CHARS else len(word)
        if not has_spaces:
            step = 1
        words += [word[start : start + step] for start in range(0, len(word), step)]
        words[-1] += " "
    if len(words) > size:
        words += words[: -len(words) % size]
    starts = range(0, len(words), size)
    return ["".join(words[start : start + size]).rstrip(" ") for start in starts]


class _Part(NamedTuple):
    """A span that is not cut any more: a whole block, or a piece of a long block.

    Attributes:
        label: of a piece of a row, what names the row and, within a cell, its column; it belongs
            to the passage's title.
    """

    start: int
    end: int
    tokens: int
    label: str = ""


def sections(
    document: Document, max_tokens: int, count: CountTokens = estimated_tokens
) -> Iterator[tuple[str, int, int, Location]]:
    """Title, start, end and location of each passage, whose text is that span of the document's
    text.

    A passage stays within one section, and its title is the path to it: the document's title and
    the headings above. Lists, tables and code stay whole where they fit; longer ones are cut
    between entries, rows or lines, long paragraphs between sentences.
    """
    # Level and text of the headings above.
    path: list[tuple[int, str]] = []
    body: list[Block] = []
    for block, following in itertools.zip_longest(document.blocks, document.blocks[1:]):
        body.append(block)
        is_heading = block.kind == "heading"
        is_last = following is None or following.kind == "heading"
        if is_heading:
            path = [entry for entry in path if entry[0] < block.level]
            # A heading with nothing below it is all that its section says.
            is_last = is_last and (following is None or following.level <= block.level)
        if is_last:
            headings = [text for _, text in path]
            title = _title(document.title, headings, int(_TITLE_SHARE * max_tokens), count)
            budget = max(max_tokens - count(title), max_tokens // 2)
            for group in _Cutter(document.text, budget, count).groups(body):
                start = group[0].start
                end = group[-1].end
                path_to_row = f"{title}{group[0].label}".removeprefix(PATH_SEPARATOR)
                yield path_to_row, start, end, document.location(start, end, headings)
        if is_heading:
            path.append((block.level, document.text_of(block)))
        if is_heading or is_last:
            body = []


def _title(title: str, headings: Sequence[str], budget: int, count: CountTokens) -> str:
    """The path to a section; where it is too long its middle goes."""
    path = [title]
    for heading in headings:
        if heading.casefold() not in path[-1].casefold():
            path.append(heading)
    path = [_shortened(part) for part in path if part]
    while len(path) > 2 and count(PATH_SEPARATOR.join(path)) > budget:
        del path[1]
    return PATH_SEPARATOR.join(path)


def _shortened(heading: str) -> str:
    if len(heading) <= _MAX_HEADING_CHARS:
        return heading
    return f"{heading[:_MAX_HEADING_CHARS]}…"


class _Cutter:
    """Cuts the blocks of a section into parts within a budget of tokens."""

    def __init__(self, text: str, budget: int, count: CountTokens) -> None:
        self._text = text
        self._budget = budget
        self._count = count

    def groups(self, body: Iterable[Block]) -> Iterator[list[_Part]]:
        """Groups of parts within the budget; a part that exceeds it by itself is a group."""
        group: list[_Part] = []
        for kind, run in itertools.groupby(body, key=_run_of):
            whole = [self._part(block.start, block.end) for block in run]
            size = _tokens(whole)
            is_full = _tokens(group) + size > self._budget >= size
            if group and (is_full or group[-1].label):
                # "The options are:" goes with the options.
                lead: list[_Part] = []
                if len(group) > 1 and self._leads(group[-1], size):
                    lead = [group.pop()]
                yield group
                group = lead
            if size > self._budget:
                cut = self._cut_row if kind == "row" else self._cut_part
                whole = list(itertools.chain.from_iterable(map(cut, whole)))
            for part in whole:
                is_over = _tokens(group) + part.tokens > self._budget
                if group and (is_over or part.label != group[-1].label):
                    yield group
                    group = []
                group.append(part)
        if group:
            yield group

    def _part(self, start: int, end: int, label: str = "") -> _Part:
        return _Part(start, end, self._count(self._text[start:end]), label)

    def _leads(self, part: _Part, size: int) -> bool:
        """Whether a part introduces what follows it, and fits before it."""
        text = self._text[part.start : part.end].rstrip()
        return text.endswith(":") and part.tokens <= self._budget - size

    def _cut_part(self, part: _Part, budget: int = 0) -> Iterator[_Part]:
        """Parts within a budget: lines of code, cells of a row, sentences, in the end words."""
        budget = budget or self._budget
        if part.tokens <= budget:
            yield part
            return
        spans = _smaller_spans(self._text[part.start : part.end])
        smaller = (self._part(part.start + start, part.start + end) for start, end in spans)
        for start, end, *_ in _merged(smaller, budget):
            piece = self._part(start, end)
            if len(spans) == 1:
                yield piece
            else:
                yield from self._cut_part(piece, budget)

    def _cut_row(self, row: _Part) -> Iterator[_Part]:
        """A row within the budget, or else its cells, with the text that names the row."""
        if row.tokens <= self._budget:
            yield row
            return
        line = self._text[row.start : row.end]
        label = self._label(row_label(line))
        budget = self._budget - self._count(label)
        starts = [row.start + start for start, _ in cell_spans(line)]
        # With the separator.
        ends = [start - 1 for start in starts[1:]] + [row.end]
        cells = map(self._part, starts, ends)
        for number, cell in enumerate(_merged(cells, budget)):
            first_label = label if number else ""
            if cell.tokens <= budget:
                yield cell._replace(label=first_label)
                continue
            column = self._text[cell.start : cell.end].partition(": ")[0]
            names = dict.fromkeys([label.removeprefix(PATH_SEPARATOR), column])
            label_within = self._label("; ".join(filter(None, names)))
            parts = self._cut_part(cell, self._budget - self._count(label_within))
            for part_number, part in enumerate(parts):
                yield part._replace(label=label_within if part_number else first_label)

    def _label(self, names: str) -> str:
        """What names a row as the last part of a path, "" where that takes half of the budget."""
        label = f"{PATH_SEPARATOR}{names}"
        return label if names and self._count(label) <= self._budget // 2 else ""


def _run_of(block: Block) -> object:
    """What blocks have in common that stay together: the kind of a list or a table."""
    return block.kind if block.kind in _JOINED else block


def _tokens(parts: Iterable[_Part]) -> int:
    return sum(part.tokens for part in parts)


def _smaller_spans(text: str) -> list[tuple[int, int]]:
    """The lines of a text, or else its sentences, what stands between semicolons, or its words."""
    if "\n" in text:
        return [match.span() for match in re.finditer(r"[^\n]+", text)]
    spans = list(sentence_spans(text))
    for pattern in (r"[^;]*;+|[^;]+$", r"\S{1,100}"):
        if len(spans) == 1:
            spans = [match.span() for match in re.finditer(pattern, text)]
    return spans


def _merged(parts: Iterable[_Part], budget: int) -> list[_Part]:
    merged: list[_Part] = []
    for part in parts:
        if merged and merged[-1].tokens + part.tokens <= budget:
            first = merged.pop()
            part = _Part(first.start, part.end, first.tokens + part.tokens)
        merged.append(part)
    return merged
