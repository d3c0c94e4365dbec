"""Split documents into passages: DPR's 100-word blocks, or sections of files.

Sections never cross a heading, and stay within a number of tokens.
"""

import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from rag.core.types import Location, Passage
from rag.data.records import Block, CorpusOptions, Document
from rag.data.sentences import sentence_spans
from rag.data.table_text import cell_spans, row_label

_LONGEST_WORD, _PART = 200, 20  # characters; a longer word is cut into parts
PATH_SEPARATOR = " › "
_TITLE_SHARE = 0.35  # of the budget, that the path of headings may take
_MAX_HEADING_CHARS = 120
_JOINED = ("item", "row")  # blocks that are one list or one table together

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
) -> Iterable[tuple[str, str, Location | None]]:
    """Title, text and location of each passage."""
    title, text = document.title, document.text
    if document.blocks and options.split in ("auto", "sections"):
        spans = sections(document, options.max_tokens, count_tokens)
        return ((path, text[start:end], place) for path, start, end, place in spans)
    if options.split == "none":
        return [(title, text, document.location(0, len(text)) if document.path else None)]
    location = Location(document.path) if document.path else None
    return ((title, block, location) for block in word_blocks(text, options.words))


def word_blocks(text: str, size: int = 100) -> list[str]:
    """Disjoint blocks of exactly `size` whitespace words, joined by one space.

    As in `psgs_w100` the last block is filled up from the beginning of the text; a text shorter
    than one block stays short. Text without spaces has no words: of more than 200 characters every
    20 count as one.
    """
    words = list[str]()
    for word in text.split():
        step = _PART if len(word) > _LONGEST_WORD else len(word)
        words += [word[start : start + step] for start in range(0, len(word), step)]
        words[-1] += " "
    if len(words) > size and (missing := -len(words) % size):
        words += words[:missing]
    return [
        "".join(words[start : start + size]).rstrip(" ") for start in range(0, len(words), size)
    ]


class _Part(NamedTuple):
    """A span that is not cut any more; it is a whole block, or a piece of a long one.

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
    path: list[tuple[int, str]] = []  # level and text of the headings above
    body: list[Block] = []
    for block, following in itertools.zip_longest(document.blocks, document.blocks[1:]):
        body.append(block)
        is_heading = block.kind == "heading"
        is_last = following is None or following.kind == "heading"
        if is_heading:
            path = [entry for entry in path if entry[0] < block.level]
            # a heading with nothing below it is all that its section says
            is_last = is_last and (following is None or following.level <= block.level)
        if is_last:
            headings = [text for _, text in path]
            title = _title(document.title, headings, int(_TITLE_SHARE * max_tokens), count)
            budget = max(max_tokens - count(title), max_tokens // 2)
            for parts in _packed(document.text, body, budget, count):
                start, end = parts[0].start, parts[-1].end
                path_to_row = f"{title}{parts[0].label}".removeprefix(PATH_SEPARATOR)
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
    path = [
        part if len(part) <= _MAX_HEADING_CHARS else f"{part[:_MAX_HEADING_CHARS]}…"
        for part in path
        if part
    ]
    while len(path) > 2 and count(PATH_SEPARATOR.join(path)) > budget:
        del path[1]
    return PATH_SEPARATOR.join(path)


def _packed(
    text: str, body: Sequence[Block], budget: int, count: CountTokens
) -> Iterator[list[_Part]]:
    """Groups of parts, each within the budget; a part that is over it by itself is a group."""
    group: list[_Part] = []
    used = 0
    runs = itertools.groupby(body, key=lambda block: block.kind if block.kind in _JOINED else block)
    for kind, run in runs:
        is_table = kind == "row"
        whole = [
            _Part(block.start, block.end, count(text[block.start : block.end])) for block in run
        ]
        size = sum(part.tokens for part in whole)
        is_full = used + size > budget >= size
        if group and (is_full or group[-1].label):
            last = group[-1]  # "The options are:" goes with the options
            is_lead = (
                text[last.start : last.end].rstrip().endswith(":") and last.tokens <= budget - size
            )
            yield group[:-1] if is_lead else group
            group, used = ([last], last.tokens) if is_lead else ([], 0)
        cut = _cut_rows if is_table else _cut_parts
        for part in whole if size <= budget else cut(text, whole, budget, count):
            if group and (used + part.tokens > budget or part.label != group[-1].label):
                yield group
                group, used = [], 0
            group.append(part)
            used += part.tokens
    if group:
        yield group


def _cut_parts(
    text: str, parts: Sequence[_Part], budget: int, count: CountTokens
) -> Iterator[_Part]:
    """Parts within the budget: lines of code, cells of a row, sentences, in the end words."""
    for part in parts:
        if part.tokens <= budget:
            yield part
            continue
        piece = text[part.start : part.end]
        if "\n" in piece:
            spans = [match.span() for match in re.finditer(r"[^\n]+", piece)]
        elif len(spans := list(sentence_spans(piece))) == 1:
            spans = [match.span() for match in re.finditer(r"[^;]*;+|[^;]+$", piece)]
        if len(spans) == 1:
            spans = [match.span() for match in re.finditer(r"\S{1,100}", piece)]
        smaller = (_Part(part.start + a, part.start + b, count(piece[a:b])) for a, b in spans)
        for start, end, *_ in _merged(smaller, budget):
            span = _Part(start, end, count(text[start:end]))
            is_done = span.tokens <= budget or len(spans) == 1
            yield from [span] if is_done else _cut_parts(text, [span], budget, count)


def _cut_rows(text: str, rows: Sequence[_Part], budget: int, count: CountTokens) -> Iterator[_Part]:
    """Rows, and cells of rows that are over the budget, each with what names its row."""
    for row in rows:
        if row.tokens <= budget:
            yield row
            continue
        line = text[row.start : row.end]
        label = _short(row_label(line), budget, count)
        rest = budget - count(label)
        begins = [start for start, _ in cell_spans(line)]
        ends = [start - 1 for start in begins[1:]] + [len(line)]  # with the separator
        spans = zip(begins, ends, strict=True)
        cells = (_Part(row.start + a, row.start + b, count(line[a:b])) for a, b in spans)
        for number, cell in enumerate(_merged(cells, rest)):
            name = label if number else ""
            if cell.tokens <= rest:
                yield cell._replace(label=name)
                continue
            column = text[cell.start : cell.end].partition(": ")[0]
            names = dict.fromkeys([label.removeprefix(PATH_SEPARATOR), column])
            within = _short("; ".join(filter(None, names)), budget, count)
            parts = _cut_parts(text, [cell], budget - count(within), count)
            for place, part in enumerate(parts):
                yield part._replace(label=within if place else name)


def _short(label: str, budget: int, count: CountTokens) -> str:
    """A label as the last part of a path, "" where that takes half of the budget."""
    path = f"{PATH_SEPARATOR}{label}"
    return path if label and count(path) <= budget // 2 else ""


def _merged(parts: Iterable[_Part], budget: int) -> list[_Part]:
    merged = list[_Part]()
    for part in parts:
        if merged and merged[-1].tokens + part.tokens <= budget:
            first = merged.pop()
            part = _Part(first.start, part.end, first.tokens + part.tokens)
        merged.append(part)
    return merged
